"""Each exercise as it stands in its notebook: stub, check, folded solution, wrong answers."""

import ast
import itertools
import linecache
import re

import books
import pytest
import torch
from cell_source import Names
from wrong_answers import ALL as WRONG

from attention_check import check_attention
from attention_course import exercises
from attention_course.exercises import (
    EXERCISES,
    Wrong,
    carried,
    faults,
    find_the_fault,
    numbers,
    progress,
    run,
)

HEADING = re.compile(r"^### Try: (.+) \((easy|medium|hard), (\d+) minutes?\)$", re.MULTILINE)
SOLUTION = re.compile(
    r"<details><summary>Solution \(click to open\)</summary>\n(.*?)</details>", re.DOTALL
)
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)


class Place:
    """Where an exercise stands: its notebook, heading, stub cell, check cell and solution."""

    def __init__(self, book, at):
        cells = book.cells
        self.check = cells[at].source
        self.name = re.fullmatch(r"check_\w+\((\w+)\)", self.check)[1]
        self.before = [cell.source for cell in books.code_cells(book)]
        self.stub_cell = next(c for c in cells[at::-1] if "exercise" in c.metadata.get("tags", ()))
        self.before = self.before[: self.before.index(self.stub_cell.source)]
        above = [c.source for c in cells[:at] if c.cell_type == "markdown"]
        self.title, self.difficulty, self.minutes = HEADING.findall("\n".join(above))[-1]
        (self.solution,) = CODE.findall(SOLUTION.search(cells[at + 1].source)[1])
        self.output = "".join(books.texts(cells[at]))

    def namespace(self, answer):
        """Run what an answer needs of the cells above it, then the answer; return the names."""
        names = {}
        for source in [*_needed(self.before, answer), answer]:
            file = f"<cell {hash(source)}>"
            linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
            exec(compile(source, file, "exec"), names)
        return names

    def verdict(self, answer):
        return EXERCISES[self.name].verdict(self.namespace(answer)[self.name])


def _needed(cells, source):
    """Return those of the cells that bind what a source reads, directly or through others."""
    chosen, wanted = [], _all_names(source)
    for cell in reversed(cells):
        if Names(cell).bound & wanted:
            chosen.insert(0, cell)
            wanted |= _all_names(cell)
    return chosen


def _all_names(source):
    return {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}


def _places():
    for path in books.ALL:
        book = books.read(path)
        for at, cell in enumerate(book.cells):
            if cell.cell_type == "code" and re.match(r"check_\w+\(\w+\)$", cell.source):
                place = Place(book, at)
                place.notebook = books.number(path)
                yield place


PLACES = {place.name: place for place in _places()}
DONE = [p for p in books.ALL if books.number(p) in {e.notebook for e in PLACES.values()}]
ANSWERS = [
    pytest.param(name, old, new, words, id=f"{name}-{number}")
    for name, answers in WRONG.items()
    for number, (old, new, words) in enumerate(answers, 1)
]


def test_every_exercise_stands_in_its_notebook():
    order = [books.number(path) for path in books.ALL]
    assert list(PLACES) == sorted(EXERCISES, key=lambda name: order.index(EXERCISES[name].notebook))
    for name, place in PLACES.items():
        each = EXERCISES[name]
        assert getattr(exercises, f"check_{name}", each) is each
        title = place.title.replace("*", "")
        assert (each.notebook, each.title) == (place.notebook, title[0].upper() + title[1:])


def test_every_exercise_has_three_wrong_answers():
    assert {name for name, answers in WRONG.items() if len(answers) >= 3} == set(EXERCISES)


@pytest.mark.parametrize("name", PLACES)
def test_a_stub_is_not_tried(name):
    place = PLACES[name]
    verdict = place.verdict(place.stub_cell.source)
    assert (verdict.tried, verdict.passed) == (False, False)
    assert place.output == f"{verdict}\n"
    assert str(verdict).startswith("Not tried yet")


@pytest.mark.parametrize("name", PLACES)
def test_the_solution_passes(name):
    verdict = PLACES[name].verdict(PLACES[name].solution)
    assert verdict.passed, verdict
    assert str(verdict).startswith("Passed. ")


