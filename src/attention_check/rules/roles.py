"""Queries, keys and values: each is made by a layer of its own, and holds its place."""

import itertools
import re

import torch

from ..acting import WHOLE, in_words, is_matrix, layer_of, letter_of, places_of, within, zero_part
from ..facts import fact
from ..findings import Finding, Note
from ..graph import equation, factor
from ..search.names import ENCODER
from ..search.ways import context_number
from ..stages import ROLES, cores
from ..trust import diagonal_taken, disturbed, misspelt, rows_mixed, sees_others
from ..trust import one_for_all as copied_row
from ..words import listed
from .registry import rule


@rule("wrong-pair")
def wrong_pair(s):
    """The scores are made of something else than the queries and the keys.

    scores = keys @ keys.mT
    """
    return _first(s, "kq")


@rule("wrong-values")
def wrong_values(s):
    """The weights meet something else than the values.

    context = weights @ keys
    """
    return _first(s, "v")


def _first(s, letters):
    """The Finding of the first cause for which these roles go wrong, or None."""
    causes = (
        *(_by_diagonal, _summed_apart, _of_other_rows),
        *(_without_effect, _argument_confused, context_confused, _other_groups),
    )
    messages = (cause(s, letters) for cause in causes)
    return next((Finding(message) for message in messages if message), None)


@rule("one-for-all")
def one_for_all(s):
    """One token's queries, keys or values stand for those of all, though each has its own.

    queries = queries[:, :, -1:]
    scores = queries.expand_as(keys) @ keys.mT
    """
    if (role := copied_row(s)) is None:
        return None
    return Finding(
        f"All rows of the {role} are the same: those of one token stand for all "
        f"{s.sizes.tokens}. Use the {role} of each token: {role} of shape (batch, num_heads, "
        f"tokens, head_dim), without an index on the tokens' axis.",
    )


@rule("one-projection")
def one_projection(s):
    """A note: one projection makes several of queries, keys and values.

    self.W_query = self.W_key = nn.Linear(d_model, d_model)
    """
    roles = shared(s)
    if not s.weights or not roles or idle(s):
        return None
    pair = ": each score is the same in both directions" * ("queries" in roles and "keys" in roles)
    return Note(
        f"{listed(roles).capitalize()} are the numbers of one projection{pair}. Give each a "
        f"layer of its own, unless that is meant.",
    )


@rule("unused-argument")
def unused_argument(s):
    """A note: one of two inputs acts on nothing.

    def forward(self, x, y):
        return self.attend(x)
    """
    if disturbed(s) or not (names := unread(s)) or context_number(s.way.names) is not None:
        return None
    return Note(f"{_made_of_other(*names)} forward can do without {names[0]}.")


# --- letters of an einsum, and diagonals ------------------------------------------------------


def _by_diagonal(s, letters):
    if letters != "v" or (call := diagonal_taken(s)) is None:
        return None
    where = f" by einsum '{equation(call)}'" if equation(call) else ""
    return (
        f"Of the weights the diagonal alone goes on{where}{in_line(call)}: each token gets its "
        f"own value times one weight, and no value of another. context = weights @ values."
    )


def _summed_apart(s, letters):
    code, product = misspelt(s) or ("", None)
    if code != ("wrong-values" if letters == "v" else "wrong-pair"):
        return None
    lost = "the weights add up to one and weigh nothing" if letters == "v" else "no vectors meet"
    return f"{apart_in_words(s, product)}: {lost}. {one_letter(s, product)}"


def _of_other_rows(s, letters):
    if letters == "v" or not (found := rows_mixed(s)):
        return None
    row, others = found
    return (
        f"Row {row} of the scores holds scores of {'query' if len(others) == 1 else 'queries'} "
        f"{listed(others)} beside its own, as after a shift that moves scores by position out of "
        f"their rows. Take each from the row of its own query: by_position.gather(-1, places), "
        f"with the place of each pair's distance."
    )


def apart_in_words(s, product):
    """Which letters of an einsum are summed apart, with its equation and its line."""
    call, (a, b) = s.graph.calls[product.at], product.apart[0]
    return (
        f"In the einsum '{equation(call)}'{in_line(call)} {a} and {b} each stand in one operand "
        f"alone, so each is summed by itself"
    )


def one_letter(s, product):
    """The equation with one letter for two axes that should meet, as an advice."""
    terms, arrow, out = equation(s.graph.calls[product.at]).partition("->")
    a, b = product.apart[0]
    return f"Give both one letter: '{terms.replace(b, a)}{arrow}{out}'."


def in_line(call):
    """The line of a call in words, or ""."""
    return f" in `{call.line}`" if call.line else ""


# --- layers without effect ------------------------------------------------------------------


