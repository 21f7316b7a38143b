"""Attention written in six ways, and the faults planted in it.

A base is the text of a module; a fault replaces pieces of the text. `make` gives a factory
f(d_model, num_heads). All faults here were planted by us; the kinds are those of a survey of
public hand-written modules.
"""

# ruff: noqa: E501 (a planted line may be as long as the line that it replaces)
import itertools
import linecache
import math

import torch
import torch.nn.functional as F
from torch import nn

SEPARATE = """
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
"""

FUSED = """
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
"""

HEADS = """
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
"""

EINSUM = """
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
"""

TRANSPOSED = """
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
"""

KERNEL = """
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
"""

GIVEN = """
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
"""

PADDED = """
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
"""

BASES = {
    "separate": SEPARATE,
    "fused": FUSED,
    "heads": HEADS,
    "einsum": EINSUM,
    "transposed": TRANSPOSED,
    "kernel": KERNEL,
    "given": GIVEN,
    "padded": PADDED,
}

_numbers = itertools.count()
GLOBAL = {}  # where a planted module keeps its notebook globals


def make(base, *changes):
    """A factory of the base's module with pieces of its text replaced."""
    source = BASES[base]
    for old, new in changes:
        assert source.count(old) >= 1, f"{base} has no {old!r}"
        source = source.replace(old, new)
    name = f"<planted {next(_numbers)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space = {
        "torch": torch,
        "nn": nn,
        "F": F,
        "math": math,
        "GLOBAL": GLOBAL,
        "__name__": "planted",
    }
    exec(compile(source, name, "exec"), space)
    return lambda d_model, num_heads: space["Attention"](d_model, num_heads)


