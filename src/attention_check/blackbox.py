"""Tests that need no names and no look inside: what goes in and what comes out."""

import re
from dataclasses import replace

import torch

from . import calling
from .calling import is_mask, told, wants_cuda
from .effect import lifeless
from .flow import outputs
from .guard import copy_module, reachable
from .report import Finding, listed
from .scores import wrong_axis
from .subject import dropouts, set_dropout
from .visible import why_nan


def crash(s):
    """forward fails on every right input."""
    if s.module is None:
        return _crashed(s)
    if "batch" in s.failed:
        wrong, error = s.failed["batch"]
        return Finding(
            "crash",
            f"It works for a batch of {s.sizes.batch} and fails for a batch of {wrong}: "
            f"{told(error) if error else 'the shape is wrong'}. Read the batch size "
            f"from x.shape, at each call.",
        )
    if s.settings:
        changes = "; ".join(f"{n} from {a} to {b}" for n, (a, b) in s.settings.items())
        return Finding(
            "global-state",
            f"forward changes a setting of torch for the whole program: {changes}. Everything "
            f"that runs later is touched. Do it outside, or undo it.",
        )
    return None


def _crashed(s):
    sizes = s.sizes
    given = f"an input of shape {(sizes.batch, sizes.tokens, sizes.d_model)}"
    if s.error is None:
        layout, shape = s.shape
        wanted = (sizes.batch, sizes.tokens, "width")
        if layout == "one sentence":
            given, wanted = f"an input of shape {(sizes.tokens, sizes.d_model)}", wanted[1:]
        width = _narrow(s)
        code = "width" if width and shape[-1:] == (sizes.d_model,) else "crash"
        shown = ", ".join(map(str, wanted))
        return Finding(code, f"{given} gives an output of shape {shape} instead of ({shown}).")
    if isinstance(s.error, calling.NoTensor):
        return Finding("crash", f"{s.error}, without a tensor in it. Return the context.")
    if wants_cuda(s.error):
        return Finding("crash", f"forward fails: {told(s.error)}")
    if width := _narrow(s):
        return Finding(
            "width",
            f"The layers make {width} numbers of {sizes.d_model}, and forward fails: "
            f"{told(s.error)}. Merge the heads to the width of the layers' output, "
            f"num_heads * head_dim, not to the width of the input.",
        )
    return Finding("crash", f"forward fails on {given}: {told(s.error)}")


def _narrow(s):
    """The projections' width where it differs from the input's, and the merge fails; or None."""
    text = str(s.error) if s.error is not None else "invalid for input of size"
    if not re.search(r"invalid for input of size", text):
        return None
    layers = [p for p in s.original.modules() if isinstance(p, torch.nn.Linear)]
    outs = {layer.out_features for layer in layers if layer.in_features == s.sizes.d_model}
    outs -= {s.sizes.d_model, 3 * s.sizes.d_model, 2 * s.sizes.d_model}
    if len(outs) != 1:
        return None
    out = outs.pop()
    asked = [int(n) for n in re.findall(r"\d+", text.partition("shape")[2].partition("]")[0])]
    return out if s.error is None or s.sizes.d_model in asked else None


def length(s):
    """Some lengths fail."""
    if "tokens" in s.failed:
        wrong, error = s.failed["tokens"]
        if isinstance(error, AssertionError | ValueError):
            s.note("length", f"forward refuses {wrong} tokens: {told(error)}")
            return None
        if not _triangle(s):
            s.tell(
                f"lengths other than {s.sizes.tokens} not judged: {wrong} tokens fail "
                f"({told(error) if error else 'the output has another length'})"
            )
            return None
        return _length(s, s.sizes.tokens, wrong, error)
    context = s.sizes.context or 10**9
    for tokens in (8, 5, 2, 1):
        if tokens > context or tokens == s.sizes.tokens:
            continue
        if s.masks is not None:
            continue
        try:
            shape = s.look(s.draw(9, tokens=tokens), module=s.unused()).shape
        except (AssertionError, ValueError) as error:
            s.note("length", f"forward refuses {tokens} tokens: {told(error)}")
            continue
        except Exception as error:
            return _length(s, s.sizes.tokens, tokens, error)
        if shape[:2] != (s.sizes.batch, tokens):
            return _length(s, s.sizes.tokens, tokens, None)
    return _one_sentence(s)


def _triangle(s):
    """Whether a causal mask is kept or made; else a fixed length, as of images, may be meant."""
    if calling.find_mask_size(s.original):
        return True
    return any(is_mask(kept.value) for call in s.capture(s.x).calls for kept in outputs(call))


