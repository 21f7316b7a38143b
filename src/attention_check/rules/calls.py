"""What goes in and what comes out: calls that fail, and sizes that they fail at."""

import re
from dataclasses import replace

import torch
from torch import nn

from ..facts import fact
from ..findings import Finding, Note, Unjudged
from ..graph import outputs
from ..guard import copy_module, read_settings, write_settings
from ..search.find import CannotCheck
from ..search.sizes import find_mask_size, is_mask
from ..search.ways import NoTensor
from ..trust import batch_moves, square
from ..words import listed, told, wants_cuda
from .registry import rule

# --- no call returned what it should --------------------------------------------------------


def never_ran(never):
    """The finding on a module that never returned what it should."""
    sizes, error = never.sizes, never.error
    given = f"an input of shape {(sizes.batch, sizes.tokens, sizes.d_model)}"
    width = _narrow(never)
    if error is None:
        wanted = (sizes.batch, sizes.tokens, "width")
        if never.layout == "one sentence":
            given, wanted = f"an input of shape {(sizes.tokens, sizes.d_model)}", wanted[1:]
        code = "width" if width and never.shape[-1:] == (sizes.d_model,) else "crash"
        shown = ", ".join(map(str, wanted))
        said = f"{given} gives an output of shape {never.shape} instead of ({shown})."
        return Finding(said, code=code)
    if isinstance(error, NoTensor):
        return Finding(f"{error}, without a tensor in it. Return the context.", code="crash")
    if wants_cuda(error):
        return Finding(f"forward fails: {told(error)}", code="crash")
    if width:
        said = f"The layers make {width} numbers of {sizes.d_model}, and forward fails: "
        return Finding(f"{said}{told(error)}. {_MERGE_TO_OUTPUT}", code="width")
    return Finding(f"forward fails on {given}: {told(error)}", code="crash")


_MERGE_TO_OUTPUT = (
    "Merge the heads to the width of the layers' output, num_heads * head_dim, not to the width "
    "of the input."
)


def _narrow(never):
    """The projections' width where it differs from the input's, and the merge fails; or None."""
    text, width = str(never.error or ""), never.sizes.d_model
    if never.error is not None and "invalid for input of size" not in text:
        return None
    layers = [p for p in never.original.modules() if isinstance(p, nn.Linear)]
    outs = {layer.out_features for layer in layers if layer.in_features == width}
    outs -= {width, 3 * width, 2 * width}
    if len(outs) != 1:
        return None
    asked = [int(n) for n in re.findall(r"\d+", text.partition("shape")[2].partition("]")[0])]
    return outs.pop() if never.error is None or width in asked else None


def attention_in_sight(s):
    """ "" where attention is seen, or else a sentence; CannotCheck where no token sees another."""
    if s.sizes.tokens < 2 or s.graph.attends or not s.base.isfinite().all():
        return ""
    if not (s.influence > 0).fill_diagonal_(False).any():
        raise CannotCheck(
            f"No attention is in sight in {type(s.original).__name__}: no token changes the "
            f"output of another, and forward multiplies no queries by keys. Give the module that "
            f"holds the attention."
        )
    return (
        "no product of queries and keys and no softmax was seen, so it may be no attention at all"
    )


# --- some calls fail ------------------------------------------------------------------------


@rule("crash")
def crash(s):
    """forward fails, or its backward pass does, on an input of the right shape.

    scores = queries @ keys             # (…, tokens, head_dim) @ (…, tokens, head_dim)
    """
    if "batch" in s.failed:
        wrong, error = s.failed["batch"]
        return Finding(
            f"It works for a batch of {s.sizes.batch} and fails for a batch of {wrong}: "
            f"{told(error) if error else 'the shape is wrong'}. Read the batch size "
            f"from x.shape, at each call.",
        )
    return _one_sentence(s) or _in_training(s)


def _one_sentence(s):
    if s.way.layout == "one sentence" or s.masks or s.failed:
        return None
    try:
        shape = s.look(s.draw(9, batch=1), module=s.unused()).shape
    except Exception as error:
        return Finding(
            f"It works for a batch of {s.sizes.batch} and fails for a batch of 1: "
            f"{told(error)}. A squeeze() without an axis also removes the batch.",
        )
    if shape[:2] == (1, s.sizes.tokens):
        return None
    return Finding(f"A batch of 1 gives an output of shape {tuple(shape)}.")


