"""The explorers without a browser: states, pictures, sentences, errors, and their facts."""

import asyncio
import base64
import functools
import hashlib
import html
import importlib
import random
import re
import time
import warnings
from xml.etree import ElementTree

import faults  # noqa: F401 (they register themselves)
import ipywidgets as widgets
import pytest
import registry
import torch
from bases import separate
from torch.utils.flop_counter import FlopCounterMode

from attention_course import (
    LoopedMultiHeadAttention,
    MultiHeadAttention,
    causal_mask,
    explorers,
    lectures,
)
from attention_course.explorers import Explorer, Impossible, parts
from attention_course.explorers import explorer as explorer_file
from attention_course.explorers import heads as heads_file
from attention_course.explorers import shapes as shapes_file
from attention_course.explorers import split as split_file
from attention_course.explorers.explorer import WIDGET_VIEW, sentence
from attention_course.explorers.parts import head_dim, random_input, untrained, vectors
from attention_course.figures import sheet
from attention_course.figures.drawing import Box, Cells, Text

NAMES = ["query", "mask", "heads", "split", "shapes", "word_order"]
WITH_WORDS = ["query", "mask", "heads", "word_order"]


@pytest.fixture(autouse=True)
def _loud(monkeypatch):
    monkeypatch.setattr(Explorer, "raise_errors", True)
    monkeypatch.setattr(parts, "MEASURE_SECONDS", 0.01)


def make(name, **state):
    """Return an explorer whose controls were moved to a state, one after the other."""
    explorer = getattr(explorers, f"explore_{name}")()
    if name == "word_order" and "words" in state:
        state = {"sentence": "own words", **state}
    for control, value in state.items():
        explorer.controls[control].value = value
    return explorer


starting = functools.cache(make)


def says(name, **state):
    """Return the status line of a state."""
    explorer = starting(name)
    return explorer.render({**explorer.state, **state})[1]


def handed(monkeypatch, name, **state):
    """Return what a state hands to the function that draws it, in order."""
    seen = []
    file = importlib.import_module(f"attention_course.explorers.{name}")
    draw = file.draw
    with monkeypatch.context() as patch:
        patch.setattr(file, "draw", lambda *given: seen.append(given) or draw(*given))
        says(name, **state)
    return seen[-1]  # the explorer draws its first state when it is made


def drawn(name, kind, **state):
    """Return the boxes, tables of cells or texts of a state's picture, in order."""
    explorer = starting(name)
    picture = explorer.render({**explorer.state, **state})[0]
    return [item for item in picture.items if isinstance(item, kind)]


def texts(items, x=None, color=None):
    """Return the texts from top to bottom: all, or those at one x or in one colour."""
    found = [item for item in items if x is None or item.x == pytest.approx(x)]
    found = [item for item in found if color is None or item.color == color]
    return [item.text for item in sorted(found, key=lambda item: item.y)]


def shown(explorer):
    """Return the HTML that stands in the picture's place, the task's, and the status line's."""
    return [line.value for line in explorer._lines]


def svg_in(place):
    """Return the SVG inside of what stands in the picture's place."""
    return base64.b64decode(re.search(r"svg\+xml;base64,([^\"]+)", place).group(1)).decode()


# --- One object, three forms ----------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_bundle_holds_view_picture_and_a_fixed_line(name):
    explorer = starting(name)
    data, metadata = explorer._repr_mimebundle_()
    assert data[WIDGET_VIEW]["model_id"] == explorer._box.model_id
    assert base64.b64decode(data["image/png"]) == explorer.picture.png()
    assert metadata["image/png"]["alt"] == explorer.picture.description
    assert data["text/plain"] == f"explore_{name}: run this cell to move " + (
        ", ".join(explorer.controls) + "."
    )


@pytest.mark.parametrize("name", NAMES)
def test_widgets_show_the_picture_with_its_description_and_the_status(name):
    explorer = starting(name)
    place, task, status = shown(explorer)
    assert svg_in(place) == explorer.picture.svg()
    assert f'alt="{html.escape(explorer.picture.description)}"' in place
    assert html.escape(explorer.task) in task
    assert 'role="status"' in status
    assert len(explorer.status) > 40


@pytest.mark.parametrize("name", NAMES)
def test_both_writers_hold_the_same_texts(name):
    picture = starting(name).picture
    root = ElementTree.fromstring(picture.svg())
    in_svg = sorted(node.text for node in root.iter("{http://www.w3.org/2000/svg}text"))
    assert in_svg == sorted(text.get_text() for text in picture.figure.axes[0].texts)
    assert len(in_svg) > 10


