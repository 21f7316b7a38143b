"""Watch every tensor through any module, in the words of its own code.

`Capture` sees each torch operation as it happens; `trace_shapes` reads a table of shapes
from it, which draws itself. Nothing of torch is patched and the module is left as it was.
"""

from .capture import Call, Capture, Visit, copy
from .trace import Row, Shape, ShapeTrace, trace_shapes

__all__ = ["Call", "Capture", "Row", "Shape", "ShapeTrace", "Visit", "copy", "trace_shapes"]
