"""Wheel and source archive, installed where torch is and nothing else of the course's needs."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import distribution

import books
import pytest
from packaging.requirements import Requirement
from test_readme import block

ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
DATA = ["attention_course/data/experiments.json", "attention_course/data/trained_heads.npz"]


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """The source archive, built in a copy of what is packed, and the wheel, built from it."""
    folder = tmp_path_factory.mktemp("build")
    shutil.copytree(books.ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(books.ROOT / name, folder)
    source = build("sdist", folder)
    shutil.unpack_archive(source, folder / "unpacked")
    return source, build("wheel", folder / "unpacked" / source.name.removesuffix(".tar.gz"))


def build(kind, folder):
    code = f"import setuptools.build_meta as build; print(build.build_{kind}('dist'))"
    result = run([sys.executable, "-c", code], folder)
    assert result.returncode == 0, result.stderr
    return folder / "dist" / result.stdout.splitlines()[-1]


def closure(name, found=None):
    """Return the distributions that a package needs, itself included."""
    found = {} if found is None else found
    if name not in found:
        found[name] = distribution(name)
        for line in found[name].requires or ():
            wanted = Requirement(line)
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                closure(wanted.name, found)
    return found


@pytest.fixture(scope="module")
def installed(archives, tmp_path_factory):
    """The folder of an environment with torch, numpy and the wheel; torch itself is borrowed."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/*/site-packages"))
    needed = closure("torch") | closure("numpy")
    for dist in needed.values():
        for top in {file.parts[0] for file in dist.files} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(dist.locate_file(top))
    run_pip(folder, "install", "--quiet", "--no-index", str(archives[1]))
    return folder


def run_pip(folder, *words):
    command = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), *words]
    result = subprocess.run(command, env=ALONE, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def run(command, folder):
    env = {**ALONE, "PYTHONUTF8": "1"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, encoding="utf-8")


def test_the_wheel_holds_the_three_packages_and_their_data(archives):
    names = set(zipfile.ZipFile(archives[1]).namelist())
    src = books.ROOT / "src"
    assert {*DATA, *(path.relative_to(src).as_posix() for path in src.rglob("*.py"))} <= names


def test_nothing_is_missing_with_torch_alone(installed):
    assert run_pip(installed, "check") == "No broken requirements found.\n"
    assert "matplotlib" not in run_pip(installed, "list")


def test_the_command_and_a_trace_work_with_torch_alone(installed, tmp_path):
    code = f"import torch\nfrom torch import nn\n\n{block('class MyAttention')}"
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    command = [installed / "bin" / "attention-check", "mine.py:MyAttention"]
    result = run(command, tmp_path)
    assert result.returncode == 1, result.stderr
    assert result.stdout.strip() == block("MyAttention: ").strip()

    code = (
        "import torch, sys, mine, attention_course, attention_check, shape_tracing\n"
        "print(shape_tracing.trace_shapes(mine.MyAttention(24, 4), torch.randn(3, 5, 24)))\n"
        "print(sorted({'matplotlib', 'tabulate', 'IPython'} & set(sys.modules)))"
    )
    command = [installed / "bin" / "python", "-c", code]
    result = run(command, tmp_path)
    assert result.stdout.startswith("MyAttention: 18 operations\n"), result.stderr
    assert result.stdout.endswith("\n[]\n")


def test_what_needs_more_says_what(installed, tmp_path):
    code = "import attention_course; attention_course.explore_mask"
    said = run([installed / "bin" / "python", "-c", code], tmp_path).stderr.splitlines()[-1]
    assert said.startswith("ModuleNotFoundError: explore_mask needs ")
    assert "pip install '.[notebooks]'" in said