# (code, base, pieces to replace): one fault each
PLANTED = [
    ("crash", "separate", [("keys.transpose(2, 3)", "keys")]),
    ("crash", "fused", [("view(B, T, C)", "view(B, T, C + 1)")]),
    ("crash", "heads", [("dim=-1)\n        return self.proj", "dim=1)\n        return self.proj")]),
    ("crash", "einsum", [('"bhie,bhje->bhij"', '"bhie,bhie->bhij"'), ("q, k)", "q, k[:, :, 1:])")]),
    ("length", "separate", [("self.mask.bool()[:t, :t]", "self.mask.bool()")]),
    ("length", "fused", [("self.bias[:, :, :T, :T] == 0", "self.bias == 0")]),
    ("length", "heads", [("self.tril[:T, :T] == 0", "self.tril == 0")]),
    ("nan", "separate", [(".triu(1))", ".triu(0))")]),
    ("nan", "fused", [("self.bias[:, :, :T, :T] == 0", "self.bias[:, :, :T, :T] == 1")]),
    (
        "nan",
        "einsum",
        [
            ("sim.softmax(dim=-1)", "sim.softmax(dim=1)"),
            ("-torch.finfo(sim.dtype).max", "-torch.inf"),
        ],
    ),
    (
        "nan",
        "transposed",
        [
            (
                'torch.full((t, t), float("-inf"), device=x.device).triu(1)',
                'torch.ones(t, t).triu(1) * float("-inf")',
            )
        ],
    ),
    (
        "not-repeatable",
        "separate",
        [("self.out_proj(context)", "nn.Linear(d, d)(self.out_proj(context))")],
    ),
    (
        "not-repeatable",
        "heads",
        [
            (
                "self.value(x)\n",
                "nn.Linear(self.key.out_features, self.key.out_features)(self.value(x))\n",
            )
        ],
    ),
    (
        "not-repeatable",
        "transposed",
        [("k = self.k_proj(x)", "k = nn.Linear(e, e)(self.k_proj(x))")],
    ),
    ("dropout-in-eval", "separate", [("self.dropout(weights)", "F.dropout(weights, 0.2)")]),
    ("dropout-in-eval", "kernel", [("self.dropout if self.training else 0.0", "self.dropout")]),
    ("dropout-in-eval", "einsum", [("self.drop(attn)", "F.dropout(attn, p=0.1, training=True)")]),
    ("dropout-unused", "separate", [("        weights = self.dropout(weights)\n", "")]),
    ("dropout-unused", "fused", [("self.resid_dropout(self.c_proj(y))", "self.c_proj(y)")]),
    ("dropout-unused", "heads", [("        wei = self.drop(wei)\n", "")]),
    ("input-changed", "separate", [("b, t, d = x.shape", "b, t, d = x.shape\n        x += 1.0")]),
    ("input-changed", "fused", [("B, T, C = x.size()", "B, T, C = x.size()\n        x.mul_(2)")]),
    ("input-changed", "einsum", [("n = x.shape[1]", "n = x.shape[1]\n        x[:, 0] = 0")]),
    (
        "batch-mixed",
        "transposed",
        [
            ("x = x.transpose(0, 1)\n", "x = x\n"),
            ("(o).transpose(0, 1)", "(o)"),
            ('        s = s + torch.full((t, t), float("-inf"), device=x.device).triu(1)\n', ""),
        ],
    ),
    (
        "batch-mixed",
        "separate",
        [("queries = self.W_query(x)\n", "queries = self.W_query(x - x.mean(0))\n")],
    ),
    (
        "split-by-view",
        "separate",
        [
            (
                "view(b, t, self.num_heads, self.head_dim).transpose(1, 2)",
                "view(b, self.num_heads, t, self.head_dim)",
            )
        ],
    ),
    (
        "split-by-view",
        "fused",
        [
            (
                "view(B, T, self.n_head, C // self.n_head).transpose(1, 2)",
                "reshape(B, self.n_head, T, C // self.n_head)",
            )
        ],
    ),
    (
        "split-by-view",
        "kernel",
        [
            (
                "reshape(batch, tokens, 3, self.num_heads, -1)\n        q, k, v = qkv.permute(2, 0, 3, 1, 4)",
                "chunk(3, -1)\n        q, k, v = (p.reshape(batch, self.num_heads, tokens, -1) for p in qkv)",
            )
        ],
    ),
    (
        "split-by-view",
        "given",
        [("view(n, -1, self.h, self.d_k).transpose(1, 2)", "view(n, self.h, -1, self.d_k)")],
    ),
    (
        "input-cut",
        "separate",
        [
            (
                "self.W_key(x)",
                "torch.cat([w(c) for w, c in zip(self.W_key, x.chunk(self.num_heads, -1))], -1)",
            ),
            (
                "self.W_query(x)",
                "torch.cat([w(c) for w, c in zip(self.W_query, x.chunk(self.num_heads, -1))], -1)",
            ),
            (
                "self.W_value(x)",
                "torch.cat([w(c) for w, c in zip(self.W_value, x.chunk(self.num_heads, -1))], -1)",
            ),
            (
                "nn.Linear(d_model, d_model, bias=False)",
                "nn.ModuleList([nn.Linear(d_model // num_heads, d_model // num_heads) for _ in range(num_heads)])",
            ),
        ],
    ),
    (
        "input-cut",
        "heads",
        [
            ("Head(d_model, d_model", "Head(d_model // num_heads, d_model"),
            (
                "[h(x) for h in self.heads]",
                "[h(c) for h, c in zip(self.heads, x.chunk(len(self.heads), -1))]",
            ),
        ],
    ),
    (
        "input-cut",
        "given",
        [
            (
                "nn.Linear(d_model, d_model) for _ in range(4)",
                "nn.Linear(n, n) for n in (d_model // h,) * 3 + (d_model,)",
            ),
            (
                "lin(x).view(n, -1, self.h, self.d_k).transpose(1, 2)",
                "lin(x.view(n, -1, self.h, self.d_k)).transpose(1, 2)",
            ),
        ],
    ),
    ("merge-by-view", "separate", [("(weights @ values).transpose(1, 2)", "weights @ values")]),
    ("merge-by-view", "fused", [("y.transpose(1, 2).contiguous()", "y.contiguous()")]),
    ("merge-by-view", "kernel", [("out.transpose(1, 2).reshape", "out.reshape")]),
    ("merge-by-view", "transposed", [("o.transpose(0, 1).reshape", "o.reshape")]),
    (
        "heads-attend-heads",
        "separate",
        [
            (".transpose(1, 2)\n", "\n"),
            ("        scores.masked_fill_(self.mask.bool()[:t, :t], -torch.inf)\n", ""),
        ],
    ),
    (
        "heads-attend-heads",
        "kernel",
        [
            ("qkv.permute(2, 0, 3, 1, 4)", "qkv.permute(2, 0, 1, 3, 4)"),
            (", is_causal=True", ""),
            ("out.transpose(1, 2).reshape", "out.reshape"),
        ],
    ),
    (
        "heads-attend-heads",
        "given",
        [(".transpose(1, 2)\n", "\n"), ("x.transpose(1, 2).contiguous()", "x")],
    ),
    (
        "softmax-axis",
        "separate",
        [("dim=-1)\n        weights = self", "dim=-2)\n        weights = self")],
    ),
    ("softmax-axis", "fused", [("F.softmax(att, dim=-1)", "F.softmax(att, dim=2)")]),
    ("softmax-axis", "heads", [("F.softmax(wei, dim=-1)", "F.softmax(wei, dim=1)")]),
    ("softmax-axis", "einsum", [("sim.softmax(dim=-1)", "sim.softmax(dim=1)")]),
    (
        "softmax-axis",
        "transposed",
        [("torch.softmax(s, dim=-1)", "torch.softmax(s, dim=0)"), ('float("-inf")', "-1e9")],
    ),
    (
        "not-normalised",
        "separate",
        [
            (
                "torch.softmax(scores / self.head_dim**0.5, dim=-1)",
                "torch.softmax(scores, dim=-1) / self.head_dim**0.5",
            )
        ],
    ),
    (
        "not-normalised",
        "fused",
        [
            ('        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))\n', ""),
            (
                "att = self.attn_dropout(att)",
                "att = self.attn_dropout(att * self.bias[:, :, :T, :T])",
            ),
        ],
    ),
    ("not-normalised", "heads", [("F.softmax(wei, dim=-1)", "wei"), ('float("-inf")', "0")]),
    (
        "not-normalised",
        "einsum",
        [
            ("        sim = sim.masked_fill(future, -torch.finfo(sim.dtype).max)\n", ""),
            ("attn = self.drop(attn)", "attn = self.drop(attn.masked_fill(future, 0.0))"),
        ],
    ),
    (
        "wrong-pair",
        "separate",
        [("queries @ keys.transpose(2, 3)", "queries @ values.transpose(2, 3)")],
    ),
    ("wrong-pair", "fused", [("q @ k.transpose(-2, -1)", "k @ k.transpose(-2, -1)")]),
    ("wrong-pair", "heads", [("q @ k.transpose(-2, -1)", "q @ q.transpose(-2, -1)")]),
    ("wrong-pair", "einsum", [('"bhie,bhje->bhij", q, k)', '"bhie,bhje->bhij", q, v)')]),
    ("wrong-pair", "kernel", [("attention(q, k, v,", "attention(k, k, v,")]),
    ("wrong-values", "separate", [("weights @ values", "weights @ keys")]),
    ("wrong-values", "transposed", [("torch.bmm(w, v)", "torch.bmm(w, k)")]),
    ("wrong-values", "fused", [("y = att @ v", "y = att @ k")]),
    ("wrong-values", "kernel", [("attention(q, k, v,", "attention(q, k, q,")]),
    ("future-visible", "separate", [("masked_fill_", "masked_fill")]),
    ("future-visible", "fused", [("        att = att.masked_fill", "        att.masked_fill")]),
    ("future-visible", "heads", [('float("-inf")', "-1e-9")]),
    (
        "future-visible",
        "einsum",
        [("sim.masked_fill(future, -torch.finfo(sim.dtype).max)", "sim * (~future)")],
    ),
    (
        "future-visible",
        "transposed",
        [("        s = s + torch.full", "        u = s + torch.full")],
    ),
    (
        "future-visible",
        "kernel",
        [("is_causal=True", "attn_mask=torch.ones(tokens, tokens).tril()")],
    ),
    ("mask-off-by-one", "separate", [(".triu(1))", ".triu(2))")]),
    (
        "mask-off-by-one",
        "fused",
        [("torch.tril(torch.ones(8, 8))", "torch.tril(torch.ones(8, 8), 1)")],
    ),
    ("mask-off-by-one", "einsum", [(".triu(1)", ".triu(0)")]),
    ("past-hidden", "separate", [(".triu(1))", ".tril(-1))")]),
    ("past-hidden", "heads", [("torch.tril(torch.ones(8, 8))", "torch.triu(torch.ones(8, 8))")]),
    (
        "past-hidden",
        "kernel",
        [("is_causal=True", "attn_mask=torch.ones(tokens, tokens).triu(1).bool()")],
    ),
    (
        "mask-argument",
        "given",
        [("            scores = scores.masked_fill", "            scores.masked_fill")],
    ),
    ("mask-argument", "given", [("scores.masked_fill(mask == 0, -1e9)", "scores * mask")]),
    (
        "mask-argument",
        "padded",
        [
            (
                "hidden = hidden | padding_mask[:, None, None, :]",
                "hidden = padding_mask[:, None, None, :]",
            )
        ],
    ),
    ("mask-argument", "padded", [("hidden = hidden | padding_mask[:, None, None, :]", "pass")]),
    ("scale", "separate", [("self.head_dim**0.5", "d**0.5")]),
    ("scale", "fused", [(" * (1.0 / math.sqrt(k.size(-1)))", "")]),
    ("scale", "heads", [("k.shape[-1] ** -0.5", "k.shape[-1] ** 0.5")]),
    ("scale", "einsum", [("(dim // heads) ** -0.5", "1 / (dim // heads)")]),
    ("scale", "transposed", [("math.sqrt(self.d)", "math.sqrt(t)")]),
    ("scale", "kernel", [("is_causal=True", "is_causal=True, scale=width**-0.5")]),
    ("scale", "given", [("math.sqrt(self.d_k)", "math.sqrt(query.size(1))")]),
    ("unused-layer", "separate", [("self.out_proj(context)", "context")]),
    ("unused-layer", "kernel", [("self.to_out(out)", "out")]),
    ("unused-layer", "heads", [("return self.proj(out)", "self.proj(out)\n        return out")]),
    ("detached", "separate", [("self.W_key(x)", "self.W_key(x).detach()")]),
    (
        "detached",
        "fused",
        [
            (
                "q, k, v = self.c_attn(x).split(C, dim=2)",
                "q, k, v = self.c_attn(x).split(C, dim=2)\n        q = q.data",
            )
        ],
    ),
    ("detached", "einsum", [("attn = self.drop(attn)", "attn = self.drop(attn).detach()")]),
    (
        "not-registered",
        "heads",
        [
            (
                "nn.ModuleList([Head(d_model, d_model // num_heads) for _ in range(num_heads)])",
                "[Head(d_model, d_model // num_heads) for _ in range(num_heads)]",
            )
        ],
    ),
    (
        "not-registered",
        "separate",
        [
            (
                "self.W_value = nn.Linear(d_model, d_model, bias=False)",
                "GLOBAL['v'] = nn.Linear(d_model, d_model)",
            ),
            ("self.W_value(x)", "GLOBAL['v'](x)"),
        ],
    ),
    (
        "not-registered",
        "einsum",
        [
            (
                "self.wv = nn.Parameter(torch.randn(heads, dim, dim // heads) * 0.1)",
                "self.wv = torch.randn(heads, dim, dim // heads) * 0.1",
            )
        ],
    ),
    (
        "not-a-buffer",
        "separate",
        [
            (
                'self.register_buffer("mask", torch.ones(8, 8).triu(1))',
                "self.mask = torch.ones(8, 8).triu(1)",
            )
        ],
    ),
    (
        "not-a-buffer",
        "heads",
        [
            (
                'self.register_buffer("tril", torch.tril(torch.ones(8, 8)))',
                "self.tril = torch.tril(torch.ones(8, 8))",
            )
        ],
    ),
    (
        "not-a-buffer",
        "fused",
        [
            (
                'self.register_buffer("bias", torch.tril(torch.ones(8, 8)).view(1, 1, 8, 8))',
                "self.bias = torch.tril(torch.ones(8, 8)).view(1, 1, 8, 8)",
            )
        ],
    ),
]


