# @title Set-up: run this first. It finds the course's package.
import sys
from importlib.util import find_spec
from pathlib import Path

_folders = [folder / "src" for folder in (Path.cwd(), *Path.cwd().parents)]
sys.path[:0] = [str(f) for f in _folders if (f / "attention_course/__init__.py").is_file()][:1]
if not getattr(find_spec("attention_course"), "origin", None):  # a folder alone has none
    raise ModuleNotFoundError(
        "The package attention_course is not here. Take the copy of this notebook from the "
        "course's branch colab, which brings it along, or open this one in the course's folder."
    )
