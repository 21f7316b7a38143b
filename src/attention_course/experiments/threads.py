"""How many processor threads a small training uses."""

from contextlib import contextmanager

import torch


@contextmanager
def one_thread():
    """Let torch use one thread inside; what was set comes back.

    The products of a small model gain next to nothing from more threads. Where other work, or a
    limit on a hosted machine, leaves fewer processors than torch counts, threads that wait for
    each other make a training ten times as slow.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
