"""Explorers: controls bound to a picture, one for each notebook.

An explorer is a pure function from a state to a picture and a sentence, and a dictionary of
controls; each stands in a file of its own. `explorer.py` binds the two, `parts.py` and
`panels.py` hold what they share.
"""

from .explorer import Explorer, Impossible
from .heads import explore_heads
from .mask import explore_mask
from .own import explore_attention
from .query import explore_query
from .shapes import explore_shapes
from .split import explore_split
from .word_order import explore_word_order

__all__ = [
    "Explorer",
    "Impossible",
    "explore_attention",
    "explore_heads",
    "explore_mask",
    "explore_query",
    "explore_shapes",
    "explore_split",
    "explore_word_order",
]
