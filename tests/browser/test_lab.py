"""`make lab`: the printed address opens the first notebook."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import books
import pytest

pytest.importorskip("jupyterlab")
ADDRESS = re.compile(r"(http://127\.0\.0\.1:\d+)(/lab/tree/\S+)\?token=(\w+)")


@pytest.fixture
def lab(tmp_path):
    """Start `make lab` as a learner without a desktop does; return what it printed at last."""
    here = Path(sys.prefix) == books.ROOT / ".venv"
    settings = {name: str(tmp_path) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR")}
    screen = {name: "" for name in ("DISPLAY", "WAYLAND_DISPLAY")}
    process = subprocess.Popen(
        ["make", "lab", *([] if here else [f"VENV={sys.prefix}"]), "DESKTOP="],
        cwd=books.ROOT,
        env={**os.environ, **settings, **screen},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # make and its server, to be stopped together
    )
    said = []
    for line in process.stdout:
        said.append(line)
        if "?token=" in line and (found := ADDRESS.search(line)):
            yield found
            break
    os.killpg(process.pid, signal.SIGTERM)
    process.stdout.read()
    process.wait(30)
    assert "?token=" in said[-1], "".join(said)


def ask(address):
    """Return (status, body), waiting for a server that prints its address before it listens."""
    for _ in range(60):
        try:
            with urllib.request.urlopen(address) as answer:
                return answer.status, answer.read()
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionError):
                raise
            time.sleep(1)
    raise RuntimeError(f"nothing answers at {address}")


def test_the_printed_address_opens_the_first_notebook(lab, browser):
    host, path, token = lab.groups()
    assert path == "/lab/tree/notebooks/01_qkv_by_hand.ipynb"
    contents = f"{host}/api/contents/notebooks/01_qkv_by_hand.ipynb?token={token}"
    status, body = ask(contents)
    assert status == 200
    assert json.loads(body)["type"] == "notebook"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(contents.replace(token, "wrong"))

    page = browser.new_page()
    page.goto(lab.group())
    page.wait_for_selector("h1:has-text('1. Query, key, value by hand')", timeout=120_000)
    page.wait_for_timeout(3000)  # a news pop-up would have come by now
    assert page.locator(".Toastify__toast").count() == 0
    page.close()
