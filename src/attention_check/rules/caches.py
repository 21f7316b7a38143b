"""Token by token, with what the call before kept, against all tokens at once."""

import contextlib
import copy
from dataclasses import dataclass, field, fields, is_dataclass

import torch

from ..facts import fact
from ..findings import Finding, Note, Unjudged
from ..search.make import arguments
from ..search.names import CACHE, PLACES, ZEROS
from ..search.ways import context_of, flat
from ..words import listed, told
from .registry import rule
from .visible import mask_kind


@dataclass(frozen=True)
class Cache:
    """A way to go on after an earlier call.

    argument: gets what the call before returned, or "" where the module itself keeps it; first:
    what it gets at first; part: which part of an answer that is, a place or a slice, None: the
    object that was given. flags: what is switched on. starts, places: the arguments that say where
    the new tokens stand.
    """

    argument: str = ""
    first: object = None
    part: object = None
    flags: dict = field(default_factory=dict)
    starts: tuple = ()
    places: tuple = ()

    @property
    def words(self):
        return self.argument or next(iter(self.flags), "") or "what the module keeps"


@rule("token-by-token", unless={"crash", "not-repeatable", "length", "nan"}, whole=True)
def token_by_token(s):
    """With a cache, the tokens one after another give other rows than all at once.

    keys = torch.cat([cache, keys], dim=2)      # one new query, tokens keys
    context = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    """
    if s.way.layout != "batch" or s.masks or s.several or s.sizes.tokens < 4 or s.random:
        return None
    answers, errors = [], {}
    for cache in _caches(s):
        try:
            differ = _differ(s, cache)
        except Exception as error:
            errors.setdefault(cache.words, error)
            continue
        if not differ:
            return None  # one way to use it gives the same
        answers.append(_finding(s, cache, *differ))
    if answers:
        return next(filter(None, answers), None)
    return [
        Unjudged(f"{what} could not be given back ({told(error)})", of=what)
        for what, error in errors.items()
    ]


# --- the ways to use it ---------------------------------------------------------------------


def _caches(s):
    """Yield each Cache that may be meant, the likeliest first."""
    parameters = arguments(s.original.forward)
    flags = {p.name: True for p in parameters if p.default is False and CACHE.search(p.name)}
    takes = [p.name for p in parameters if CACHE.search(p.name) and p.name not in flags]
    starts = tuple(p.name for p in parameters if ZEROS.search(p.name) and p.default in (0, None))
    starts = tuple(dict.fromkeys((*s.way.zeros, *starts)))
    places = tuple(p.name for p in parameters if PLACES.search(p.name))
    usages = [(starts, places)] + [(s.way.zeros, s.way.places)] * bool(starts or places)
    inside = bool(flags) or s.fresh or (starts and _keeps(s))
    for starts, places in usages:
        told = {"flags": flags, "starts": starts, "places": places}
        for name in takes:
            yield from (Cache(name, None, part, **told) for part in _parts(s, name, flags))
            yield from (Cache(name, empty, None, **told) for empty in ({}, []))
            for core in s.cores[:1]:  # keys and values of no token
                empty = core.keys[..., :0, :], core.values[..., :0, :]
                parts = _parts(s, name, flags, empty)
                yield from (Cache(name, empty, part, **told) for part in parts)
        if inside and not takes:
            yield Cache(**told)


def _keeps(s):
    """Whether a call writes into a buffer."""
    module = s.unused()
    s.look(s.x, module=module)
    pairs = zip(module.buffers(), s.pristine.buffers(), strict=False)
    return any(not torch.equal(after, before) for after, before in pairs)


def _parts(s, name, flags, first=None):
    """Which parts of the answer to a first call may be the cache: those that hold tensors."""
    with torch.no_grad():
        try:
            items = items_of(s.way.answer(s.unused(), s.x, {**s.masks, **flags, name: first}))
        except Exception:
            return []
    places = [n for n in range(1, len(items)) if any(True for _ in flat(items[n]))]
    # a pair or a dictionary rather than a tensor, which may be the weights
    places.sort(key=lambda n: isinstance(items[n], torch.Tensor))
    return [*places, *([slice(1, None)] if len(items) > 2 else [])]


def items_of(answer):
    """What forward returned, as a list."""
    if isinstance(answer, dict):
        return list(answer.values())
    if is_dataclass(answer):
        return [getattr(answer, part.name) for part in fields(answer)]
    return list(answer) if isinstance(answer, list | tuple) else [answer]


