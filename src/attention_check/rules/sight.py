"""Signs of what is meant: a causal mask that stands somewhere, and a switch that is off."""

import inspect
import re

import torch

from ..facts import fact
from ..graph import FILLS, TRIANGLES, outputs
from ..guard import copy_module, reachable
from ..search.names import SWITCH
from ..search.sizes import is_mask
from ..stages import fused_mask
from ..trust import square

# --- a causal mask that does nothing --------------------------------------------------------


@fact
def mask_in_sight(s):
    """Where a causal mask stands that does nothing, in words; "" where there is none."""
    return "" if _flagged(s, False) else next(_masks(s), "")


def _flagged(s, value):
    return any(getattr(part, n, None) is value for part in s.original.modules() for n in _FLAGS)


_FLAGS = ("causal", "is_causal", "masked", "use_mask", "use_causal_mask", "mask", "autoregressive")


def _masks(s):
    for name, buffer in s.original.named_buffers():
        if is_mask(buffer):
            yield f"the buffer {name}"
    for path, thing in reachable(s.original):
        if isinstance(thing, torch.Tensor) and is_mask(thing):
            yield f"the attribute {path}"
    for call, again in zip(s.graph.calls, s.graphs[1].calls, strict=False):
        if _is_triangle(s, call) or _fills_by_order(call, again):
            yield f"{call.name} in `{call.line}`" if call.line else call.name
    if thrown_away(s):
        yield thrown_away(s)[0].name
    if _flagged(s, True):
        yield "the attribute causal = True"
    for core in s.cores:
        if core.fused is not None and _ordered(fused_mask(core.fused)):
            yield "the mask given to scaled_dot_product_attention"
    for core in square(s):
        if core.fused is None and filled(core.scores, future(s)) is not None:
            yield "a fill above the diagonal"
    if says_causal(s):
        yield "the name"


@fact
def says_causal(s):
    """Whether its name, or the first word of its docstring, is causal."""
    kind = type(s.original)
    return "Causal" in kind.__name__ or bool(re.match(r"\W*causal\b", kind.__doc__ or "", re.I))


def _fills_by_order(call, again):
    """Whether scores are filled where a mask by the order of the tokens says so.

    The mask is the same for two inputs: one that is made of the scores hides no future.
    """
    if call.name not in FILLS or not any(o.value.is_floating_point() for o in outputs(call)):
        return False
    masks = [[k.value for k in c.inputs if not k.value.is_floating_point()] for c in (call, again)]
    same = all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(*masks, strict=False))
    return same and any(map(_ordered, masks[0]))


def _is_triangle(s, call):
    """Whether a call cuts a triangle for what is not two-way."""
    if call.name not in TRIANGLES or not outputs(call) or _made_two_way(s, outputs(call)[0]):
        return False
    made, others = outputs(call)[0].value, {*TRIANGLES} - {call.name}
    turned = [o.value for c in s.graph.calls if c.name in others for o in outputs(c)]
    # a triangle and its mirror image are cut for what is two-way, such as a window
    if any(made.shape == t.shape and torch.equal(made, t.mT) for t in turned):
        return False
    cut = call.inputs[0].tensor if call.inputs else made
    return made.shape[-1] == s.sizes.tokens or not cut.requires_grad  # a weight may be cut too


def _made_two_way(s, triangle):
    """Whether a triangle becomes part of a matrix that is the same both ways, as distances are."""
    for at, call in enumerate(s.graph.calls):
        for value in (made.value for made in outputs(call)):
            alike = value.shape == triangle.value.shape and torch.equal(value, value.mT)
            if alike and (value != value[0, 0]).any():
                behind = s.graph.behind(outputs(call)[0], at + 1)[0]
                if any(triangle in outputs(s.graph.calls[made]) for made in behind):
                    return True
    return False


@fact
def thrown_away(s):
    """(call, number) of a call that puts one number into scores, which nothing reads; or None."""
    cores = [core for core in square(s) if core.fused is None]
    chain = {at for core in cores for at in (core.operands[0][1], *core.path)}
    for at, call in enumerate(s.graph.calls):
        if not outputs(call) or any(s.graph.users(made, at) for made in outputs(call)):
            continue
        for kept in call.inputs:
            value = _put_in(kept.value, outputs(call)[0].value)
            sources = {made for made, _ in s.graph.origin(kept, at).sources}
            if value is not None and chain & sources:
                return call, value
    return None


