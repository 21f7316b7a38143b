"""Whose numbers stand where: the faults that move numbers to other tokens, and whom to trust.

Who sees whom is told by the output only where no number has moved to another token. Rules
word what is found here; others ask it to know what they may believe.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F

from .derivative import slopes
from .facts import fact
from .findings import Unjudged
from .graph import EXP, LOGARITHM, SOFTMAX, SUM, Graph, divides, outputs


@fact
def square(s, capture=0):
    """The cores of a capture whose weights are (…, tokens, tokens), or (…, heads, heads)."""
    by_mistake, tokens = heads_apart(s) is not None, s.sizes.tokens
    shapes = [(core, core.weights.shape[-2:]) for core in s.both_cores[capture]]
    return [core for core, (n, m) in shapes if n == m and (by_mistake or n == tokens)]


@fact
def unseen(s):
    """The Unjudged where the weights cannot be judged; or None."""
    if square(s) or heads_apart(s):
        return None
    missing = "weights are (tokens, tokens)" if s.cores else "softmax is in sight"
    if s.constant > 1e-4:
        missing += ", and equal tokens give outputs that differ (positions do that too)"
    return Unjudged(f"no {missing}")


def sums_to_one(weights, axes):
    """Whether the numbers along some axes add up to one, or to zero in empty rows."""
    sums = weights.sum(dim=axes)
    return bool(((sums - 1).abs().lt(1e-3) | sums.eq(0)).all()) and bool((sums != 0).any())


@fact
def wrong_axis(s, core):
    """The axis over which a core's softmax runs, in words, or None where it is the keys'."""
    weights, sizes = core.soft, s.sizes
    if sums_to_one(weights, -1) or core.softmaxes > 1:
        return None
    names = {sizes.num_heads: "heads", sizes.batch: "batch"}
    *outer, rows = range(weights.dim() - 1)
    one = "heads" if len(outer) > 1 else "batch or heads"
    tried = [
        ((-2, -1), "queries and keys together"),
        (tuple(range(weights.dim())), "batch, heads, queries and keys together"),
        *((axis, names.get(weights.shape[axis], one)) for axis in outer if weights.shape[axis] > 1),
        (rows, "queries"),
    ]
    return next((words for axes, words in tried if sums_to_one(weights, axes)), None)


@fact
def off_axis(s):
    """(core, axis in words) where a softmax runs over another axis than the keys'; or None."""
    found = ((core, wrong_axis(s, core)) for core in square(s) if core.fused is None)
    return next(((core, axis) for core, axis in found if axis), None)


@fact
def pooled(s):
    """[(weights, axis, dim)] where what a softmax gave meets values and no queries meet keys.

    weights: (…, what is added up). axis: over which they sum to one in place of that, in words;
    dim: over which they should, in the softmax; "" and None where all is well.
    """
    found, known = [], {core.at for core in s.cores}
    for product in s.graph.products.values():
        for kept, value, letters in zip(
            product.sides, product.values, product.letters, strict=False
        ):
            source = _softened(s, product.at, kept)
            if source is not None and len(product.summed) == 1 and product.at not in known:
                weights = value.movedim(letters.index(product.summed[0]), -1)
                found.append((weights, *_pooled_over(s, source, weights)))
    return found


def _softened(s, before, kept):
    """What a softmax gave, where an operand holds it and nothing else reads it; or None."""
    at, source = s.graph.origin(kept, before).sources[0]
    if at is None or s.graph.calls[at].name not in SOFTMAX:
        return None
    return source.value if len(s.graph.ends(source, at)) == 1 else None


def _pooled_over(s, source, weights):
    """(axis, dim) of `pooled`."""
    if sums_to_one(weights, -1):
        return "", None
    axes, sums = range(source.dim()), weights.sum(-1).flatten().sort().values
    over = [axis for axis in axes if sums_to_one(source, axis)]
    wanted = [axis for axis in axes if source.shape[axis] == weights.shape[-1]]
    wanted = [a for a in wanted if source.sum(a).flatten().sort().values.allclose(sums)]
    if not over or not wanted:
        return "", None
    size, sizes = source.shape[over[0]], s.sizes
    names = {1: "one number", sizes.num_heads: "the heads", sizes.batch: "the batch"}
    names[sizes.tokens] = "the queries" if weights.shape[-1] == sizes.tokens else "the tokens"
    return names.get(size, f"the {size} numbers of axis {over[0]}"), wanted[0]


@fact
def pooled_off_axis(s):
    """(weights, axis, dim) of the first of `pooled` that sums to one over another axis; or None."""
    return next((one for one in pooled(s) if one[1]), None)


