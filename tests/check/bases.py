"""The styles in which the faults are planted: attention as a text, and as a class of methods.

A fault in a text replaces a piece of it (`but`); a fault in a class replaces a method. The kinds
are those of a survey of public hand-written modules; every fault here was planted by us.
"""

import itertools
import linecache
import math
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import nn

from attention_course import causal_mask, rotary

GLOBAL = {}  # where a planted module keeps its notebook globals
_numbers = itertools.count()


@dataclass(frozen=True)
class Text:
    """The text of a module in one style, and what was replaced in it."""

    style: str
    source: str
    changes: tuple = ()

    def but(self, old, new):
        """Return the text with every `old` replaced."""
        assert old in self.source, f"{self.style} has no {old!r}"
        return Text(self.style, self.source.replace(old, new), (*self.changes, (old, new)))

    def make(self, d_model, num_heads):
        return self.kind(d_model, num_heads)

    @cached_property
    def kind(self):
        """The last class of the text; its lines can be quoted."""
        name = f"<planted {next(_numbers)}>"
        linecache.cache[name] = (len(self.source), None, self.source.splitlines(True), name)
        space = {"torch": torch, "nn": nn, "F": F, "math": math}
        space |= {"rotary": rotary, "GLOBAL": GLOBAL, "__name__": "planted"}
        exec(compile(self.source, name, "exec"), space)
        kind = list(space.values())[-1]
        kind.style = self.style
        return kind


separate = Text(
    "separate",
    """
class Attention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__()
        self.d_model, self.num_heads = d_model, num_heads
        self.head_dim = d_model // num_heads
        self.W_query = nn.Linear(d_model, d_model, bias=False)
        self.W_key = nn.Linear(d_model, d_model, bias=False)
        self.W_value = nn.Linear(d_model, d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.ones(8, 8).triu(1))

    def forward(self, x):
        b, t, d = x.shape
        keys = self.W_key(x)
        queries = self.W_query(x)
        values = self.W_value(x)
        keys = keys.view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        queries = queries.view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        values = values.view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        scores = queries @ keys.transpose(2, 3)
        scores.masked_fill_(self.mask.bool()[:t, :t], -torch.inf)
        weights = torch.softmax(scores / self.head_dim**0.5, dim=-1)
        weights = self.dropout(weights)
        context = (weights @ values).transpose(1, 2)
        context = context.contiguous().view(b, t, d)
        return self.out_proj(context)
""",
)

fused = Text(
    "fused",
    """
class Attention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.attn_dropout = nn.Dropout(0.1)
        self.resid_dropout = nn.Dropout(0.1)
        self.register_buffer("bias", torch.tril(torch.ones(8, 8)).view(1, 1, 8, 8))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = self.attn_dropout(att)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))
""",
)

heads = Text(
    "heads",
    """
class Head(nn.Module):
    def __init__(self, d_model, head_size):
        super().__init__()
        self.key = nn.Linear(d_model, head_size, bias=False)
        self.query = nn.Linear(d_model, head_size, bias=False)
        self.value = nn.Linear(d_model, head_size, bias=False)
        self.drop = nn.Dropout(0.1)
        self.register_buffer("tril", torch.tril(torch.ones(8, 8)))

    def forward(self, x):
        B, T, C = x.shape
        k, q, v = self.key(x), self.query(x), self.value(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = F.softmax(wei, dim=-1)
        wei = self.drop(wei)
        return wei @ v


class Attention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.heads = nn.ModuleList([Head(d_model, d_model // num_heads) for _ in range(num_heads)])
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        out = torch.cat([h(x) for h in self.heads], dim=-1)
        return self.proj(out)
""",
)

einsum = Text(
    "einsum",
    """
class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.wq = nn.Parameter(torch.randn(heads, dim, dim // heads) * 0.1)
        self.wk = nn.Parameter(torch.randn(heads, dim, dim // heads) * 0.1)
        self.wv = nn.Parameter(torch.randn(heads, dim, dim // heads) * 0.1)
        self.wo = nn.Parameter(torch.randn(heads, dim // heads, dim) * 0.1)
        self.scale = (dim // heads) ** -0.5
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        n = x.shape[1]
        q = torch.einsum("btd,hde->bhte", x, self.wq) * self.scale
        k = torch.einsum("btd,hde->bhte", x, self.wk)
        v = torch.einsum("btd,hde->bhte", x, self.wv)
        sim = torch.einsum("bhie,bhje->bhij", q, k)
        future = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        sim = sim.masked_fill(future, -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        attn = self.drop(attn)
        out = torch.einsum("bhij,bhje->bhie", attn, v)
        return torch.einsum("bhie,hed->bid", out, self.wo)
""",
)

