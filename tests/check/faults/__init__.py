"""The planted faults, one family a file, and beside them what looks like them and is correct."""

from importlib import import_module
from pkgutil import iter_modules

for _family in iter_modules(__path__, prefix=f"{__name__}."):
    import_module(_family.name)  # where the modules register themselves
