"""A bar where somebody looks on; where the output is a file, a line when it is done."""

import sys

from tqdm.auto import tqdm


def bar(steps, label, **options):
    """Yield the steps, beside tqdm's bar in a notebook or a terminal.

    Elsewhere a bar would fill the file with its states: there the line "label: done" follows the
    last step, or nothing with leave=False. options: those of tqdm.
    """
    terminal = sys.stderr is not None and sys.stderr.isatty()
    if terminal or "ipykernel" in sys.modules:
        yield from tqdm(steps, desc=label, **options)
        return
    yield from steps
    if options.get("leave", True):
        print(f"{label}: done", file=sys.stderr)