@fact
def unsummed(s):
    """[(core, why)] whose weights do not add up to one where they meet the values.

    why: "logarithms" or else "negative", "changed" after the softmax, "raw" scores, "several"
    softmaxes, "divided" by other sums than those of their rows, or "unseen".
    """
    found = [(core, _made(s, core)) for core in square(s) if core.fused is None]
    return [(core, why) for core, why in found if why and not diagonal_taken(s)]


def _made(s, core):
    """What made the weights instead of one softmax over the keys, in a word; "" for that one."""
    several, scores = core.softmaxes > 1, core.scores
    below = (core.weights < 0).any() and not several
    none = core.softmaxes == 0 and core.normalised is None and scores is None
    names = {s.graph.calls[at].name for at in core.path}
    causes = {
        "logarithms": below and LOGARITHM in names,
        "negative": below and none,
        "": sums_to_one(core.weights, -1) or (wrong_axis(s, core) and not core.changed),
        "several": several,
        "changed": core.changed,
        "raw": scores is not None and scores.equal(core.weights),
        "divided": EXP in names and (core.weights.sum(dim=-1) > 1 + 1e-3).any(),
        "unseen": True,
    }
    return next(why for why, true in causes.items() if true)


@fact
def derived(s):
    """The weights of sentence 0, (heads, tokens, tokens), where no line makes them; or None.

    They are the derivative of the context by the values, told where that is an attention's: one
    matrix for each head.
    """
    if (s.cores and square(s)) or heads_apart(s) or s.masks or s.sizes.tokens < 2:
        return None

    def run(x):
        record = s.record(x)
        return Graph(record, replace(s.sizes, batch=1)), record.output

    try:
        weights, _ = slopes(run, s.x[:1], s.sizes.num_heads or 1) or (None, None)
    except (RuntimeError, IndexError):  # a sentence alone does not run
        return None
    return weights if weights is not None and len(weights) in (1, s.sizes.num_heads) else None


@fact
def divided_wrongly(s):
    """`derived` where some of its rows do not sum to one, and are meant to; or None.

    They are meant to where something is divided by a sum of what is computed, no weight is below
    zero, and some row sums to one or to more: with an entry for no token all of them sum to less.
    """
    weights, graph = derived(s), s.graph
    if weights is None or (weights < -1e-6).any():
        return None
    off = weights.sum(-1) - 1
    alike = off.max() - off.min() < 1e-3  # all right, or all times one number, as by a residual
    mean = (off - s.sizes.tokens + 1).abs().max() < 1e-3  # but that number is that of the tokens
    if (alike and not mean) or off.max() < -1e-3:
        return None
    divisors = ((at, divides(call)) for at, call in enumerate(graph.calls))
    behind = (graph.behind(by, at)[0] for at, by in divisors if by is not None)
    sums = (n in graph.products or graph.calls[n].name == SUM for calls in behind for n in calls)
    return weights if any(sums) else None


# --- letters of an einsum, and diagonals ------------------------------------------------------


@fact
def misspelt(s):
    """(code of the rule that tells it, Product) of the einsum whose letters are wrong; or None.

    A letter stands twice in a weight, or two axes are summed apart that should meet.
    """
    for at, product in s.graph.every.items():
        if any(s.graph.maker(product.sides[n], at) is None for n, _ in product.doubled):
            return "no-effect", product
        if product.apart:
            places = {"wrong-values": any(map(_is_soft, product.sides)), "wrong-pair": True}
            places = {"no-effect": at in s.graph.projections} | places
            return next(code for code, true in places.items() if true), product
    return None


@fact
def diagonal_taken(s):
    """The call in which the weights go on by their diagonal alone; or None."""
    for at, call in enumerate(s.graph.calls if s.sizes.tokens > 1 else ()):
        for kept in call.inputs:
            if _is_soft(kept) and _takes_diagonal(s, at, kept):
                others = (s.graph.calls[n] for n in s.graph.users(kept, -1) if n != at)
                if all(other.relation == "same object" for other in others):
                    return call
    return None


def _is_soft(kept):
    """Whether numbers are (…, n, n) with rows that sum to one, none below zero, as of a softmax."""
    value = kept.value
    if value.dim() < 2 or value.shape[-1] != value.shape[-2] or not kept.tensor.requires_grad:
        return False
    return (
        not value.is_complex()
        and bool((value >= 0).all())
        and sums_to_one(value, -1)
        and not value.equal(_diagonal(value))
    )


