"""Two ways to ask the same question: the answers must agree."""

import contextlib
from dataclasses import replace

import torch
from torch import nn

from ..facts import Facts
from ..findings import Finding, Note, Unjudged
from ..graph import DROPOUT, EXP, SOFTMAX, outputs
from ..guard import copy_module, weights_of
from ..runs import set_dropout
from ..search.prepare import prepare
from ..stages import cores
from ..trust import disturbed
from ..words import listed, refuses, told
from .registry import rule
from .trials import masked, trials
from .visible import mask_kind, others_alone, training_pairs

LONGEST = 70  # tokens that a module is tried with, to pass any window or chunk that it names
DRAWS = 2  # runs in training mode, each with another dropout: of many scores half are dropped


@rule("beginning-changes", unless={"length"}, whole=True)
def beginning_changes(s):
    """The beginning of a longer sentence gets other rows than the same tokens alone.

    chunks = scores.unflatten(-2, (-1, self.chunk))    # the mask begins anew in each
    """
    if mask_kind(s) != "causal" or s.masks or s.fresh or s.several or disturbed(s):
        return None
    answers = []
    for tokens in _lengths(s):
        with contextlib.suppress(Exception):  # a length that it does not take
            answers.append(_of_a_longer(s, tokens))
        if answers and type(answers[-1]) is Finding:
            return answers[-1]
    return next(filter(None, answers), None)


def _of_a_longer(s, tokens):
    """What a sentence of so many tokens says of its beginning, or None where that is as alone."""
    x, own = s.draw(6, tokens=tokens), s.sizes.tokens
    rows = s.look(x)[:, :own]
    moved = s.differs(rows, s.look(x[:, :own]))[1].any(dim=0)
    if not moved.any():
        return None
    pairs, alone = (
        torch.stack([_rows_seeing(s, x, n, j)[:own] for j in range(own)], dim=1)
        for n in (tokens, own)
    )
    later = _rows_seeing(s, x, tokens, slice(own, None))[:own]
    if later.any():
        seen = f"position {int(later.nonzero()[0])} sees tokens after position {own - 1}"
    elif (other := pairs != alone).any():
        i, j = other.nonzero()[0].tolist()
        seen = "sees" if pairs[i, j] else "does not see"
        seen = f"position {i} {seen} position {j}"
    else:
        return Note(
            f"Rows {listed(moved.nonzero().flatten().tolist())} of a sentence of {tokens} tokens "
            f"are not those of its first {own} tokens alone, though they see the same tokens: what "
            f"it does depends on the number of tokens, and rows change as a sentence grows."
        )
    return Finding(
        f"In a sentence of {tokens} tokens {seen}, which is not so in one of {own} tokens: what is "
        f"hidden depends on the number of tokens. Hide by position alone, where column > row, in "
        f"each chunk or window too."
    )


def _rows_seeing(s, x, tokens, at):
    """(tokens,) Boolean: the rows of the first tokens of x that move when some of them change."""
    changed = x.clone()
    changed[:, at] = 1.5 * s.draw(7, tokens=x.shape[1])[:, at]
    return s.differs(s.look(changed[:, :tokens]), s.look(x[:, :tokens]))[1].any(dim=0).cpu()


def _lengths(s):
    """Numbers of tokens that pass every window, block or chunk that the module names."""
    named = [
        value
        for part in s.pristine.modules()
        for name, value in vars(part).items()
        if type(value) is int and any(word in name for word in ("window", "chunk", "block"))
    ]
    most = min(s.sizes.context or LONGEST, LONGEST)
    wanted = {8, *(n for value in named for n in (value + 1, 2 * value, 2 * value + 1))}
    return sorted(n for n in wanted if s.sizes.tokens < n <= most)


