"""The mechanism of attention, in its shortest readable form.

Sizes: batch sequences of `tokens` tokens, each token d_model numbers wide; num_heads heads,
each head_dim numbers wide. Unless said otherwise d_model = num_heads * head_dim.

A mask is Boolean and True means *hidden*, as in lecture 8 (58:59) and in
`nn.MultiheadAttention`. `F.scaled_dot_product_attention` means the opposite: True = keep.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


def causal_mask(tokens, device=None):
    """Return the mask that hides the future: True above the diagonal.

    Shape: (tokens, tokens), Boolean. Row i is the token that attends, column j the token
    attended to; True where j > i. Source: lecture 8, 0:47 to 2:21 and 58:59 to 59:53.
    Raises ValueError where tokens is not a whole number of at least 1.
    """
    _check_count("tokens", tokens)
    return torch.ones(tokens, tokens, dtype=torch.bool, device=device).triu(diagonal=1)


def attention(queries, keys, values, hidden=None, dropout=0.0):
    """Return (context, weights) with weights = softmax(Q Kᵀ / √head_dim), context = weights V.

    queries: (..., tokens, head_dim); keys: (..., others, head_dim); values: (..., others, any
    width). hidden: Boolean, True = hidden, broadcast to (..., tokens, others).
    context: (..., tokens, width of values). weights: (..., tokens, others), before dropout;
    each row adds up to 1, or to 0 where every key is hidden (the fused kernel's answer).
    dropout: the probability with which a weight is dropped on its way to the values.

    Source: lecture 6, 35:51; "Attention Is All You Need" (Vaswani et al., 2017), equation 1.
    Raises ValueError where the sizes do not fit, hidden is not Boolean, or dropout is outside
    [0, 1).
    """
    _check_dropout(dropout)
    _check_qkv(queries, keys, values)
    scale = math.sqrt(queries.shape[-1])
    # Dividing the queries is dividing the scores, on a smaller tensor.
    scores = (queries / scale) @ keys.mT  # (..., tokens, head_dim) -> (..., tokens, others)
    if hidden is not None:
        _check_hidden(hidden, scores)
        scores = scores.masked_fill_(hidden, -torch.inf)
    weights = scores.softmax(dim=-1)
    if hidden is not None and (empty := hidden.all(dim=-1, keepdim=True)).any():
        weights = weights.masked_fill(empty, 0.0)  # softmax over nothing is NaN: such a row is 0
    context = F.dropout(weights, dropout) @ values  # (..., tokens, others) -> (..., tokens, width)
    return context, weights


class CausalHead(nn.Module):
    """One attention head: three projections and `attention` (the lectures' CausalAttention).

    forward: (batch, tokens, d_model) -> (batch, tokens, head_dim). Dropout acts in training
    mode only. causal=False lets every token see every other.
    Source: lecture 6, 24:25 to 31:27; lecture 8, 0:47 to 3:05.
    Raises ValueError for sizes, a dropout or an input that do not fit.
    """

    def __init__(self, d_model, head_dim, causal=True, dropout=0.0, bias=False):
        super().__init__()
        _check_count("d_model", d_model)
        _check_count("head_dim", head_dim)
        _check_dropout(dropout)
        self.d_model, self.head_dim = d_model, head_dim
        self.causal, self.dropout = causal, dropout
        self.W_query = nn.Linear(d_model, head_dim, bias=bias)
        self.W_key = nn.Linear(d_model, head_dim, bias=bias)
        self.W_value = nn.Linear(d_model, head_dim, bias=bias)

    def forward(self, x):
        _check_input(x, self.d_model)
        hidden = causal_mask(x.shape[1], x.device) if self.causal else None
        context, _ = attention(
            self.W_query(x),  # (batch, tokens, d_model) -> (batch, tokens, head_dim)
            self.W_key(x),
            self.W_value(x),
            hidden,
            self.dropout if self.training else 0.0,
        )
        return context  # (batch, tokens, head_dim)


class LoopedMultiHeadAttention(nn.Module):
    """Heads one after another, joined, then W_out.

    forward: (batch, tokens, d_model) -> (batch, tokens, d_model). head_dim is d_model /
    num_heads unless it is given. This is lecture 8's MultiHeadAttentionWrapper (36:25 to
    51:21) with the W_out that the lecture adds in its second class (13:47 to 18:16).
    Raises ValueError for sizes, a dropout or an input that do not fit.
    """

    def __init__(self, d_model, num_heads, head_dim=None, causal=True, dropout=0.0, bias=False):
        super().__init__()
        self.d_model, self.num_heads = d_model, num_heads
        self.head_dim = _head_dim(d_model, num_heads, head_dim)
        self.causal, self.dropout = causal, dropout
        self.heads = nn.ModuleList(
            CausalHead(d_model, self.head_dim, causal, dropout, bias) for _ in range(num_heads)
        )
        self.W_out = nn.Linear(num_heads * self.head_dim, d_model, bias=bias)

    def forward(self, x):
        _check_input(x, self.d_model)
        # num_heads of (batch, tokens, head_dim) -> (batch, tokens, num_heads * head_dim)
        joined = torch.cat([head(x) for head in self.heads], dim=-1)
        return self.W_out(joined)  # -> (batch, tokens, d_model)


class MultiHeadAttention(nn.Module):
    """All heads at once: project, split, attend, merge, multiply by W_out.

    forward(x): (batch, tokens, d_model) -> out, the same shape, by the fused kernel.
    forward(x, need_weights=True): (out, weights) by the written-out form, weights
    (batch, num_heads, tokens, tokens), before dropout.
    Arguments as for `LoopedMultiHeadAttention`; bias applies to all four layers.
    Source: lecture 8, 20:42 to 36:25 and 52:03 to 1:08:40.
    Raises ValueError for sizes, a dropout or an input that do not fit.
    """

    def __init__(self, d_model, num_heads, head_dim=None, causal=True, dropout=0.0, bias=False):
        super().__init__()
        _check_dropout(dropout)
        self.d_model, self.num_heads = d_model, num_heads
        self.head_dim = _head_dim(d_model, num_heads, head_dim)
        self.causal, self.dropout = causal, dropout
        width = num_heads * self.head_dim
        self.W_query = nn.Linear(d_model, width, bias=bias)
        self.W_key = nn.Linear(d_model, width, bias=bias)
        self.W_value = nn.Linear(d_model, width, bias=bias)
        self.W_out = nn.Linear(width, d_model, bias=bias)

    def forward(self, x, need_weights=False):
        _check_input(x, self.d_model)
        queries = self._split(self.W_query(x))
        keys = self._split(self.W_key(x))
        values = self._split(self.W_value(x))
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            hidden = causal_mask(x.shape[1], x.device) if self.causal else None
            context, weights = attention(queries, keys, values, hidden, dropout)
            return self.W_out(self._merge(context)), weights
        context = F.scaled_dot_product_attention(
            queries, keys, values, dropout_p=dropout, is_causal=self.causal
        )
        return self.W_out(self._merge(context))  # -> (batch, tokens, d_model)

    def _split(self, projected):
        # (batch, tokens, width) -> (batch, tokens, num_heads, head_dim)
        batch, tokens, _ = projected.shape
        per_head = projected.view(batch, tokens, self.num_heads, self.head_dim)
        return per_head.transpose(1, 2)  # -> (batch, num_heads, tokens, head_dim)

    def _merge(self, context):
        # (batch, num_heads, tokens, head_dim) -> (batch, tokens, num_heads, head_dim)
        per_token = context.transpose(1, 2)
        return per_token.flatten(-2)  # -> (batch, tokens, num_heads * head_dim)

    @classmethod
    def from_heads(cls, looped):
        """Return the same attention with the looped heads' weights, one below the other.

        `nn.Linear` keeps its weight as (out, in), so joining heads along the columns of the
        lecture's W_Q (lecture 8, 23:26) is joining along dim 0 of `.weight`.
        """
        bias = looped.W_out.bias is not None
        d_model, num_heads, head_dim = looped.d_model, looped.num_heads, looped.head_dim
        split = cls(d_model, num_heads, head_dim, looped.causal, looped.dropout, bias)
        split = split.to(looped.W_out.weight).train(looped.training)
        with torch.no_grad():
            for name in ("W_query", "W_key", "W_value"):
                heads = [getattr(head, name) for head in looped.heads]
                _copy(getattr(split, name), heads)
            _copy(split.W_out, [looped.W_out])
        return split

    def to_torch(self):
        """Return an `nn.MultiheadAttention` with the same weights, batch first.

        It takes its mask at each call: `mha(x, x, x, attn_mask=causal_mask(tokens))`.
        Raises ValueError where num_heads * head_dim is not d_model, which it cannot express.
        """
        width = self.num_heads * self.head_dim
        if width != self.d_model:
            raise ValueError(
                f"nn.MultiheadAttention needs num_heads * head_dim = d_model, but here "
                f"{self.num_heads} * {self.head_dim} = {width} and d_model = {self.d_model}. "
                f"Leave head_dim out, and the heads share d_model."
            )
        bias = self.W_out.bias is not None
        theirs = nn.MultiheadAttention(
            self.d_model, self.num_heads, self.dropout, bias=bias, batch_first=True
        )
        theirs = theirs.to(self.W_out.weight).train(self.training)
        layers = [self.W_query, self.W_key, self.W_value]
        with torch.no_grad():
            theirs.in_proj_weight.copy_(torch.cat([layer.weight for layer in layers]))
            if bias:
                theirs.in_proj_bias.copy_(torch.cat([layer.bias for layer in layers]))
            _copy(theirs.out_proj, [self.W_out])
        return theirs


def _copy(layer, sources):
    """Fill a linear layer with the sources' weights (and biases), one below the other."""
    layer.weight.copy_(torch.cat([source.weight for source in sources]))
    if layer.bias is not None:
        layer.bias.copy_(torch.cat([source.bias for source in sources]))


def _head_dim(d_model, num_heads, head_dim):
    """Return the width of one head, or say which numbers of heads would fit."""
    _check_count("d_model", d_model)
    _check_count("num_heads", num_heads)
    if head_dim is not None:
        _check_count("head_dim", head_dim)
        return head_dim
    if d_model % num_heads:
        fitting = [n for n in range(1, d_model + 1) if d_model % n == 0]
        raise ValueError(
            f"{d_model} numbers (d_model) cannot be shared equally by {num_heads} heads "
            f"(num_heads). What works for d_model = {d_model}: num_heads "
            f"{', '.join(map(str, fitting))}. Or give head_dim, the width of one head."
        )
    return d_model // num_heads


def _check_count(name, value):
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number, 1 or more, but is {value!r}.")


def _check_dropout(dropout):
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ValueError(
            f"dropout is the share of weights that are dropped: 0 or more and below 1, "
            f"such as 0.2, but is {dropout!r}."
        )


def _check_input(x, d_model):
    wanted = f"a tensor of shape (batch, tokens, d_model) with d_model = {d_model}"
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"The input must be {wanted}, but is a {type(x).__name__}.")
    shape = tuple(x.shape)
    if len(shape) == 2:
        raise ValueError(
            f"The input must be {wanted}, but has shape {shape}: the batch is missing. "
            f"For one sequence, x.unsqueeze(0) has shape {(1, *shape)}."
        )
    if len(shape) != 3:
        raise ValueError(f"The input must be {wanted}, but has shape {shape}.")
    if 0 in shape:
        raise ValueError(f"The input must be {wanted}, each at least 1, but has shape {shape}.")
    if shape[-1] != d_model:
        raise ValueError(
            f"The input must be {wanted}, but has shape {shape}: each token has "
            f"{shape[-1]} numbers instead of {d_model}."
        )
    if not x.dtype.is_floating_point:
        raise ValueError(
            f"The input must hold decimal numbers, but holds {x.dtype}: use x.float()."
        )


