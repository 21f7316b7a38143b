"""What importing the course costs, and that its parts know only what lies below them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import attention_course

PACKAGE = Path(attention_course.__file__).parent
SRC = PACKAGE.parent
PACKAGES = {  # package -> the packages of `src` that it may import when it is loaded
    "shape_tracing": set(),
    "attention_check": {"shape_tracing"},
    "attention_course": set(),
}
FLOORS = {  # module -> the modules of the course that it may import when it is loaded
    "lectures": set(),
    "attention": set(),
    "tables": set(),
    "bars": set(),
    "positions": {"attention"},
    "fair": {"tables"},
    "timing": {"attention", "bars", "fair", "tables"},
    "figures": {"attention", "lectures", "tables"},
}
LOADED_LATE = {"matplotlib", "ipywidgets", "IPython", "pandas"}


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_loads_no_plots_no_widgets_and_no_other_above_it(package):
    late = LOADED_LATE | set(PACKAGES) - {package, *PACKAGES[package]}
    code = f"import sys, {package}; print(sorted({late} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_between_packages_run_one_way(package):
    """At a file's top only those below; the course calls both where an exercise runs them."""
    for file in (SRC / package).rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        assert _packages(tree.body) <= {package, *PACKAGES[package]}, file
        below = set(PACKAGES) if package == "attention_course" else {package, *PACKAGES[package]}
        assert _packages(ast.walk(tree)) <= below, file


def _packages(nodes):
    """The packages of `src` that these import."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module.split(".")[0])
        elif isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
    return names & set(PACKAGES)


@pytest.mark.parametrize("folder", ["src", "tests", "tools"])
def test_files_are_opened_with_an_encoding(folder):
    """Else a file reads differently on Windows, or under a locale of plain C."""
    for file in (SRC.parent / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _opens_text(node):
                assert "encoding" in {k.arg for k in node.keywords}, f"{file}:{node.lineno}"


def _opens_text(call):
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    modes = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return name in {"open", "read_text", "write_text"} and "rb" not in modes and "wb" not in modes


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
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.level == (2 if path.is_dir() else 1):
                imported |= {node.module} if node.module else {a.name for a in node.names}
    assert imported <= FLOORS[module]