@pytest.mark.parametrize("name", NAMES)
def test_no_deprecated_argument_reaches_a_widget(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_control_has_a_label_and_waits_for_the_end_of_a_drag(name):
    for control in starting(name).controls.values():
        assert control.description
        assert getattr(control, "continuous_update", False) is False


@pytest.mark.parametrize("name", NAMES)
def test_every_explorer_has_heads_or_widths_to_turn(name):
    sizes = {"d_model", "num_heads", "head_dim"} & set(starting(name).controls)
    assert len(sizes) >= 2


# --- A random walk --------------------------------------------------------------------------

SENTENCES = [
    "dogs chase dogs and cats",
    "",
    "   ",
    "one",
    "<b>dogs</b> & <script>alert(1)</script>",
    "a b c d e f g h i j k l",
    "a b c d e f g h i j k l m",
    "verylongwordwithmorethantwentyletters chases",
    "猫 은 🐈 $x^2$ \\frac $ \x01",
    'quote" onerror="alert(1)',
]


def move(explorer, name, dice):
    """Give one control a random value that it admits."""
    control = explorer.controls[name]
    if isinstance(control, widgets.Button):
        explorer.press(name)
    elif isinstance(control, widgets.Text):
        control.value = dice.choice(SENTENCES)
    elif isinstance(control, widgets.Checkbox):
        control.value = not control.value
    elif isinstance(control, widgets.IntSlider):
        control.value = dice.randint(control.min, control.max)
    else:
        options = [option[1] if isinstance(option, tuple) else option for option in control.options]
        control.value = dice.choice(options)


def same_as_fresh(explorer):
    """Compare what stands there with a new rendering of the same state."""
    place, _, line = shown(explorer)
    try:
        picture, status = explorer.render(explorer.state)
        assert html.escape(status) in line
        assert svg_in(place) == picture.svg()
        ElementTree.fromstring(picture.svg())
    except Impossible as reason:
        picture, status = sentence(str(reason)), str(reason)
        assert html.escape(status) in place
    assert status == explorer.status
    assert picture.description == explorer.picture.description


def test_walk_of_300_changes_draws_what_a_fresh_rendering_draws(monkeypatch):
    monkeypatch.setattr(heads_file, "measured", lambda loop, split, x: (0.004, 0.001))
    dice = random.Random(20)
    all_of_them = [make(name) for name in NAMES]
    changes = 0
    while changes < 300:
        explorer = dice.choice(all_of_them)
        name = dice.choice(list(explorer.controls))
        if explorer.controls[name].disabled:
            continue
        move(explorer, name, dice)
        changes += 1
        same_as_fresh(explorer)


# --- The latest key wins --------------------------------------------------------------------


def test_of_twenty_quick_changes_the_first_and_the_last_are_drawn():
    explorer, states = make("heads", d_model=24), []
    render = explorer.render
    explorer.render = lambda state: states.append(state["follow"]) or render(state)

    async def press():
        await asyncio.sleep(2 * explorer_file.PAUSE)
        for number in range(20):
            explorer.controls["follow"].value = number
            await asyncio.sleep(0.001)
        await asyncio.sleep(2 * explorer_file.PAUSE)

    asyncio.run(press())
    assert states == [0, 19]
    same_as_fresh(explorer)


def test_a_slow_change_is_drawn_at_once_and_what_waits_is_drawn_before_it_is_read():
    async def press():
        explorer = make("heads")
        await asyncio.sleep(2 * explorer_file.PAUSE)
        explorer.controls["follow"].value = 1
        assert "Input number 1 reaches" in explorer._status
        explorer.controls["follow"].value = 2
        assert "Input number 1 reaches" in explorer._status
        assert "Input number 2 reaches" in explorer.status
        explorer.controls["follow"].value = 3
        assert "number 3 of the input" in explorer._repr_mimebundle_()[1]["image/png"]["alt"]

    asyncio.run(press())


def test_keys_that_do_not_end_still_show_a_picture_now_and_then(monkeypatch):
    monkeypatch.setattr(explorer_file, "LONGEST", 0.1)
    explorer, drawn = make("mask"), []
    show = explorer._show
    explorer._show = lambda *given: drawn.append(given) or show(*given)

    async def hold():
        for number in range(30):
            explorer.controls["disturb"].value = number % 6
            await asyncio.sleep(0.01)

    asyncio.run(hold())
    assert 2 <= len(drawn) <= 6


# --- What to try ----------------------------------------------------------------------------

TRIED = {
    "query": {"key_0": 9},
    "mask": {"place": "after"},
    "heads": {"num_heads": 3},
    "split": {"fault": "merge"},
    "shapes": {"step": "scores"},
    "word_order": {"mask": True},
}


@pytest.mark.parametrize("name", NAMES)
def test_a_first_user_is_asked_for_one_thing_and_for_another_when_it_was_done(name):
    explorer = make(name)
    first = explorer.task
    assert first.startswith("Try: ")
    others = {"query": "query", "mask": "disturb", "heads": "follow", "word_order": "layers"}
    slider = explorer.controls[others.get(name, "tokens")]
    slider.value += -1 if slider.value == slider.max else 1
    assert explorer.task == first
    ((control, value),) = TRIED[name].items()
    explorer.controls[control].value = value
    assert explorer.task != first
    assert html.escape(explorer.task) in shown(explorer)[1]


# --- Sentences in the picture's place -------------------------------------------------------


def test_seven_heads_on_width_twelve_are_answered_with_the_nearest_that_work():
    explorer = make("heads", d_model=12, num_heads=7)
    assert explorer.status == (
        "12 numbers (d_model) cannot be shared equally by 7 heads (num_heads). Nearest that work: "
        "6 or 12 heads on d_model 12, or d_model 7 or 14 with 7 heads."
    )
    place, _, status = shown(explorer)
    assert "12 numbers (d_model) cannot be shared equally" in place
    assert "<img" not in place
    assert "No picture for these settings." in status
    explorer.controls["num_heads"].value = 6
    assert "<img" in shown(explorer)[0]


@pytest.mark.parametrize("name", ["mask", "heads", "split", "shapes", "word_order"])
def test_sizes_that_do_not_fit_are_answered_and_a_width_of_its_own_fits_always(name):
    explorer = make(name, d_model=7, num_heads=3)
    assert "cannot be shared" in explorer.status
    if "head_dim" in explorer.controls:
        explorer.controls["head_dim"].value = 4
        assert "<img" in shown(explorer)[0]


def test_whatever_the_sentence_proposes_works():
    for d_model in range(1, 25):
        for num_heads in range(1, 13):
            try:
                width = head_dim({"d_model": d_model, "num_heads": num_heads})
            except Impossible as reason:
                by_heads, by_width = re.findall(
                    r"work: ([\d or]+) heads .* or d_model ([\d or]+) with", str(reason)
                )[0]
                assert all(d_model % int(n) == 0 for n in by_heads.split(" or "))
                assert all(int(n) % num_heads == 0 for n in by_width.split(" or "))
            else:
                assert d_model == num_heads * width


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
@pytest.mark.parametrize(("d_model", "num_heads"), [(9, 1), (9, 3), (15, 5), (24, 8), (1, 1)])
def test_an_odd_width_is_answered_where_positions_need_pairs(positions, d_model, num_heads):
    explorer = make("word_order", d_model=d_model, num_heads=num_heads, positions=positions)
    if positions == "sinusoidal" and d_model == 24:
        assert "<img" in shown(explorer)[0]
        return
    assert f"{positions.capitalize()} positions take the numbers in pairs" in explorer.status
    for proposed in re.search(r"d_model ([\d or]+)\.$", explorer.status).group(1).split(" or "):
        explorer.controls["d_model"].max = 48
        explorer.controls["d_model"].value = int(proposed)
        assert "<img" in shown(explorer)[0]


@pytest.mark.parametrize("name", WITH_WORDS)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no words yet"),
        ("  \t ", "no words yet"),
        ("a b c d e f g h i j k l m", "13 words are too many"),
    ],
)
def test_own_words_that_do_not_fit_are_answered_with_a_sentence(name, text, said):
    explorer = make(name, words=text)
    assert said in explorer.status
    assert "<img" not in shown(explorer)[0]
    explorer.controls["words"].value = "cats chase dogs"
    assert "<img" in shown(explorer)[0]