def _in_training(s):
    """forward runs, but not in training mode, or the gradients cannot be computed."""
    if isinstance(s.training_error, AssertionError):
        return Note(f"forward refuses training mode: {told(s.training_error)}", code="training")
    if s.training_error is not None:
        return Finding(
            f"It works in evaluation mode and fails in training mode: {told(s.training_error)}",
        )
    if s.backward_error is None or changed_places(s):
        return None
    return Finding(
        f"forward runs and backward fails, so it cannot be trained: an operation in place "
        f"changes numbers that the gradient needs. {told(s.backward_error)}",
    )


@rule("global-state")
def global_state(s):
    """forward changes a setting, or the random state, of the whole program.

    torch.manual_seed(0)                # every number drawn later is the same each time
    """
    changed = _settings_changed(s)
    if changed:
        changes = "; ".join(f"{name} from {a} to {b}" for name, (a, b) in changed.items())
        return Finding(
            f"forward changes a setting of torch for the whole program: {changes}. Everything "
            f"that runs later is touched. Do it outside, or undo it.",
        )
    states = []
    for seed in (11, 12):
        s.look(s.x, seed=seed)
        states.append(torch.get_rng_state())
    if not torch.equal(*states):
        return None
    return Finding(
        "forward sets torch's seed, so every random number drawn after it in the program is "
        "the same each time. Call manual_seed outside of the module.",
    )


def _settings_changed(s):
    """{setting: (before, after)} of one call."""
    before = read_settings()
    try:
        s.way(s.unused(), s.x.clone(), s.masks)
        after = read_settings()
    finally:
        write_settings(before)
    return {name: (a, after[name]) for name, a in before.items() if a != after[name]}


@rule("length", alone=lambda s: s.sizes.tokens > 16)  # the rest would take too long
def length(s):
    """Some numbers of tokens fail.

    scores.masked_fill_(self.mask, -torch.inf)  # (64, 64), where there are 5 tokens
    """
    if "tokens" in s.failed:
        return _at_full_length_only(s)
    notes = []
    for tokens in (8, 5, 2, 1):
        if s.masks or tokens > (s.sizes.context or 10**9) or tokens == s.sizes.tokens:
            continue
        try:
            shape = s.look(s.draw(9, tokens=tokens), module=s.unused()).shape
        except (AssertionError, ValueError) as error:
            notes.append(Note(f"forward refuses {tokens} tokens: {told(error)}"))
            continue
        except Exception as error:
            return _length(s, s.sizes.tokens, tokens, error)
        if shape[:2] != (s.sizes.batch, tokens):
            return _length(s, s.sizes.tokens, tokens, None)
    return [*notes, _after_another(s)]


def _at_full_length_only(s):
    wrong, error = s.failed["tokens"]
    if isinstance(error, AssertionError | ValueError):
        return Note(f"forward refuses {wrong} tokens: {told(error)}")
    if _triangle(s):
        return _length(s, s.sizes.tokens, wrong, error)
    why = told(error) if error else "the output has another length"
    return Unjudged(f"{wrong} tokens fail, and {s.sizes.tokens} may be meant ({why})")


def _triangle(s):
    """Whether a causal mask is kept or made; else a fixed length, as of images, may be meant."""
    if find_mask_size(s.original):
        return True
    return any(is_mask(kept.value) for call in s.graph.calls for kept in outputs(call))


def _length(s, right, wrong, error):
    why = told(error) if error else "the output has another length"
    advice = "Take the sizes from x.shape at each call."
    if wrong < right:
        advice = "Cut the mask to the current length: mask[:tokens, :tokens]."
    if wrong == 1:
        advice = "A squeeze() without an axis also removes the tokens where there is one."
    return Finding(f"It works for {right} tokens and fails for {wrong}: {advice} ({why})")


