"""Two ways to ask the same question: the answers must agree."""

from dataclasses import replace

import torch

from ..facts import Facts
from ..findings import Finding, Note, Unjudged
from ..graph import DROPOUT, EXP, SOFTMAX
from ..guard import weights_of
from ..runs import set_dropout
from ..search.prepare import prepare
from ..stages import cores
from ..trust import disturbed
from ..words import refuses, told
from .registry import rule
from .roles import inputs_read
from .visible import mask_kind, training_pairs

LONGEST = 70  # tokens that a module is tried with, to pass any window or chunk that it names
DRAWS = 8  # runs in training mode, each with another dropout


@rule("beginning-changes")
def beginning_changes(s):
    """In a longer sentence the beginning changes with the end, though in a short one it does not.

    chunks = scores.unflatten(-2, (-1, self.chunk))    # the mask begins anew in each
    """
    if mask_kind(s) != "causal" or s.masks or s.fresh or s.several or disturbed(s):
        return None
    for tokens in _lengths(s):
        x, other = s.draw(6, tokens=tokens), s.draw(7, tokens=tokens)
        for cut in (1, tokens // 2, tokens - 1):
            changed = torch.cat([x[:, :cut], other[:, cut:]], dim=1)
            try:
                rows = s.differs(s.look(changed), s.look(x))[1].any(dim=0)[:cut]
            except Exception:
                break  # a length that it does not take
            if rows.any():
                return Finding(
                    f"In a sentence of {tokens} tokens position {rows.nonzero()[0].item()} changes "
                    f"with the tokens from {cut} on; in one of {s.sizes.tokens} no position sees a "
                    f"later one. Hide by position, column > row, in each chunk or window too."
                )
    return None


def _lengths(s):
    """Numbers of tokens that pass every window, block or chunk that the module names."""
    named = [
        value
        for part in s.pristine.modules()
        for name, value in vars(part).items()
        if type(value) is int and any(word in name for word in ("window", "chunk", "block"))
    ]
    most = min(s.sizes.context or LONGEST, LONGEST)
    wanted = {8, *(2 * value + 1 for value in named), *(value + 1 for value in named)}
    return sorted(n for n in wanted if s.sizes.tokens < n <= most)


@rule("modes-differ", unless={"crash", "not-repeatable", "dropout-in-eval"})
def modes_differ(s):
    """In training mode without dropout it computes something else than in evaluation mode.

    if self.training:
        queries, keys = F.normalize(queries, dim=-1), F.normalize(keys, dim=-1)
    """
    if s.random or s.fresh or not s.trains_alike or _seen_otherwise(s):
        return None
    graph = Facts(replace(s.subject, quiet=True)).capture(s.x, module=s.training)
    pairs = list(zip(s.cores, cores(graph), strict=False))
    if not any(_other_weights(core, trained) for core, trained in pairs):
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


@rule("dropout-lost", unless={"crash", "dropout-in-eval", "dropout-unused"})
def dropout_lost(s):
    """After a call in evaluation mode, training mode never drops again.

    if not self.training:
        self.dropout = 0.0
    """
    if s.training_error is not None:
        return None
    loud = s.loud
    fresh, used = (set_dropout(loud.unused(), 0.5) for _ in range(2))
    loud.look(s.x, module=used)
    if not _drops(loud, fresh.train()) or _drops(loud, used.train()):
        return None
    return Finding(
        "In training mode it drops, and after one call in evaluation mode it never does again: "
        "that call sets the module's own dropout rate to 0. Leave the rate as it is, and give 0.0 "
        "to the call: dropout_p=self.dropout if self.training else 0.0."
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
    if s.training_error is None and s.trains_alike:
        module = set_dropout(s.loud.unused(), 0.5).train()
        for seed in range(DRAWS):
            rows = ~s.loud.look(s.x, module=module, seed=seed).isfinite().all(dim=-1)
            if rows.any():
                said = "NaN comes out; without dropout the numbers are finite. A dropped score is"
                said = f"{said} multiplied by 0, and 0 * -inf is NaN"
                return Finding(f"{_IN_TRAINING} {said}{_DROP_WEIGHTS}", rows.float().cpu())
        pairs = _seen_in_training(s, module)
        if pairs is not None and pairs.triu(1).any():
            i, j = pairs.triu(1).nonzero()[0].tolist()
            said = f"position {i} sees position {j}: a hidden score that is dropped becomes 0, and"
            said = f"{said} exp(0) = 1 is a weight like any other"
            return Finding(f"{_IN_TRAINING} {said}{_DROP_WEIGHTS}", pairs.float())
    if not any(_drops_scores(s, core) for core in s.cores):
        return None
    return Note(
        "Dropout acts on the scores, before the softmax: a dropped score becomes 0, which is a "
        "score like any other. The usual place is on the weights."
    )


def _seen_in_training(s, module):
    """(tokens, tokens) Boolean: who sees whom with dropout; None where that is not told."""
    trained = training_pairs(s)
    if mask_kind(s) != "causal" or s.fresh or disturbed(s):
        return None
    if trained is not None and trained.triu(1).any():
        return None  # it is seen without dropout too
    base = s.loud.look(s.x, module=module)
    return s.loud.rows_moved(base, s.looking, module=module, seeds=(2,)).amax(dim=0) > 0


_IN_TRAINING = "In training mode, with dropout,"
_DROP_WEIGHTS = ". Drop weights, after the softmax."


def _drops_scores(s, core):
    names = [s.graph.calls[at].name for at in core.path]
    softs = [n for n, name in enumerate(names) if name in (*SOFTMAX, EXP)]
    return any(name == DROPOUT and softs and n < softs[-1] for n, name in enumerate(names))


@rule("own-dtype", unless={"crash", "nan"})
def own_dtype(s):
    """It fails, or gives NaN, in the precision that it was given in.

    scores = scores.masked_fill(hidden, -1e9)       # more than float16 can hold
    """
    dtype = next((p.dtype for p in s.original.parameters() if p.is_floating_point()), s.dtype)
    if dtype == s.dtype or s.masks:
        return None
    module = prepare(s.original, dtype)
    try:
        made = s.look(s.x.to(dtype), module=module)
    except Exception as error:
        return Finding(
            f"As it was given, in {_short(dtype)}, a call fails, which in float32 works: "
            f"{told(error)}. Fill with -torch.inf or torch.finfo(scores.dtype).min, and take the "
            f"type of what is there: torch.zeros_like(x), x.new_zeros(...)."
        )
    if made.isfinite().all():
        return None
    return Finding(
        f"As it was given, in {_short(dtype)}, NaN or infinity comes out, where in float32 there "
        f"is none: a constant or a sum is more than {_short(dtype)} can hold."
    )


def _short(dtype):
    return str(dtype).removeprefix("torch.")


@rule("key-length", unless={"wrong-pair", "wrong-values", "heads-attend-heads", "length"})
def key_length(s):
    """Keys and values of another number of tokens than the queries fail.

    batch, tokens, d_model = queries.shape
    keys = self.W_key(keys).view(batch, tokens, num_heads, head_dim)
    """
    at = s.way.of_the_keys
    if any(read[number] == {"q"} for read in inputs_read(s) for number in at):
        return None  # the context looks, and stands for the queries
    if not at or mask_kind(s) in ("causal", "band", "past") or s.masks:
        return None
    for tokens in (s.sizes.tokens + 2, s.sizes.tokens - 1):
        others = tuple((number, s.draw(7, tokens=tokens)) for number in at)
        try:
            shape = s.look(s.x, way=replace(s.way, others=others)).shape
        except Exception as error:
            return Finding(
                f"With {s.sizes.tokens} queries, {tokens} keys and values fail: {told(error)}. "
                f"Read the number of keys from the keys: keys.shape[1]."
            )
        if shape[:2] != s.x.shape[:2]:
            return Unjudged(f"{tokens} keys give {shape[1]} rows")
    return None


@rule("other-heads", unless={"no-effect", "length", "crash"})
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
            shape = s.way(prepare(module, s.dtype), s.x.clone(), s.masks).shape
        except Exception as error:
            if refuses(error):
                return Note(f"forward refuses {heads} heads: {told(error)}")
            if len(weights_of(module)) == len(weights_of(s.original)):
                return None  # a size may be fixed on purpose
            return Finding(
                f"It works with {usual} heads and fails with {heads}: {told(error)}. The number of "
                f"layers is the number of heads by accident."
            )
        if shape[:2] != s.x.shape[:2]:
            return Finding(f"With {heads} heads the output has the shape {tuple(shape)}.")
    return None