def _diagonal(value):
    return value * torch.eye(value.shape[-1]).to(value)


def _takes_diagonal(s, at, kept):
    """Whether a call gives the diagonal of a tensor, or reads no more of it."""
    doubled = s.graph.every[at].doubled if at in s.graph.every else []
    if any(s.graph.every[at].sides[n] is kept for n, _ in doubled):
        return True
    taken = kept.value.diagonal(dim1=-2, dim2=-1), _diagonal(kept.value)
    return any(made.value.equal(one) for made in outputs(s.graph.calls[at]) for one in taken)


# --- rows of the scores -----------------------------------------------------------------------


@fact
def rows_mixed(s):
    """(row, [rows]): a row of the scores, and of which other queries it holds scores; or None.

    Asked where more than one product makes the scores, by derivatives: those of the queries tell
    which numbers of their projection each row is made of.
    """
    found = (_mixed_in(s, core) for core in square(s))
    return next(filter(None, found), None)


def _mixed_in(s, core):
    kept, before = _scores_read(s, core)
    made = s.graph.back(*core.operands[0])[2]
    if kept is None or len(made) != 1 or sum(map(len, s.graph.back(kept, before)[1:])) < 2:
        return None
    source, (queries, keys, _) = outputs(s.graph.calls[made[0]])[0].tensor, core.operands
    rows = range(core.weights.shape[-2])
    mine = [_feeding(source, queries[0], core.queries[..., row, :]) for row in rows]
    of_keys = _feeding(source, keys[0], core.keys)
    for row in rows:
        # a mask that is given may hide the future, which a skew fills with what is left over
        read = core.scores[..., row, : row + 1 if s.way.masks else None]
        strange = _feeding(source, kept, read) & ~mine[row] & ~of_keys
        if others := [other for other in rows if (strange & mine[other]).any()]:
            return row, others
    return None


def _scores_read(s, core):
    """(Kept, index): the scores as the softmax reads them, and its index; or Nones."""
    soft = [at for at in core.path if s.graph.calls[at].name in (*SOFTMAX, EXP)]
    kept = s.graph.calls[soft[-1]].inputs[0] if soft else None
    usual = kept is not None and core.scores is not None and kept.tensor.requires_grad
    return (kept, soft[-1]) if usual else (None, None)


def _feeding(source, kept, numbers):
    """Where a tensor's numbers act on those of another that have these values: Boolean."""
    some = kept.tensor[torch.isin(kept.value, numbers) & kept.value.isfinite()]
    total = (some * some.detach()).sum()
    (slope,) = torch.autograd.grad(total, source, retain_graph=True, allow_unused=True)
    return torch.zeros_like(source, dtype=torch.bool) if slope is None else slope != 0


# --- split and merged -----------------------------------------------------------------------


@fact
def _rearranged(s):
    """[(core, role, numbers, [what they are made of])]: split into heads, or merged ("context").

    numbers: (…, tokens, width), made by changes of layout alone.
    """
    found = []
    for core in s.cores:
        for _, role, numbers, operand in core.roles:
            origin = s.graph.origin(*operand)
            wholes = [kept.value for _, kept in origin.sources]
            found += [(core, role, numbers / origin.factor, wholes)] * s.graph.pure(origin)
        kept, context = core.context
        found.append((core, "context", context, [s.graph.moved(kept, core.at).value]))
    return found


@fact
def _misread(s):
    """{"split", "merged" or "copied": (the first core, role or "context") of which that is true}.

    Split or merged: a row holds the numbers of several tokens; copied: one's row stands for all.
    """
    found = {}
    for core, role, part, wholes in _rearranged(s):
        rows, read = part.movedim(-2, 0), [token_axes(whole, s.sizes) for whole in wholes]
        alike, made = (rows == rows[:1]).all(), [t for ways in read for t in ways]
        if len(rows) != s.sizes.tokens:
            continue
        if not alike and _misplaced(rows, read):
            found.setdefault("merged" if role == "context" else "split", (core, role))
        if alike and made and role != "context" and all((t != t[:1]).any() for t in made):
            found.setdefault("copied", (core, role))
    return found


def split_cut(s):
    """(core, "queries", "keys" or "values") whose rows hold several tokens' numbers; or None."""
    return _misread(s).get("split")


def merge_cut(s):
    """Whether a merged row holds the numbers of several tokens."""
    return "merged" in _misread(s)


def one_for_all(s):
    """The role ("queries", say) in which one token's row stands for all tokens'; or None."""
    return _misread(s).get("copied", (None, None))[1]