@rule("modes-differ", unless={"crash", "not-repeatable", "dropout-in-eval"})
def modes_differ(s):
    """In training mode without dropout it computes something else than in evaluation mode.

    if self.training:
        queries, keys = F.normalize(queries, dim=-1), F.normalize(keys, dim=-1)
    """
    if s.random or s.fresh or not s.trains_alike:
        return None
    quiet = Facts(replace(s.subject, quiet=True))
    trained = quiet.look(s.x, module=s.training)
    if not s.differs(trained, s.base)[1].any() or _seen_otherwise(s):
        return None
    first, second = (cores(quiet.capture(s.x, module=s.training, seed=seed)) for seed in (1, 2))
    if any(_other_weights(*pair) for pair in zip(first, second, strict=False)):
        return None  # noise in training, or a layer that goes on with each call, by design
    if not any(_other_weights(*pair) for pair in zip(s.cores, first, strict=False)):
        return None
    return Finding(
        "Without dropout, training and evaluation mode give different weights: what is learned "
        "in one is not what runs in the other. Do the same in both; dropout alone asks for the "
        "mode."
    )


def _seen_otherwise(s):
    """Whether other pairs are seen in training mode, which is told of the mask."""
    pairs = training_pairs(s)
    return pairs is not None and not pairs.equal(s.influence > 0)


def _other_weights(core, trained):
    first, second = core.weights, trained.weights
    return first.shape == second.shape and not torch.allclose(first, second, atol=1e-4)


@rule("dropout-lost", unless={"crash", "dropout-in-eval", "dropout-unused"}, whole=True)
def dropout_lost(s):
    """After a call in evaluation mode, training mode never drops again.

    if not self.training:
        self.dropout = 0.0
    """
    if s.training_error is not None or s.fresh:
        return None
    loud = s.loud
    fresh, used = (set_dropout(loud.unused(), 0.5) for _ in range(2))
    loud.look(s.x, module=used)
    if not _drops(loud, fresh.train()) or _drops(loud, used.train()):
        return None
    return Finding(
        "In training mode it drops, and after one call in evaluation mode it never does again: "
        "that call changes the module's own rate or layer. Leave it as it is. nn.Dropout rests in "
        "evaluation mode by itself; a function is told: dropout_p=self.dropout if self.training "
        "else 0.0."
    )


def _drops(loud, module):
    """Whether two runs that draw other numbers differ."""
    first, second = (loud.look(loud.x, module=module, seed=seed) for seed in (1, 2))
    return bool(loud.differs(first, second)[1].any())


@rule("dropout-on-scores", unless={"crash", "nan", "softmax-twice"})
def dropout_on_scores(s):
    """Dropout acts on the scores, before the softmax.

    scores = self.dropout(scores.masked_fill(hidden, -torch.inf))   # 0 * -inf is NaN
    """
    ways = s, *_hiding(s)
    on_scores = [any(_drops_scores(way, core) for core in way.cores) for way in ways]
    for way, drops in zip(ways, on_scores, strict=True) if s.trains_alike else ():
        if (drops or way is s) and (found := _told_in_training(way, drops)):
            return found
    if any(_drops_scores(way, core, whole=True) for way in ways for core in way.cores):
        return Finding(
            "Dropout acts on the scores, before the softmax: a dropped score becomes 0, which is a "
            "score like any other, and no weight is dropped. Drop weights, after the softmax."
        )
    if not any(on_scores):
        return None
    said = "Dropout acts on a part of the scores, before the softmax: what is dropped becomes 0."
    return Note(f"{said} The usual place is on the weights.")


def _hiding(s):
    """[the Facts with a mask that hides], one for each argument."""
    return [masked(s, trial.name) for trial in trials(s) if trial.accepted]


def _told_in_training(s, on_scores):
    """The Finding on what comes out, or is seen, with dropout alone; or None."""
    module = set_dropout(s.loud.unused(), 0.5).train()
    if (rows := _nan_in_training(s, module)) is not None:
        said = "NaN comes out; without dropout the numbers are finite."
        why = "A dropped score is multiplied by 0, and 0 * -inf is NaN."
        return _in_training(said, why, on_scores or "nan", rows)
    pairs = _seen_in_training(s, module)
    if pairs is None or not pairs.any():
        return None
    i, j = pairs.nonzero()[0].tolist()
    said = f"position {i} sees position {j}; without dropout it does not."
    why = "A hidden score that is dropped becomes 0, and exp(0) = 1 is a weight like any other."
    return _in_training(said, why, on_scores or "future-visible", pairs)


