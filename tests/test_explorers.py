"""The explorers without a browser: states, pictures, sentences, errors, and their facts."""

import base64
import functools
import html
import importlib
import random
import re
import warnings

import ipywidgets as widgets
import pytest
import torch
from matplotlib.colors import to_rgba

from attention_course import (
    LoopedMultiHeadAttention,
    MultiHeadAttention,
    causal_mask,
    explorers,
    lectures,
    timing,
)
from attention_course.explorers import Explorer, Impossible
from attention_course.explorers import mask as mask_file
from attention_course.explorers import query as query_file
from attention_course.explorers import shapes as shapes_file
from attention_course.explorers import split as split_file
from attention_course.explorers import word_order as word_order_file
from attention_course.explorers.explorer import WIDGET_VIEW, sentence
from attention_course.explorers.parts import check_heads, random_input, untrained
from attention_course.figures import sheet

NAMES = ["query", "mask", "heads", "split", "shapes", "word_order"]


@pytest.fixture(autouse=True)
def _loud(monkeypatch):
    monkeypatch.setattr(Explorer, "raise_errors", True)
    monkeypatch.setattr(split_file, "MEASURE_SECONDS", 0.01)
    monkeypatch.setattr(sheet, "DPI", 72)  # the same pictures with fewer pixels, in half the time


def make(name, **state):
    """Return an explorer whose controls were moved to a state, one after the other."""
    explorer = getattr(explorers, f"explore_{name}")()
    for control, value in state.items():
        explorer.controls[control].value = value
    return explorer


starting = functools.cache(make)


def says(name, **state):
    """Return the status line of a state, without drawing it into a file."""
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


def axes(name, **state):
    """Return the matplotlib Axes on which a state is drawn."""
    explorer = starting(name)
    return explorer.render({**explorer.state, **state})[0].figure.axes[0]


def texts(ax, x=None, color=None):
    """Return the texts of a picture from top to bottom: all, or those at one x or in one colour."""
    found = [text for text in ax.texts if x is None or text.get_position()[0] == x]
    found = [text for text in found if color is None or text.get_color() == color]
    return [text.get_text() for text in sorted(found, key=lambda text: text.get_position()[1])]


def shown(explorer):
    """Return the HTML that stands in the picture's place, and the status line's."""
    return explorer._picture_place.value, explorer._status_line.value


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
    assert data["text/plain"] == make(name)._repr_mimebundle_()[0]["text/plain"]


@pytest.mark.parametrize("name", NAMES)
def test_widgets_show_the_picture_with_its_description_and_the_status(name):
    explorer = starting(name)
    place, status = shown(explorer)
    assert base64.b64encode(explorer.picture.png()).decode() in place
    assert f'alt="{html.escape(explorer.picture.description)}"' in place
    assert 'role="status"' in status
    assert len(explorer.status) > 40


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
    "猫 은 🐈 $x^2$ \\frac $",
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
    elif isinstance(control, widgets.FloatSlider):
        steps = round((control.max - control.min) / control.step)
        control.value = control.min + control.step * dice.randint(0, steps)
    elif isinstance(control, widgets.IntSlider):
        control.value = dice.randint(control.min, control.max)
    else:
        options = [option[1] if isinstance(option, tuple) else option for option in control.options]
        control.value = dice.choice(options)


def same_as_fresh(explorer):
    """Compare what stands there with a new rendering of the same state."""
    place, line = shown(explorer)
    try:
        picture, status = explorer.render(explorer.state)
        drawn = f"base64,{base64.b64encode(picture.png()).decode()}"
        assert html.escape(status) in line
    except Impossible as reason:
        picture, status = sentence(str(reason)), str(reason)
        drawn = html.escape(status)
    assert drawn in place
    assert status == explorer.status
    assert picture.description == explorer.picture.description


def test_walk_of_300_changes_draws_what_a_fresh_rendering_draws():
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
        if changes % 10 == 0:
            same_as_fresh(explorer)


# --- Sentences in the picture's place -------------------------------------------------------