@pytest.mark.parametrize(("name", "old", "new", "words"), ANSWERS)
def test_a_wrong_answer_is_told_what_is_wrong(name, old, new, words):
    place = PLACES[name]
    assert old is None or old in place.solution
    verdict = place.verdict(new if old is None else place.solution.replace(old, new))
    assert (verdict.tried, verdict.passed) == (True, False)
    assert words in str(verdict)


@pytest.mark.parametrize("name", EXERCISES)
@pytest.mark.parametrize(
    "answer",
    [
        0,
        "x",
        [[1], [2, 3]],
        {"a": 1},
        object(),
        torch.nn.Linear,
        torch.full((3,), torch.nan),
        torch.zeros(0),
        lambda *inputs: inputs,
        lambda *inputs: torch.full((2, 5, 3), torch.inf),
        lambda *inputs: 1 / 0,
        lambda: 1,
        lambda *inputs: "word",
    ],
)
def test_no_answer_raises_an_error(name, answer):
    assert not EXERCISES[name].verdict(answer).passed


# --- the fault to find ------------------------------------------------------------------------

SEEDS = [(seed, heads) for heads in (1, 2, 3, 4) for seed in range(12)]  # each planted line once


@pytest.mark.parametrize(("seed", "num_heads"), SEEDS)
def test_a_dealt_fault_is_silent_and_check_attention_confirms_it(seed, num_heads):
    case = find_the_fault(seed, num_heads)
    output = case.module(case.x).detach()
    assert output.shape == case._right.shape
    assert output.isfinite().all()
    wrong = [i for i in range(6) if not torch.allclose(output[0, i], case._right[0, i], atol=1e-4)]
    assert (
        case.answer(case._planted, wrong[-1])
        .judged()
        .startswith(f"check_attention says: {case._planted}: ")
    )
    for token in {*range(6)} - {*wrong}:
        with pytest.raises(Wrong, match="what a right module gives"):
            case.answer(case._planted, token).judged()
    for code in {*case.codes} - {case._planted}:
        with pytest.raises(Wrong, match=f'It is not "{code}": '):
            case.answer(code, wrong[-1]).judged()


@pytest.mark.parametrize(
    ("text", "sizes"), [(faults.ONE_HEAD, (8, 5)), (faults.MANY_HEADS, (20, 4))]
)
def test_nothing_is_wrong_before_a_fault_is_planted(text, sizes):
    assert check_attention(faults._made(text, sizes), causal=True).ok


def test_every_code_is_dealt_and_neighbours_differ():
    dealt = [find_the_fault(seed, 3)._planted for seed in range(12)]
    assert {*dealt} == {*faults.MEANINGS}
    assert all(first != second for first, second in itertools.pairwise(dealt))


def test_a_seed_deals_the_same_and_leaves_the_random_state():
    before = torch.get_rng_state()
    first, second = find_the_fault(3), find_the_fault(3)
    assert first.source == second.source
    assert torch.equal(first.module(first.x), second.module(second.x))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_learners_own_head_can_be_compared_with_the_case():
    further = books.read(books.ROOT / "notebooks" / "further" / "02_masks.ipynb")
    (task,) = [cell.source for cell in further.cells if cell.id == "silent-fault-task"]
    *statements, difference = CODE.search(task)[1].strip().splitlines()
    names = PLACES["causal_head"].namespace(PLACES["causal_head"].solution)
    names["case"] = find_the_fault(10)
    exec("\n".join(statements), names)
    largest = eval(difference, names)[0]
    assert [size < 1e-6 for size in largest] == [True] + [False] * 5


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"seed": "a"}, {"seed": 1, "num_heads": 0}])
def test_find_the_fault_says_what_it_wants(wrong):
    with pytest.raises(ValueError, match="must be a whole number"):
        find_the_fault(**wrong)


# --- progress ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", DONE, ids=[p.stem for p in DONE])
def test_progress_is_the_last_code_cell(path):
    assert books.code_cells(books.read(path))[-1].source == "progress()"


