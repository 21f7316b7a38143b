"""A bare function of queries, keys and values, as the module that uses it."""

import inspect

from torch import nn

from .make import arguments
from .names import MASK, ROLE
from .ways import flat


def of_function(thing):
    """A class of modules around a function of queries, keys and values, (d_model, num_heads).

    What is something else is given back: its arguments must have the names of all three.
    """
    if isinstance(thing, type | nn.Module) or not callable(thing):
        return thing
    parameters = arguments(thing)
    matches = [(p.name, ROLE.fullmatch(p.name.lower())) for p in parameters]
    roles = {match[1]: name for name, match in matches if match}
    if len(roles) < 3:
        return thing
    masks = [p for p in parameters if MASK.search(p.name.lower())]
    name = getattr(thing, "__name__", type(thing).__name__)
    own = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    own += [inspect.Parameter("x", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    own += [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in masks]

    def forward(self, x, **given):
        return self.attend(thing, roles, x, given)

    forward.__signature__ = inspect.Signature(own)
    return type(name, (Around,), {"forward": forward})


class Around(nn.Module):
    """Projections, heads (batch, num_heads, tokens, head_dim) for a function, and W_out."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        layers = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.W_query, self.W_key, self.W_value, self.W_out = layers

    def attend(self, function, roles, x, masks):
        layers = {"q": self.W_query, "k": self.W_key, "v": self.W_value}
        heads = {
            name: layers[role](x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for role, name in roles.items()
        }
        shape = next(iter(heads.values())).shape
        context = next(t for t in flat(function(**heads, **masks)) if t.shape == shape)
        return self.W_out(context.transpose(1, 2).flatten(2))