def _length(s, right, wrong, error):
    why = told(error) if error else "the output has another length"
    advice = "Take the sizes from x.shape at each call."
    if wrong < right:
        advice = "Cut the mask to the current length: mask[:tokens, :tokens]."
    if wrong == 1:
        advice = "A squeeze() without an axis also removes the tokens where there is one."
    s.broken = wrong
    return Finding("length", f"It works for {right} tokens and fails for {wrong}: {advice} ({why})")


def _one_sentence(s):
    if s.way.layout == "one sentence" or s.masks is not None or s.failed:
        return None
    try:
        shape = s.look(s.draw(9, batch=1), module=s.unused()).shape
    except Exception as error:
        return Finding(
            "crash",
            f"It works for a batch of {s.sizes.batch} and fails for a batch of 1: "
            f"{told(error)}. A squeeze() without an axis also removes the batch.",
        )
    if shape[:2] == (1, s.sizes.tokens):
        return None
    return Finding("crash", f"A batch of 1 gives an output of shape {tuple(shape)}.")


def length_kept(s):
    """A length fails after another one: a mask, say, of the first call is kept."""
    if s.fresh or s.random or s.masks is not None or "length" in s.found:
        return None
    kept = _kept(s)
    longer = [n for n in (8, 7, 6) if s.sizes.tokens < n <= (s.sizes.context or n)]
    if not kept or not longer:
        return None
    for first, second in ((s.sizes.tokens, longer[0]), (longer[0], s.sizes.tokens)):
        module = s.unused()
        try:
            s.look(s.draw(9, tokens=second), module=s.unused())
            s.look(s.draw(9, tokens=first), module=module)
        except Exception:
            return None  # told as `length`
        try:
            s.look(s.draw(9, tokens=second), module=module)
        except (AssertionError, ValueError) as error:
            s.note("length", f"forward refuses {second} tokens after {first}: {told(error)}")
        except Exception as error:
            return Finding(
                "length",
                f"After a call with {first} tokens a call with {second} fails, though {second} "
                f"work in a new module: what the first call leaves in {listed(kept)} has its "
                f"length. Make it at each call, or anew where the length changes. ({told(error)})",
            )
    return None


def _kept(s):
    """The attributes that calls have changed, by name."""
    found = []
    for (path, before), (_, after) in zip(
        s.pristine.named_modules(), s.module.named_modules(), strict=False
    ):
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


def width(s):
    """The merge uses the input's width: seen with a class that has both widths as arguments."""
    return s.width_finding


def nan(s):
    """NaN in the output; which rows says why."""
    if not (bad := ~s.base.isfinite().all(dim=-1)).any():
        return None
    rows = bad.any(dim=0).nonzero().flatten().tolist()
    last = s.sizes.tokens - 1
    if cause := why_nan(s):
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
    return Finding("nan", why, bad.float().cpu(), "NaN by sentence (row) and token (column)")


def input_changed(s):
    """The caller's tensor is not what it was."""
    x = s.x.clone()
    given, before = x.clone(), x.clone()
    module = copy_module(s.pristine)
    with torch.no_grad():
        s._call(module, given, s.masks)
    change = (given - before).abs()
    if not (change.nan_to_num(1.0) > 0).any():
        return None
    places = change[0].amax(dim=-1).nonzero().flatten().tolist()
    return Finding(
        "input-changed",
        f"forward changes the caller's tensor (tokens {listed(places)} of sentence 0): an "
        f"operation such as +=, mul_ or x[...] = writes into x. Write x = x + ... instead.",
    )


def backward_fails(s):
    """forward runs, but not in training mode, or the gradients cannot be computed."""
    try:
        s.look(s.x, module=s.training)
    except Exception as error:
        s.trains_alike = False
        if isinstance(error, AssertionError):
            s.note("training", f"forward refuses training mode: {told(error)}")
            return None
        return Finding(
            "crash",
            f"It works in evaluation mode and fails in training mode: {told(error)}",
        )
    _ = s.slopes
    if s.backward_error is None or "input-changed" in s.found:
        return None
    return Finding(
        "crash",
        f"forward runs and backward fails, so it cannot be trained: an operation in place "
        f"changes numbers that the gradient needs. {told(s.backward_error)}",
    )


def not_repeatable(s):
    """Two calls in evaluation mode give two answers."""
    if s.random is None:
        return None
    kind, line = s.random
    if kind == "dropout":
        return None
    where = f" Look at `{line}`." if line else ""
    return Finding(
        "not-repeatable",
        f"Two calls with the same input, two answers, in evaluation mode: a layer is created "
        f"(or numbers are drawn) inside forward, so its weights are new at each call and are "
        f"never trained. Create layers in __init__.{where}",
    )