def together(base, *codes):
    """A factory with one planted fault of each code in the same base."""
    changes = []
    for code in codes:
        changes += next(c for found, b, c in PLANTED if (found, b) == (code, base))
    return make(base, *changes)


# (base, codes in the order in which they should be reported)
COMBINED = [
    ("separate", ["length", "scale"]),
    ("fused", ["softmax-axis", "scale"]),
    ("separate", ["split-by-view", "merge-by-view"]),
    ("separate", ["input-changed", "future-visible"]),
    ("separate", ["dropout-unused", "mask-off-by-one"]),
    ("separate", ["not-repeatable", "dropout-in-eval"]),
    ("fused", ["split-by-view", "scale"]),
    ("fused", ["wrong-pair", "scale"]),
    ("fused", ["future-visible", "detached"]),
    ("heads", ["scale", "not-a-buffer"]),
    ("heads", ["wrong-pair", "scale"]),
    ("heads", ["input-cut", "unused-layer"]),
    ("einsum", ["input-changed", "not-registered"]),
    ("einsum", ["softmax-axis", "mask-off-by-one"]),
    ("transposed", ["merge-by-view", "wrong-values"]),
    ("kernel", ["dropout-in-eval", "merge-by-view"]),
    ("kernel", ["past-hidden", "unused-layer"]),
    ("given", ["input-cut", "scale"]),
    ("separate", ["dropout-unused", "future-visible", "scale"]),
    ("separate", ["split-by-view", "future-visible", "unused-layer"]),
    ("fused", ["dropout-unused", "merge-by-view", "scale"]),
    ("heads", ["dropout-unused", "wrong-pair", "scale"]),
    ("heads", ["future-visible", "scale", "not-registered"]),
    ("kernel", ["split-by-view", "merge-by-view", "unused-layer"]),
]
