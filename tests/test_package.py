"""What importing the course costs, and that its parts know only what lies below them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import attention_course

PACKAGE = Path(attention_course.__file__).parent
FLOORS = {  # module -> the modules of the course that it may import when it is loaded
    "lectures": set(),
    "attention": set(),
    "tables": set(),
    "positions": {"attention"},
    "timing": {"attention", "tables"},
    "figures": {"attention", "lectures", "tables"},
}
LOADED_LATE = {"matplotlib", "ipywidgets", "IPython"}


def test_importing_the_course_loads_no_plots_and_no_widgets():
    code = f"import sys, attention_course; print(sorted({LOADED_LATE} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_every_public_name_is_there():
    for name in dir(attention_course):
        assert getattr(attention_course, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        attention_course.nothing  # noqa: B018


@pytest.mark.parametrize("module", FLOORS)
def test_imports_run_one_way(module):
    path = PACKAGE / module
    imported = set()
    for file in path.glob("*.py") if path.is_dir() else [path.with_suffix(".py")]:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.level == (2 if path.is_dir() else 1):
                imported |= {node.module} if node.module else {a.name for a in node.names}
    assert imported <= FLOORS[module]