@fact
def mixes_batch(s):
    """Whether a split or merge by view mixes sentences, not tokens alone."""
    pairs = [(part, *wholes) for _, _, part, wholes in _rearranged(s) if len(wholes) == 1]
    pairs = pairs if split_cut(s) or merge_cut(s) else []
    read = [[_batch_axes(t, s.sizes.batch) for t in pair] for pair in pairs]
    return any(_misplaced(part, [whole]) for parts, whole in read for part in parts)


@fact
def batch_moves(s):
    """(batch, batch): which sentence moves when another changes; None where all are apart.

    Also None where the layout or the softmax is the cause, which has a name of its own.
    """
    batch, other = s.sizes.batch, 1.5 * s.draw(2)
    moved = torch.zeros(batch, batch)
    for item in range(batch) if batch > 1 else ():
        changed = s.x.clone()
        changed[item] = other[item]
        moved[:, item] = s.differs(s.look(changed), s.base)[1].any(dim=1).float().cpu()
    if not (moved - torch.diag(moved.diag())).any() or mixes_batch(s):
        return None
    axes = [wrong_axis(s, core) or "" for core in s.cores] + [axis for _, axis, _ in pooled(s)]
    return None if any(axis.startswith(("batch", "the batch")) for axis in axes) else moved


@fact
def heads_apart(s):
    """The shape of weights between the heads of one token, where no token sees another; or None."""
    if s.sizes.tokens < 2 or (s.influence > 0).fill_diagonal_(False).any():
        return None
    sizes = [s.sizes.tokens] + [s.sizes.batch] * (batch_moves(s) is not None)
    shapes = [tuple(core.weights.shape[-2:]) for core in s.cores]
    return next((shape for shape in shapes if shape[1] not in sizes), None)


@fact
def sees_others(s):
    """Whether any token has a say in the output of another."""
    return heads_apart(s) is not None or bool((s.influence > 0).fill_diagonal_(False).any())


@fact
def disturbed(s):
    """Whether a number may stand at another token than its own: who sees whom is not told then."""
    return bool(
        _misread(s)
        or off_axis(s)
        or pooled_off_axis(s)
        or any(why in ("logarithms", "negative", "changed", "raw") for _, why in unsummed(s))
        or misspelt(s)
        or rows_mixed(s)
        or heads_apart(s)
        or batch_moves(s) is not None
    )


def absent(s):
    """The Unjudged where forward is called without an optional context; or None."""
    if not s.way.optional:
        return None
    name = s.way.optional[0]
    return Unjudged(f"forward was called without {name}", without=name)


def never_given(s):
    """The same where no other way gives it."""
    given = [name for other in s.others for name in other.way.names]
    return absent(s) if absent(s) and absent(s).without not in given else None


# --- whose numbers are these ----------------------------------------------------------------


def token_axes(value, sizes):
    """The numbers with the tokens' axis first, in each way that the sizes allow."""
    batch, tokens, found = sizes.batch, sizes.tokens, []
    if batch > 1 and value.shape[:1] == (batch * tokens,):
        split = value.unflatten(0, (batch, tokens)).movedim(1, 0)
        found = [split, value.unflatten(0, (tokens, batch))]
    axes = [axis for axis in range(value.dim()) if value.shape[axis] == tokens]
    return found + [value.movedim(axis, 0) for axis in axes]


def _batch_axes(value, batch):
    """As `token_axes`, with the axis of the batch first."""
    if batch in value.shape:
        return [value.movedim(list(value.shape).index(batch), 0)]
    return [] if value.shape[0] % batch else [value.unflatten(0, (batch, -1))]


def _misplaced(part, read):
    """Whether numbers of a part (n, …) are all in its wholes, and not in the same one of n.

    read: for each whole the ways to read it as (n, …). The best way counts.
    """
    shares = [(1.0, 1.0)] * (not all(read))
    for way in zip(*read, strict=False):
        whole = torch.cat([one.flatten(1) for one in way], dim=1)
        own = torch.stack([_share(a, b) for a, b in zip(part, whole, strict=True)]).mean()
        shares.append((own.item(), _share(part, whole).item()))
    own, everywhere = max(shares)
    return own < 0.9 and everywhere > 0.95


def _share(part, whole):
    part, whole = part.flatten().double(), whole.flatten().double().sort().values
    at, whole = torch.searchsorted(whole, part), F.pad(whole, (1, 1), value=torch.inf)
    near = torch.minimum((whole[at] - part).abs(), (whole[at + 1] - part).abs())
    return (near <= 2e-6 * part.abs() + 1e-9).double().mean()
