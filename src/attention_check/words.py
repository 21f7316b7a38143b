"""How things are put in words: lists, errors, and what was given."""

import re


def listed(items):
    """The items in words: 1, 2 and 3."""
    items = [str(item) for item in items]
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def told(error):
    text = " ".join(str(error).split())
    if wants_cuda(error):
        return f"it asks for a CUDA device, which is not here ({text[:120]}). Use x.device."
    return f"{type(error).__name__}: {text[:300]}"


def wants_cuda(error):
    """Whether an exception says that a GPU is missing."""
    text = str(error)
    return bool(re.search(r"CUDA|NVIDIA|cuda", text)) and bool(
        re.search(
            r"not compiled|No NVIDIA|no NVIDIA|not available|is_available|driver|No CUDA", text
        )
    )


def described(thing):
    return f"a {type(thing).__name__}"