def _put_in(before, after):
    """The one number that stands in some places, the same in all sentences; or None."""
    if before.shape != after.shape or before.dim() < 2 or before.dtype != after.dtype:
        return None
    changed = before != after
    numbers = after[changed].unique()
    alike = changed.any() and torch.equal(changed, changed[:1].expand_as(changed))
    return numbers.item() if alike and len(numbers) == 1 else None


def _ordered(mask):
    """Whether a mask hides by the order of the tokens: not by rows, by columns, or both ways."""
    if mask is None or mask.dim() < 2:
        return False
    rows, columns = mask.shape[-2:]
    if rows != columns or rows < 3:
        return _staircase(mask.squeeze())
    if mask.is_floating_point() and mask.unique().numel() > 2:
        return False
    later = torch.ones(rows - 1, columns, dtype=torch.bool, device=mask.device).triu(1)
    others = torch.where(later, mask[..., :-1, :], mask[..., 1:, :])  # all but the diagonal
    if (others == others[..., :1, :]).all() or (mask == mask[..., :1]).all():
        return False
    return not torch.equal(mask, mask.mT)


def _staircase(mask):
    """Whether a mask is a triangle on two other axes than queries and keys."""
    if mask.dim() != 2 or min(mask.shape) < 3 or mask.dtype != torch.bool:
        return False
    triangle = torch.ones_like(mask).triu(1)
    return torch.equal(mask, triangle) or torch.equal(mask, ~triangle)


# --- pairs ----------------------------------------------------------------------------------


def future(s):
    """(tokens, tokens) Boolean: the pairs above the diagonal."""
    return torch.ones(s.sizes.tokens, s.sizes.tokens, dtype=torch.bool).triu(1)


def filled(scores, pairs):
    """The one number that stands in all scores of some pairs; or None."""
    if scores is None or scores.shape[-2:] != pairs.shape:
        return None
    numbers = scores[..., pairs].unique()
    return numbers.item() if len(numbers) == 1 else None


def hides_future(pairs):
    """Whether pairs that are seen, (tokens, tokens), are of the past alone."""
    return not pairs.triu(1).any() and bool(pairs.tril(-1).any())


# --- a mask that must be asked for ----------------------------------------------------------


@fact
def switch_off(s):
    """(name, pairs seen with it on) of a switch for the mask that is off, or None.

    That is an argument of forward, or an attribute, that is named after a mask and False. It
    counts where turning it on hides the future, or where it has one of the usual names.
    """
    if s.random or s.fresh:
        return None
    tried = [(name, _pairs_with(s, name)) for name in _switches(s.pristine)[:4]]
    hiding = [(n, pairs) for n, pairs in tried if pairs is not None and hides_future(pairs)]
    named = [(n, pairs) for n, pairs in tried if pairs is not None and n in _FLAGS]
    return next(iter(hiding + named), None)


def _switches(module):
    """The names of arguments and attributes that may turn a mask on, the usual ones first."""
    names = {}
    for part in module.modules():
        if not type(part).__module__.startswith("torch."):
            names |= dict.fromkeys(name for name, value in vars(part).items() if value is False)
            names |= dict.fromkeys(_arguments(part))
    return sorted((n for n in names if SWITCH.search(n)), key=lambda name: name not in _FLAGS)


def _arguments(part):
    try:
        return inspect.signature(part.forward).parameters
    except (TypeError, ValueError):
        return {}


def _pairs_with(s, name):
    """(tokens, tokens): the pairs seen with a switch turned on wherever it is off, or None."""
    module, off = copy_module(s.pristine, share=True), []
    for part in module.modules():
        if vars(part).get(name) is False:
            setattr(part, name, True)
            off.append(name)
        elif name in _arguments(part):
            part.forward = _turned_on(part.forward, name, off)
    try:
        base = s.look(s.x, module=module)
        return s.rows_moved(base, module=module).amax(dim=0) > 0 if off else None
    except Exception:
        return None


@fact
def idle_flag(s):
    """The argument of forward that asks for a causal mask and changes nothing, or ""."""
    for name in ("causal", "is_causal"):
        asked = _arguments(s.original).get(name)
        if asked is None or asked.default is not False or s.random or s.fresh:
            continue
        module, off = s.unused(), []
        module.forward = _turned_on(module.forward, name, off)
        if not s.differs(s.look(s.x, module=module), s.base)[1].any() and off:
            return name
    return ""


def _turned_on(forward, name, off):
    """forward with an argument set to True where it is False; off gets its name then."""

    def turned_on(*args, **kwargs):
        given = inspect.signature(forward).bind(*args, **kwargs)
        given.apply_defaults()
        if given.arguments[name] is False:
            off.append(name)
            given.arguments[name] = True
        return forward(*given.args, **given.kwargs)

    return turned_on
