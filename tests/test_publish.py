"""The workflow `publish`: its own shell steps, run against bare repositories on this machine."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import books
import pytest
import yaml

WORKFLOW = yaml.safe_load(
    (books.ROOT / ".github/workflows/publish.yml").read_text(encoding="utf-8")
)
JOB = WORKFLOW["jobs"]["colab"]
FILES = {path.relative_to(books.ROOT / "notebooks").as_posix() for path in books.ALL}


def git(folder, *words):
    """Run git as somebody who has no settings of their own; return what it says."""
    settings = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    return subprocess.run(
        ["git", *who, *words],
        cwd=folder,
        env={**os.environ, **settings},
        check=True,
        capture_output=True,
        encoding="utf-8",
    ).stdout.strip()


class Hosted:
    """A bare repository, and a runner that checks its main out and runs the job's steps."""

    def __init__(self, folder, name, source):
        self.folder, self.name, self.bare = folder, name, folder / "bare.git"
        folder.mkdir()
        git(folder, "clone", "--quiet", "--bare", str(source), str(self.bare))

    def push(self, file):
        """Commit one more file to main."""
        clone = self.folder / "clone"
        shutil.rmtree(clone, ignore_errors=True)
        git(self.folder, "clone", "--quiet", "--branch=main", str(self.bare), str(clone))
        (clone / file).touch()
        git(clone, "add", file)
        git(clone, "commit", "--quiet", "--message", f"Adds {file}")
        git(clone, "push", "--quiet", "origin", "main")

    def publish(self):
        runner = self.folder / "runner"
        shutil.rmtree(runner, ignore_errors=True)
        git(self.folder, "clone", "--quiet", "--branch=main", str(self.bare), str(runner))
        env = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(self.folder),
            "GITHUB_REPOSITORY": self.name,
            "GITHUB_SHA": self.sha("main"),
        }
        for step in JOB["steps"]:
            if "run" in step:
                command = ["bash", "-e", "-c", step["run"]]
                result = subprocess.run(command, cwd=runner, env=env, capture_output=True)
                assert result.returncode == 0, result.stderr.decode()

    def sha(self, branch):
        return git(self.bare, "rev-parse", f"refs/heads/{branch}")

    def files(self):
        return set(git(self.bare, "ls-tree", "-r", "--name-only", "colab").splitlines())

    def read(self, file):
        return git(self.bare, "show", f"colab:{file}")

    def links(self):
        """Return every repository that a file of the branch colab links to."""
        place = r"(?:/github|/gh|https://github\.com)/([\w.-]+/[\w.-]+?)(?:/|\))"
        return {name for file in self.files() for name in re.findall(place, self.read(file))}


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """This course as a repository of one commit, whatever state its own is in."""
    folder = tmp_path_factory.mktemp("course") / "course"
    for name in ("notebooks", "src", "tools"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", ".ipynb_checkpoints")
        shutil.copytree(books.ROOT / name, folder / name, ignore=ignored)
    shutil.copy(books.ROOT / ".gitignore", folder)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "One")
    return folder


@pytest.fixture(scope="module")
def origin(tmp_path_factory, course):
    """The course's repository after the first push."""
    hosted = Hosted(tmp_path_factory.mktemp("hosted") / "origin", "ada/attention", course)
    hosted.publish()
    return hosted


def test_first_push_second_push_and_a_fork(tmp_path, course, origin):
    first = origin.sha("colab")
    assert origin.sha("main") == git(course, "rev-parse", "main")
    assert origin.files() == {"README.md", *FILES}
    assert origin.links() == {"ada/attention"}

    origin.push("more.txt")
    before = origin.sha("main")
    origin.publish()
    assert origin.sha("main") == before
    assert origin.sha("colab") != first
    assert git(origin.bare, "rev-list", "--count", "colab") == "1"
    assert before in git(origin.bare, "log", "--format=%s", "colab")
    assert git(origin.bare, "branch", "--format=%(refname:short)").split() == ["colab", "main"]

    fork = Hosted(tmp_path / "fork", "a-university.of_this-world/autumn", origin.bare)
    fork.publish()
    assert fork.links() == {fork.name}
    assert fork.sha("main") == before
    assert origin.links() == {"ada/attention"}


def test_the_links_lead_to_each_notebook(origin):
    readme = origin.read("README.md")
    for file in FILES:
        assert (
            f"(https://colab.research.google.com/github/ada/attention/blob/colab/{file})" in readme
        )
        binder = "https://mybinder.org/v2/gh/ada/attention/HEAD?urlpath=lab/tree/notebooks/"
        assert f"({binder}{file})" in readme
        assert f"]({file})" in readme
    assert "(https://github.com/ada/attention/archive/refs/heads/colab.zip)" in readme


def test_no_link_within_a_notebook_is_dead(origin):
    here = r"\]\((?!\w+:|#)([\w./-]+\.\w+)\)"
    for file in FILES:
        text = origin.read(file)
        for target in re.findall(here, text):
            assert os.path.normpath(Path(file).parent / target) in FILES, (file, target)
        for target in re.findall(r"https://github\.com/ada/attention/blob/HEAD/([^)]+)\)", text):
            assert (books.ROOT / target).exists()
        assert "(https://github.com/ada/attention/tree/colab)" in text


def test_it_runs_for_the_default_branch_alone_and_may_do_no_more_than_it_must():
    assert set(WORKFLOW[True]) == {"push", "workflow_dispatch"}  # YAML reads `on` as true
    assert JOB["if"] == "github.ref_name == github.event.repository.default_branch"
    assert WORKFLOW["permissions"] == {}
    assert JOB["permissions"] == {"contents": "write"}
    assert len(WORKFLOW["jobs"]) == 1


def test_no_file_of_the_course_holds_an_address_of_its_own():
    """What follows from where the course is published stands on the branch colab alone."""
    files = [books.ROOT / "README.md", books.ROOT / "pyproject.toml", *books.ALL]
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"colab\.research\.google\.com/github|mybinder\.org/v2", text), file
