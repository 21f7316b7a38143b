"""How attention is computed, step by step.

The companion module to six notebooks. `attention`, `positions` and `lectures` are the
mechanism; everything else is loaded when it is first asked for, so that importing the
course costs no more than importing torch.
"""

from importlib import import_module

from .attention import (
    CausalHead,
    LoopedMultiHeadAttention,
    MultiHeadAttention,
    attention,
    causal_mask,
)
from .positions import LearnedPositions, rotary, sinusoidal

# public name -> the module that holds it, imported at first use
_LAZY = {
    "compare_on_gpu": "timing",
    "compare_times": "timing",
    "explore_attention": "explorers",
    "explore_heads": "explorers",
    "explore_mask": "explorers",
    "explore_query": "explorers",
    "explore_shapes": "explorers",
    "explore_split": "explorers",
    "explore_word_order": "explorers",
    "find_the_fault": "exercises",
    "progress": "exercises",
}

__all__ = [
    "CausalHead",
    "LearnedPositions",
    "LoopedMultiHeadAttention",
    "MultiHeadAttention",
    "attention",
    "causal_mask",
    "rotary",
    "sinusoidal",
]


def __getattr__(name):
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"{name} needs {missing.name}, which the notebooks bring along and the package alone "
            f"does not. To have it: pip install '.[notebooks]' in the course's folder."
        ) from missing


def __dir__():
    return sorted([*__all__, *_LAZY])
