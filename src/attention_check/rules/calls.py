"""What goes in and what comes out: calls that fail, and sizes that they fail at."""

import re
from dataclasses import replace

import torch
from torch import nn

from ..facts import fact
from ..findings import Finding, Note, Unjudged
from ..graph import outputs
from ..guard import copy_module, read_settings, settings_kept
from ..search.make import CannotCheck, arguments
from ..search.sizes import find_mask_size, is_mask
from ..search.ways import NoTensor
from ..trust import batch_moves, square
from ..words import listed, refuses, told
from .registry import rule

_MERGE_TO_OUTPUT = (
    "Merge the heads to num_heads * head_dim, the width of the layers' output, not to the width "
    "of the input."
)


def never_ran(never):
    """The finding on a module that never returned what it should."""
    sizes, error, width = never.subject.sizes, never.error, _narrow(never)
    given = f"an input of shape {(sizes.batch, sizes.tokens, sizes.d_model)}"
    if error is None:
        code = "width" if width and never.shape[-1:] == (sizes.d_model,) else "crash"
        said = f"{given} gives an output of shape {never.shape} instead of "
        return Finding(f"{said}({sizes.batch}, {sizes.tokens}, width).", code=code)
    if isinstance(error, NoTensor):
        return Finding(f"{error}, without a tensor in it. Return the context.", code="crash")
    if width:
        said = f"The layers make {width} numbers of {sizes.d_model}, and forward fails: "
        return Finding(f"{said}{told(error)}. {_MERGE_TO_OUTPUT}", code="width")
    return Finding(f"forward fails on {given}: {told(error)}", code="crash")


def _narrow(never):
    """The projections' width where it differs from the input's, and the merge fails; or None."""
    module, width = never.subject.original, never.subject.sizes.d_model
    layers = [part for part in module.modules() if isinstance(part, nn.Linear)]
    outs = {layer.out_features for layer in layers if layer.in_features == width}
    outs -= {width, 2 * width, 3 * width}
    asked = re.search(r"shape '\[(.*)\]' is invalid for input of size", str(never.error))
    fits = never.error is None or (asked and str(width) in asked[1].split(", "))
    return outs.pop() if fits and len(outs) == 1 else None


def refuse_grids(s):
    """CannotCheck where sentences are mixed, and are not as soon as there is another axis."""
    if s.way.layout != "batch" or s.several or batch_moves(s) is None:
        return
    grid, other = (torch.stack([s.draw(seed) for seed in seeds], 1) for seeds in ((1, 2), (3, 4)))
    changed = torch.cat([grid[:1], other[1:]])  # (batch, 2, tokens, d_model): the first is kept
    try:
        with torch.no_grad():
            first, again = (s.call(s.unused(), x) for x in (grid, changed))
    except Exception:
        return
    if first.shape == grid.shape and torch.allclose(first[0], again[0]):
        raise CannotCheck(
            f"{type(s.original).__name__} keeps sentences apart where there are four axes, such as "
            f"(batch, rows, columns, width), and mixes them where there are three. Check the "
            f"attention inside, or wrap it in a module that takes x and makes the grid."
        )


def attention_in_sight(s):
    """ "" where attention is seen, or else a sentence; CannotCheck where no token sees another."""
    if s.sizes.tokens < 2 or s.graph.attends or not s.base.isfinite().all():
        return ""
    if (s.influence > 0).fill_diagonal_(False).any():
        return "no product of queries and keys, no softmax was seen: it may be no attention at all"
    raise CannotCheck(
        f"No attention is in sight in {type(s.original).__name__}: no token changes the output of "
        f"another, and no queries meet keys. Give the module that holds the attention."
    )


def _failure(s, batch=None, tokens=None, module=None):
    """What a call at another size ends in: an exception, or words on its shape, or None."""
    wanted = batch or s.sizes.batch, tokens or s.sizes.tokens
    try:
        shape = s.look(s.draw(9, batch, tokens), module=module or s.unused()).shape
    except Exception as error:
        return error
    return None if shape[:2] == wanted else f"the output has the shape {tuple(shape)}"