def test_seven_heads_on_width_twelve_are_answered_with_the_nearest_that_work():
    explorer = make("heads", d_model=12, num_heads=7)
    assert explorer.status == (
        "12 numbers (d_model) cannot be shared equally by 7 heads (num_heads). Nearest that work: "
        "6 or 12 heads on d_model 12, or d_model 7 or 14 with 7 heads."
    )
    place, _ = shown(explorer)
    assert "12 numbers (d_model) cannot be shared equally" in place
    assert "<img" not in place
    assert "No picture for these settings." in shown(explorer)[1]
    explorer.controls["num_heads"].value = 6
    assert "<img" in shown(explorer)[0]


@pytest.mark.parametrize("name", ["heads", "split", "shapes"])
def test_whatever_the_sentence_proposes_works(name):
    explorer = make(name)
    for d_model in range(1, 25):
        for num_heads in range(1, 13):
            try:
                check_heads(d_model, num_heads)
            except Impossible as reason:
                by_heads, by_width = re.findall(
                    r"work: ([\d or]+) heads .* or d_model ([\d or]+) with", str(reason)
                )[0]
                assert all(d_model % int(n) == 0 for n in by_heads.split(" or "))
                assert all(int(n) % num_heads == 0 for n in by_width.split(" or "))
            else:
                assert d_model % num_heads == 0
    explorer.controls["d_model"].value, explorer.controls["num_heads"].value = 7, 3
    assert "cannot be shared" in explorer.status


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no words yet"),
        ("  \t ", "no words yet"),
        ("a b c d e f g h i j k l m", "13 words are too many"),
        ("x" * 21, "has 21 letters"),
        ("<b>dogs</b> run", "holds markup"),
    ],
)
def test_own_words_that_do_not_fit_are_answered_with_a_sentence(text, said):
    explorer = make("word_order", sentence="own words", words=text)
    assert said in explorer.status
    assert "<img" not in shown(explorer)[0]


def test_markup_is_shown_as_text_and_never_as_markup():
    explorer = make("word_order", sentence="own words", words="<b>dogs</b> <img src=x onerror=a()>")
    for part in shown(explorer):
        assert "<b>" not in part
        assert "<img" not in part
    assert "&lt;b&gt;dogs&lt;/b&gt; &lt;img src=x onerror=a()&gt;" in shown(explorer)[0]
    explorer.controls["words"].value = 'quote" onmouseover="a()'
    assert 'onmouseover="' not in "".join(shown(explorer))


def test_a_description_and_a_status_with_markup_stay_text():
    markup = '<b>dogs</b>" onerror="a() & cats'
    explorer = Explorer("plain", {}, lambda state: (sentence(markup), markup))
    place, status = shown(explorer)
    assert f'alt="{html.escape(markup)}" src=' in place
    assert f">{html.escape(markup)}</div>" in status


def test_twelve_words_letters_unknown_to_the_font_and_dollar_signs_are_drawn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(
            "word_order", sentence="own words", words="猫 🐈 $x^2$ a b c d e f g h $"
        ).picture.png()


@pytest.mark.parametrize("word", ["W" * 20, "@" * 9, "i" * 20, "elephants", "dogs", "…"])
def test_a_wide_word_is_cut_where_its_room_ends_and_a_narrow_one_is_not(word):
    cut = sheet.drawable(word, 3, room=56)
    drawn = sheet.Sheet(100)
    drawn.text(0, 50, cut, 12)
    assert drawn.ax.texts[0].get_window_extent().width * 96 / sheet.DPI < 59
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
    place, _ = shown(explorer)
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
    explorer = make("heads", d_model=12, num_heads=4, head=4, follow=12)
    assert (explorer.controls["head"].value, explorer.controls["follow"].value) == (4, 12)
    explorer.controls["num_heads"].value = 2
    assert explorer.controls["head"].value == explorer.controls["head"].max == 2
    explorer.controls["d_model"].value = 6
    assert explorer.controls["follow"].value == explorer.controls["follow"].max == 6
    same_as_fresh(explorer)


def test_a_change_draws_once_even_where_it_moves_another_control():
    explorer = make("heads", d_model=12, num_heads=4, head=4, follow=12)
    states = []
    render = explorer.render
    explorer.render = lambda state: states.append(state) or render(state)
    explorer.controls["num_heads"].value = 2
    assert [state["head"] for state in states] == [2]


def test_own_words_can_be_typed_only_where_they_are_read():
    explorer = make("word_order")
    assert explorer.controls["words"].disabled
    explorer.controls["sentence"].value = "own words"
    assert not explorer.controls["words"].disabled


