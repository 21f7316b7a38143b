"""The set-up cell, Binder and the workflows."""

import re
import subprocess
import sys
import sysconfig
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import books
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

SETUP = books.code_cells(books.read(books.PATHS[0]))[0].source
PROJECT = tomllib.loads((books.ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def python(code, folder, *flags):
    """Run code in a fresh Python that does not see the installed course."""
    hide = "import sys; sys.meta_path = [f for f in sys.meta_path if '__editable__' not in str(f)]"
    hide += "; sys.path = [p for p in sys.path if not p.endswith('src')]"
    return subprocess.run(
        [sys.executable, *flags, "-c", f"{hide}\n{code}"],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )


WHERE = "\nimport attention_course; print(attention_course.__file__)"
OWN = str(books.ROOT / "src/attention_course/__init__.py")


@pytest.mark.parametrize("folder", ["notebooks", "notebooks/further", ".", "src/attention_course"])
def test_set_up_finds_the_package_from_any_folder_of_the_course(tmp_path, folder):
    (tmp_path / "src").symlink_to(books.ROOT / "src")
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    result = python(SETUP + WHERE, tmp_path / folder)
    assert result.stderr == ""
    assert Path(result.stdout.strip()).resolve() == Path(OWN)


def half_made(folder):
    """What a broken copy leaves behind: folders of the right names, in which files are missing."""
    for name in ("attention_course", "src/attention_course"):
        (folder / name).mkdir(parents=True)
        (folder / name / "attention.py").touch()


@pytest.mark.parametrize("prepare", [Path.exists, half_made], ids=["empty", "half made"])
def test_set_up_says_where_to_get_the_package(tmp_path, prepare):
    prepare(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    result = python(SETUP, tmp_path)
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: The package attention_course is not here.")
    assert "the course's branch colab" in last
    assert sorted(tmp_path.rglob("*")) == before  # nothing is cloned, nothing is installed


def test_set_up_passes_a_half_made_folder(tmp_path):
    inner = tmp_path / "notebooks"
    inner.mkdir()
    half_made(inner)
    (tmp_path / "src").symlink_to(books.ROOT / "src")
    result = python(SETUP + WHERE, inner)
    assert Path(result.stdout.strip()).resolve() == Path(OWN), result.stderr


def test_four_set_ups_at_once(tmp_path):
    (tmp_path / "src").symlink_to(books.ROOT / "src")
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: python(SETUP + WHERE, tmp_path), range(4)))
    assert [result.stderr for result in results] == [""] * 4
    assert {Path(result.stdout.strip()).resolve() for result in results} == {Path(OWN)}


# --- Binder and the workflows -------------------------------------------------------------------


def pins():
    text = (books.ROOT / "requirements.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w-]+)==(\S+)$", text, re.MULTILINE))


def test_pins_satisfy_the_packages_bounds():
    project, pinned = PROJECT["project"], pins()
    for line in project["dependencies"] + project["optional-dependencies"]["notebooks"]:
        bound = Requirement(line)
        assert bound.name not in pinned or pinned[bound.name] in bound.specifier


def test_binder_has_the_tested_torch_and_a_python_of_the_package():
    file = books.ROOT / "binder/environment.yml"
    wanted = yaml.safe_load(file.read_text(encoding="utf-8"))["dependencies"]
    versions = dict(line.split("=") for line in wanted if "=" in line)
    assert versions["python"] in SpecifierSet(PROJECT["project"]["requires-python"])
    if not pins():
        pytest.skip("the pins are taken out, as the workflow `newest` does")
    assert versions["pytorch-cpu"] == pins()["torch"]


@pytest.mark.parametrize("broken", ["pip", "jupyter", ""])
def test_only_a_step_that_matters_ends_binders_build(tmp_path, broken):
    for name in ("pip", "jupyter"):
        (tmp_path / name).write_text(
            f"#!/bin/sh\necho {name} $*\nexit {int(name == broken)}\n", encoding="utf-8"
        )
        (tmp_path / name).chmod(0o755)
    result = subprocess.run(
        [books.ROOT / "binder/postBuild"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == int(broken == "pip")
    assert "pip install --no-cache-dir --requirement requirements.txt" in result.stdout


def test_binder_files_are_read_by_repo2docker():
    result = subprocess.run(
        [sys.executable, "-m", "repo2docker", "--no-build", "--debug", str(books.ROOT)],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    said = result.stdout + result.stderr
    assert "binder/environment.yml" in said
    assert "RUN ./binder/postBuild" in said
    assert (books.ROOT / "binder/postBuild").stat().st_mode & 0o111


def test_actionlint_finds_nothing():
    workflows = sorted((books.ROOT / ".github/workflows").glob("*.yml"))
    assert len(workflows) == 3
    actionlint = Path(sysconfig.get_path("scripts")) / "actionlint"
    result = subprocess.run([actionlint, *workflows], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize("name", ["test.yml", "newest.yml"])
def test_workflows_may_read_and_nothing_else(name):
    text = (books.ROOT / ".github/workflows" / name).read_text(encoding="utf-8")
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
