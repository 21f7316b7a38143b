"""Every explorer in a real browser: each control moved by keyboard, against a twin in Python.

The twin is the same explorer in the test's own process. What the page shows must be the twin's
status and the twin's picture, byte for byte.
"""

import base64
import re
from pathlib import Path

import ipywidgets as widgets
import pytest
import stacks

from attention_course.explorers import explorer as explorer_file

expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.long
NAMES = list(stacks.CALLS)
SCREENSHOTS = Path(__file__).parents[2] / "screenshots"


@pytest.fixture(autouse=True)
def _twins_draw_at_once(monkeypatch):
    monkeypatch.setattr(explorer_file, "PAUSE", 0)  # playwright has a loop of events, too


@pytest.fixture
def open_explorer(server, page):
    """Return a function that shows an explorer in the page and returns its twin."""

    def run(name):
        server.write(f"{name}.ipynb", f"{stacks.CALLS[name]}\nexplorer")
        server.run(page, f"{name}.ipynb")
        page.wait_for_selector(".explorer img")
        return twin_of(name)

    yield run
    assert page.locator(server.complaints).count() == 0


def twin_of(name):
    """Return the same explorer in this process."""
    names = {}
    exec(stacks.CALLS[name], names)
    return names["explorer"]


def assert_shows(page, twin):
    """Wait until the page shows the twin's status; then compare the pictures."""
    shown = page.locator(".explorer [role=status]")
    expect(shown).to_have_text(twin.status, timeout=stacks.SECONDS * 1000)
    encoded = base64.b64encode(twin.picture.svg().encode()).decode()
    image = page.locator(".explorer img")
    assert image.get_attribute("src") == f"data:image/svg+xml;base64,{encoded}"
    assert image.get_attribute("alt") == twin.picture.description
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") > 400
    expect(page.locator(".explorer")).to_contain_text(twin.task)


def press(page, server, twin, name):
    """Move one control by keys alone, and the twin's as well."""
    control = twin.controls[name]
    place = list(twin.controls).index(name)
    shown = page.locator(".explorer-controls > *").nth(place)
    if isinstance(control, widgets.Checkbox):
        shown.locator("input").press("Space")
        control.value = not control.value
    elif isinstance(control, widgets.Text):
        shown.locator("input").fill("cats chase dogs and a bat")
        shown.locator("input").press("Enter")
        control.value = "cats chase dogs and a bat"
    elif isinstance(control, widgets.Dropdown):
        last = control.index == len(control.options) - 1
        arrow = "ArrowUp" if last else "ArrowDown"
        # JupyterLab takes the arrows of a closed list for itself: open it, move, choose.
        for key in [arrow] if server.classic else ["Space", arrow, "Enter"]:
            shown.locator("select").press(key)
        control.index += -1 if last else 1
    elif isinstance(control, widgets.SelectionSlider):
        last = control.index == len(control.options) - 1
        shown.locator(server.handle).press("ArrowLeft" if last else "ArrowRight")
        control.index += -1 if last else 1
    else:
        last = control.value == control.max
        shown.locator(server.handle).press("ArrowLeft" if last else "ArrowRight")
        control.value += -control.step if last else control.step


@pytest.mark.parametrize("name", NAMES)
def test_every_control_leads_to_the_picture_and_the_words_of_its_state(
    page, server, open_explorer, name
):
    twin = open_explorer(name)
    assert_shows(page, twin)
    screenshot(page, server, name)
    for control_name, control in twin.controls.items():
        if isinstance(control, widgets.Button):
            continue
        if control.disabled:
            enable(page, server, twin, control_name)
        before = twin.status
        press(page, server, twin, control_name)
        assert twin.status != before
        while "<img" not in twin._lines[0].value:  # on, to the next sizes that fit
            wait_for_sentence(page, twin)
            press(page, server, twin, control_name)
        assert_shows(page, twin)


def enable(page, server, twin, name):
    """Move the control on which another one depends."""
    if name == "words":
        page.locator(".explorer-controls select").first.select_option(label="own words")
        twin.controls["sentence"].value = "own words"
    else:
        press(page, server, twin, {"place": "mask"}[name])
    assert_shows(page, twin)


def wait_for_sentence(page, twin):
    shown = page.locator(".explorer")
    expect(shown).to_contain_text(twin.status, timeout=stacks.SECONDS * 1000)


def screenshot(page, server, name, kind="light"):
    """Keep a picture of the page, for people to look at."""
    folder = SCREENSHOTS / ("notebook6" if server.classic else "jupyterlab")
    folder.mkdir(parents=True, exist_ok=True)
    page.locator(".explorer").screenshot(path=folder / f"{name}_{kind}.png")


