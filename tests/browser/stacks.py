"""Two real Jupyter servers and how to drive their pages: JupyterLab 4 and Notebook 6.

Which one runs follows from the environment: Notebook 6 where `notebook` below 7 is installed
(Colab's set), JupyterLab everywhere else.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.metadata import version
from pathlib import Path

import nbformat

import attention_course

TOKEN = "course"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SECONDS = 90  # the longest wait for a server, a kernel or a picture, on a busy machine

# explorer -> the code of the cell that shows it
CALLS = {
    **{
        name: f"from attention_course import explore_{name}\n\nexplorer = explore_{name}()"
        for name in ("query", "mask", "heads", "split", "shapes", "word_order")
    },
    "attention": """import torch
from attention_course import explore_attention

torch.manual_seed(0)
block = torch.nn.TransformerEncoderLayer(24, 12, 30, batch_first=True)
explorer = explore_attention(torch.nn.TransformerEncoder(block, 2, enable_nested_tensor=False))""",
}

# How the page keeps, for each new picture, the milliseconds since the last key.
WATCH = """
window.times = [];
window.last = document.querySelector(".explorer img").src;  // else the slider's own change counts
addEventListener("keydown", () => { window.pressed = performance.now(); }, true);
new MutationObserver(() => {
    const image = document.querySelector(".explorer img");
    if (!image || image.src === window.last) return;
    window.last = image.src;
    image.decode().then(() => requestAnimationFrame(
        () => window.times.push(performance.now() - window.pressed)));
}).observe(document.querySelector(".explorer"), {subtree: true, childList: true});
"""


class Server:
    """A Jupyter server in `folder`, on a free port of 127.0.0.1; stop it with `close`."""

    def __init__(self, folder, dark=False):
        self.folder = Path(folder)
        self.port = _free_port()
        self.classic = int(version("notebook").split(".")[0]) < 7
        module, owner = ("notebook", "NotebookApp") if self.classic else ("jupyterlab", "ServerApp")
        root = "notebook_dir" if self.classic else "root_dir"
        command = [sys.executable, "-m", module, "--no-browser", f"--port={self.port}"]
        command += [f"--{owner}.{root}={self.folder}", f"--{owner}.ip=127.0.0.1"]
        command += [f"--{owner}.token={TOKEN}", f"--{owner}.port_retries=0"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.append("--allow-root")
        self._log = (self.folder / "server.log").open("w", encoding="utf-8")
        self._process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._environment(dark),
            stdout=self._log,
            stderr=self._log,
        )
        self._wait()

    def _environment(self, dark):
        own = self.folder / ".jupyter"  # nothing of the user's own settings
        settings = {
            "apputils-extension/themes": {"theme": f"JupyterLab {'Dark' if dark else 'Light'}"},
            "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
            "notebook-extension/tracker": {"autoStartDefaultKernel": True},  # without a question
        }
        for name, values in settings.items():
            path = own / "lab" / "user-settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values), encoding="utf-8")
        return {
            **os.environ,
            "PYTHONPATH": str(Path(attention_course.__file__).parents[1]),  # the tests' own
            "JUPYTER_CONFIG_DIR": str(own),
            "JUPYTER_RUNTIME_DIR": str(own / "runtime"),
            "IPYTHONDIR": str(own / "ipython"),
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        }

    def _wait(self):
        """Wait until the server answers as itself; a login page would answer too."""
        url = f"http://127.0.0.1:{self.port}/api/contents?token={TOKEN}"
        for _ in range(SECONDS * 4):
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    json.load(answer)
                return
            except (urllib.error.URLError, OSError, ValueError):
                if self._process.poll() is not None:
                    break
                time.sleep(0.25)
        raise RuntimeError(
            f"The server did not start: {(self.folder / 'server.log').read_text(encoding='utf-8')}"
        )

    def close(self):
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()

    def write(self, name, *sources):
        """Store a notebook with these code cells."""
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
        book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(book, self.folder / name)

    def run(self, page, name):
        """Open a notebook in the page and run all its cells, in a fresh kernel."""
        self._stop_kernels()
        (self._run_classic if self.classic else self._run_lab)(page, name)

    def _stop_kernels(self):
        """End the kernels of earlier visits: a page that finds one again opens differently."""
        for session in self._ask("sessions"):
            self._ask(f"sessions/{session['id']}", method="DELETE")

    def _ask(self, what, method="GET"):
        url = f"http://127.0.0.1:{self.port}/api/{what}"
        headers = {"Authorization": f"token {TOKEN}"}
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers, method=method), timeout=30
        ) as answer:
            return json.loads(answer.read() or "null")

    def _run_lab(self, page, name):
        page.goto(f"http://127.0.0.1:{self.port}/lab/tree/{name}?reset&token={TOKEN}")
        page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=SECONDS * 1000)
        page.wait_for_selector("#jp-main-statusbar >> text=| Idle", timeout=SECONDS * 1000)
        page.click(".lm-MenuBar-itemLabel:text-is('Run')")
        page.click(".lm-Menu-itemLabel:text-is('Run All Cells')")
        # A finished cell takes the focus; keys that come before would be lost. The last number
        # is the one to wait for: a folded cell has none.
        page.wait_for_function(
            "/\\d/.test([...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]"
            ".at(-1).textContent)"
        )
        page.wait_for_timeout(500)

    def _run_classic(self, page, name):
        # Its widget manager first asks the kernel for widgets of an earlier visit, and says in
        # the console that there is no such channel; a cell that runs before loses its output.
        with page.expect_console_message(lambda said: "fetch ipywidgets" in said.text):
            page.goto(f"http://127.0.0.1:{self.port}/notebooks/{name}?token={TOKEN}")
        page.wait_for_function("Jupyter.notebook.kernel.widget_manager")
        page.wait_for_timeout(1000)
        page.evaluate("Jupyter.notebook.execute_all_cells()")

    @property
    def handle(self):
        """The part of a slider that takes the keys."""
        return ".ui-slider-handle" if self.classic else ".noUi-handle"

    @property
    def printed(self):
        """What a cell printed."""
        stdout = '[data-mime-type="application/vnd.jupyter.stdout"]'
        return ".output_stdout" if self.classic else stdout

    @property
    def complaints(self):
        """What a cell shows when it raised or wrote to stderr."""
        return ".output_error, .output_stderr" if self.classic else (
            '[data-mime-type="application/vnd.jupyter.error"], '
            '[data-mime-type="application/vnd.jupyter.stderr"]'
        )  # fmt: skip


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
