"""Heads, and parts of projections, that are computed and have no effect on the output."""

import re

import torch

from .. import acting
from ..acting import WHOLE, layer_of
from ..facts import fact
from ..findings import Finding
from ..graph import PROJECTIONS, equation, outputs
from ..trust import misspelt
from ..words import listed
from .registry import rule
from .roles import apart_in_words, in_line, one_letter, told_idle


@rule("attention-unused", whole=True)
def attention_unused(s):
    """Queries, keys and values are computed, and none of them has an effect on the output.

    context = self.attend(x)
    return x
    """
    if not acting.all_dead(s):
        return None
    lost = [
        layer_of(name)
        for name, weight in s.weights.items()
        if acting.is_matrix(weight) and acting.result_lost(s, name) and not s.has_effect(name)
    ]
    where = " Make what is returned of the context."
    where = f" What {lost[-1]} gives is thrown away: return it." if lost else where
    return Finding(
        f"The attention has no effect on the output: changing "
        f"{listed(map(layer_of, acting.dead(s)))} changes nothing. Its result is computed, and "
        f"is left out of what forward returns, or multiplied by 0.{where}",
    )


@rule("heads-alike", whole=True)
def heads_alike(s):
    """Heads joined side by side hold the same numbers: one head stands several times.

    self.heads = nn.ModuleList([Head(d_model, head_dim)] * num_heads)
    """
    if (counts := alike(s)) is None:
        return None
    if dead := acting.dead(s) | dict.fromkeys(acting.never_used(s), WHOLE):
        why = (
            f"the same head is taken each time. {_what(s, dead)} no effect on the output. Is the "
            f"index fixed, or is a lambda's i looked up too late? Take head i at turn i."
        )
    else:
        why = (
            "they are one and the same module, as in [Head(...)] * num_heads, and share their "
            "weights. Make each anew: nn.ModuleList([Head(...) for _ in range(num_heads)])."
        )
    return Finding(f"{counts[0]} heads of {counts[1]} give the same numbers: {why}")


@fact
def alike(s):
    """(how many heads are the same, of how many) where heads are joined; or None."""
    contexts = [core.context[1] for core in s.cores]
    for call in s.graph.calls if contexts else ():
        parts, made = [kept.value for kept in call.inputs], outputs(call)
        joined = made and made[0].value.numel() == sum(part.numel() for part in parts)
        same = sum(_equal(parts[0], part) for part in parts) if joined else 0
        if same > 1 and any(_equal(parts[0], context) for context in contexts):
            return same, len(parts)
    return None


def _equal(first, second):
    return first.numel() == second.numel() and torch.equal(first.flatten(), second.flatten())


@rule("no-effect", unless={"heads-alike", "attention-unused", "softmax-axis"}, whole=True)
def no_effect(s):
    """Heads, or columns of a projection, are computed and have no effect on the output.

    for head in self.heads:
        context = head(x)
    return self.out_proj(context)
    """
    code, product = misspelt(s) or ("", None)
    if code == "no-effect":
        return Finding(_misspelt_in_words(s, product))
    dead = {n: part for n, part in acting.dead(s).items() if not told_idle(s, layer_of(n))}
    if not dead:
        return None
    why = f". {_cut_how(s, dead)}"
    if WHOLE in dead.values():
        why = ": what is computed there is not used afterwards. Let it reach what forward returns."
        if any(re.search(r"\.\d", name) for name, part in dead.items() if part is WHOLE):
            why = (
                ": what is computed there is not used afterwards. In a loop over heads keep each "
                "result, outs.append(head(x)), and join them: torch.cat(outs, dim=-1)."
            )
    return Finding(f"{_what(s, dead)} no effect on the output{why}")


def _misspelt_in_words(s, product):
    """What an einsum with a weight leaves out, and the equation to write."""
    if not product.doubled:
        said = f"{apart_in_words(s, product)}: of the weight the sums alone have an effect."
        return f"{said} {one_letter(s, product)}"
    call, (side, a) = s.graph.calls[product.at], product.doubled[0]
    terms, arrow, out = equation(call).partition("->")
    new, terms = next(c for c in "edcfghijklmnop" if c not in terms), terms.split(",")
    terms[side], out = terms[side].replace(a, new, 1), out.replace(a, new)
    return (
        f"In the einsum '{equation(call)}'{in_line(call)} {a} stands twice in one operand, which "
        f"takes the diagonal of a weight: its other numbers have no effect. Give its axes two "
        f"letters: '{','.join(terms)}{arrow}{out}'."
    )


def _cut_how(s, dead):
    """What to do where parts of a projection do not reach the output."""
    width, heads = s.cores[0].width, s.sizes.num_heads or 1
    for name, part in dead.items():
        if part is WHOLE or _word(s, name, part[0]) != "column":
            return "Let the result of each head reach the output."
        size, places = s.weights[name].shape[part[0]], part[1]
        if len(places) == size % width and places[0] == size - len(places):
            return (
                f"{size} columns are not a whole number of heads of {width}, so the rest is left "
                f"out: choose num_heads so that it divides d_model."
            )
        if size < width * heads:
            return (
                "Where several heads share keys and values, each group takes its own: "
                "values.repeat_interleave(num_heads // kv_heads, dim=1)."
            )
    return (
        "Let head i take the columns i * head_dim to (i + 1) * head_dim, those of no other head, "
        "and join the results of all heads."
    )


# --- in words -------------------------------------------------------------------------------


def _what(s, dead):
    """What has no effect, with the verb: whole layers, or else parts of some."""
    if whole := [layer_of(name) for name, part in dead.items() if part is WHOLE]:
        owners = largest(whole, lambda owner: acting.without_effect(s, owner))
        return f"{listed(owners)} {'has' if len(owners) == 1 else 'have'}"
    groups = {}
    for name, (axis, places) in dead.items():
        word = _word(s, name, axis) + "s" * (len(places) > 1)
        groups.setdefault(f"{word} {acting.ranges(places)} of ", []).append(layer_of(name))
    text = "; ".join(what + listed(names) for what, names in groups.items())
    one = len(groups) == 1 and len(places) == 1
    return f"{text[0].upper()}{text[1:]} {'has' if one else 'have'}"


def _word(s, name, axis):
    """What an axis of a weight holds: the columns of its result, heads, or else rows."""
    weight = s.weights[name]
    calls = [call for call in s.graph.calls if call.name in PROJECTIONS]
    second = any(kept.tensor is weight for call in calls for kept in call.inputs[1:2])
    if axis == (0 if second else weight.dim() - 1):  # linear(x, W) is x @ W.T
        return "column"
    return "head" if weight.dim() > 2 and weight.shape[axis] == s.sizes.num_heads else "row"


def largest(paths, holds):
    """For each path the outermost module above it for which `holds`, or itself; each once."""
    found = []
    for path in paths:
        steps = path.split(".")
        above = (".".join(steps[:n]) for n in range(1, len(steps)))
        found.append(next(filter(holds, above), path))
    return list(dict.fromkeys(found))