@pytest.mark.parametrize(("name", "told"), [("split", "times as long"), ("heads", "in a loop:")])
def test_the_button_measures_and_says_so(page, server, open_explorer, name, told):
    open_explorer(name)
    button = page.locator(".explorer-controls button")
    button.press("Enter")
    status = page.locator(".explorer [role=status]")
    page.wait_for_function(
        f"document.querySelector('.explorer [role=status]').textContent.includes('{told}')"
    )
    assert re.search(r"\d+\.\d+ ms, split:? \d+\.\d+ ms", status.text_content())
    assert button.is_enabled()
    screenshot(page, server, f"{name}_measured")


def test_tab_reaches_every_control(page, server, open_explorer):
    twin = open_explorer("mask")
    page.locator(".explorer-controls input, .explorer-controls select").first.focus()
    reached = set()
    for _ in range(4 * len(twin.controls)):
        reached.add(
            page.evaluate(
                "[...document.querySelector('.explorer-controls').children]"
                ".findIndex(child => child.contains(document.activeElement))"
            )
        )
        page.keyboard.press("Tab")
    assert reached >= set(range(len(twin.controls)))


def test_markup_in_own_words_is_seen_as_text(page, server, open_explorer):
    twin = open_explorer("word_order")
    enable(page, server, twin, "words")
    markup = "<b id=planted>dogs</b> <img src=x onerror=alert(1)>"
    field = page.locator(".explorer-controls input[type=text]")
    field.fill(markup)
    field.press("Enter")
    twin.controls["words"].value = markup
    wait_for_sentence(page, twin)
    assert markup in page.locator(".explorer").text_content()
    assert page.locator("#planted").count() == 0
    assert page.locator(".explorer img").count() == 1
    screenshot(page, server, "word_order_markup")
    for words in ("", "$x$ & cats"):  # refused, and then accepted
        field.fill(words)
        field.press("Enter")
        twin.controls["words"].value = words
        wait_for_sentence(page, twin)
    assert_shows(page, twin)


QUICK_KEYS = """async node => {
    const key = {key: "ArrowRight", keyCode: 39, which: 39, bubbles: true, cancelable: true};
    for (let press = 0; press < 20; press++) {
        node.dispatchEvent(new KeyboardEvent("keydown", key));
        node.dispatchEvent(new KeyboardEvent("keyup", key));
        await new Promise(done => setTimeout(done, 25));
    }
}"""


def test_of_twenty_quick_keys_the_first_and_the_last_are_drawn(page, server, open_explorer):
    twin = open_explorer("word_order")
    place = list(twin.controls).index("d_model")
    handle = page.locator(".explorer-controls > *").nth(place).locator(server.handle)
    page.evaluate(stacks.WATCH)
    handle.evaluate(QUICK_KEYS)
    twin.controls["d_model"].value = 24  # its end, after 16 of them
    assert_shows(page, twin)
    assert 1 <= page.evaluate("window.times.length") <= 2


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_cut_off_at_400_pixels(page, server, open_explorer, name):
    open_explorer(name)
    page.set_viewport_size({"width": 400, "height": 1400})
    if not server.classic:
        page.keyboard.press("Control+B")  # the file browser takes the width of a phone
    page.wait_for_timeout(300)
    screenshot(page, server, name, "400px")
    for part in page.locator(".explorer-controls > *").all():
        box = part.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 400
    room, image = (page.locator(part).bounding_box() for part in (".explorer", ".explorer img"))
    right = image["x"] + image["width"]
    assert image["x"] >= 0
    assert right <= min(room["x"] + room["width"], 400)  # else one has to scroll to see the rest
    assert image["width"] >= 0.95 * room["width"]  # and no smaller than it must be
    scrolls = "node => node.scrollWidth > node.clientWidth"
    assert not page.locator(".explorer").evaluate(scrolls)


@pytest.fixture
def dark_server(browser, tmp_path):
    started = stacks.Server(tmp_path, dark=True)
    yield started
    started.close()


def test_words_stand_out_in_the_dark_theme(dark_server, page):  # the page is closed first
    if dark_server.classic:
        pytest.skip("Notebook 6 has no dark theme")
    for name in NAMES:
        dark_server.write(f"{name}.ipynb", f"{stacks.CALLS[name]}\nexplorer")
        dark_server.run(page, f"{name}.ipynb")
        page.wait_for_selector(".explorer img")
        screenshot(page, dark_server, name, "dark")
        ink = page.locator(".explorer [role=status]").evaluate(
            "node => getComputedStyle(node).color.match(/[\\d.]+/g).slice(0, 3).map(Number)"
        )
        assert min(ink) > 180, f"{name}: the status is written in {ink} on a dark page"
