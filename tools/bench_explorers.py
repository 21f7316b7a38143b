"""Measure explorers in a real browser: from a key on a control to the new picture on the page.

Part of `make bench-notebooks`. The clock is the page's own: it starts at the key's event and
stops when the new picture is decoded and the next frame begins.
"""

import statistics
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))
import stacks

PRESSES = 12
TWELVE = "a b c d e f g h i j k l"
# explorer -> (the slider that is moved, the state that takes longest to draw)
MEASURED = {
    "query": ("key_2", {"d_model": 6, "head_dim": 6, "words": TWELVE}),
    "mask": ("dropout", {"words": TWELVE, "d_model": 24, "num_heads": 12, "dropout": 0.4}),
    "heads": ("follow", {"words": TWELVE, "d_model": 24, "num_heads": 12}),
    "split": ("tokens", {"d_model": 24, "num_heads": 12, "tokens": 11}),
    "shapes": ("step", {"batch": 3, "tokens": 8, "d_model": 24, "num_heads": 12}),
    "word_order": ("layers", {"sentence": "own words", "words": TWELVE}),
    "attention": ("head", {"words": TWELVE, "layer": 1}),
}


def latencies():
    """Yield for each explorer and state the milliseconds from key to picture."""
    if stacks.CHROMIUM is None:
        print("no Chromium found: the explorers were not measured")
        return
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = stacks.Server(folder)
        browser = playwright.chromium.launch(
            executable_path=stacks.CHROMIUM, args=stacks.CHROMIUM_ARGUMENTS
        )
        try:
            for name, (slider, largest) in MEASURED.items():
                for label, state in (("starting", {}), ("largest", largest)):
                    times = _presses(server, browser, name, slider, state)
                    yield {
                        "explorer": f"explore_{name}",
                        "state": label,
                        "median ms": round(statistics.median(times)),
                        "slowest ms": round(max(times)),
                    }
        finally:
            browser.close()
            server.close()


def _presses(server, browser, name, slider, state):
    moves = [f"explorer.controls[{key!r}].value = {value!r}" for key, value in state.items()]
    place = f"print(list(explorer.controls).index({slider!r}))"
    server.write(f"{name}.ipynb", "\n".join([stacks.CALLS[name], *moves, place, "explorer"]))
    page = browser.new_page(viewport={"width": 1100, "height": 1100})
    page.set_default_timeout(stacks.SECONDS * 1000)
    server.run(page, f"{name}.ipynb")
    page.wait_for_selector(".explorer img")
    place = int(page.locator(server.printed).first.text_content())
    handle = page.locator(".explorer-controls > *").nth(place).locator(server.handle)
    handle.focus()
    page.evaluate(stacks.WATCH)
    for press in range(PRESSES):  # to and fro, so that no end stops the slider
        page.keyboard.press("ArrowRight" if press % 2 == 0 else "ArrowLeft")
        page.wait_for_function(f"window.times.length > {press}")
        page.wait_for_timeout(200)  # as fast as one looks
    times = page.evaluate("window.times")
    page.close()
    return times


if __name__ == "__main__":
    for row in latencies():
        print(*row.values(), sep="\t")