def test_where_a_mask_acts_can_be_chosen_only_where_there_is_one():
    explorer = make("mask")
    assert not explorer.controls["place"].disabled
    explorer.controls["mask"].value = False
    assert explorer.controls["place"].disabled


# --- What they show -------------------------------------------------------------------------


def test_query_starts_at_the_lectures_scores_and_the_two_it_agree():
    explorer = make("query")
    assert f"with dog {lectures.IT_DOG_KEY}, with ball {lectures.IT_BALL_KEY}" in explorer.status
    assert "between the rows of the two it: below 1e-6" in explorer.status
    last = explorer.status.replace("word 11", "")
    explorer.controls["query"].value = 6
    assert explorer.status.replace("word 7", "") == last
    for i in (1, 2, 3):
        explorer.controls[f"key_{i}"].value = 1.0
    assert f"with dog {lectures.IT_DOG}, with ball {lectures.IT_BALL}" in explorer.status


@pytest.mark.parametrize("divide", [True, False])
@pytest.mark.parametrize("chosen", [1, 4, 10])
def test_query_gives_the_weights_and_the_context_of_the_formula(chosen, divide, monkeypatch):
    words = lectures.TWO_ITS.replace(",", "").split()
    x = torch.tensor([lectures.OUR_WORDS[word.lower()] for word in words])
    scores = x[chosen] @ torch.diag(torch.tensor([1.5, -2.0, 3.0])) @ x.T
    weights = (scores / 3**0.5 if divide else scores).softmax(-1)
    numbers = [f"{number:.2f}" for number in (weights @ x).tolist()]
    state = {"query": chosen, "divide": divide, "key_1": 1.5, "key_2": -2.0, "key_3": 3.0}
    status = says("query", **state)
    assert f"Largest weight {weights.max():.2f}, on {words[weights.argmax()]}." in status
    assert f"Context vector {', '.join(numbers)}." in status
    assert "between the rows of the two it: below 1e-6" in status
    _, _, drawn_scores, drawn_weights, *_ = handed(monkeypatch, "query", **state)
    assert drawn_scores.tolist() == pytest.approx(scores.tolist())
    assert drawn_weights.tolist() == pytest.approx(weights.tolist(), abs=1e-6)
    wanted = [f"▶ {word}" if i == chosen else word for i, word in enumerate(words)]
    assert texts(axes("query", **state), x=80)[: len(words)] == wanted


@pytest.mark.parametrize("size", [2, 512])
def test_query_tells_random_vectors_with_the_division_from_those_without(size):
    one, other = (query_file._largest_weights(kind)[size] for kind in (True, False))
    assert one < other
    assert f"{one:.2f} on average with the division by √d, {other:.2f} without" in (
        says("query", size=size)
    )
    for divide, marker in ((True, "o"), (False, "s")):
        lines = axes("query", size=size, divide=divide).lines
        assert [line.get_marker() for line in lines if line.get_color() == sheet.ORANGE] == [marker]


def test_without_the_division_the_largest_weight_grows_with_d():
    undivided, divided = query_file._largest_weights(False), query_file._largest_weights(True)
    assert undivided[512] > 0.9 > 0.5 > undivided[2]
    assert max(divided.values()) - min(divided.values()) < 0.1


@pytest.mark.parametrize("disturbed", range(6))
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_mask_before_the_softmax_keeps_earlier_outputs_and_after_it_does_not(disturbed, dropout):
    state = {"disturb": disturbed, "dropout": dropout}
    assert "No earlier token has seen the future." in says("mask", **state)
    seen = "An earlier token has seen the future."
    assert (seen in says("mask", **state, place="after")) == (disturbed > 0)
    assert (seen in says("mask", mask=False, disturb=disturbed)) == (disturbed > 0)


def test_mask_says_what_rows_add_up_to():
    assert "15 cells hidden. Each row adds up to 1." in says("mask")
    assert "Rows add up to" in says("mask", place="after")
    assert "Rows add up to" in says("mask", dropout=0.2)
    assert "No token is disturbed." in says("mask", disturb=mask_file._NOBODY)


def test_mask_names_the_state_and_the_tokens_that_moved():
    assert says("mask", mask=False).startswith("Mask off: 0 cells hidden.")
    assert says("mask").startswith("Mask on, before the softmax: 15 cells hidden.")
    assert says("mask", place="after").startswith("Mask on, after the softmax: 15 cells hidden.")
    moved = "Disturbing work (4) moves the outputs of: work (4), for (5), it (6)."
    assert moved in says("mask", disturb=3)


