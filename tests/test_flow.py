"""The drawing of the data flow: what stands where, and the numbers of the notebooks' drawings."""

import re

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from attention_course import attention, causal_mask
from attention_course.figures.calculations import heads_at_once, one_query
from attention_course.figures.flow import Arrow, Grid, _route, flow
from attention_course.figures.sheet import Sheet

A = Grid(0, 0, [[1.5, -0.25], ["x", None], [2.0, 0.0]], "A", decimals=1, step=1)
B = Grid(120, 20, [[3.0]], "B", "(1)", step=2)


@pytest.fixture
def drawn(monkeypatch):
    """Return what is drawn: {what: [arguments]}, filled while a picture is made."""
    kept = {"number": [], "text": [], "box": [], "line": []}
    for name, calls in kept.items():
        method = getattr(Sheet, name)

        def keep(self, *args, _method=method, _calls=calls, **style):
            _calls.append((*args, style))
            return _method(self, *args, **style)

        monkeypatch.setattr(Sheet, name, keep)
    return kept


def numbers(drawn):
    return [call[2] for call in drawn["number"]]


def texts(drawn):
    return [call[2] for call in drawn["text"]]


def test_each_number_stands_in_its_own_cell(drawn):
    flow({"A": A, "B": B}, [], "", "Two tensors.")
    (x, y, *_), *others = [call[:3] for call in drawn["number"]]
    places = {text: (left - x, top - y) for left, top, text in others}
    assert places == {
        "-0.2": (30, 0),
        "x": (0, 19),
        "2.0": (0, 38),
        "0.0": (30, 38),
        "3.00": (120, 20),
    }
    assert {"A", "(3, 2)", "B", "(1)"} <= {*texts(drawn)}


def test_what_comes_later_is_named_and_empty(drawn):
    flow({"A": A, "B": B}, [Arrow("A", "B", "sum")], "Step 1", "Two tensors.", step=1)
    assert "3.00" not in numbers(drawn)
    assert "2.0" in numbers(drawn)
    assert {"B", "sum"} <= {*texts(drawn)}
    assert "(1)" not in texts(drawn)


def test_a_hidden_cell_is_hatched_and_has_no_number(drawn):
    hidden = [[False, True], [False, False], [False, False]]
    flow({"A": Grid(0, 0, A.cells, hidden=hidden)}, [], "", "One tensor.")
    assert "-0.25" not in numbers(drawn)
    assert [call[-1].get("hatch") for call in drawn["box"]].count("////") == 1


@pytest.mark.parametrize(
    ("target", "style", "points"),
    [
        (Grid(200, 4, [[0.0]], shape=""), "", [(63, 13.5), (197, 13.5)]),  # to the right
        (Grid(-90, 4, [[0.0]], shape=""), "", [(-3, 13.5), (-57, 13.5)]),  # to the left
        (Grid(10, 99, [[0.0]], shape=""), "", [(25, 36), (25, 97)]),  # down, past its shape
        (Grid(99, 99, [[0.0]], shape=""), "", [(63, 9.5), (114, 9.5), (114, 97)]),
        (Grid(99, 99, [[0.0]], shape=""), "fork", [(30, 36), (30, 45), (114, 45), (114, 97)]),
    ],
)
def test_an_arrow_leads_from_edge_to_edge(target, style, points):
    source = Grid(0, 0, [[0.0, 0.0]], shape="(2)")
    assert _route(source, target, style)[0] == points


def test_all_is_inside_the_sheet(drawn):
    grids = {
        "A": Grid(-300, 40, [[1.0]], rows=["a long name of a row"]),
        "B": Grid(500, 900, [[1]]),
    }
    note = (400, 950, "a note at the lower right")
    picture = flow(grids, [Arrow("A", "B", "x")], "A title", "Two tensors.", [note])
    wide, high = picture.figure.get_size_inches() * 96
    canvas = FigureCanvasAgg(picture.figure).get_renderer()
    for text in picture.figure.axes[0].texts:
        box = text.get_window_extent(canvas)
        scale = picture.figure.dpi / 96
        assert 0 <= box.x0 / scale <= box.x1 / scale <= wide, text
        assert 0 <= box.y0 / scale <= box.y1 / scale <= high, text
    assert repr(picture) == "A title. Two tensors."


# --- the drawings of the notebooks ------------------------------------------------------------

WORDS = ["all", "four", "words", "here"]


@pytest.fixture
def given():
    generator = torch.Generator().manual_seed(4)
    X = torch.randint(-9, 10, (4, 3), generator=generator) / 10
    return X, torch.randint(-9, 10, (3, 3, 2), generator=generator) / 10


@pytest.mark.parametrize("masked", [False, True])
def test_one_query_is_attention(given, masked, drawn):
    X, W = given
    hidden = causal_mask(4) if masked else None
    context, weights = attention(*(X @ W), hidden)
    picture = one_query(WORDS, X, W, 1, None if hidden is None else hidden[1])
    shown = weights[1][:2] if masked else weights[1]
    told = ", ".join(f"{w} {p:.2f}" for w, p in zip(WORDS, shown.tolist(), strict=False))
    assert f"({told})" in repr(picture)
    for number in [*shown.tolist(), *context[1].tolist(), *(X @ W[1]).flatten().tolist()]:
        assert re.sub("^-(0.00)$", r"\1", f"{number:.2f}") in numbers(drawn)
    assert numbers(drawn).count("−∞") == (2 if masked else 0)


@pytest.mark.parametrize("step", range(1, 7))
def test_each_step_is_worked_out(given, step, drawn):
    X, W = given
    one_query(WORDS, X, W, 2, step=step)
    (line,) = [t for t in texts(drawn) if re.search(r" = -?\d\.\d\d$", t)][-1:]
    left, _, right = line.rpartition(" = ")
    terms = left.replace("√2", "2 ** 0.5").replace("×", "*")
    assert eval(terms) == pytest.approx(float(right), abs=0.03)
    assert f"{float(right):.2f}" in numbers(drawn)


def heads_drawn(drawn, **mistake):
    Q, K = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))
    return heads_at_once(Q, K, 2, [f"t{i}" for i in range(5)], title="Heads", **mistake)


def test_every_number_arrives_where_it_came_from(drawn):
    picture = heads_drawn(drawn)
    assert "head 0 begin with numbers of tokens 0, 1, 2, 3, 4" in repr(picture)
    assert "merged rows with numbers of tokens 0, 1, 2, 3, 4" in repr(picture)
    assert "alone" not in " ".join(texts(drawn))


def test_a_mistake_shows_the_numbers_where_it_puts_them(drawn):
    assert "head 0 begin with numbers of tokens 0, 0, 1, 1, 2" in repr(
        heads_drawn(drawn, split=False)
    )
    assert "merged rows with numbers of tokens 0, 2, 4, 1, 3" in repr(
        heads_drawn(drawn, merge=False)
    )


def test_colours_follow_the_head_and_the_token(drawn):
    heads_drawn(drawn)
    faces = [call[4] for call in drawn["box"] if len(call) > 5]
    # token 1 of head 0 and of head 1: in Q, in its head, in its context, and merged
    assert faces.count("#2a6fb0") == faces.count("#c2540a") == 4 * 3