def _solved(notebook):
    return {
        name: place.namespace(place.solution)[name]
        for name, place in PLACES.items()
        if place.notebook == notebook
    }


@pytest.mark.parametrize("notebook", {place.notebook: None for place in PLACES.values()})
def test_progress_counts(notebook, capsys):
    solved = _solved(notebook)
    progress(solved)
    assert f"{len(solved)} of {len(solved)} passed" in capsys.readouterr().out
    if len(solved) == 1:
        return
    skipped = next(iter(solved))
    progress(solved | {skipped: None})
    shown = capsys.readouterr().out
    assert re.search(rf"{skipped} +no +no", shown)
    assert f"{len(solved) - 1} of {len(solved)} passed. Self-reported" in shown


def test_progress_reads_the_notebook_it_is_called_from(capsys):
    exec("progress()", {"progress": progress, "dog_diagonal": [1, 2, 1]})
    assert re.search(r"dog_diagonal +yes +no", capsys.readouterr().out)


def test_what_was_carried_from_an_earlier_notebook_does_not_count(capsys):
    names = {
        name: PLACES[name].namespace(PLACES[name].solution)[name]
        for name in ("query_weights", "sees_future")
    }
    capsys.readouterr()
    progress(names)
    shown = capsys.readouterr().out
    assert "sees_future" in shown
    assert "query_weights" not in shown


@pytest.mark.parametrize(
    "name", ["query_weights", "causal_head", "all_heads", "MyAttention", "places"]
)
def test_what_is_carried_is_the_learners_if_it_passes_else_the_courses(name, capsys):
    place = PLACES[name]
    own = place.namespace(place.solution)[name]
    capsys.readouterr()
    assert carried(name, own) is own
    assert capsys.readouterr().out == f"{name}: your own.\n"
    assert EXERCISES[name].verdict(carried(name, None)).passed
    assert "the course's. Yours is still empty here" in capsys.readouterr().out
    old, new, words = next(answer for answer in WRONG[name] if answer[0])
    wrong = place.namespace(place.solution.replace(old, new))[name]
    capsys.readouterr()
    assert EXERCISES[name].verdict(carried(name, wrong)).passed
    told = capsys.readouterr().out
    assert told.startswith(f"{name}: the course's. Yours does not pass: ")
    assert words in told


def test_progress_without_exercises(capsys):
    progress({"x": 1})
    assert "run the cells of the exercises first" in capsys.readouterr().out


# --- the pieces that checks are made of -------------------------------------------------------


def test_a_learners_tensors_are_copies():
    x = torch.zeros(3)
    run(lambda given: given.add_(1), x)
    assert x.sum() == 0


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (torch.zeros(2, 3), "The shape is (2, 3), but (2, 4) is wanted: (rows, columns)."),
        ([[1, 2, 3, 4], [1, 2, 3, torch.nan]], "NaN"),
        ([[1], [2, 3]], "list of numbers is wanted"),
        ("12345678", "this is '12345678'"),
    ],
)
def test_numbers_says_what_is_not_wanted(result, words):
    with pytest.raises(Wrong, match=re.escape(words)):
        numbers(result, (2, 4), "rows, columns")


def test_numbers_takes_tensors_and_lists():
    wanted = torch.tensor([[1.0, 2.0]])
    for result in (wanted, [[1, 2]], [(torch.tensor(1), 2.0)], wanted.double().requires_grad_()):
        assert torch.equal(numbers(result, (1, 2), "rows, columns"), wanted)


def _untried_functions():
    def one(x):
        pass

    def two(x):
        """Do something."""
        ...

    class Three:
        def forward(self, x):
            """Do something."""

    return [None, ..., [], {"a": None, "b": [None, ...]}, one, two, Three]


@pytest.mark.parametrize("answer", _untried_functions(), ids=lambda a: getattr(a, "__name__", a))
def test_untried(answer):
    assert not EXERCISES["query_weights"].verdict(answer).tried


@pytest.mark.parametrize("answer", [0, [0], {"a": None, "b": 1}, lambda x: 0, lambda x: print()])
def test_tried(answer):
    assert EXERCISES["query_weights"].verdict(answer).tried