def test_dropout_drops_what_is_seen_and_scales_up_what_stays(monkeypatch):
    _, kept, *_ = handed(monkeypatch, "mask")
    _, weights, hidden, dropped, *_ = handed(monkeypatch, "mask", dropout=0.6)
    stays = ~hidden & ~dropped
    assert weights[stays].tolist() == pytest.approx((kept[stays] / 0.4).tolist())
    assert weights[~stays].eq(0).all()
    assert dropped.any()
    assert not (dropped & hidden).any()
    assert f"Dropout 0.6 dropped {int(dropped.sum())} weights." in says("mask", dropout=0.6)


def test_mask_marks_the_cells_that_are_hidden_and_dropped_and_adds_up_rows(monkeypatch):
    state = {"place": "after", "dropout": 0.5}
    words, weights, hidden, dropped, *_ = handed(monkeypatch, "mask", **state)
    ax = axes("mask", **state)
    left, right, bottom, top = ax.images[0].get_extent()
    wide, high = (right - left) / len(words), (bottom - top) / len(words)
    hatched = [patch.get_xy() for patch in ax.patches if patch.get_hatch()]
    cells = {(round((y - top) / high), round((x - left) / wide)) for x, y in hatched}
    assert cells == set(map(tuple, hidden.nonzero().tolist()))
    crosses = [text.get_position() for text in ax.texts if text.get_text() == "×"]
    cells = {(int((y - top) / high), int((x - left) / wide)) for x, y in crosses}
    assert cells == set(map(tuple, dropped.nonzero().tolist()))
    assert texts(ax, x=right + 24) == ["sum", *(f"{row:.2f}" for row in weights.sum(-1).tolist())]


def test_heads_are_called_untrained_and_the_parameters_do_not_depend_on_them():
    for num_heads in (1, 2, 3, 6):
        status = says("heads", num_heads=num_heads)
        assert "144 parameters" in status
        assert "untrained" in status
    assert "Head 3 of 4 gives numbers 7 to 9" in says("heads", d_model=12, num_heads=4, head=3)


@pytest.mark.parametrize("head", [1, 2, 3])
def test_the_chosen_head_is_named_outlined_and_drawn(head):
    state = {"d_model": 12, "num_heads": 3, "head": head, "follow": 8}
    module = untrained(MultiHeadAttention, 12, 3, causal=False)
    with torch.no_grad():
        weights = module(random_input(1, 6, 12), need_weights=True)[1][0, head - 1]
    status = says("heads", **state)
    assert f"Input number 8 reaches every head. Head {head} of 3 gives" in status
    assert status.endswith(f"Largest weight of head {head}: {weights.max():.2f}.")

    ax = axes("heads", **state)
    in_query, in_out = [patch for patch in ax.patches if patch.get_linewidth() == 1.8]
    middles = {text.get_text(): text.get_position() for text in reversed(ax.texts)}  # the first
    assert middles[f"head {head}"][0] == pytest.approx(in_query.get_x() + in_query.get_width() / 2)
    assert middles[str(head)][1] == pytest.approx(in_out.get_y() + in_out.get_height() / 2)
    assert f"head {head}, untrained: its weights" in texts(ax)
    assert texts(ax, color=sheet.ORANGE) == ["8"]
    large, *small = [image.get_array() for image in ax.images]
    assert [(large == image).all() for image in small] == [h == head for h in (1, 2, 3)]


def test_w_query_and_the_difference_are_drawn_as_they_are(monkeypatch):
    state = {"tokens": 5, "d_model": 12, "num_heads": 3}
    loop = untrained(LoopedMultiHeadAttention, 12, 3)
    w_query, order, *_ = handed(monkeypatch, "split", **state)
    for h in range(3):
        wanted = loop.heads[h].W_query.weight.mT
        assert w_query[:, 4 * h : 4 * h + 4].equal(wanted), f"columns of head {h}"
    state["fault"] = "order"
    w_query, order, difference, *_ = handed(monkeypatch, "split", **state)
    assert order == [2, 1, 0]
    assert w_query[:, :4].equal(loop.heads[2].W_query.weight.mT)
    _, wrong, x = split_file._loop_and_split(state)
    with torch.no_grad():
        wanted = (loop(x) - wrong(x)).abs()[0]
    assert difference.flatten().tolist() == pytest.approx(wanted.flatten().tolist(), abs=1e-6)
    names = [text for text in axes("split", **state).texts if text.get_text()[:5] == "head "]
    names.sort(key=lambda text: text.get_position()[0])
    assert [text.get_text() for text in names] == ["head 3", "head 2", "head 1"]