@pytest.mark.parametrize("name", WITH_WORDS)
def test_typed_words_are_tokens_and_the_same_word_has_the_same_row(name, monkeypatch):
    explorer = make(name, words="Dogs chase cats, dogs sleep.")
    labels = [i.text.removeprefix("▶ ") for i in explorer.picture.items if isinstance(i, Text)]
    for word in ("Dogs", "chase", "cats", "dogs", "sleep"):
        assert word in labels
    x = vectors(["Dogs", "chase", "dogs"], 6)
    assert x[0].equal(x[2])
    assert not x[0].equal(x[1])
    if name in ("mask", "heads"):  # without a mask a word that stands twice attends alike
        cells = starting(name).render({**explorer.state, "mask": False})[0].items
        table = next(item for item in cells if isinstance(item, Cells) and len(item.colours) == 5)
        assert (table.colours[0] == table.colours[3]).all()
        assert (table.colours[0] != table.colours[1]).any()


@pytest.mark.parametrize("name", WITH_WORDS)
def test_markup_is_shown_as_text_and_never_as_markup(name):
    explorer = make(name, words="<b>a</b> <img/src=x> c&d")
    place, task, status = shown(explorer)
    assert place.count("<img") == 1
    for part in (place, task, status, svg_in(place)):
        assert "<b>" not in part
        assert "<img/" not in part
    root = ElementTree.fromstring(svg_in(place))
    assert "c&d" in [(node.text or "").removeprefix("▶ ") for node in root.iter()]
    explorer.controls["words"].value = 'quote" onmouseover="a()'
    assert 'onmouseover="' not in "".join(shown(explorer))


def test_a_description_and_a_status_with_markup_stay_text():
    markup = '<b>dogs</b>" onerror="a() & cats'
    explorer = Explorer("plain", {}, lambda state: (sentence(markup), markup))
    place, _, status = shown(explorer)
    assert f'alt="{html.escape(markup)}" src=' in place
    assert f">{html.escape(markup)}</div>" in status


def test_twelve_words_letters_unknown_to_the_font_and_dollar_signs_are_drawn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make("word_order", words="猫 🐈 $x^2$ a b c d e f g h $").picture.png()


def test_letters_that_are_not_allowed_in_svg_are_left_out():
    text = Text(0, 0, "a\x00\x0c\ud800\ufffe<b>").svg()
    assert ElementTree.fromstring(text).text == "a<b>"


@pytest.mark.parametrize("word", ["W" * 20, "@" * 9, "i" * 20, "elephants", "dogs", "…"])
def test_a_wide_word_is_cut_where_its_room_ends_and_a_narrow_one_is_not(word):
    cut = sheet.drawable(word, 3, room=56)
    paper = sheet.Sheet()
    paper.text(0, 50, cut, 12)
    text = paper.picture(100, "").figure.axes[0].texts[0]
    assert text.get_window_extent().width * 96 / text.get_figure().dpi < 59
    assert cut in (word, word[: len(cut) - 1] + "…")
    assert (cut == word) == (len(word) < 9)


# --- Errors ---------------------------------------------------------------------------------


def broken(state):
    if state["n"] > 1:
        raise ZeroDivisionError("<i>planted</i>")
    return sentence("fine"), "fine"


def test_an_error_inside_is_raised_in_tests():
    explorer = Explorer("broken", {"n": widgets.IntSlider(1, 1, 5)}, broken)
    with pytest.raises(ZeroDivisionError):
        explorer.controls["n"].value = 2


def test_an_error_inside_is_shown_escaped_and_leaves_the_explorer_usable(monkeypatch):
    monkeypatch.setattr(Explorer, "raise_errors", False)
    explorer = Explorer("broken", {"n": widgets.IntSlider(1, 1, 5)}, broken)
    explorer.controls["n"].value = 2
    place, *_ = shown(explorer)
    assert "An error inside broken: ZeroDivisionError(" in place
    assert "&lt;i&gt;planted" in place
    explorer.controls["n"].value = 1
    assert "<img" in shown(explorer)[0]


def test_an_error_behind_a_button_is_shown_and_the_button_can_be_pressed_again(monkeypatch):
    controls = {"n": widgets.IntSlider(2, 1, 5), "go": widgets.Button(description="go")}
    actions = {"go": lambda state: 1 / (state["n"] - 2)}
    explorer = Explorer("broken", controls, lambda state: broken({"n": 1}), actions=actions)
    with pytest.raises(ZeroDivisionError):
        explorer.press("go")
    assert not controls["go"].disabled
    monkeypatch.setattr(Explorer, "raise_errors", False)
    explorer.press("go")
    assert not controls["go"].disabled
    assert "An error inside broken: ZeroDivisionError(" in shown(explorer)[0]


# --- Controls that depend on each other -----------------------------------------------------


def test_head_and_followed_number_stay_within_their_bounds():
    explorer = make("heads", d_model=12, num_heads=4, head=3, follow=11)
    assert (explorer.controls["head"].value, explorer.controls["follow"].value) == (3, 11)
    explorer.controls["num_heads"].value = 2
    assert explorer.controls["head"].value == explorer.controls["head"].max == 1
    explorer.controls["d_model"].value = 6
    assert explorer.controls["follow"].value == explorer.controls["follow"].max == 5
    same_as_fresh(explorer)
    explorer.controls["num_heads"].value = 3
    assert explorer.controls["head"].value == 1


def test_typed_words_are_all_shown_unless_fewer_were_asked_for():
    explorer = make("mask", words="a b c d e f g h")
    assert explorer.state["tokens"] == 8
    assert explorer.state["disturb"] == 7
    explorer.controls["tokens"].value = 4
    explorer.controls["words"].value = "a b c d e f"
    assert explorer.state["tokens"] == 4
    assert explorer.state["disturb"] == 3
    explorer.controls["words"].value = "a"
    assert explorer.state["tokens"] == 1
    same_as_fresh(explorer)


def test_a_change_draws_once_even_where_it_moves_another_control():
    explorer = make("heads", d_model=12, num_heads=4, head=3, follow=11)
    states = []
    render = explorer.render
    explorer.render = lambda state: states.append(state) or render(state)
    explorer.controls["num_heads"].value = 2
    assert [state["head"] for state in states] == [1]