def _in_training(said, why, code, evidence):
    """A finding. code: True where dropout was seen on the scores, or else the code to give."""
    said = f"In training mode, with dropout, {said}"
    if code is True:
        return Finding(f"{said} {why} Drop weights, after the softmax.", evidence.float().cpu())
    return Finding(said, evidence.float().cpu(), code=code)


def _nan_in_training(s, module):
    """(batch, tokens) Boolean: the rows that are NaN with some dropout; None where all are numbers.

    Where they are NaN without dropout too, that is no matter of dropout.
    """
    if not s.look(s.x, module=s.training).isfinite().all():
        return None
    outputs = (s.loud.look(s.x, module=module, seed=seed) for seed in range(DRAWS))
    rows = (~output.isfinite().all(dim=-1) for output in outputs)
    return next((each for each in rows if each.any()), None)


def _seen_in_training(s, module):
    """(tokens, tokens) Boolean: the future that is seen with dropout alone; None if not told."""
    if mask_kind(s) != "causal" or s.fresh or disturbed(s):
        return None
    loud = Facts(replace(s.subject, pristine=module, fresh=True, quiet=False))
    last = [s.sizes.tokens - 1]
    moved = loud.rows_moved(loud.base, s.looking, columns=last, seeds=(2,))
    seen = (moved.amax(dim=0) > 0).triu(1)
    if not seen.any() or s.training_influence is None:
        return None
    return seen & (s.training_influence == 0)


def _drops_scores(s, core, whole=False):
    """Whether a dropout is among the steps before the last softmax, or made what they add.

    whole: the scores themselves are dropped, and not what is added to them.
    """
    calls = s.graph.calls
    soft = [at for at in core.path if calls[at].name in (*SOFTMAX, EXP)]
    steps = [at for at in core.path if soft and at < soft[-1]]
    dropping = [at for at in steps if calls[at].name == DROPOUT]
    if whole:
        behind = (s.graph.behind(kept, at)[0] for at in dropping for kept in calls[at].inputs)
        return any(s.graph.products.keys() & set(each) for each in behind)
    if dropping:
        return True
    dropped = {id(kept.tensor) for call in calls if call.name == DROPOUT for kept in outputs(call)}
    read = (kept for at in steps for kept in calls[at].inputs)
    return any(id(kept.tensor) in dropped for kept in read)


@rule("own-dtype", unless={"crash", "nan", "not-registered", "not-a-buffer"}, whole=True)
def own_dtype(s):
    """It fails, or gives NaN, in the precision that it was given in.

    scores = scores.masked_fill(hidden, -1e9)       # more than float16 can hold
    """
    dtypes = {p.dtype for p in s.original.parameters() if p.is_floating_point()}
    dtype = next(iter(dtypes), s.dtype)
    if dtypes == {s.dtype} or len(dtypes) != 1 or s.masks:  # a mixture is meant
        return None
    if not s.look(s.x, module=prepare(s.original, s.dtype)).isfinite().all():
        return None  # that is of its own weights, not of the type
    answers = (_in_its_type(s, dtype, masks) for masks in ({}, *(way.masks for way in _hiding(s))))
    return next(filter(None, answers), None)


def _in_its_type(s, dtype, masks):
    """What is said of a call with some masks in the type that the module was given in; or None."""
    masks = {n: m.to(dtype) if m.is_floating_point() else m for n, m in masks.items()}
    try:
        module = nn.Module.train(copy_module(s.original), False)
        made = s.look(s.x.to(dtype), masks, module)
    except Exception as error:
        if "not implemented for" in str(error):
            return Unjudged(f"{_short(dtype)} does not run here ({told(error)})")
        return Finding(
            f"As it was given, in {_short(dtype)}, a call fails, which in float32 works: "
            f"{told(error)}. {_FILL if 'overflow' in str(error) else _TAKE}"
        )
    if made.isfinite().all():
        return None
    return Finding(
        f"As it was given, in {_short(dtype)}, NaN or infinity comes out, where in float32 there "
        f"is none: a constant or a sum is more than {_short(dtype)} can hold. Take constants from "
        f"torch.finfo(scores.dtype), and sum in float32."
    )


_FILL = "Fill with -torch.inf or torch.finfo(scores.dtype).min."
_TAKE = "Take the type of what is there: torch.zeros_like(x), x.new_zeros(...), table.to(x.dtype)."