def test_the_planted_faults_are_where_they_are_said_to_be():
    right = untrained(MultiHeadAttention, 12, 3)
    projected = torch.arange(120.0).reshape(2, 5, 12)
    context = right._split(projected)
    for fault, splits, merges in (("split", False, True), ("merge", True, False)):
        sizes = {"tokens": 5, "d_model": 12, "num_heads": 3}
        _, wrong, _ = split_file._loop_and_split({**sizes, "fault": fault})
        assert wrong._split(projected).equal(context) == splits
        assert wrong._merge(context).equal(projected) == merges


def test_times_are_told_apart(monkeypatch):
    told = says("split", times={"loop": 0.003, "split": 0.002})
    assert "Loop 3.000 ms, split 2.000 ms" in told
    assert "the loop takes 1.5 times as long" in told
    given, compare = {}, timing.compare_times

    def compared(functions, *inputs, **options):
        given.update(functions)
        return compare(functions, *inputs, **options)

    monkeypatch.setattr(timing, "compare_times", compared)
    make("split").press("measure")
    kinds = {name: type(module) for name, module in given.items()}
    assert kinds == {"loop": LoopedMultiHeadAttention, "split": MultiHeadAttention}


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
    assert set(explorer.state["times"]) == {"loop", "split"}
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
        "attend": (2, 3, 5, 4),
        "merge": (2, 5, 12),
        "W_out": (2, 5, 12),
    }
    for i, (step, shape) in enumerate(wanted.items()):
        axes_names = "num_heads, tokens, head_dim" if len(shape) == 4 else "tokens, d_model"
        start = f"Step {i + 1} of 5, {step}: shape {shape}, (batch, {axes_names})."
        assert says("shapes", step=step).startswith(start)
    assert "(2, 5, 3, 4), (batch, tokens, num_heads, head_dim)" in says("shapes", transpose="none")
    assert "(3, 2, 7, 5), (batch, num_heads, tokens" in (
        says("shapes", batch=3, tokens=7, d_model=10, num_heads=2)
    )


def test_a_query_number_goes_into_one_head_and_an_input_number_into_all():
    for step in ("split", "attend"):
        status = says("shapes", step=step)
        assert re.search(r"query reaches \d+ (entry|entries) in head 1;", status)
        assert "in heads 0, 1, 2." in status


@pytest.mark.parametrize(
    ("way", "step", "query", "own_input"),
    [
        ("right", "split", "1 entry in head 1", "12 entries in heads 0, 1, 2"),
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
    numbers = (100 * torch.arange(5)[:, None] + torch.arange(12)).expand(2, -1, -1)
    right = shapes_file._number(module, numbers, "right", "split")
    assert right[0, 1].tolist() == [[100 * t + 4 + c for c in range(4)] for t in range(5)]
    wrong = shapes_file._number(module, numbers, "view", "split")
    assert right.shape == wrong.shape
    assert wrong[0, 0, :3].flatten().tolist() == list(range(12))  # three "tokens", all token 0
    assert shapes_file._number(module, numbers, "right", "merge").equal(numbers)
    assert not shapes_file._number(module, numbers, "view", "merge").equal(numbers)


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
    ax = axes("word_order", **state)
    level = {}  # height on the picture -> the texts there
    for text in ax.texts:
        level.setdefault(text.get_position()[1], []).append(text.get_text())
    rows = [row for row in level.values() if row[0] in words and row[-1] not in words]
    assert [row[0] for row in rows] == words
    for word, size in rows:
        assert size == told[word] if word in told else size in ("0", "rounding")
    bars = [patch for patch in ax.patches if patch.get_facecolor() == to_rgba(sheet.ORANGE)]
    assert len(bars) == len(told)


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
    expected = [-1.2485, 1.1211, -0.9026, -1.5270]
    assert word_order_file._word_vector("dogs")[:4].tolist() == pytest.approx(expected, abs=1e-4)
