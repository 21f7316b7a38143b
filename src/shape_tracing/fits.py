"""What would have fitted: a sentence for the common mistakes, told from the shapes."""

from itertools import accumulate
from math import prod
from operator import mul

JOINING = ("view", "reshape", "unflatten")
BROADCAST = ("add", "sub", "mul", "div", "masked_fill", "where", "maximum", "minimum")


def what_would_fit(row, call, before=None):
    """Return what would fit where this operation failed; "" where the shapes do not tell.

    row: the trace's `Row`, call: the capture's `Call` with its plain arguments.
    before: the `Row` that made the first input, None where none did.
    """
    sizes = [shape.sizes for shape in row.inputs]
    name = row.operation.rstrip("_")
    if name == "linear" and len(sizes) >= 2:
        return _linear(*sizes[:2], before)
    if name in ("matmul", "bmm", "mm") and len(sizes) == 2 and min(map(len, sizes)) >= 2:
        return _matmul(*sizes)
    if name in JOINING and sizes:
        return _view(row.operation, sizes[0], call.args[1:])
    if name == "cat":
        return _cat(sizes, call)
    if name in BROADCAST and len(sizes) >= 2:
        return _broadcast(sizes[0], sizes[1])
    if name == "scaled_dot_product_attention" and len(sizes) >= 3:
        return _qkv(*sizes[:3])
    return ""


def _linear(x, weight, before):
    out, into = weight[0], weight[-1]
    if not x or x[-1] == into:
        return ""
    said = f"The layer takes {into} numbers per token, and the input's last size is {x[-1]}. "
    if apart := before and _kept_apart(before, x, into):
        return said + apart
    return said + f"An input {(*x[:-1], into)} would fit, or a layer nn.Linear({x[-1]}, {out})."


def _kept_apart(before, x, into):
    """Say how row `before`, which joined an axis of size into with others, leaves it alone."""
    sizes, first = before.inputs[0].sizes if before.inputs else (), len(x) - 1
    joined = sizes[first:]
    joins = before.operation in ("flatten", *JOINING) and len(joined) > 1
    if not joins or into not in (joined[0], joined[-1]) or (*sizes[:first], prod(joined)) != x:
        return ""
    how = f"flatten({first}, -2)" if joined[-1] == into else f"flatten({first + 1}).mT"
    return (
        f"Row {before.number} joined the axis of {into} with others; .{how} in its place gives "
        f"{(*x[:-1], x[-1] // into, into)}, and fits."
    )


def _matmul(first, second):
    if first[-1] != second[-2]:
        said = (
            f"The last size of the first, {first[-1]}, must be the last but one of the second, "
            f"{second[-2]}. "
        )
        if first[-1] == second[-1]:
            turned = (*second[:-2], second[-1], second[-2])
            return said + f"The second turned by .mT is {turned}, and fits."
        return said + f"A second of (…, {first[-1]}, any) would fit."
    return _broadcast(first[:-2], second[:-2], "before the last two ")


def _view(name, sizes, wanted):
    if name == "unflatten":  # one axis is parted, the others stay
        sizes, wanted = (sizes[wanted[0]],), wanted[1:]
    if len(wanted) == 1 and isinstance(wanted[0], tuple | list):
        wanted = wanted[0]
    if not wanted or not all(isinstance(size, int) for size in wanted):
        return ""
    sizes, wanted = sizes or (1,), tuple(wanted)
    numbers, asked = prod(sizes), prod(size for size in wanted if size != -1)
    if numbers == asked or (-1 in wanted and asked and numbers % asked == 0):
        return _NOT_IN_ONE_PIECE if name == "view" else ""
    product = " × ".join(map(str, sizes))
    have = f"{product} = {numbers}" if len(sizes) > 1 else product
    if -1 in wanted:
        said = f"There are {have} numbers, and {asked} does not divide {numbers}."
    else:
        said = f"There are {have} numbers, and {wanted} asks for {asked}."
    return said + (_shared(sizes, wanted) or _regrouped(sizes, wanted))


