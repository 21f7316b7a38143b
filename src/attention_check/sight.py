"""Signs of what is meant: a causal mask that stands somewhere, and a switch that is off."""

import inspect
import re

import torch

from .calling import is_mask
from .cores import fused_mask
from .flow import outputs
from .guard import copy_module, reachable
from .scores import square


def mask_in_sight(s):
    """Where a causal mask stands that does nothing, in words; "" where there is none."""
    if any(getattr(part, n, None) is False for part in s.original.modules() for n in _FLAGS):
        return ""
    for name, buffer in s.original.named_buffers():
        if is_mask(buffer):
            return f"the buffer {name}"
    for path, thing in reachable(s.original):
        if isinstance(thing, torch.Tensor) and is_mask(thing):
            return f"the attribute {path}"
    for call, again in zip(s.flow.calls, s.flows[1].calls, strict=False):
        if _has_order(s, call) and _fixed(call, again):
            return f"{call.name} in `{call.line}`" if call.line else call.name
    if line := _row_by_row(s):
        return f"masked_fill in `{line}`"
    if any(getattr(part, n, None) is True for part in s.original.modules() for n in _FLAGS):
        return "the attribute causal = True"
    for core in s.cores:
        if core.fused is not None and _ordered(fused_mask(core.fused)):
            return "the mask given to scaled_dot_product_attention"
    for core in square(s):
        if core.fused is None and core.scores is not None and constant_above(core):
            return "a fill above the diagonal"
    return ""


_FLAGS = ("causal", "is_causal", "masked", "use_mask", "use_causal_mask", "mask", "autoregressive")
_SWITCH = re.compile(r"mask|caus|autoregress|decod|unidirect", re.IGNORECASE)


def _has_order(s, call):
    """Whether a call has to do with the order of the tokens, as a causal mask has."""
    if call.name in ("masked_fill", "masked_fill_"):
        return any(_ordered(k.value) for k in call.inputs if not k.value.is_floating_point())
    if call.name not in ("tril", "triu") or not outputs(call):
        return False
    made, other = outputs(call)[0].value, "triu" if call.name == "tril" else "tril"
    if _made_two_way(s, outputs(call)[0]):
        return False
    turned = [o.value for c in s.flow.calls if c.name == other for o in outputs(c)]
    # a triangle and its mirror image are cut for what is two-way, such as a window
    if any(made.shape == t.shape and torch.equal(made, t.mT) for t in turned):
        return False
    cut = call.inputs[0].tensor if call.inputs else made
    return made.shape[-1] == s.sizes.tokens or not cut.requires_grad  # a weight may be cut too


def _made_two_way(s, triangle):
    """Whether a triangle becomes part of a matrix that is the same both ways, as distances are."""
    todo, done = [triangle], set()
    while todo:
        kept = todo.pop()
        for at in s.flow.users(kept, -1):
            for made in outputs(s.flow.calls[at]):
                value = made.value
                if at in done or value.dim() != 2 or value.shape != triangle.value.shape:
                    continue
                if torch.equal(value, value.mT) and (value != value[0, 0]).any():
                    return True
                todo.append(made)
            done.add(at)
    return False


def _row_by_row(s):
    """The line in which the rows of an ordered mask are applied one by one, or ""."""
    rows = {}
    for call in s.flow.calls:
        if call.name in ("masked_fill", "masked_fill_"):
            masks = [k.value for k in call.inputs if k.value.dtype == torch.bool]
            rows.setdefault(call.line, []).extend(m.flatten() for m in masks)
    for line, found in rows.items():
        whole = len(found) == s.sizes.tokens and all(len(row) == len(found) for row in found)
        if line and whole and _ordered(torch.stack(found)):
            return line
    return ""


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


def _fixed(call, again):
    """Whether a mask is the same for two inputs: one that is made of the scores hides no future."""
    masks = [[k.value for k in c.inputs if not k.value.is_floating_point()] for c in (call, again)]
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(*masks, strict=False))


def constant_above(core):
    """Whether the scores above the diagonal are one number."""
    above = core.scores[..., torch.ones(core.scores.shape[-2:], dtype=torch.bool).triu(1)]
    return bool((above == above.flatten()[0]).all())


# --- a mask that must be asked for ----------------------------------------------------------


def find_switch(s):
    """(name, pairs seen with it on) of a switch for the mask that is off, or None.

    That is an argument of forward, or an attribute, that is named after a mask and False. It
    counts where turning it on hides the future, or where it has one of the usual names.
    """
    if s.random or s.fresh:
        return None
    named = None
    for name in _switches(s.pristine)[:4]:
        pairs = _pairs_with(s, name)
        if pairs is not None and hides_future(pairs):
            return name, pairs
        if pairs is not None and name in _FLAGS:
            named = named or (name, pairs)
    return named


def _switches(module):
    """The names of arguments and attributes that may turn a mask on, the usual ones first."""
    names = {}
    for part in module.modules():
        if not type(part).__module__.startswith("torch."):
            names |= dict.fromkeys(name for name, value in vars(part).items() if value is False)
            names |= dict.fromkeys(_parameters(part))
    return sorted((n for n in names if _SWITCH.search(n)), key=lambda name: name not in _FLAGS)


def _parameters(part):
    try:
        return inspect.signature(part.forward).parameters
    except (TypeError, ValueError):
        return {}


def _pairs_with(s, name):
    """(tokens, tokens): the pairs seen with a switch turned on wherever it is off, or None."""
    module, off = copy_module(s.pristine, share=True), []
    kept, s.module = s.module, module
    try:
        for part in module.modules():
            if vars(part).get(name) is False:
                setattr(part, name, True)
                off.append(name)
            elif name in _parameters(part):
                part.forward = _turned_on(part.forward, name, off)
        base = s.look(s.x)
        return s.rows_moved(base).amax(dim=0) > 0 if off else None
    except Exception:
        return None
    finally:
        s.module = kept


def _turned_on(forward, name, off):
    """forward with an argument set to True where it is False; off gets its name then."""
    signature = inspect.signature(forward)

    def turned_on(*args, **kwargs):
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        if given.arguments[name] is False:
            off.append(name)
            given.arguments[name] = True
        return forward(*given.args, **given.kwargs)

    return turned_on


def said_of_switch(switch):
    """What to say of a switch that is off, for a note."""
    name, pairs = switch
    still = pairs.triu(1).nonzero()
    if hides_future(pairs):
        return f"Two-way, as {name} is False; where it is True, the future is hidden."
    if not len(still):
        return f"Two-way, as {name} is False."
    i, j = still[-1].tolist()
    return (
        f"Two-way, as {name} is False; but where it is True, position {i} sees position {j} as "
        f"well."
    )


def hides_future(pairs):
    """Whether pairs that are seen, (tokens, tokens), are of the past alone."""
    return not pairs.triu(1).any() and bool(pairs.tril(-1).any())