def _short(dtype):
    return str(dtype).removeprefix("torch.")


@rule(
    "key-length",
    unless={"wrong-pair", "wrong-values", "heads-attend-heads", "length", "future-visible"},
    where=lambda s: s.way.of_the_keys,
)
def key_length(s):
    """Keys and values of another number of tokens than the queries fail.

    batch, tokens, d_model = queries.shape
    keys = self.W_key(keys).view(batch, tokens, num_heads, head_dim)
    """
    at, square = s.way.of_the_keys, mask_kind(s) in ("causal", "band", "past") or others_alone(s)
    if square or s.masks or not _keys_apart(s, at):
        return None
    for tokens in (s.sizes.tokens + 2, s.sizes.tokens - 1):
        if not _takes(s, tokens):
            continue  # no number of tokens for any input
        others = tuple((number, s.draw(7, tokens=tokens)) for number in at)
        try:
            shape = s.look(s.x, way=replace(s.way, others=others)).shape
        except Exception as error:
            if refuses(error):
                return Note(f"forward refuses {tokens} keys for {s.sizes.tokens} queries.")
            return Finding(
                f"With {s.sizes.tokens} queries, {tokens} keys and values fail: {told(error)}. "
                f"Read the number of keys from the keys: keys.shape[1]."
            )
        if shape[:2] != s.x.shape[:2]:
            return Unjudged(f"{tokens} keys give {shape[1]} rows")
    return None


def _keys_apart(s, at):
    """Whether some keys are made of these inputs alone, and not of the one with the queries."""
    first = next(number for number in range(len(s.way.names)) if number not in at)
    other = cores(s.capture(s.x, other=(first, s.draw(7))))
    return any(torch.equal(one.keys, two.keys) for one, two in zip(s.cores, other, strict=False))


def _takes(s, tokens):
    """Whether it runs where all inputs have that many tokens."""
    try:
        s.look(s.draw(7, tokens=tokens))
    except Exception:
        return False
    return True


@rule("other-heads", unless={"no-effect", "length", "crash"}, whole=True)
def other_heads(s):
    """Another number of heads fails.

    self.layers = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(num_heads))
    """
    usual = s.sizes.num_heads or 0
    for heads in (2, 3, 6) if s.factory else ():
        if heads == usual or s.sizes.d_model % heads:
            continue
        try:
            module = s.factory(heads)
        except Exception as error:
            return Unjudged(f"{heads} heads cannot be made ({told(error)})")
        try:
            s.way(prepare(module, s.dtype), s.x.clone(), s.masks)
        except Exception as error:
            if refuses(error):
                return Note(f"forward refuses {heads} heads: {told(error)}")
            said = f"It works with {usual} heads and fails with {heads}: {told(error)}."
            if not (counted := _counted_by_heads(s, module)):
                return Note(said)  # a size may be fixed on purpose
            return Finding(
                f"{said} The number of {counted} is the number of heads, and with more heads some "
                f"of them are never used. Make as many as forward uses."
            )
    return None


def _counted_by_heads(s, module):
    """ "layers" or "stacked matrices": what more heads bring more of, some never used; or ""."""
    stacks = [[len(w) for w in m.values() if w.dim() > 2] for m in (weights_of(module), s.weights)]
    layers = len(weights_of(module)) != len(s.weights)
    counted = "layers" if layers else "stacked matrices" if stacks[0] != stacks[1] else ""
    for heads in (s.sizes.d_model, *(times * (s.sizes.num_heads or 1) for times in (3, 2))):
        try:
            more = prepare(s.factory(heads), s.dtype)
            with torch.enable_grad():
                output = s.way(more, s.x.clone(), s.masks)
        except Exception:
            continue  # a number of heads that it does not take
        weights = [w for w in weights_of(more).values() if w.requires_grad]
        slopes = torch.autograd.grad(output.sum(), weights, allow_unused=True)
        return counted if any(map(_has_unused, slopes)) else ""
    return ""


def _has_unused(slope):
    """Whether the gradient of a weight says that it, or a matrix of a stack, is never used."""
    return slope is None or (slope.dim() > 2 and not slope.flatten(1).any(dim=1).all())