def test_controls_without_effect_cannot_be_turned():
    explorer = make("word_order")
    assert explorer.controls["words"].disabled
    explorer.controls["sentence"].value = "own words"
    assert not explorer.controls["words"].disabled
    explorer = make("mask")
    assert not explorer.controls["place"].disabled
    explorer.controls["mask"].value = False
    assert explorer.controls["place"].disabled
    explorer = make("query", head_dim=2)
    assert [explorer.controls[f"key_{i}"].disabled for i in range(3)] == [False, False, True]


# --- What they show -------------------------------------------------------------------------


def test_query_gives_the_lectures_scores_and_the_two_it_agree():
    lecture = {"key_0": 1, "key_1": 2, "key_2": 1}
    scores = texts(drawn("query", Text, **lecture), x=272)
    assert scores[1] == str(lectures.IT_DOG_KEY)
    assert scores[4] == str(lectures.IT_BALL_KEY)
    assert "Tokens 6 and 10 are one word: weights differ by below 1e-6" in says("query")
    assert says("query", query=6).replace("token 6", "token 10") == says("query")
    plain = texts(drawn("query", Text, key_0=1, key_1=1, key_2=1), x=272)
    assert (plain[1], plain[4]) == (str(lectures.IT_DOG), str(lectures.IT_BALL))


@pytest.mark.parametrize("divide", [True, False])
@pytest.mark.parametrize(("d_model", "width"), [(3, 3), (5, 2), (2, 4)])
def test_query_gives_the_weights_and_the_context_of_the_formula(
    d_model, width, divide, monkeypatch
):
    words, chosen = "dog ball chased it".split(), 1
    x = torch.zeros(4, d_model)
    known = torch.tensor([lectures.OUR_WORDS[word] for word in words])[:, :d_model]
    x[:, : known.shape[1]] = known
    state = {"words": " ".join(words), "query": chosen, "d_model": d_model, "head_dim": width}
    state |= {"key_0": 3, "key_1": -2, "key_2": 5, "divide": divide}
    _, _, (own, query, keys, values), matrices, results, _ = handed(monkeypatch, "query", **state)
    assert own[:3].tolist() == x[chosen, :3].tolist()
    w_key = torch.diag(torch.tensor([3.0, -2.0, 5.0, 1.0, 1.0]))[:d_model, :width]
    w_key = torch.nn.functional.pad(w_key, (0, width - w_key.shape[1]))
    for found, wanted in zip(matrices, (torch.eye(d_model, width), w_key), strict=False):
        assert found.equal(wanted)
    assert keys[:, :2].equal(x[:, :2] * torch.tensor([3.0, -2.0]))
    assert values[:, :2].equal(x[:, :2])
    scores = query @ keys.T
    weights = (scores / width**0.5 if divide else scores).softmax(-1)
    for found, wanted in zip(results, (scores, weights, weights @ values), strict=True):
        assert found.tolist() == pytest.approx(wanted.tolist(), abs=1e-6)
    numbers = [f"{number:.2f}" for number in (weights @ values).tolist()]
    status = says("query", **state)
    assert f"It prefers {words[weights.argmax()]}, token {weights.argmax()}" in status
    assert f"weight {weights.max():.2f}" in status
    assert f"Its context vector: {', '.join(numbers)}. d_model {d_model}, " in status


def test_w_key_has_an_effect_that_one_sees():
    lengths = [box.width for box in drawn("query", Box) if box.face == sheet.BLUE]
    assert len(lengths) == 11
    assert max(lengths) > 5 * min(lengths)
    ball, dog = (says("query", key_0=size) for size in (1, 9))
    assert "prefers ball" in ball
    assert "prefers dog" in dog


@pytest.mark.parametrize("disturbed", range(6))
@pytest.mark.parametrize("sizes", [{}, {"dropout": 0.3}, {"d_model": 12, "num_heads": 3}])
def test_mask_before_the_softmax_keeps_earlier_outputs_and_after_it_does_not(disturbed, sizes):
    state = {"disturb": disturbed, **sizes}
    assert "No earlier token has seen the future." in says("mask", **state)
    seen = "An earlier token has seen the future."
    assert (seen in says("mask", **state, place="after")) == (disturbed > 0)
    assert (seen in says("mask", mask=False, disturb=disturbed)) == (disturbed > 0)


def test_mask_says_what_rows_add_up_to():
    assert "rows add up to 1." in says("mask")
    assert re.search(r"rows add up to 0\.\d\d to 1\.00", says("mask", place="after"))
    assert re.search(r"rows add up to \d\.\d\d to \d\.\d\d", says("mask", dropout=0.2))


def test_mask_names_the_state_and_the_tokens_that_moved():
    assert says("mask", mask=False).startswith("Mask off: 0 cells hidden.")
    assert says("mask").startswith("Mask on, before the softmax: 15 cells hidden.")
    assert says("mask", place="after").startswith("Mask on, after the softmax: 15 cells hidden.")
    moved = "Disturbing work (3) moves the outputs of: work (3), for (4), it (5)."
    assert moved in says("mask", disturb=3)
    moved = "Disturbing and (2) moves the outputs of: and (2), work (3)."
    assert moved in says("mask", disturb=2, tokens=4)


def test_dropout_drops_what_is_seen_and_scales_up_what_stays(monkeypatch):
    _, kept, *_ = handed(monkeypatch, "mask")
    _, weights, hidden, dropped, *_ = handed(monkeypatch, "mask", dropout=0.6)
    stays = ~hidden & ~dropped
    assert weights[stays].tolist() == pytest.approx((kept[stays] / 0.4).tolist())
    assert weights[~stays].eq(0).all()
    assert dropped.any()
    assert not (dropped & hidden).any()
    assert f"Dropout 0.6 dropped {int(dropped[0].sum())} weights" in says("mask", dropout=0.6)


