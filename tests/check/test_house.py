"""The house of the check: what may know what, what a rule may do, and how large it may grow."""

import ast
import re
from pathlib import Path

import pytest
import torch

import attention_check
from attention_check.rules import RULES

HOUSE = Path(attention_check.__file__).parent
ROOMS = (
    "words findings guard covered search runs graph stages derivative facts trust acting settle "
    "rules report check"
).split()
FAMILIES = (
    "registry calls modes layout weights roles effect sight trials visible masks scale layers "
    "relations caches"
).split()
FILES = sorted(HOUSE.rglob("*.py"))
RULE_FILES = [file for file in (HOUSE / "rules").glob("*.py") if file.stem != "registry"]
MOST_LINES = {"attention_check": 8150, "attention_course": 6500}
MOST_OPERATIONS = 30
MOST_OF_A_FUNCTION = 40


def functions(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def named(files):
    return [file.relative_to(HOUSE.parent).as_posix() for file in files]


@pytest.mark.parametrize("file", FILES, ids=named(FILES))
def test_imports_run_down_the_rooms(file):
    here = file.relative_to(HOUSE)
    room = here.parts[0].removesuffix(".py")
    if room not in ROOMS:
        return  # __init__ and __main__ stand above all
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        if node.level == len(here.parts):  # from the package
            above = [node.module.split(".")[0]] if node.module else [a.name for a in node.names]
            assert all(ROOMS.index(one) < ROOMS.index(room) for one in above), ast.unparse(node)
        elif room == "rules" and here.stem != "__init__":
            below = FAMILIES[: FAMILIES.index(here.stem)]
            assert node.module in below, ast.unparse(node)


@pytest.mark.parametrize("file", RULE_FILES, ids=named(RULE_FILES))
def test_a_rule_neither_asks_another_nor_sets_anything(file):
    rules = {rule.ask.__name__ for rule in RULES}
    for function in functions(file):
        given = {arg.arg for arg in function.args.args}
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("found", "findings"), ast.unparse(node)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in rules, f"{function.name} asks {node.func.id}"
                if node.func.id in ("setattr", "delattr"):
                    assert _root(node.args[0]) not in given, ast.unparse(node)
            if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(
                node.ctx, ast.Load
            ):
                assert _root(node) not in given, f"{function.name}: {ast.unparse(node)}"


def _root(node):
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return getattr(node, "id", "")


def test_the_facts_cannot_be_set():
    from attention_check.runs import Runs

    with pytest.raises(AttributeError, match="x cannot be set"):
        Runs(None).x = torch.zeros(1)


def test_a_rule_goes_by_the_name_of_its_code():
    assert [rule.ask.__name__.replace("_", "-") for rule in RULES] == [rule.code for rule in RULES]


def test_each_rule_says_what_it_is_about():
    for rule in RULES:
        assert re.fullmatch(r"[^.]+\.", rule.sentence), rule.code
        assert 1 <= len(rule.example.splitlines()) <= 3, rule.code


@pytest.mark.parametrize("package", ["attention_check", "attention_course", "shape_tracing"])
def test_no_function_is_long(package):
    for file in (HOUSE.parent / package).rglob("*.py"):
        for function in functions(file):
            lines = function.end_lineno - function.lineno + 1
            assert lines <= MOST_OF_A_FUNCTION, f"{file.name}: {function.name} has {lines} lines"


@pytest.mark.parametrize("package", MOST_LINES)
def test_a_package_can_be_read_in_an_evening(package):
    files = (HOUSE.parent / package).rglob("*.py")
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    more = lines - MOST_LINES[package]
    assert more <= 0, f"{more} lines too many in {package}: find what can be shorter first"


def test_few_operations_are_known_by_name():
    """They all stand at the top of graph.py; nobody else compares a call's name with a word."""
    tree = ast.parse((HOUSE / "graph.py").read_text(encoding="utf-8"))
    values = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    names = {n.value for v in values for n in ast.walk(v) if isinstance(n, ast.Constant)}
    names = {name for name in names if isinstance(name, str)}
    assert 20 <= len(names) <= MOST_OPERATIONS, sorted(names)
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare) and re.search(r"call.*\.name", ast.unparse(node)):
                words = [n for n in ast.walk(node) if isinstance(n, ast.Constant)]
                assert not any(isinstance(n.value, str) for n in words), ast.unparse(node)


def test_the_page_of_codes_is_that_of_the_rules():
    from codes import PAGE, page

    assert PAGE.read_text(encoding="utf-8") == page(), "make docs writes it anew"