def _run(s, cache, x, lengths):
    """The rows (batch, tokens, width) where so many tokens are given in each call."""
    module, kept, rows, at = s.unused(), copy.deepcopy(cache.first), [], 0
    for length in lengths:
        part, end = x[:, at : at + length].clone(), at + length
        given = s.masks | cache.flags | dict.fromkeys(cache.starts, at)
        given |= {name: torch.arange(at, end) for name in cache.places}
        given |= {cache.argument: kept} if cache.argument else {}
        with torch.no_grad(), s.guarded():
            answer = s.way.answer(module, part, given)
        rows.append(context_of(answer, part.shape[:-1]))
        if cache.part is not None:
            kept = items_of(answer)[cache.part]
        at = end
    return torch.cat(rows, dim=1)


# --- compared -------------------------------------------------------------------------------


def _differ(s, cache):
    """(the lengths of the calls, the rows that differ from those of one call); None: they agree."""
    tokens = s.sizes.tokens
    whole = _run(s, cache, s.x, [tokens])
    for lengths in ([1] * tokens, [2] + [1] * (tokens - 2), [2, 2] + [1] * (tokens - 4)):
        rows = _run(s, cache, s.x, lengths)
        if rows.shape != whole.shape:
            raise ValueError(f"the rows of all calls have the shape {tuple(rows.shape)}")
        wrong = s.differs(rows, whole)[1].any(dim=0)
        if mask_kind(s) != "causal":
            wrong[:-1] = False  # earlier tokens see no later ones, where at once they do
        if wrong.any():
            return lengths, wrong.nonzero().flatten().tolist()
    return None


def _finding(s, cache, lengths, rows):
    """The Finding; None where nothing that is kept is looked at, as it may be no cache."""
    row = rows[-1]
    seen, wanted = (_seen_by(s, cache, each, row) for each in (lengths, [s.sizes.tokens]))
    missing, more = ([j for j in a if j not in b] for a, b in ((wanted, seen), (seen, wanted)))
    asked = cache.argument or cache.flags or cache.starts
    if not asked and missing == [j for j in wanted if j != row]:
        return None
    if lengths[1:2] == [2]:
        return Note(
            f"Two new tokens at once, with {cache.words} of the call before, give another row "
            f"{rows[0]} than all tokens in one call; one at a time they do not."
        )
    how = "One token after another" if lengths[0] == 1 else "Two tokens, then one after another"
    said = f"{how}, with {cache.words} of the call before, row {row} is not what all tokens at "
    return Finding(f"{said}once give: {_cause(s, cache, lengths, row, missing, more, seen)}")


def _cause(s, cache, lengths, row, missing, more, seen):
    """What was measured of the last wrong row, and what to do."""
    if row in missing:
        return (
            f"token {row} sees {_tokens(seen)} and not itself, as a causal mask counts its rows "
            f"from the first key. The row of a new token is that of its place: give "
            f"mask[kept : kept + tokens, : kept + tokens], or none for a single new token."
        )
    if missing:
        return (
            f"token {row} does not see {_tokens(missing)}. Join what was kept and the new: "
            f"keys = torch.cat([kept_keys, keys], dim=2), the values alike, and give back both."
        )
    if more:
        return f"token {row} sees {_tokens(more)}, which it does not see in one call."
    if _places_anew(s, cache, lengths):
        return (
            "it sees the same tokens, and equal tokens get equal rows, which in one call differ: "
            "the places of new tokens begin anew. Count them from the number of tokens kept."
        )
    return (
        "it sees the same tokens, with other numbers. Look at what is kept: keys and values each "
        "in its place, in the order of the tokens, turned or changed once."
    )


def _tokens(places):
    return f"{'token' if len(places) == 1 else 'tokens'} {listed(places)}" if places else "no token"


def _seen_by(s, cache, lengths, row):
    """The tokens that move a row when they change."""
    base, seen = _run(s, cache, s.x, lengths), []
    for j in range(s.sizes.tokens):
        moved = s.differs(_run(s, cache, s.with_token(j, 2), lengths), base)[1]
        seen += [j] * bool(moved[:, row].any())
    return seen


@fact
def _equal(s):
    return s.x[:, :1].expand_as(s.x)


def _places_anew(s, cache, lengths):
    """Whether rows of equal tokens are equal one by one, and not all at once."""
    with contextlib.suppress(Exception):
        steps, whole = (_run(s, cache, _equal(s), n) for n in (lengths, [s.sizes.tokens]))
        apart = [s.differs(rows[:, :1].expand_as(rows), rows)[1].any() for rows in (steps, whole)]
        return bool(apart[1]) and not apart[0]
    return False