def _refusal(what, error, code=""):
    return Note(f"forward refuses {what}: {told(error)}", code=code)


@rule("crash", whole=True)
def crash(s):
    """forward fails, or its backward pass does, on an input of the right shape.

    scores = queries @ keys             # (…, tokens, head_dim) @ (…, tokens, head_dim)
    """
    wrong, error = s.failed.get("batch", (1, None))
    if s.way.layout != "one sentence" and not s.masks and not s.failed:
        error = _failure(s, batch=1)
    if refuses(error):
        return _refusal(f"a batch of {wrong}", error, code="batch")
    if error:
        advice = "Read the batch size from x.shape, at each call."
        if wrong == 1:
            advice += " A squeeze() without an axis also removes the batch."
        works = f"It works for a batch of {s.sizes.batch} and fails for a batch of {wrong}"
        return Finding(f"{works}: {told(error)}. {advice}")
    if isinstance(s.training_error, AssertionError):
        return _refusal("training mode", s.training_error, code="training")
    if s.training_error is not None:
        works = "It works in evaluation mode and fails in training mode"
        return Finding(f"{works}: {told(s.training_error)}")
    if s.backward_error is None or changed_places(s):
        return None
    return Finding(
        f"forward runs and backward fails, so it cannot be trained: an operation in place "
        f"changes numbers that the gradient needs. {told(s.backward_error)}"
    )


@rule("global-state", whole=True)
def global_state(s):
    """forward changes a setting, or the random state, of the whole program.

    torch.manual_seed(0)                # every number drawn later is the same each time
    """
    if kept := next(filter(None, map(_default_kept, arguments(s.original.forward))), ""):
        return Finding(
            f"forward's default for {kept} is one object for all calls, and a call writes into it: "
            f"what earlier calls left is read by the next. Let the default be None, and make a new "
            f"one where none is given."
        )
    with settings_kept() as before:
        s.way(s.unused(), s.x.clone(), s.masks)
        after = read_settings()
    changed = [name for name in before if before[name] != after[name]]
    if changed:
        changes = "; ".join(f"{name} from {before[name]} to {after[name]}" for name in changed)
        return Finding(
            f"forward changes a setting of torch for the whole program: {changes}. Do it outside, "
            f"or undo it."
        )
    states = []
    for seed in (11, 12):
        s.look(s.x, seed=seed)
        states.append(torch.get_rng_state())
    said = "forward sets torch's seed, so every random number drawn after it in the program is the "
    said += "same each time. Call manual_seed outside of the module."
    return Finding(said) if torch.equal(*states) else None


def _default_kept(parameter):
    """The name of an argument whose default holds what calls have written into it, or ""."""
    kept = isinstance(parameter.default, list | dict | set) and parameter.default
    return parameter.name if kept else ""


@rule("length", alone=lambda s: s.sizes.tokens > 16, whole=True)  # the rest would take too long
def length(s):
    """Some numbers of tokens fail.

    scores.masked_fill_(self.mask, -torch.inf)  # (64, 64), where there are 5 tokens
    """
    right, notes, fixed = s.sizes.tokens, [], "tokens" in s.failed
    others = [n for n in (8, 5, 2, 1) if right != n <= (s.sizes.context or n) and not s.masks]
    tried = ((n, _failure(s, tokens=n)) for n in others)
    for wrong, error in [s.failed["tokens"]] if fixed else tried:
        if refuses(error):
            notes.append(_refusal(f"{wrong} tokens", error))
        elif fixed and not _triangle(s):
            return Unjudged(f"{wrong} tokens fail, and {right} may be meant ({told(error)})")
        elif error:
            advice = "Take the sizes from x.shape at each call."
            if wrong < right:
                advice = "Cut the mask to the current length: mask[:tokens, :tokens]."
            if wrong == 1:
                advice = "A squeeze() without an axis also removes the tokens where there is one."
            works = f"It works for {right} tokens and fails for {wrong}"
            return Finding(f"{works}: {advice} ({told(error)})")
    return [*notes, _after_another(s)]