def find_randomness(s):
    """Find out whether, and why, two calls differ, and make the later tests repeatable."""
    s.random = None
    set_dropout(s.pristine, 0.5)
    s.module = copy_module(s.pristine)
    first = s.look(s.x, seed=1)
    s.look(s.draw(2), seed=2)  # another input between the two: it may be kept
    second = s.look(s.x, seed=2)
    if _same(first, second):
        return
    fresh = [s.look(s.x, module=copy_module(s.pristine), seed=seed) for seed in (1, 2)]
    if _same(*fresh):
        s.fresh, s.module = True, s.pristine
        s.note(
            "cache",
            "It keeps something between calls (a cache?): the same input gives another answer "
            "the second time. Each test ran on a fresh copy.",
        )
        return
    s.quiet = True
    set_dropout(s.pristine, 0.0)
    s.module = copy_module(s.pristine)
    quiet = [s.look(s.x, module=copy_module(s.pristine), seed=seed) for seed in (1, 2)]
    if _same(*quiet):
        s.random = ("dropout", "")
    else:
        s.random = ("layer", _random_line(s))
        s.quiet = False
        set_dropout(s.pristine, 0.5)
        s.dropout_too = _drops(s)
        s.quiet = True


def _drops(s):
    """Whether a dropout is at work in evaluation mode, by what is captured."""
    for call in s.capture(s.x).calls:
        if call.name == "dropout" and not torch.equal(call.inputs[0].value, call.output.value):
            return True
        if _kernel_drops(call):
            return True
    return False


def _kernel_drops(call):
    """Whether a call is the fused kernel with a dropout_p, its fifth argument, above 0."""
    if call.name != "scaled_dot_product_attention":
        return False
    given = call.args[4] if len(call.args) > 4 else call.kwargs.get("dropout_p")
    return bool(given)


def _same(first, second):
    if first.shape != second.shape:
        return False
    scale = max(first.abs().nan_to_num().max().item(), 1e-12)
    change = (first.nan_to_num() - second.nan_to_num()).abs().max()
    return bool(change <= 1e-5 * scale) and bool((first.isnan() == second.isnan()).all())


_DRAWING = re.compile(r"rand|normal|uniform|bernoulli|multinomial|kaiming|xavier|empty")


def _random_line(s):
    for call in s.flow.calls:
        if _DRAWING.search(call.name):
            return call.line
    return ""


def global_seed(s):
    """forward sets the seed of the whole program."""
    states = []
    for seed in (11, 12):
        s.look(s.x, seed=seed)
        states.append(torch.get_rng_state())
    if not torch.equal(*states):
        return None
    return Finding(
        "global-state",
        "forward sets torch's seed, so every random number drawn after it in the program is "
        "the same each time. Call manual_seed outside of the module.",
    )


def dropout_in_eval(s):
    """Dropout is active in evaluation mode."""
    if s.random is None or (s.random[0] != "dropout" and not s.dropout_too):
        return None
    return Finding(
        "dropout-in-eval",
        "Dropout still drops in evaluation mode: the same input gives two answers. F.dropout "
        "and F.scaled_dot_product_attention do not know the mode: pass training=self.training, "
        "or dropout_p=self.dropout if self.training else 0.0.",
    )


def dropout_unused(s):
    """A dropout layer is made and never used: in training mode it changes nothing.

    Where the fused kernel drops instead, by its own dropout_p, that is worth a note alone.
    """
    if {"crash", "dropout-in-eval"} & set(s.found):
        return None
    unused = []
    quiet, s.quiet = s.quiet, False
    for number, (path, _) in enumerate(dropouts(s.pristine)):
        outputs = []
        for p in (0.0, 0.5):
            module = copy_module(s.pristine, share=True)
            set_dropout(module, 0.0)
            dropouts(module)[number][1].p = p
            _train(module)
            outputs.append(s.look(s.x, module=module))
        if _same(*outputs):
            unused.append(path)
    unused = [path for path in unused if not lifeless(s, path)]  # its head is the fault
    kernels = []
    if unused:
        module = copy_module(s.pristine, share=True)
        set_dropout(module, 0.5)
        kernels = [call for call in s.capture(s.x, True, module).calls if _kernel_drops(call)]
    s.quiet = quiet
    if not unused:
        return None
    if s.absent(listed(unused)):
        return None
    one = len(unused) == 1
    these = f"The dropout {'layer' if one else 'layers'} {listed(unused)}"
    if len(unused) <= len(kernels):
        s.note(
            "dropout-unused",
            f"{these} {'is' if one else 'are'} never used here: "
            f"F.scaled_dot_product_attention drops instead, by its own dropout_p.",
        )
        return None
    return Finding(
        "dropout-unused",
        f"{these} {'never drops' if one else 'never drop'} anything: at p = 0.5 in training mode "
        f"the output is the same as at p = 0. Apply it to the weights: "
        f"weights = self.dropout(weights).",
    )


