"""The set-up cell, publishing, the learners' edition, Binder and the workflows."""

import filecmp
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import books
import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

SETUP = books.code_cells(books.read(books.PATHS[0]))[0].source
PROJECT = tomllib.loads((books.ROOT / "pyproject.toml").read_text())
SHIPPED = ["README.md", "pyproject.toml", "notebooks", "tools"]


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
IN_COLAB = "import types; sys.modules['google.colab'] = types.ModuleType('google.colab')\n"


def test_set_up_finds_the_package_from_the_notebooks_folder():
    result = python(SETUP + WHERE, books.ROOT / "notebooks")
    assert result.stdout.strip() == str(books.ROOT / "src/attention_course/__init__.py")
    assert result.stderr == ""


def test_set_up_says_one_clear_sentence_from_an_unrelated_folder(tmp_path):
    result = python(SETUP, tmp_path)
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: The package attention_course is not here.")
    assert "git clone" not in result.stdout


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Return the address of a local repository that stands in for the published one."""
    origin = tmp_path_factory.mktemp("origin") / "course"
    shutil.copytree(books.ROOT / "src", origin / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run(["git", *identity, *words], cwd=origin, check=True)
    return origin.as_uri()


def set_up_at(address):
    """Return the set-up cell of a course that is published at this address."""
    source, changed = re.subn(
        r'^_REPOSITORY = ".*"$', f'_REPOSITORY = "{address}"', SETUP, flags=re.M
    )
    source, both = re.subn(r'^_BRANCH = ".*"$', '_BRANCH = "main"', source, flags=re.M)
    assert (changed, both) == (1, 1)
    return source


def test_set_up_clones_once_in_colab(tmp_path, published):
    source = set_up_at(published)
    for _ in range(2):
        result = python(IN_COLAB + source + WHERE, tmp_path)
        place = tmp_path / "attention-course/src/attention_course/__init__.py"
        assert result.stdout.strip() == str(place), result.stderr
        assert result.stderr == ""


def test_set_up_clones_nowhere_but_in_colab(tmp_path, published):
    result = python(set_up_at(published), tmp_path)
    assert "is not here" in result.stderr
    assert not list(tmp_path.iterdir())


def test_set_up_says_so_when_the_clone_fails(tmp_path):
    source = set_up_at(f"{tmp_path.as_uri()}/nothing")
    result = python(IN_COLAB + source, tmp_path)
    assert result.stderr.strip().splitlines()[-1].startswith("ModuleNotFoundError: The package")


# --- publishing ---------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path):
    for name in SHIPPED:
        source = books.ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    return tmp_path


def publish(copy, repository, branch="main"):
    command = [sys.executable, "tools/publish.py", repository, branch]
    return subprocess.run(command, cwd=copy, capture_output=True, text=True)


def addresses(root):
    """Return every (repository, branch) that a badge or a set-up cell under root names."""
    texts = [(root / "README.md").read_text()]
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        book = books.read(path)
        texts += [book.cells[0].source, book.cells[1].source]
    found = set()
    for text in texts:
        found |= set(re.findall(r"(?:/github|/gh)/([\w.-]+/[\w.-]+)(?:/blob)?/(\w+)[/?]", text))
        found |= set(re.findall(r"https://github\.com/([\w.-]+/[\w.-]+)/blob/(\w+)/", text))
        pair = r'_REPOSITORY = "https://github\.com/([\w.-]+/[\w.-]+)"\n_BRANCH = "(\w+)"'
        found |= set(re.findall(pair, text))
    return found


def test_the_address_stands_in_one_place():
    course = PROJECT["tool"]["attention-course"]
    expected = {(course["repository"], course["branch"])} if course["repository"] else set()
    assert addresses(books.ROOT) == expected


def test_publish_writes_the_address_everywhere_and_takes_it_out_again(copy):
    publish(copy, "")  # from whatever state this tree is in
    before = copy / "before"
    before.mkdir()
    for name in SHIPPED[:3]:
        source = copy / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, before / name)

    assert publish(copy, "ada/attention", "course").returncode == 0
    assert addresses(copy) == {("ada/attention", "course")}
    for path in sorted((copy / "notebooks").glob("*.ipynb")):
        nbformat.validate(books.read(path))
        header, setup = (cell.source for cell in books.read(path).cells[:2])
        assert '_REPOSITORY = "https://github.com/ada/attention"\n_BRANCH = "course"\n' in setup
        assert f"/github/ada/attention/blob/course/notebooks/{path.name})" in header
        assert f"/gh/ada/attention/course?urlpath=lab/tree/notebooks/{path.name})" in header
    assert "Open in Binder" in (copy / "README.md").read_text()

    long = "a-university-of-this-world/the-attention-course-for-the-autumn"
    assert publish(copy, long).returncode == 0
    assert addresses(copy) == {(long, "main")}
    ruff = [sys.executable, "-m", "ruff", "check", "--no-cache", "--select=E", "notebooks"]
    assert subprocess.run(ruff, cwd=copy).returncode == 0  # as `make test` asks it first

    assert publish(copy, "grace/other").returncode == 0
    assert addresses(copy) == {("grace/other", "main")}

    assert publish(copy, "").returncode == 0
    assert addresses(copy) == set()
    for name in ("README.md", "pyproject.toml"):
        assert filecmp.cmp(copy / name, before / name, shallow=False)
    for path in (before / "notebooks").glob("*.ipynb"):
        assert filecmp.cmp(path, copy / "notebooks" / path.name, shallow=False)


@pytest.mark.parametrize(
    ("repository", "branch", "sentence"),
    [("attention", "main", "REPOSITORY is owner/name"), ("a/b", "my branch", "BRANCH is the name")],
)
def test_publish_refuses_what_is_no_address(copy, repository, branch, sentence):
    result = publish(copy, repository, branch)
    assert result.returncode == 1
    assert sentence in result.stderr
    assert addresses(copy) == addresses(books.ROOT)


# --- Binder and the workflows -------------------------------------------------------------------


def bounds(lines):
    found = {}
    for line in lines:
        requirement = Requirement(line.replace("pytorch-cpu", "torch"))
        found[requirement.name] = requirement.specifier
    return found


def test_binder_has_the_packages_bounds():
    environment = yaml.safe_load((books.ROOT / "binder/environment.yml").read_text())
    python_pin, *lines = [d for d in environment["dependencies"] if isinstance(d, str)]
    conda = bounds(lines)
    for name, bound in bounds(PROJECT["project"]["dependencies"]).items():
        assert conda[name] == bound, name
    version = python_pin.removeprefix("python=")
    assert version in SpecifierSet(PROJECT["project"]["requires-python"])


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


def test_pins_satisfy_the_packages_bounds():
    text = (books.ROOT / "requirements.txt").read_text()
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", text, re.MULTILINE))
    for name, bound in bounds(PROJECT["project"]["dependencies"]).items():
        assert name not in pins or pins[name] in bound


def test_actionlint_finds_nothing():
    workflows = sorted((books.ROOT / ".github/workflows").glob("*.yml"))
    assert len(workflows) == 2
    actionlint = Path(sysconfig.get_path("scripts")) / "actionlint"
    result = subprocess.run([actionlint, *workflows], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize("name", ["test.yml", "newest.yml"])
def test_workflows_may_read_and_nothing_else(name):
    text = (books.ROOT / ".github/workflows" / name).read_text()
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