def _without_effect(s, letters):
    for letter, name in idle(s):
        if letter in letters:
            meet, fix = (
                ("the weights meet", "context = weights @ values")
                if letter == "v"
                else ("the scores use", "scores = queries @ keys.mT")
            )
            return (
                f"Changing {name} changes nothing, with one token or five: {meet} "
                f"{_instead(s) or 'something else'} in place of the {ROLES[letter]}. {fix}."
            )
    return None


@fact
def idle(s):
    """[(letter, label)] of each projection, or part of a fused one, that no output depends on.

    letter: "q", "k" or "v". A layer that holds its place in the scores or at the values is not
    idle for that, only for a reason that another rule names.
    """
    if s.sizes.tokens < 2 or not sees_others(s):
        return []
    found = []
    for name, weight in s.weights.items():
        if (silent := _silent(s, name)) is None:
            continue
        letter, part, label = silent
        placed = _holds_place(s, letter, weight) if part is WHOLE else s.cores and not _instead(s)
        if not placed and not s.has_effect(name, places_of(weight, part)):
            found.append((letter, label))
    return found


def told_idle(s, owner):
    """Whether a layer, or one inside it, is told as idle."""
    return any(within(word, owner) for _, label in idle(s) for word in label.split())


def _silent(s, name):
    """(letter, part, label) of a layer, or a part of a fused one, without a gradient; or None."""
    weight, part = s.weights[name], zero_part(s.slopes.get(name))
    norm = name.endswith("bias") or re.search(r"norm|\bln", name.lower())
    if part is None or norm or not is_matrix(weight):
        return None
    letter = letter_of(name) or _by_order(s, name)
    if part is WHOLE:
        return (letter, WHOLE, layer_of(name)) if letter else None
    axis, places = part
    size = weight.shape[axis]
    letters = {2: "kv", 3: "qkv"}.get(round(size / len(places)))
    if letter or letters is None or weight.dim() != 2:
        return None
    # q, k and v one after another, for all heads or for each head in turn
    run = next(n for n in range(1, size) if places[0] + n not in places)
    letter = letters[places[0] // run % len(letters)]
    return letter, part, f"{in_words(name, part)} ({ROLES[letter]})"


def _by_order(s, name):
    """The letter by the order of three like weights, for layers named a, b, c."""
    shape = s.weights[name].shape
    like = [n for n, w in s.weights.items() if w.shape == shape and not _OUT.search(n.lower())]
    if len(like) in (3, 4) and name in like[:3] and not any(map(letter_of, like)):
        return "qkv"[like.index(name)]
    return None


_OUT = re.compile(r"out|proj$|proj\.|w_?o\b|fc|mlp|ff|merge|mix")


def _holds_place(s, letter, weight):
    """Whether a layer stands in the scores or at the values, as its letter says.

    Of layers of one letter that are never called none is missed where others hold their place.
    """
    sides = slice(2, 3) if letter == "v" else slice(0, 2)
    behind = [set().union(*(s.graph.behind(*o)[1] for o in c.operands[sides])) for c in s.cores]
    if s.graph.used(weight):
        return any(id(weight) in leaves for leaves in behind)
    like = {id(w) for name, w in s.weights.items() if letter_of(name) == letter}
    return bool(behind) and all(like & leaves for leaves in behind)


def _instead(s):
    """What stands in a place of a core that is not its own, in words, or ""."""
    if shared(s):
        return f"one projection for {listed(shared(s))}"
    operands = [operand for core in s.cores for operand in core.operands]
    sources = [source for operand in operands for source in s.graph.origin(*operand).sources]
    x = any(at is None and id(kept.tensor) not in s.graph.known for at, kept in sources)
    return "the input x" if x else ""


@fact
def shared(s):
    """The roles in a core that hold the numbers of one projection: ["queries", "keys"], or []."""
    for core in s.cores:
        numbers = _by_letter(core)
        for first in numbers.values():
            alike = [ROLES[letter] for letter, other in numbers.items() if _same(first, other)]
            if len(alike) > 1:
                return alike
    return []


def _by_letter(core):
    return {letter: numbers for letter, _, numbers, _ in core.roles}


def _same(first, second):
    """Whether two tensors hold the same numbers, in any order and up to a factor."""
    a, b = (numbers.flatten().sort().values for numbers in (first, second))
    return len(a) == len(b) and factor(a, b, 1e-3) is not None


# --- forward(queries, keys, values) ---------------------------------------------------------


def _argument_confused(s, letters):
    """An argument for queries, keys or values has no effect, or stands in another's place."""
    if not s.way.roles or s.sizes.tokens < 2 or disturbed(s):
        return None
    moved, token = _moved_by_role(s), s.sizes.tokens // 2
    for letter in letters if moved else ():
        name, rows = s.way.names[s.way.roles[letter]], moved[letter]
        if not rows:
            return (
                f"Changing {name} alone changes nothing: the {ROLES[letter]} are made of "
                f"another argument. With three different inputs the answer is wrong."
            )
        elsewhere = token not in rows or max(rows) > token
        if letter == "q" and elsewhere and moved["v"]:  # else told of the values
            return (
                f"Changing token {token} of {name} alone moves the rows {listed(rows)} of the "
                f"output, not row {token} alone: {name} stands where the keys or the values "
                f"should. scores = queries @ keys.mT, a row for each query."
            )
    return None


@fact
def _moved_by_role(s):
    """{letter: [the rows that move with the middle token of its argument alone]}."""
    changed = s.with_token(s.sizes.tokens // 2, seed=2)
    try:
        moved = {letter: s.moved_by_input(at, changed) for letter, at in s.way.roles.items()}
    except Exception:
        return {}  # it takes the same tensor three times only
    return {letter: rows.nonzero().flatten().tolist() for letter, rows in moved.items()}


# --- forward(x, context) --------------------------------------------------------------------

# names of what gives the keys and the values, and of what looks at it
_LOOKED_AT = re.compile(ENCODER)  # a memory, say, may look in its turn
_LOOKS = re.compile(r"x|tgt|trg|target|dec.*|inputs?|hidden_states|tokens")


def context_confused(s, letters):
    """One of x and context is not read, or stands in the other's place."""
    if disturbed(s) or not inputs_read(s) or (at := context_number(s.way.names)) is None:
        return None
    if "k" in letters and (names := unread(s)):
        return (
            f"{_made_of_other(*names)} In cross-attention the queries come from one input, and "
            f"the keys and the values from the other."
        )
    context, x = s.way.names[at], s.way.names[1 - at]
    named = _LOOKED_AT.fullmatch(context.lower()) and _LOOKS.fullmatch(x.lower())
    for read in inputs_read(s):
        with_context, with_x = read[at], read[1 - at]
        for letter, other in ("kv", "vk"):
            crossed = letter in with_x - with_context and other in with_context - with_x
            if letter in letters and crossed:
                return (
                    f"The {ROLES[letter]} are made of {x}, and the {ROLES[other]} of {context}: "
                    f"changing {context} alone leaves the {ROLES[letter]} as they are. A weight "
                    f"then belongs to a token of one and meets a value of the other. Make both "
                    f"of {context}."
                )
        if "k" in letters and named and with_context == {"q"} and with_x == {"k", "v"}:
            return (
                f"The queries are made of {context}, and the keys and the values of {x}: the "
                f"rows of the output belong to the tokens of {context}. Make the queries of "
                f"{x}, the keys and the values of {context}."
            )
    return None


def _other_groups(s, letters):
    """Heads that share keys share other heads' values."""
    for core in s.cores if "v" in letters else ():
        keys, values = _groups(core.keys), _groups(core.values)
        if 1 < len({*keys}) < len(keys) and len({*values}) == len({*keys}) and keys != values:
            first, second = next(
                (i, j)
                for i, j in itertools.combinations(range(len(keys)), 2)
                if keys[i] == keys[j] and values[i] != values[j]
            )
            return (
                f"Heads {first} and {second} share their keys and not their values: keys and "
                f"values are repeated for the heads in two orders. Repeat both in the same: "
                f"repeat_interleave(num_heads // kv_heads, dim=1)."
            )
    return None


def _groups(numbers):
    """For each head of (batch, heads, tokens, width) the first head with the same numbers."""
    heads = numbers.unbind(1) if numbers.dim() == 4 else []
    return [next(i for i, other in enumerate(heads) if torch.equal(head, other)) for head in heads]


@fact
def inputs_read(s):
    """For each core and each of two inputs: which of "q", "k" and "v" move with it.

    [] where forward takes another number of inputs, and where that cannot be told.
    """
    if not s.several or len(s.way.names) != 2 or s.sizes.tokens < 2:
        return []
    again = [cores(s.capture(s.x, other=(number, s.draw(2)))) for number in (0, 1)]
    if any(len(found) != len(s.cores) for found in again):
        return []
    trios = zip(s.cores, *again, strict=True)
    return [[_moved(core, other) for other in others] for core, *others in trios]


def _moved(core, other):
    before, after = _by_letter(core), _by_letter(other)
    return {letter for letter in ROLES if not _near(before[letter], after[letter])}


def _near(first, second):
    return first.shape == second.shape and torch.allclose(first, second, rtol=1e-4, atol=1e-6)


def context_attends(s):
    """Whether the context goes through an attention of its own, as in an encoder."""
    at = context_number(s.way.names)
    return any(read[at] == set("qkv") and not read[1 - at] for read in inputs_read(s))


@fact
def unread(s):
    """(name, other): of two inputs the one that acts on nothing, and the other; or None."""
    for number, name in enumerate(s.way.names) if inputs_read(s) else ():
        read = any(read[number] for read in inputs_read(s))
        if not read and not any(s.moved_by_input(number, s.draw(n)).any() for n in (2, 3)):
            return name, s.way.names[1 - number]
    return None


def _made_of_other(name, other):
    return (
        f"Changing {name} alone changes nothing: queries, keys and values are all made of {other}."
    )
