"""How many processor threads a small training uses."""

from contextlib import contextmanager

import torch


@contextmanager
def one_thread():
    """Let torch use one thread inside; what was set comes back.

    Small products gain next to nothing from more. Where other work, or a hosted machine's limit,
    leaves fewer processors than torch counts, threads that wait make a training ten times as slow.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