def _train(module):
    module.train()
    for _, thing in reachable(module):
        if isinstance(thing, torch.nn.Module):
            thing.train()


def batch_mixed(s):
    """One sentence of the batch sees another."""
    if s.sizes.batch == 1:
        return None
    moved = torch.zeros(s.sizes.batch, s.sizes.batch)
    other = 1.5 * s.draw(2)
    for item in range(s.sizes.batch):
        changed = s.x.clone()
        changed[item] = other[item]
        moved[:, item] = s.differs(s.look(changed), s.base)[1].any(dim=1).float().cpu()
    if not (moved - torch.diag(moved.diag())).any():
        return None
    if s.layout_mixes_batch or any(
        (wrong_axis(s, core) or "").startswith("batch") for core in s.cores
    ):
        return None  # the layout or the softmax is the cause, and is reported as such
    swapped = replace(s.way, layout="tokens first")
    hint = "A view or reshape that joins batch and tokens in the wrong order does that."
    if s.way.layout == "batch" and _tokens_apart(s, swapped):
        hint = (
            "It takes the first axis for the tokens: it wants (tokens, batch, d_model). "
            "Transpose the input, or pass batch_first=True to nn.MultiheadAttention."
        )
    i, j = (moved - torch.diag(moved.diag())).nonzero()[0].tolist()
    return Finding(
        "batch-mixed",
        f"Sentence {i} changes when only sentence {j} of the batch was changed. {hint}",
        moved,
        "which sentence (row) moves when another (column) changes",
    )


def _tokens_apart(s, way):
    """Whether sentences are apart when the first axis is read as the tokens."""
    kept, s.way = s.way, way
    try:
        base = s.look(s.x)
        changed = s.x.clone()
        changed[1:] = 1.5 * s.draw(2)[1:]
        return base.shape == s.base.shape and not s.differs(s.look(changed), base)[1][0].any()
    except Exception:
        return False
    finally:
        s.way = kept


def input_cut(s):
    """Each head sees only a slice of the token: second differences between slices are zero."""
    if s.sizes.tokens < 2:
        return None
    width, heads = s.sizes.d_model, s.sizes.num_heads
    counts = [heads] if heads and heads > 1 and width % heads == 0 else []
    counts += [n for n in (2, 3, 5, 7) if width % n == 0 and n != heads]
    for count in counts:
        for strided in (False, True):
            found = _second_difference(s, count, strided)
            if found is not None:
                each = width // count
                part = f"every {count}th" if strided else f"{each} consecutive"
                whole = (
                    f"{each} of the {width} numbers"
                    if count == heads
                    else (f"a part of the {width} numbers")
                )
                return Finding(
                    "input-cut",
                    f"Each head sees only {whole} of a token ({part}): the input is cut before "
                    f"the projection, so no head can compare one slice with another. Project "
                    f"the whole token with Linear({width}, {width}), then split the result.",
                    found,
                    "how far two slices of a token act together (0 = not at all)",
                )
    return None


def _second_difference(s, count, strided):
    """The (count, count) second differences where all between two slices are zero, or None."""
    tokens, width = s.sizes.tokens, s.sizes.d_model
    token = tokens - 2 if tokens > 2 else 0
    other = 1.5 * s.draw(4)
    places = torch.arange(width, device=s.device)
    slices = [
        places % count == n if strided else places // (width // count) == n for n in range(count)
    ]
    slices = slices[:4]

    def moved(*chosen):
        x = s.x.clone()
        for mask in chosen:
            x[:, token] = torch.where(mask, x[:, token] + other[:, token], x[:, token])
        return s.look(x)

    single = [moved(mask) for mask in slices[:2]]
    result = torch.zeros(len(slices), len(slices))
    for a in range(1, len(slices)):
        if a > 1:
            single.append(moved(slices[a]))
        for b in range(a):
            both = moved(slices[a], slices[b]) - single[a] - single[b] + s.base
            result[a, b] = result[b, a] = (both.abs().max() / s.size).item()
            if result[a, b] > 2e-5:
                return None
    # a module that is linear in the token has no second difference at all: not this fault
    x = s.x.clone()
    x[:, token] += 2 * torch.where(slices[0], other[:, token], 0.0)
    own = (s.look(x) - 2 * single[0] + s.base).abs().max() / s.size
    return result.round(decimals=4) if own > 1e-3 else None