@pytest.mark.parametrize("head", [0, 2])
def test_mask_marks_the_cells_that_are_hidden_and_dropped_and_adds_up_rows(head, monkeypatch):
    state = {"place": "after", "dropout": 0.5, "d_model": 12, "num_heads": 3, "head": head}
    words, weights, hidden, dropped, *_ = handed(monkeypatch, "mask", **state)
    table, *small = drawn("mask", Cells, **state)
    (wide, high), (left, top) = table.cell, (table.x, table.y)
    bottom = top + high * len(words)
    boxes = [box for box in drawn("mask", Box, **state) if box.hatched and box.y < bottom]
    cells = {
        (round((box.y - top) / high), round((box.x - left) / wide) + j)
        for box in boxes
        for j in range(round(box.width / wide))
    }
    assert cells == set(map(tuple, hidden.nonzero().tolist()))
    crosses = [text for text in drawn("mask", Text, **state) if text.text == "×"]
    cells = {(int((text.y - top) / high), int((text.x - left) / wide)) for text in crosses}
    assert cells == set(map(tuple, dropped[head].nonzero().tolist()))
    sums = texts(drawn("mask", Text, **state), x=left + wide * len(words) + 24)
    assert sums == ["sum", *(f"{row:.2f}" for row in weights[head].sum(-1).tolist())]
    assert len(small) == 3
    assert (small[head].colours == table.colours).all()


def test_heads_are_called_untrained_and_the_parameters_do_not_depend_on_them():
    for num_heads in (1, 2, 3, 6):
        status = says("heads", num_heads=num_heads)
        assert "144 parameters; 2592 multiplications and additions for 6 tokens" in status
        assert "untrained" in status
    assert "Head 2 gives numbers 6 to 8 of" in says("heads", d_model=12, num_heads=4, head=2)


@pytest.mark.parametrize(("num_heads", "operations"), [(2, 5184), (3, 7776), (6, 15552)])
def test_heads_of_full_width_cost_more_each(num_heads, operations):
    module = MultiHeadAttention(6, num_heads, head_dim=6)
    parameters = sum(p.numel() for p in module.parameters())
    for name in ("heads", "split"):
        status = says(name, num_heads=num_heads, head_dim=6)
        assert f"{parameters} parameters" in status
    assert f"; {operations} multiplications" in says("heads", num_heads=num_heads, head_dim=6)
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        module(torch.randn(1, 6, 6), need_weights=True)
    assert counted.get_total_flops() == operations


@pytest.mark.parametrize("head", [0, 1, 2])
@pytest.mark.parametrize("width", [0, 5])
def test_the_chosen_head_is_named_outlined_and_drawn(head, width):
    state = {"d_model": 12, "num_heads": 3, "head_dim": width, "head": head, "follow": 7}
    module = untrained(MultiHeadAttention, 12, 3, width or None, causal=False)
    words = lectures.DREAM.split()
    with torch.no_grad():
        x = 2 * vectors(words, 12)[None]
        weights = module(x, need_weights=True)[1][0, head]
    status = says("heads", **state)
    first = head * (width or 4)
    assert "Input number 7 reaches every head." in status
    assert f"Head {head} gives numbers {first} to {first + (width or 4) - 1} of" in status
    assert f"Largest weight of head {head}, untrained: {weights.max():.2f}." in status

    boxes, labels = drawn("heads", Box, **state), drawn("heads", Text, **state)
    in_query, in_out, small = [box for box in boxes if box.line == 2.4]
    middles = {text.text: text for text in reversed(labels)}  # the first
    assert middles[f"head {head}"].x == pytest.approx(in_query.x + in_query.width / 2)
    assert middles[str(head)].y == pytest.approx(in_out.y + in_out.height / 2)
    assert f"head {head}, untrained: its weights" in middles
    assert texts(labels, color=sheet.ORANGE) == ["7"]
    tables = drawn("heads", Cells, **state)
    assert small.x == tables[1 + head].x
    same = [bool((tables[0].colours == table.colours).all()) for table in tables[1:]]
    assert same == [h == head for h in range(3)]
    unit = in_query.height / 12
    assert in_query.width == pytest.approx(unit * (width or 4))
    followed = [box for box in boxes if box.face == sheet.ORANGE]
    assert len(followed) == 1 + 3  # in the input, and in each head's columns
    assert {box.y for box in followed} == {in_query.y + 7 * unit}


def test_a_loop_is_timed_for_the_number_of_heads_that_was_chosen(monkeypatch):
    seen = []
    real = heads_file.measured

    def measured(loop, split, x):
        seen.append((loop.num_heads, split.num_heads, loop.head_dim, x.shape))
        return real(loop, split, x)

    monkeypatch.setattr(heads_file, "measured", measured)
    explorer = make("heads", d_model=5, head_dim=4, loop_heads=20)
    assert explorer.status.endswith("A loop over 20 heads: not measured.")
    explorer.press("measure")
    assert re.search(r"20 heads in a loop: \d+\.\d\d ms, split: \d+\.\d\d ms\.$", explorer.status)
    explorer.controls["loop_heads"].value = 2
    assert explorer.status.endswith("A loop over 2 heads: not measured.")
    explorer.press("measure")
    assert "2 heads in a loop: " in explorer.status
    assert "20 heads in a loop: " in explorer.status  # what was measured is kept
    lines = [i.text for i in explorer.picture.items if isinstance(i, Text) and "loop" in i.text]
    assert [line.split()[0] for line in lines] == ["2", "20"]
    explorer.controls["d_model"].value = 6
    explorer.press("measure")
    assert "20 heads" not in explorer.status  # they were of other sizes
    assert seen == [(n, n, 4, (2, 6, d)) for n, d in ((20, 5), (2, 5), (2, 6))]
    assert explorer.controls["loop_heads"].options[-1] == 4000


@pytest.mark.parametrize("width", [0, 3])
def test_w_query_and_both_outputs_are_drawn_as_they_are(width, monkeypatch):
    state, wide = {"tokens": 5, "d_model": 12, "num_heads": 3, "head_dim": width}, width or 4
    loop = untrained(LoopedMultiHeadAttention, 12, 3, width or None)
    w_query, order, *_ = handed(monkeypatch, "split", **state)
    for h in range(3):
        wanted = loop.heads[h].W_query.weight.mT
        assert w_query[:, wide * h : wide * h + wide].equal(wanted), f"columns of head {h}"
    state["fault"] = "order"
    w_query, order, expected, output, *_ = handed(monkeypatch, "split", **state)
    assert order == [2, 1, 0]
    assert w_query[:, :wide].equal(loop.heads[2].W_query.weight.mT)
    _, wrong, x = split_file._loop_and_split(state)
    with torch.no_grad():
        assert expected.flatten().tolist() == pytest.approx(loop(x)[0].flatten().tolist(), abs=1e-6)
        assert output.flatten().tolist() == pytest.approx(wrong(x)[0].flatten().tolist(), abs=1e-6)
    names = [text for text in drawn("split", Text, **state) if text.text[:5] == "head "]
    assert [text.text for text in sorted(names, key=lambda text: text.x)] == [
        "head 2",
        "head 1",
        "head 0",
    ]