def _triangle(s):
    """Whether a causal mask is kept or made; else a fixed length, as of images, may be meant."""
    made = (is_mask(kept.value) for call in s.graph.calls for kept in outputs(call))
    return find_mask_size(s.original) is not None or any(made)


def _after_another(s):
    """A length fails after another one: a mask, say, of the first call is kept."""
    kept = _kept(s)
    longer = [n for n in (8, 7, 6) if s.sizes.tokens < n <= (s.sizes.context or n)]
    if s.fresh or s.random or s.masks or not kept or not longer:
        return None
    for first, second in ((s.sizes.tokens, longer[0]), (longer[0], s.sizes.tokens)):
        module = s.unused()
        if _failure(s, tokens=second) or _failure(s, tokens=first, module=module):
            return None  # told above
        error = _failure(s, tokens=second, module=module)
        if refuses(error):
            return _refusal(f"{second} tokens after {first}", error)
        if error:
            return Finding(
                f"After a call with {first} tokens a call with {second} fails, though {second} "
                f"work in a new module: what the first call leaves in {listed(kept)} has its "
                f"length. Make it at each call, or anew where the length changes. ({told(error)})"
            )
    return None


def _kept(s):
    """The attributes that a call changes, by name."""
    module, found = s.unused(), []
    s.look(s.x, module=module)
    pairs = zip(s.pristine.named_modules(), module.named_modules(), strict=False)
    for (path, before), (_, after) in pairs:
        old, new = ({**vars(part), **part._buffers} for part in (before, after))
        names = [n for n in new if n not in old or _sign(old[n]) != _sign(new[n])]
        found += [f"self.{path}.{n}".replace("..", ".") for n in names]
    return found


def _sign(value):
    """What tells a changed attribute: a shape, a size, or the value itself."""
    if isinstance(value, list | tuple | dict | set):
        return len(value)
    return getattr(value, "shape", value if isinstance(value, int | float | str) else type(value))


@rule("width", alone=lambda s: True, whole=True)
def width(s):
    """The heads are merged to the width of the input, where the layers have another.

    context.view(batch, tokens, self.d_in)      # num_heads * head_dim is d_out
    """
    return Finding(f"{s.two_widths} {_MERGE_TO_OUTPUT}") if s.two_widths else None


@rule("nan", alone=lambda s: True)
def nan(s):
    """Not a number comes out.

    hidden = torch.ones(tokens, tokens).triu(0)     # hides the diagonal too
    scores = scores.masked_fill(hidden.bool(), -torch.inf)
    """
    bad = ~s.base.isfinite().all(dim=-1)
    if not bad.any():
        return None
    rows, last = bad.any(dim=0).nonzero().flatten().tolist(), s.sizes.tokens - 1
    which = f"Rows {listed(rows)} are NaN or infinite." if len(rows) > 1 else "Row 0 is NaN:"
    which = f"Row {last}, the last, is NaN:" if rows == [last] else which
    why = next(words for true, words in _causes_of_nan(s, rows, last) if true)
    shows = "NaN by sentence (row) and token (column)"
    return Finding(f"{which} {why}", bad.float().cpu(), shows)


_OVER_HEADS = (
    "The softmax runs over an axis on which a hidden pair is hidden throughout, heads or batch: "
    "use dim=-1."
)


