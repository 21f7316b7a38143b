"""What would have fitted: a sentence for the common mistakes, told from the shapes."""

from math import prod

JOINING = ("view", "reshape", "unflatten")
BROADCAST = ("add", "sub", "mul", "div", "masked_fill", "where", "maximum", "minimum")


def what_would_fit(row, call):
    """Return what would fit where this operation failed; "" where the shapes do not tell.

    row: the trace's `Row`, call: the capture's `Call` with its plain arguments.
    """
    sizes = [shape.sizes for shape in row.inputs]
    name = row.operation.rstrip("_")
    if name == "linear" and len(sizes) >= 2:
        return _linear(*sizes[:2])
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


def _linear(x, weight):
    out, into = weight[0], weight[-1]
    if not x or x[-1] == into:
        return ""
    return (
        f"The layer takes {into} numbers per token, and the input's last size is {x[-1]}. An "
        f"input {(*x[:-1], into)} would fit, or a layer nn.Linear({x[-1]}, {out})."
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
    numbers, asked = prod(sizes), prod(size for size in wanted if size != -1)
    if numbers == asked or (-1 in wanted and asked and numbers % asked == 0):
        return _NOT_IN_ONE_PIECE if name == "view" else ""
    product = " × ".join(map(str, sizes))
    have = f"{product} = {numbers}" if len(sizes) > 1 else product
    if -1 in wanted:
        said = f"There are {have} numbers, and {asked} does not divide {numbers}."
    else:
        said = f"There are {have} numbers, and {tuple(wanted)} asks for {asked}."
    return said + _shared(sizes[-1])


_NOT_IN_ONE_PIECE = (
    "The sizes fit, but the numbers do not lie in memory in this order, as after a transpose, "
    "and a view moves none of them. .contiguous().view(…) or .reshape(…) copies them, and fits."
)


def _shared(width):
    divisors = [n for n in range(1, width + 1) if width % n == 0]
    return f" Heads that share {width} equally: {', '.join(map(str, divisors))}."


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
