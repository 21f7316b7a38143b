"""A notebook once in order, then all its cells again in a random order, in the same kernel."""

import random

import books
from nbclient import NotebookClient


def test_any_order_gives_the_same_outputs(path, book):
    seed = random.SystemRandom().randrange(10_000)
    print(f"order seed {seed}")
    cells = [(i, cell) for i, cell in enumerate(book.cells) if cell.cell_type == "code"]
    shuffled = random.Random(seed).sample(cells, len(cells))
    pictured = {i for i, cell in cells if books.has_picture(cell)}

    client = NotebookClient(
        book, timeout=120, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    )
    with client.setup_kernel():
        in_order = run(client, cells)
        again = run(client, shuffled)

    for i, cell in cells:
        if books.is_compared(cell):
            assert again[i] == in_order[i], f"seed {seed}, cell {cell.id}:\n{cell.source}"
    assert {i for i, (_, drawn) in in_order.items() if drawn} == pictured
    assert {i for i, (_, drawn) in again.items() if drawn} == pictured


def run(client, cells):
    """Execute cells in the order given; return {index: (texts, whether it drew a picture)}."""
    seen = {}
    for index, cell in cells:
        client.execute_cell(cell, index)
        seen[index] = (books.texts(cell), books.has_picture(cell))
    return seen