def _causes_of_nan(s, rows, last):
    scores = [core.scores for core in square(s) if core.scores is not None]
    soft = [core for core in square(s) if core.normalised is not None]
    late = (c.normalised.isfinite().all() and c.weights.isinf().any() for c in soft)
    no_key = any((x == -torch.inf).all() for x in scores)
    largest = any((x == torch.inf).any() for x in scores)
    return [
        (no_key, "The mask hides every pair, so no token has a key left."),
        (largest, "Some scores are +inf, and inf / inf is NaN. A mask must fill with -inf."),
        (any(late), "Weights are set to infinity after the softmax. Fill the scores with -inf."),
        (rows == [0], "token 0 is hidden from itself. Hide above the diagonal only: triu(1)."),
        (rows == [last], "the mask hides the past. Hide where j > i, not where j <= i."),
        (rows == [*range(last)], _OVER_HEADS),
        (len(rows) > last, "0 * -inf and 0 / 0 are NaN. Hide with masked_fill, not by a product."),
        (True, "For these tokens every key is hidden."),
    ]


@fact
def changed_places(s):
    """The tokens of the caller's first sentence that forward writes into."""
    given = s.x.clone()
    with torch.no_grad():
        s.call(copy_module(s.pristine), given)
    change = (given - s.x).abs().nan_to_num(1.0)
    return change[0].amax(dim=-1).nonzero().flatten().tolist() if (change > 0).any() else []


@rule("input-changed")
def input_changed(s):
    """forward writes into the caller's tensor.

    x += self.positions[:tokens]        # the caller's x, from now on
    """
    places = changed_places(s)
    said = "an operation such as +=, mul_ or x[...] = writes into x. Write x = x + ... instead."
    where = f"tokens {listed(places)} of sentence 0" if places else ""
    return Finding(f"forward changes the caller's tensor ({where}): {said}") if places else None


@rule("batch-mixed", unless={"global-state"})
def batch_mixed(s):
    """One sentence of the batch sees another.

    queries = self.W_query(x - x.mean(dim=0))   # the mean over the sentences
    """
    moved = batch_moves(s)
    if moved is None:
        if _told_by_place(s):
            return Finding(
                "The answer on a sentence depends on its place in the batch: the batch turned "
                "round gives other numbers. An index, a size or a position of the first axis "
                "stands where that of the tokens is meant: x.shape[1], not x.shape[0]."
            )
        first = s.way.layout == "tokens first"
        return Note("It takes (tokens, batch, d_model).", code="tokens-first") if first else None
    hint = "A view or reshape that joins batch and tokens in the wrong order does that, or a sum "
    hint += "over the first axis. Keep each sentence to itself."
    if s.way.layout == "batch" and _tokens_apart(s):
        hint = (
            "It takes the first axis for the tokens: it wants (tokens, batch, d_model). "
            "Transpose the input, or pass batch_first=True to nn.MultiheadAttention."
        )
    i, j = (moved - torch.diag(moved.diag())).nonzero()[0].tolist()
    said = f"Sentence {i} changes when only sentence {j} of the batch was changed. {hint}"
    return Finding(said, moved, "which sentence (row) moves when another (column) changes")


def _told_by_place(s):
    """Whether a sentence of one token gets another answer at another place in the batch."""
    if s.way.layout != "batch" or s.way.others or s.masks or s.random or s.fresh:
        return False
    try:
        one, turned = (s.look(x, module=s.unused()) for x in (s.x[:, :1], s.x[:, :1].flip(0)))
    except Exception:  # one token is too few for it
        return False
    return bool(s.differs(turned.flip(0), one)[1].any())


def _tokens_apart(s):
    """Whether sentences are apart when the first axis is read as the tokens."""
    way = replace(s.way, layout="tokens first")
    drawn = 1.5 * s.draw(2)
    first, last = torch.cat([s.x[:1], drawn[1:]]), torch.cat([drawn[:-1], s.x[-1:]])
    try:
        base, *others = (s.look(x, way=way) for x in (s.x, first, last))
    except Exception:
        return False
    if base.shape != s.base.shape:
        return False
    moved = [s.differs(other, base)[1][at].any() for other, at in zip(others, (0, -1), strict=True)]
    return not any(moved)  # the last too, as behind a causal mask the first would see no other
