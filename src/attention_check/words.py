"""How things are put in words: lists, and errors."""

import re
import traceback


def listed(items):
    """The items in words: 1, 2 and 3."""
    items = [str(item) for item in items]
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def refuses(error):
    """Whether code refuses by itself, with a raise or an assert, in place of failing."""
    frames = traceback.extract_tb(getattr(error, "__traceback__", None))
    line = (frames[-1].line or "raise") if frames else ""
    return isinstance(error, AssertionError | ValueError) and line.startswith(("raise", "assert"))


def told(error):
    """An exception in one line; words as they are."""
    text = " ".join(str(error).split())
    if re.search("CUDA|NVIDIA|cuda", text) and re.search("not compiled|[Nn]o NVIDIA|driver", text):
        return f"it asks for a CUDA device, which is not here ({text[:120]}). Use x.device."
    return text if isinstance(error, str) else f"{type(error).__name__}: {text[:300]}"
