"""A notebook where things are missing: no network, an empty home, a kernel that was stopped."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

import books
import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

NO_NETWORK = """
import socket
_connect = socket.socket.connect
def connect(self, address):
    if self.family != getattr(socket, "AF_UNIX", None) and address[0] not in ("127.0.0.1", "::1"):
        raise OSError(f"this test has no network, so nothing reaches {address[0]}")
    return _connect(self, address)
socket.socket.connect = connect
"""
ASK = "import socket\nsocket.create_connection(('192.0.2.1', 80), timeout=1)"


def client(book, path):
    resources = {"metadata": {"path": path.parent}}
    return NotebookClient(book, timeout=120, kernel_name="python3", resources=resources)


@pytest.mark.long
def test_no_network_and_an_empty_home(path, book, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "sitecustomize.py").write_text(NO_NETWORK, encoding="utf-8")
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    env = {
        **os.environ,
        "HOME": str(tmp_path / "home"),
        "MPLCONFIGDIR": str(tmp_path / "home" / "matplotlib"),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    code = [(i, cell) for i, cell in enumerate(book.cells) if cell.cell_type == "code"]
    stored = {i: books.texts(cell) for i, cell in code}
    lonely = client(book, path)
    with lonely.setup_kernel(env=env):
        for index, cell in code:
            lonely.execute_cell(cell, index)
            if books.is_compared(cell):
                assert books.texts(cell) == stored[index], cell.source
        cell.source = ASK  # and the network really was out of reach
        with pytest.raises(CellExecutionError, match="this test has no network"):
            lonely.execute_cell(cell, index)


@pytest.mark.long
def test_interrupted_and_restarted():
    """Stop notebook 3 in its longest cell and run that again; then all of it in a new kernel."""
    # In a thread of its own, since a browser of other tests may keep this one's event loop busy.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, interrupt_and_restart(books.PATHS[2])).result()


async def interrupt_and_restart(path):
    book = books.read(path)
    code = [(i, cell) for i, cell in enumerate(book.cells) if cell.cell_type == "code"]
    stored = {i: books.texts(cell) for i, cell in code}
    long = next(i for i, cell in code if "train_blend(" in cell.source)
    stopped = client(book, path)

    async def run(cells):
        for index, cell in cells:
            await stopped.async_execute_cell(cell, index)
            if books.is_compared(cell):
                assert books.texts(cell) == stored[index], cell.source

    async with stopped.async_setup_kernel():
        await run([(i, cell) for i, cell in code if i < long])
        running = asyncio.create_task(stopped.async_execute_cell(book.cells[long], long))
        await asyncio.sleep(1)
        await stopped.km.interrupt_kernel()
        with pytest.raises(CellExecutionError, match="KeyboardInterrupt"):
            await running
        await run([(i, cell) for i, cell in code if long <= i <= long + 6])  # reads what it made

        await stopped.km.restart_kernel(now=True)
        stopped.kc.stop_channels()
        await stopped.async_start_new_kernel_client()
        probe = nbformat.v4.new_code_cell("'torch' in globals()")
        await stopped.async_execute_cell(probe, long)
        assert "False" in books.texts(probe)  # nothing of the first kernel is left
        await run(code)
