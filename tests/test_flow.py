"""The drawing of the data flow: what stands where, and the numbers of the notebooks' drawings."""

import re
from itertools import pairwise

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from attention_course import attention, causal_mask, lectures
from attention_course.figures import flow, heads_at_once, heads_beside_cut, one_query, role_task
from attention_course.figures.drawing import Box, Text
from attention_course.figures.flow import Arrow, Grid, _route
from attention_course.figures.roles import ROLES

A = Grid(0, 0, [[1.5, -0.25], ["x", None], [2.0, 0.0]], "A", decimals=1, step=1)
B = Grid(120, 20, [[3.0]], "B", "(1)", step=2)


def texts(picture):
    return [item.text for item in picture.items if isinstance(item, Text)]


def boxes(picture):
    return [item for item in picture.items if isinstance(item, Box)]


def test_each_number_stands_in_its_own_cell():
    picture = flow({"A": A, "B": B}, [], "", "Two tensors.")
    places = {item.text: (item.x, item.y) for item in picture.items if isinstance(item, Text)}
    (x, y), wanted = (
        places["1.5"],
        {"-0.2": (30, 0), "x": (0, 19), "2.0": (0, 38), "3.00": (120, 20)},
    )
    assert {text: (places[text][0] - x, places[text][1] - y) for text in wanted} == wanted
    assert {"A", "(3, 2)", "B", "(1)"} <= {*places}


def test_what_comes_later_is_named_and_empty():
    shown = texts(flow({"A": A, "B": B}, [Arrow("A", "B", "sum")], "Step 1", "Two.", step=1))
    assert {"2.0", "B", "sum"} <= {*shown}
    assert not {"3.00", "(1)"} & {*shown}


def test_a_hidden_cell_is_hatched_and_has_no_number():
    hidden = [[False, True], [False, False], [False, False]]
    picture = flow({"A": Grid(0, 0, A.cells, hidden=hidden)}, [], "", "One tensor.")
    assert "-0.25" not in texts(picture)
    assert [box.hatched for box in boxes(picture)].count(True) == 1


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


WORDS = ["all", "four", "words", "here"]


@pytest.fixture
def given():
    generator = torch.Generator().manual_seed(4)
    X = torch.randint(-9, 10, (4, 3), generator=generator) / 10
    return X, torch.randint(-9, 10, (3, 3, 2), generator=generator) / 10


def heads_of_six(**mistake):
    Q, K = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))
    return heads_at_once(Q, K, 2, [f"t{i}" for i in range(5)], title="Heads", **mistake)


def cut_of(token, number):
    matrices = (lectures.OUR_HEADS_W_QUERY, lectures.OUR_HEADS_W_KEY, lectures.OUR_HEADS_W_VALUE)
    heads = list(zip(*map(torch.tensor, matrices), strict=True))
    words = lectures.DREAM.split()
    return heads_beside_cut(words, lectures.OUR_INPUTS, heads, lectures.OUR_W_OUT, token, number)


@pytest.mark.parametrize("drawing", ["far apart", "query", "heads", "cut", "task", "trained"])
def test_all_is_inside_the_picture(drawing, given):
    far = {"A": Grid(-300, 40, [[1.0]], rows=["a long name"]), "B": Grid(500, 900, [[1]])}
    note = (400, 950, "a note at the lower right", "bold")
    picture = {
        "far apart": lambda: flow(far, [Arrow("A", "B", "x")], "A title?", "Two.", [note]),
        "query": lambda: one_query(WORDS, *given, 1, step=1),
        "heads": heads_of_six,
        "cut": lambda: cut_of(1, 4),
        "task": role_task,
        "trained": lambda: role_task(torch.rand(3, 8)),
    }[drawing]()
    renderer, scale = FigureCanvasAgg(picture.figure).get_renderer(), picture.figure.dpi / 96
    for text in picture.figure.axes[0].texts:
        box = text.get_window_extent(renderer)
        assert 0 <= box.x0 / scale <= box.x1 / scale <= picture.width, text
        assert 0 <= box.y0 / scale <= box.y1 / scale <= picture.height, text
    assert picture._repr_mimebundle_()[1]["image/png"]["width"] == picture.width
    if drawing == "far apart":
        assert repr(picture) == "A title? Two."