def test_numbers_that_are_not_the_loops_are_framed(monkeypatch):
    state = {"tokens": 5, "d_model": 6, "num_heads": 3, "fault": "merge"}
    *_, expected, output, _, _, _ = handed(monkeypatch, "split", **state)
    wrong = int(((expected - output).abs() > 1e-6).sum())
    frames = [box for box in drawn("split", Box, **state) if box.edge == sheet.ORANGE]
    assert len(frames) == wrong > 20
    state["fault"] = "none"
    assert not [box for box in drawn("split", Box, **state) if box.edge == sheet.ORANGE]
    _, loop, split = drawn("split", Cells, **state)
    assert (loop.colours == split.colours).all()


def test_the_planted_faults_are_where_they_are_said_to_be():
    right = untrained(MultiHeadAttention, 12, 3)
    projected = torch.arange(120.0).reshape(2, 5, 12)
    context = right._split(projected)
    for fault, splits, merges in (("split", False, True), ("merge", True, False)):
        sizes = {"tokens": 5, "d_model": 12, "num_heads": 3, "head_dim": 0}
        _, wrong, _ = split_file._loop_and_split({**sizes, "fault": fault})
        assert wrong._split(projected).equal(context) == splits
        assert wrong._merge(context).equal(projected) == merges


def test_times_are_told_apart(monkeypatch):
    told = says("split", times=(0.003, 0.002))
    assert "Loop 3.000 ms, split 2.000 ms" in told
    assert "the loop takes 1.5 times as long" in told
    slow, quick = torch.nn.Identity(), torch.nn.Identity()
    slow.forward = lambda x: time.sleep(0.02)
    assert parts.measured(slow, quick, None)[0] > 0.02 > parts.measured(quick, slow, None)[0]
    given = []
    monkeypatch.setattr(
        split_file, "measured", lambda *modules: given.append(modules[:2]) or (0.002, 0.001)
    )
    make("split").press("measure")
    kinds = [type(module) for module in given[0]]
    assert kinds == [LoopedMultiHeadAttention, MultiHeadAttention]


@pytest.mark.parametrize("fault", ["split", "merge", "order"])
def test_planted_fault_jumps_while_the_shape_stays(fault):
    sizes = {"tokens": 5, "d_model": 12, "num_heads": 3}
    right, wrong = says("split", **sizes), says("split", **sizes, fault=fault)
    assert "loop and split: below 1e-6" in right
    assert "below" not in wrong
    assert "The shape does not show it." in wrong
    for status in (right, wrong):
        assert "shape (2, 5, 12)" in status
    one_head = says("split", num_heads=1, fault=fault)
    assert "below 1e-6" in one_head
    assert "changes nothing" in one_head


def test_times_are_measured_on_the_button_and_forgotten_at_the_next_change(monkeypatch):
    explorer = make("split")
    seen = []
    measure = explorer._actions["measure"]
    monkeypatch.setitem(
        explorer._actions,
        "measure",
        lambda state: seen.append(explorer.controls["measure"].disabled) or measure(state),
    )
    explorer.press("measure")
    assert seen == [True]
    assert not explorer.controls["measure"].disabled
    assert len(explorer.state["times"]) == 2
    assert "times as long" in explorer.status
    same_as_fresh(explorer)
    explorer.controls["tokens"].value = 4
    assert "times as long" not in explorer.status
    assert "times" not in explorer.state


def test_nothing_is_timed_that_computes_something_else():
    assert make("split", fault="merge").controls["measure"].disabled
    assert make("split", num_heads=5).controls["measure"].disabled


def test_shapes_of_every_step():
    wanted = {
        "project": (2, 5, 12),
        "split": (2, 3, 5, 4),
        "scores": (2, 3, 5, 5),
        "attend": (2, 3, 5, 4),
        "merge": (2, 5, 12),
        "W_out": (2, 5, 12),
    }
    for i, (step, shape) in enumerate(wanted.items()):
        axes_names = "num_heads, tokens, head_dim" if len(shape) == 4 else "tokens, d_model"
        axes_names = axes_names.replace("head_dim", "tokens") if step == "scores" else axes_names
        start = f"Step {i + 1} of 6, {step}: shape {shape}, (batch, {axes_names})."
        assert says("shapes", step=step).startswith(start)
    assert "(2, 5, 3, 4), (batch, tokens, num_heads, head_dim)" in says("shapes", transpose="none")
    assert "(2, 5, 3, 3), (batch, tokens, num_heads, num_heads)" in (
        says("shapes", transpose="none", step="scores")
    )
    assert "(3, 2, 7, 5), (batch, num_heads, tokens" in (
        says("shapes", batch=3, tokens=7, d_model=10, num_heads=2)
    )


def test_a_query_number_goes_into_one_head_and_an_input_number_into_all():
    for step in ("split", "scores", "attend"):
        status = says("shapes", step=step)
        assert re.search(r"query reaches \d+ (entry|entries) in head 1;", status)
        assert "in heads 0, 1, 2." in status


@pytest.mark.parametrize(
    ("way", "step", "query", "own_input"),
    [
        ("right", "split", "1 entry in head 1", "12 entries in heads 0, 1, 2"),
        ("right", "scores", "5 entries in head 1", "27 entries in heads 0, 1, 2"),
        ("right", "attend", "4 entries in head 1", "60 entries in heads 0, 1, 2"),
        ("right", "W_out", "12 entries", "60 entries"),
        ("view", "split", "1 entry in head 0", "12 entries in heads 0, 1"),
        ("view", "attend", "4 entries in head 0", "40 entries in heads 0, 1"),
        ("none", "attend", "4 entries", "12 entries"),
    ],
)
def test_followed_numbers_arrive_where_the_way_puts_them(way, step, query, own_input, monkeypatch):
    state = {"transpose": way, "step": step}
    told = f"Number 4 of token 1's query reaches {query}; number 4 of its input reaches "
    assert says("shapes", **state).endswith(f"{told}{own_input}.")
    numbers, _, by_query, by_input, *_ = handed(monkeypatch, "shapes", **state)
    assert [int(by.sum()) for by in (by_query, by_input)] == [
        int(said.split()[0]) for said in (query, own_input)
    ]
    if step == "split":
        assert numbers[by_query].tolist() == [104]  # token 1, feature 4
        assert sorted(numbers[by_input].tolist()) == list(range(100, 112))