transposed = Text(
    "transposed",
    """
class Attention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.h, self.d = num_heads, embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.o_proj = nn.Linear(embed_dim, embed_dim)
        self.p = nn.Dropout(0.1)

    def forward(self, x):
        x = x.transpose(0, 1)
        t, b, e = x.shape
        q = self.q_proj(x).view(t, b * self.h, self.d).transpose(0, 1)
        k = self.k_proj(x).view(t, b * self.h, self.d).transpose(0, 1)
        v = self.v_proj(x).view(t, b * self.h, self.d).transpose(0, 1)
        s = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(self.d)
        s = s + torch.full((t, t), float("-inf"), device=x.device).triu(1)
        w = torch.softmax(s, dim=-1)
        w = self.p(w)
        o = torch.bmm(w, v)
        o = o.transpose(0, 1).reshape(t, b, e)
        return self.o_proj(o).transpose(0, 1)
""",
)

kernel = Text(
    "kernel",
    """
class Attention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.to_qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.to_out = nn.Linear(d_model, d_model)

    def forward(self, x):
        batch, tokens, width = x.shape
        qkv = self.to_qkv(x).reshape(batch, tokens, 3, self.num_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        p = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        out = out.transpose(1, 2).reshape(batch, tokens, width)
        return self.to_out(out)
""",
)

given = Text(
    "given",
    """
class Attention(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])

    def forward(self, query, key, value, mask=None):
        if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)
        n = query.size(0)
        query, key, value = [
            lin(x).view(n, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value))
        ]
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        p_attn = scores.softmax(dim=-1)
        x = torch.matmul(p_attn, value)
        x = x.transpose(1, 2).contiguous().view(n, -1, self.h * self.d_k)
        return self.linears[-1](x)
""",
)

padded = Text(
    "padded",
    """
class Attention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x, padding_mask=None):
        b, t, d = x.shape
        q, k, v = (
            p.view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
            for p in self.qkv(x).chunk(3, dim=-1)
        )
        scores = q @ k.mT / self.head_dim**0.5
        hidden = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        if padding_mask is not None:
            hidden = hidden | padding_mask[:, None, None, :]
        scores = scores.masked_fill(hidden, float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
""",
)


cached = Text(
    "cached",
    """
class Attention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.places = nn.Parameter(torch.randn(16, d_model))

    def forward(self, x, cache=None):
        b, t, d = x.shape
        past = 0 if cache is None else cache[0].shape[2]
        x = x + self.places[past : past + t]
        q, k, v = self.in_proj(x).view(b, t, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k = torch.cat([cache[0], k], dim=2)
            v = torch.cat([cache[1], v], dim=2)
        present = k, v
        seen = torch.ones(past + t, past + t).tril()[past:]
        scores = (q @ k.transpose(2, 3)) / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(seen[:, -k.shape[2] :] == 0, float("-inf")).softmax(dim=-1)
        context = (weights @ v).transpose(1, 2).reshape(b, t, d)
        return self.out_proj(context), present
""",
)


class Plain(nn.Module):
    """Four layers and the steps between them, each a method that a variant replaces."""

    def __init__(self, d_model, num_heads, bias=True):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.q = nn.Linear(d_model, d_model, bias=bias)
        self.k = nn.Linear(d_model, d_model, bias=bias)
        self.v = nn.Linear(d_model, d_model, bias=bias)
        self.o = nn.Linear(d_model, d_model, bias=bias)

    def split(self, x):
        return x.view(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)

    def merge(self, x):
        return x.transpose(1, 2).flatten(2)

    def places(self, x):
        return x

    def scores(self, q, k):
        return q @ k.mT / math.sqrt(self.head_dim)

    def hide(self, scores):
        return scores.masked_fill(causal_mask(scores.shape[-1]), -torch.inf)

    def soften(self, scores):
        return scores.softmax(-1)

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        weights = self.soften(self.hide(self.scores(self.places(q), self.places(k))))
        return self.o(self.merge(weights @ v))


class TwoWay(Plain):
    def hide(self, scores):
        return scores