def _after_another(s):
    """A length fails after another one: a mask, say, of the first call is kept."""
    kept = _kept(s)
    longer = [n for n in (8, 7, 6) if s.sizes.tokens < n <= (s.sizes.context or n)]
    if s.fresh or s.random or s.masks or not kept or not longer:
        return None
    for first, second in ((s.sizes.tokens, longer[0]), (longer[0], s.sizes.tokens)):
        module = s.unused()
        try:
            s.look(s.draw(9, tokens=second), module=s.unused())
            s.look(s.draw(9, tokens=first), module=module)
        except Exception:
            return None  # told above
        try:
            s.look(s.draw(9, tokens=second), module=module)
        except (AssertionError, ValueError) as error:
            return Note(f"forward refuses {second} tokens after {first}: {told(error)}")
        except Exception as error:
            return Finding(
                f"After a call with {first} tokens a call with {second} fails, though {second} "
                f"work in a new module: what the first call leaves in {listed(kept)} has its "
                f"length. Make it at each call, or anew where the length changes. ({told(error)})",
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
    if isinstance(value, torch.Tensor):
        return value.shape
    if isinstance(value, list | tuple | dict | set):
        return len(value)
    return value if isinstance(value, int | float | str) else type(value)


@rule("width", alone=lambda s: True)
def width(s):
    """The heads are merged to the width of the input, where the layers have another.

    context.view(batch, tokens, self.d_in)      # num_heads * head_dim is d_out
    """
    if not s.two_widths:
        return None
    return Finding(
        f"{s.two_widths} Merge the heads to d_out, the width of the layers' output, not to the "
        f"width of the input.",
    )


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
    if cause := _why_nan(s):
        why = f"Rows {listed(rows)} are NaN or infinite. {cause}"
    elif rows == [0]:
        why = (
            "Row 0 is NaN: the mask hides every key from token 0, itself included. Hide the "
            "pairs above the diagonal only: triu(diagonal=1)."
        )
    elif rows == [last]:
        why = (
            f"Row {last}, the last, is NaN: the mask hides the past and keeps the future, so "
            f"the last token has no key left. Hide where j > i, not where j <= i."
        )
    elif rows == list(range(last)):
        why = (
            "All rows but the last are NaN: each row that has a hidden key. The softmax runs "
            "over an axis on which a hidden pair is hidden throughout, heads or batch: use "
            "dim=-1."
        )
    elif len(rows) == last + 1:
        why = (
            "Every row is NaN or infinite. 0 * -inf is NaN: hide with masked_fill, not by a "
            "product with -inf; and nothing may be divided by 0."
        )
    else:
        why = f"Rows {listed(rows)} are NaN: for these tokens every key is hidden."
    return Finding(why, bad.float().cpu(), "NaN by sentence (row) and token (column)")


def _why_nan(s):
    """What the scores and weights tell of NaN in the output, or None."""
    for core in square(s):
        if core.scores is not None and (core.scores == -torch.inf).all():
            return "The mask hides every pair, so no token has a key left."
        if core.scores is not None and (core.scores == torch.inf).any():
            return "Some scores are +inf, and inf / inf is NaN. A mask must fill with -inf."
        soft = core.normalised
        if soft is not None and soft.isfinite().all() and core.weights.isinf().any():
            return (
                "Weights are filled with infinity after the softmax. Hide before it: fill the "
                "scores with float('-inf')."
            )
    return None


# --- what a call does beside its answer -----------------------------------------------------


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
    if not (places := changed_places(s)):
        return None
    return Finding(
        f"forward changes the caller's tensor (tokens {listed(places)} of sentence 0): an "
        f"operation such as +=, mul_ or x[...] = writes into x. Write x = x + ... instead.",
    )


@rule("batch-mixed")
def batch_mixed(s):
    """One sentence of the batch sees another.

    queries = self.W_query(x - x.mean(dim=0))   # the mean over the sentences
    """
    moved = batch_moves(s)
    if moved is None:
        return None
    hint = "A view or reshape that joins batch and tokens in the wrong order does that."
    if s.way.layout == "batch" and _tokens_apart(s):
        hint = (
            "It takes the first axis for the tokens: it wants (tokens, batch, d_model). "
            "Transpose the input, or pass batch_first=True to nn.MultiheadAttention."
        )
    i, j = (moved - torch.diag(moved.diag())).nonzero()[0].tolist()
    return Finding(
        f"Sentence {i} changes when only sentence {j} of the batch was changed. {hint}",
        moved,
        "which sentence (row) moves when another (column) changes",
    )


def _tokens_apart(s):
    """Whether sentences are apart when the first axis is read as the tokens."""
    way = replace(s.way, layout="tokens first")
    changed = s.x.clone()
    changed[1:] = 1.5 * s.draw(2)[1:]
    try:
        base, other = s.look(s.x, way=way), s.look(changed, way=way)
    except Exception:
        return False
    return base.shape == s.base.shape and not s.differs(other, base)[1][0].any()