def test_numbers_stand_where_the_right_and_the_wrong_way_put_them():
    module = untrained(MultiHeadAttention, 12, 3)
    right = shapes_file._addresses(module, 2, 5, "right", "split")
    assert right[0, 1].tolist() == [[100 * t + 4 + c for c in range(4)] for t in range(5)]
    wrong = shapes_file._addresses(module, 2, 5, "view", "split")
    assert right.shape == wrong.shape
    assert wrong[0, 0, :3].flatten().tolist() == list(range(12))  # three "tokens", all token 0
    numbers = (100 * torch.arange(5)[:, None] + torch.arange(12)).expand(2, -1, -1)
    assert shapes_file._addresses(module, 2, 5, "right", "project").equal(numbers)


def test_once_numbers_are_mixed_each_cell_shows_its_own(monkeypatch):
    module = untrained(MultiHeadAttention, 12, 3, causal=False)
    x = 2 * random_input(2, 5, 12)
    with torch.no_grad():
        out, weights = module(x, need_weights=True)
    scores = handed(monkeypatch, "shapes", step="scores")[0]
    assert scores.softmax(-1).flatten().tolist() == pytest.approx(weights.flatten().tolist())
    found = handed(monkeypatch, "shapes", step="W_out")[0]
    assert found.flatten().tolist() == pytest.approx(out.flatten().tolist(), abs=1e-6)
    for step in ("scores", "attend", "merge", "W_out"):
        numbers = handed(monkeypatch, "shapes", step=step)[0]
        written = [text.text for text in drawn("shapes", Text, step=step)]
        first = numbers.flatten()[0]
        assert {f"{first:.1f}".replace("0.", "."), f"{first:.2f}".replace("0.", ".")} & set(written)
        assert "each cell: its number, by now a mixture" in written
    assert "each cell: 100 · token + feature, where its number comes from" in [
        text.text for text in drawn("shapes", Text, step="project")
    ]


NONE, ALL_SAME = "none", "Every word's output is the same in both orders, up to rounding."


@pytest.mark.parametrize(
    ("order", "second"),
    [
        ("swap", "All animals are dogs"),
        ("reverse", "animals are dogs All"),
        ("shuffle", "are dogs All animals"),
        ("same", "All dogs are animals"),
    ],
)
def test_word_order_draws_both_orders_with_their_own_words(order, second, monkeypatch):
    assert f"Second order: {second}. " in says("word_order", order=order)
    (words, weights, _), (others, moved, _), *_ = handed(monkeypatch, "word_order", order=order)
    assert " ".join(others) == second
    places = [words.index(word) for word in others]
    assert moved.flatten().tolist() == pytest.approx(weights[places][:, places].flatten().tolist())


def test_hidden_words_are_hatched_in_both_orders(monkeypatch):
    for _, _, hidden in handed(monkeypatch, "word_order", mask=True)[:2]:
        assert hidden.equal(causal_mask(4))
    for _, _, hidden in handed(monkeypatch, "word_order")[:2]:
        assert hidden is None


def test_each_word_has_its_own_difference_beside_it():
    words = lectures.ALL_DOGS.split()
    state = {"mask": True, "order": "shuffle"}
    differ = says("word_order", **state).split("differ: ")[1].split(". The same")[0]
    told = dict(word.split() for word in differ.split(", "))
    assert 0 < len(told) < len(words)
    level = {}  # height on the picture -> the texts there
    for text in drawn("word_order", Text, **state):
        level.setdefault(text.y, []).append(text.text)
    rows = [row for row in level.values() if row[0] in words and row[-1] not in words]
    assert [row[0] for row in rows] == words
    for word, size in rows:
        assert size == told[word] if word in told else size == "none (below 1e-6: rounding)"
    bars = [box for box in drawn("word_order", Box, **state) if box.face == sheet.ORANGE]
    assert len(bars) == len(told)
    sizes = [float(size) for size in told.values()]
    for box, size in zip(bars, sizes, strict=True):  # as long as its number says
        assert box.width / bars[0].width == pytest.approx(size / sizes[0], rel=0.1)


def test_word_order_is_unseen_without_mask_and_positions_only():
    assert ALL_SAME in says("word_order")
    assert ALL_SAME in says("word_order", order="reverse", layers=2)
    for positions in ("sinusoidal", "learned", "rotary"):
        assert ALL_SAME not in says("word_order", positions=positions)
        assert ALL_SAME in says("word_order", positions=positions, order="same")
    masked = says("word_order", mask=True)
    assert ALL_SAME not in masked
    assert "The same up to rounding: 1 word." in masked  # the first word


def test_one_causal_layer_sees_the_earlier_words_as_a_set_and_two_do_not():
    last = "animals"
    one = says("word_order", mask=True, order="shuffle")
    assert last not in one.split("Outputs that differ:")[1]
    two = says("word_order", mask=True, order="shuffle", layers=2)
    assert last in two.split("Outputs that differ:")[1]


def test_the_two_it_part_with_positions_only():
    both = {"sentence": lectures.TWO_ITS, "order": "same"}
    apart = "First and last it in the first order differ by: "
    assert f"{apart}below 1e-6" in says("word_order", **both)
    assert f"{apart.replace(' it ', ' the ')}below 1e-6" in says("word_order", **both)  # The, the
    for positions in ("sinusoidal", "learned", "rotary"):
        status = says("word_order", **both, positions=positions)
        assert apart in status
        assert f"{apart}below" not in status


def test_a_word_has_one_vector_on_every_machine():
    bits = hashlib.shake_256(b"dogs").digest(4)
    first, second = (int.from_bytes(bits[i : i + 2], "big") for i in (0, 2))
    expected = [(bits / 32767.5 - 1) * 3**0.5 for bits in (first, second)]
    assert vectors(["Dogs"], 5)[0, :2].tolist() == pytest.approx(expected, abs=1e-6)
    assert vectors(["dogs"], 9)[0, :5].equal(vectors(["dogs"], 5)[0])  # wider: more, not others
    many = vectors([f"word{i}" for i in range(300)], 8)
    assert abs(many.mean()) < 0.1
    assert many.std() == pytest.approx(1, abs=0.05)