# --- the drawings of the notebooks ------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True])
def test_one_query_is_attention(given, masked):
    X, W = given
    hidden = causal_mask(4) if masked else None
    context, weights = attention(*(X @ W), hidden)
    picture = one_query(WORDS, X, W, 1, None if hidden is None else hidden[1])
    shown = weights[1][:2] if masked else weights[1]
    told = ", ".join(f"{w} {p:.2f}" for w, p in zip(WORDS, shown.tolist(), strict=False))
    assert f"({told})" in repr(picture)
    for number in [*shown.tolist(), *context[1].tolist(), *(X @ W[1]).flatten().tolist()]:
        assert re.sub("^-(0.00)$", r"\1", f"{number:.2f}") in texts(picture)
    assert texts(picture).count("−∞") == (2 if masked else 0)


def test_the_way_begins_empty(given):
    shown = texts(one_query(WORDS, *given, 1, step=0))
    assert {f"{number:.1f}" for number in given[1].flatten().tolist()} <= {*shown} | {"-0.0"}
    assert {"score", "weight", "z1"} <= {*shown}
    assert not [text for text in shown if re.fullmatch(r"-?\d\.\d\d", text)]


@pytest.mark.parametrize("step", range(1, 7))
def test_each_step_is_worked_out(given, step):
    X, W = given
    shown = texts(one_query(WORDS, X, W, 2, step=step))
    line = [text for text in shown if re.search(r" = -?\d\.\d\d$", text)][-1]
    left, _, right = line.rpartition(" = ")
    assert eval(left.replace("√2", "2 ** 0.5").replace("×", "*")) == pytest.approx(
        float(right), abs=0.03
    )
    assert f"{float(right):.2f}" in shown


def test_every_number_arrives_where_it_came_from():
    picture = heads_of_six()
    assert "head 0 begin with numbers of tokens 0, 1, 2, 3, 4" in repr(picture)
    assert "merged rows with numbers of tokens 0, 1, 2, 3, 4" in repr(picture)
    assert "alone" not in texts(picture)


def test_a_mistake_shows_the_numbers_where_it_puts_them():
    assert "head 0 begin with numbers of tokens 0, 0, 1, 1, 2" in repr(heads_of_six(split=False))
    assert "merged rows with numbers of tokens 0, 2, 4, 1, 3" in repr(heads_of_six(merge=False))


def test_colours_follow_the_head_and_the_token():
    faces = [box.face for box in boxes(heads_of_six())]
    # token 1 of head 0 and of head 1: in Q, in its head, in its context, and merged
    assert faces.count("#2a6fb0") == faces.count("#c2540a") == 4 * 3


@pytest.mark.parametrize(("token", "number", "blue", "sand"), [(1, 4, 30, 60), (3, 0, 36, 18)])
def test_a_token_that_is_cut_first_reaches_one_head_only(token, number, blue, sand):
    """Dark: what moves of a head, three numbers of each later token, alone and joined."""
    picture = cut_of(token, number)
    assert "reaches 2 of 2 heads where each reads the whole token, and 1 where" in repr(picture)
    faces = [box.face for box in boxes(picture)]
    assert (faces.count("#2a6fb0"), faces.count("#c2540a")) == (blue, sand)


def test_the_task_asks_for_the_numbers_of_noun_and_verb():
    picture = role_task(torch.eye(8)[:2])
    rows = {}
    for item in picture.items:
        if isinstance(item, Text) and re.fullmatch(r"-?\d\.\d", item.text):
            rows.setdefault(item.y, []).append(item.text)
    rows = [rows[y] for y in sorted(rows)]
    noun, verb = rows[ROLES.index(0)], rows[ROLES.index(1)]
    assert len(rows) == 8 + 2 + 2
    assert rows[8:] == [noun, verb, noun, verb]  # two such heads bring back what is asked
    assert all(first != second for first, second in pairwise(rows[:8]))