_NOT_IN_ONE_PIECE = (
    "The sizes fit, but the numbers do not lie in memory in this order, as after a transpose, "
    "and a view moves none of them. .contiguous().view(…) or .reshape(…) copies them, and fits."
)


def _shared(sizes, wanted):
    """Say which numbers of heads would part the last axis, beside the other factors asked for."""
    width, parts = sizes[-1], _parts_of_last(sizes, wanted)
    factors = parts[:-1]
    known = [size for size in factors if size != -1]
    if not factors or not width or 0 in parts:
        return ""
    if parts[-1] == width and any(size % prod(known) == 0 for size in sizes[:-1]):
        return ""  # the width of one head, it may be: the heads are in that axis
    if -1 in factors:  # the heads are left open
        others = [prod(known)]
    elif width % prod(known) == 0:
        return ""
    else:  # queries, keys and values come first, as a rule: the last that can be heads is
        others = [prod(known) // size for size in reversed(known)]
    beside = next((other for other in others if width % other == 0), None)
    if beside is None:
        return ""
    share = width // beside
    whole = f" {width} = {beside} × {share}." if beside > 1 else ""
    divisors = [n for n in range(1, share + 1) if share % n == 0]
    return f"{whole} Heads that share {share} equally: {', '.join(map(str, divisors))}."


def _parts_of_last(sizes, wanted):
    """Return what is asked for in place of the last axis; () where the others do not stay."""
    for others in (sizes[:-1], (prod(sizes[:-1]),)):  # as they are, or joined
        asked, parts = wanted[: len(others)], wanted[len(others) :]
        if len(parts) > 1 and all(a in (b, -1) for a, b in zip(asked, others, strict=True)):
            return parts
    return ()


def _regrouped(sizes, wanted):
    """Name the shapes that fit with one size changed and no number out of its order."""
    fitting = {}  # as an ordered set
    for open_size in sizes:
        filled = tuple(open_size if size == -1 else size for size in wanted)
        for at in range(len(filled)):
            rest = prod(filled[:at] + filled[at + 1 :])
            changed, left = divmod(prod(sizes), rest) if rest else (0, 1)
            shape = (*filled[:at], changed, *filled[at + 1 :])
            if not left and changed > 1 and _parts_or_joins(sizes, shape):
                fitting[shape] = True
    return f" {' or '.join(map(str, fitting))} would fit." if fitting else ""


def _parts_or_joins(sizes, shape):
    """Whether axes that lie side by side are parted, or joined, and no others."""
    one, other = (set(accumulate(each, mul)) for each in (sizes, shape))
    return one <= other or other <= one


def _cat(sizes, call):
    axis = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else 0)
    if len({len(one) for one in sizes}) > 1:
        return "All of them must have the same number of axes."
    rest = {one[:axis] + one[axis:][1:] for one in sizes}
    if len(rest) <= 1:
        return ""
    fitting = [
        other
        for other in range(-len(sizes[0]), 0)
        if len({one[:other] + one[other:][1:] for one in sizes}) == 1
    ]
    also = f" dim={fitting[0]} would fit." if fitting else ""
    return f"All sizes but that of dim={axis} must agree.{also}"


def _broadcast(first, second, where=""):
    for back in range(1, min(len(first), len(second)) + 1):
        a, b = first[-back], second[-back]
        if a != b and 1 not in (a, b):
            return (
                f"Sizes {where}are compared from the right and must be equal or 1, but {a} meets "
                f"{b} at axis {-back if not where else -back - 2}."
            )
    return ""


def _qkv(queries, keys, values):
    if queries[-1] != keys[-1]:
        return f"Queries are {queries[-1]} wide and keys {keys[-1]}: both need the same width."
    if keys[-2] != values[-2]:
        return f"There are {keys[-2]} keys and {values[-2]} values: each key needs one value."
    return _broadcast(queries[:-2], keys[:-2], "before the last two ")
