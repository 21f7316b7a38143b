"""The explorers without a browser: states, pictures, sentences, errors, and their facts."""

import base64
import functools
import html
import random
import re
import warnings

import ipywidgets as widgets
import pytest
import torch

from attention_course import MultiHeadAttention, explorers, lectures
from attention_course.explorers import Explorer, Impossible
from attention_course.explorers import mask as mask_file
from attention_course.explorers import query as query_file
from attention_course.explorers import shapes as shapes_file
from attention_course.explorers import split as split_file
from attention_course.explorers import word_order as word_order_file
from attention_course.explorers.explorer import WIDGET_VIEW
from attention_course.explorers.parts import check_heads, untrained
from attention_course.figures import explored, sheet

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
    assert 'alt="' in place
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
        picture, status = explored.sentence(str(reason)), str(reason)
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
    return explored.sentence("fine"), "fine"


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


# --- Controls that depend on each other -----------------------------------------------------


def test_head_and_followed_number_stay_within_their_bounds():
    explorer = make("heads", d_model=12, num_heads=4, head=4, follow=12)
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


def test_heads_are_called_untrained_and_the_parameters_do_not_depend_on_them():
    for num_heads in (1, 2, 3, 6):
        status = says("heads", num_heads=num_heads)
        assert "144 parameters" in status
        assert "untrained" in status
    assert "Head 3 of 4 gives numbers 7 to 9" in says("heads", d_model=12, num_heads=4, head=3)


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
    for step, shape in wanted.items():
        assert f"{step}: shape {shape}" in says("shapes", step=step)
    assert "(2, 5, 3, 4), (batch, tokens, num_heads" in says("shapes", transpose="none")


def test_a_query_number_goes_into_one_head_and_an_input_number_into_all():
    for step in ("split", "attend"):
        status = says("shapes", step=step)
        assert re.search(r"query reaches \d+ (entry|entries) in head 1;", status)
        assert "in heads 0, 1, 2." in status


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
    for positions in ("sinusoidal", "learned", "rotary"):
        status = says("word_order", **both, positions=positions)
        assert apart in status
        assert f"{apart}below" not in status


def test_a_word_has_one_vector_on_every_machine():
    expected = [-1.2485, 1.1211, -0.9026, -1.5270]
    assert word_order_file._word_vector("dogs")[:4].tolist() == pytest.approx(expected, abs=1e-4)