def test_words_are_split_into_heads_that_see_each_their_own_numbers(monkeypatch):
    state = {"d_model": 12, "num_heads": 3}
    tables = [handed(monkeypatch, "word_order", **state, head=h)[0][1] for h in range(3)]
    assert not tables[0].equal(tables[1])
    for order in ("swap", "reverse"):
        assert ALL_SAME in says("word_order", **state, order=order)
        assert ALL_SAME not in says("word_order", **state, order=order, positions="rotary")


# --- An attention of one's own --------------------------------------------------------------


def planted_module(code, base="separate"):
    return next(f for f in registry.PLANTED if (f.code, f.style) == (code, base)).module.make


def test_own_attention_shows_the_weights_that_the_run_gave():
    torch.manual_seed(0)
    module = MultiHeadAttention(24, 4)
    explorer = explorers.explore_attention(module)
    words = "cats see cats run".split()
    explorer.controls["words"].value = " ".join(words)
    with torch.no_grad():
        _, weights = module(vectors(words, 24)[None], need_weights=True)
    for head in range(4):
        explorer.controls["head"].value = head
        assert f"Head {head} of 4: largest weight {weights[0, head].max():.2f}" in explorer.status
        numbers = [item.text for item in explorer.picture.items if isinstance(item, Text)]
        for number in weights[0, head].tril().flatten().tolist():
            assert number == 0 or f"{number:.2f}" in numbers
    assert "6 cells hidden, rows add up to 1. Changing run (3) moves the outputs of: run (3)." in (
        explorer.status
    )
    assert "the check says" in numbers
    assert "nothing wrong found" in numbers
    boxes = [item for item in explorer.picture.items if isinstance(item, Box)]
    assert len([box for box in boxes if box.hatched]) == 3 * 5  # rows of a large and four small
    for token in range(4):
        explorer.controls["disturb"].value = token
        assert "No weight lets" not in explorer.status
        assert not [i for i in explorer.picture.items if isinstance(i, Text) and "✗" in i.text]


def test_own_attention_counts_layers_and_gives_a_mask_where_there_is_an_argument():
    block = torch.nn.TransformerEncoderLayer(24, 4, 30, batch_first=True)
    encoder = torch.nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
    explorer = explorers.explore_attention(encoder)
    assert explorer.controls["layer"].max == 1
    assert explorer.controls["mask"].description == "mask"
    assert "0 cells hidden" in explorer.status
    explorer.controls["mask"].value = True
    assert "10 cells hidden" in explorer.status
    assert "moves the outputs of: cats (4)." in explorer.status
    explorer.controls["layer"].value = 1
    assert explorer.status.startswith("Layer 1 of 2.")
    assert any("layers.1.self_attn" in str(item) for item in explorer.picture.items)
    same_as_fresh(explorer)


@pytest.mark.parametrize("code", ["merge-by-view", "split-by-view"])
def test_a_fault_in_the_layout_is_a_contradiction_between_weights_and_outputs(code):
    explorer = explorers.explore_attention(planted_module(code))
    told = []
    for token in range(5):
        explorer.controls["disturb"].value = token
        crosses = [i for i in explorer.picture.items if isinstance(i, Text) and "✗" in i.text]
        told.append(len(crosses) > 0)
        assert ("No weight lets" in explorer.status) == told[-1]
    assert any(told)
    assert any(code in item.text for item in explorer.picture.items if isinstance(item, Text))


def test_rows_that_do_not_add_up_to_one_stand_out():
    explorer = explorers.explore_attention(planted_module("softmax-axis", "separate"))
    texts = [item for item in explorer.picture.items if isinstance(item, Text)]
    sums = [item for item in texts if item.bold and item.color == sheet.ORANGE]
    assert len(sums) >= 3
    assert "rows add up to 1." not in explorer.status


class HidesAll(MultiHeadAttention):
    def forward(self, x):
        mask = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu()  # its own token too
        q, k, v = (self._split(w(x)) for w in (self.W_query, self.W_key, self.W_value))
        return self.W_out(self._merge((q @ k.mT / 2 + mask).softmax(-1) @ v))


def test_a_row_of_nan_is_shown_as_it_is():
    explorer = explorers.explore_attention(HidesAll(12, 3))
    texts = [item.text for item in explorer.picture.items if isinstance(item, Text)]
    assert "nan" in texts
    assert "NaN" in texts
    assert "nan" not in re.sub(r">[^<]*<", "><", explorer.picture.svg())
    explorer.picture.png()


def test_what_cannot_be_read_is_a_sentence():
    explorer = explorers.explore_attention(torch.nn.Sequential(torch.nn.Linear(12, 12)))
    assert explorer.status.startswith("The weights cannot be shown. No softmax")
    assert "<img" not in shown(explorer)[0]
    explorer = explorers.explore_attention(planted_module("heads-attend-heads"))
    assert "made in parts" in explorer.status
    assert "The check says: 1 thing is wrong" in explorer.status
    assert "heads-attend-heads: " in explorer.status
    assert repr(explorer) == f"explore_attention: {explorer.status}"
    explorer = explorers.explore_attention(MultiHeadAttention)
    assert "<img" in shown(explorer)[0]
    explorer = explorers.explore_attention(3)
    assert "takes a module" in explorer.status


def test_own_attention_that_fails_on_many_words_says_so_and_goes_on():
    explorer = explorers.explore_attention(separate.make)  # its mask is 8 by 8
    explorer.controls["words"].value = "a b c d e f g h i"
    assert "fails on 9 tokens" in explorer.status
    explorer.controls["words"].value = "a b c"
    assert "<img" in shown(explorer)[0]


@pytest.mark.long
def test_of_the_planted_faults_nine_of_ten_are_seen():
    seen = []
    for fault in registry.PLANTED:
        explorer = explorers.explore_attention(fault.module.make)
        seen.append(
            fault.code in explorer.status
            or fault.code in explorer.picture.description
            or any(
                fault.code in item.text or "✗" in item.text
                for item in explorer.picture.items
                if isinstance(item, Text)
            )
        )
    assert sum(seen) >= 0.9 * len(seen)