def _check_qkv(queries, keys, values):
    q, k, v = (tuple(tensor.shape) for tensor in (queries, keys, values))
    if min(len(q), len(k), len(v)) < 2 or 0 in q + k + v:
        raise ValueError(
            f"queries, keys and values must have shape (..., tokens, width), each size at "
            f"least 1, but have {q}, {k} and {v}."
        )
    if q[-1] != k[-1]:
        raise ValueError(
            f"Each query is multiplied with each key, so both need the same width: queries "
            f"have shape {q}, {q[-1]} wide, keys {k}, {k[-1]} wide."
        )
    if k[-2] != v[-2]:
        raise ValueError(
            f"Each key belongs to one value: keys have shape {k}, {k[-2]} tokens, values {v}, "
            f"{v[-2]} tokens."
        )
    if q[:-2] == k[:-2] == v[:-2]:
        return  # nearly always; torch.broadcast_shapes would cost as much as a small product
    try:
        torch.broadcast_shapes(q[:-2], k[:-2], v[:-2])
    except RuntimeError:
        raise ValueError(
            f"The dimensions before the last two must agree: queries have shape {q}, keys {k}, "
            f"values {v}."
        ) from None


def _check_hidden(hidden, scores):
    shape = tuple(scores.shape)
    if not isinstance(hidden, torch.Tensor) or hidden.dtype != torch.bool:
        kind = hidden.dtype if isinstance(hidden, torch.Tensor) else type(hidden).__name__
        raise ValueError(
            f"hidden must be a Boolean tensor, True = hidden, but is {kind}. "
            f"A 0/1 mask becomes one by (mask == 0) if 1 means keep, (mask == 1) if 1 means hide."
        )
    pairs = zip(reversed(hidden.shape), reversed(shape), strict=False)
    if hidden.dim() > len(shape) or any(size not in (1, wanted) for size, wanted in pairs):
        raise ValueError(
            f"hidden has shape {tuple(hidden.shape)}, the scores have {shape}: one row for each "
            f"query and one column for each key would be {shape[-2:]}."
        )
