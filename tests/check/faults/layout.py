"""How the columns are cut into heads and put back: planted faults, and what looks like them."""

import torch
import torch.nn.functional as F
from bases import Plain, fused, given, heads, kernel, separate, transposed
from registry import correct, fault
from torch import nn

from attention_course import causal_mask

fault("split-by-view")(
    separate.but(
        "t, self.num_heads, self.head_dim).transpose(1, 2)", "self.num_heads, t, self.head_dim)"
    )
)
fault("split-by-view")(
    fused.but(
        "view(B, T, self.n_head, C // self.n_head).transpose(1, 2)",
        "reshape(B, self.n_head, T, C // self.n_head)",
    )
)
fault("split-by-view")(
    kernel.but(
        "reshape(batch, tokens, 3, self.num_heads, -1)\n"
        "        q, k, v = qkv.permute(2, 0, 3, 1, 4)",
        "chunk(3, -1)\n"
        "        q, k, v = (p.reshape(batch, self.num_heads, tokens, -1) for p in qkv)",
    )
)
fault("split-by-view")(given.but("-1, self.h, self.d_k).transpose(1, 2)", "self.h, -1, self.d_k)"))
_CUT = separate.but(
    "nn.Linear(d_model, d_model, bias=False)",
    "nn.ModuleList([nn.Linear(d_model // num_heads, d_model // num_heads) "
    "for _ in range(num_heads)])",
)
for layer in ("W_key", "W_query", "W_value"):
    _CUT = _CUT.but(
        f"self.{layer}(x)",
        f"torch.cat([w(c) for w, c in zip(self.{layer}, x.chunk(self.num_heads, -1))], -1)",
    )
fault("input-cut", "6 of the 24 numbers")(_CUT)
fault("input-cut")(
    heads.but("Head(d_model, d_model", "Head(d_model // num_heads, d_model").but(
        "h(x) for h in self.heads", "h(c) for h, c in zip(self.heads, x.chunk(len(self.heads), -1))"
    )
)
fault("input-cut")(
    given.but(
        "nn.Linear(d_model, d_model) for _ in range(4)",
        "nn.Linear(n, n) for n in (d_model // h,) * 3 + (d_model,)",
    ).but(
        "lin(x).view(n, -1, self.h, self.d_k).transpose(1, 2)",
        "lin(x.view(n, -1, self.h, self.d_k)).transpose(1, 2)",
    )
)
fault("merge-by-view")(separate.but("(weights @ values).transpose(1, 2)", "weights @ values"))
fault("merge-by-view")(fused.but("y.transpose(1, 2).contiguous()", "y.contiguous()"))
fault("merge-by-view")(kernel.but("out.transpose(1, 2).reshape", "out.reshape"))
fault("merge-by-view")(transposed.but("o.transpose(0, 1).reshape", "o.reshape"))
fault("heads-attend-heads", "Token 4 ignores tokens 0 to 3", "(4, 4)")(
    separate.but(".transpose(1, 2)\n", "\n").but(
        "        scores.masked_fill_(self.mask.bool()[:t, :t], -torch.inf)\n", ""
    )
)
fault("heads-attend-heads")(
    kernel.but("0, 3, 1, 4", "0, 1, 3, 4").but(", is_causal=True", "").but(".transpose(1, 2)", "")
)
fault("heads-attend-heads")(
    given.but(".transpose(1, 2)\n", "\n").but(".transpose(1, 2).contiguous()", "")
)


class ViewForTranspose(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        keys = self.k(x).reshape(len(x), x.shape[2], x.shape[1])
        return (self.q(x) @ keys / x.shape[2] ** 0.5).softmax(-1) @ self.v(x)


fault("split-by-view", "Use .mT")(ViewForTranspose(24))


@correct("split-by-view", "merge-by-view")
class HeadAxisLast(Plain):
    def split(self, x):
        return x.view(*x.shape[:2], self.head_dim, self.num_heads).permute(0, 3, 1, 2)

    def merge(self, x):
        return x.permute(0, 2, 3, 1).flatten(2)


@correct("split-by-view", "merge-by-view", "input-cut", "batch-mixed")
class HeadsInBatch(Plain):
    def split(self, x):
        return torch.cat(x.chunk(self.num_heads, dim=-1), dim=0)

    def merge(self, x):
        return torch.cat(x.chunk(self.num_heads, dim=0), dim=-1)


@correct("split-by-view")
class FusedKV(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.to_q = nn.Linear(d_model, d_model, bias=False)
        self.to_kv = nn.Linear(d_model, 2 * d_model, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        k, v = self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (p.reshape(b, t, self.h, -1).transpose(1, 2) for p in (self.to_q(x), k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


@correct("split-by-view")
class BlockOrder(nn.Module):
    """Fused projections as (head, v/k/q, head_dim), an order of its own."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.all = nn.Linear(d_model, 3 * d_model)
        self.end = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, t, d = x.shape
        v, k, q = self.all(x).view(b, t, self.h, 3, d // self.h).permute(3, 0, 2, 1, 4).unbind(0)
        scores = q @ k.mT / (d // self.h) ** 0.5
        scores = scores.masked_fill(causal_mask(t), -torch.inf)
        return self.end((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


@correct("input-cut", "input-changed")
class SlicesInLoop(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.a = nn.Linear(d_model, d_model)
        self.b = nn.Linear(d_model, d_model)
        self.c = nn.Linear(d_model, d_model)
        self.d = nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = self.a(x), self.b(x), self.c(x)
        size = x.shape[-1] // self.h
        out = torch.zeros_like(x)
        for n in range(self.h):
            part = slice(n * size, (n + 1) * size)
            scores = q[..., part] @ k[..., part].transpose(1, 2) / size**0.5
            scores = scores + torch.zeros_like(scores).masked_fill(causal_mask(x.shape[1]), -1e9)
            out[..., part] = scores.softmax(-1) @ v[..., part]
        return self.d(out)


@correct("merge-by-view", "heads-attend-heads", "batch-mixed")
class TokensFirst(Plain):
    def forward(self, x):
        x = x.transpose(0, 1)
        t, b, d = x.shape
        q, k, v = (
            layer(x).reshape(t, b, self.num_heads, -1).permute(1, 2, 0, 3)
            for layer in (self.q, self.k, self.v)
        )
        context = self.hide(self.scores(q, k)).softmax(-1) @ v
        return self.o(context.permute(2, 0, 1, 3).reshape(t, b, d)).transpose(0, 1)


@correct("heads-attend-heads")
class HeadsOfSteps(Plain):
    """Head h sees each 4**h-th token of the past: the last ones see themselves alone."""

    def hide(self, scores):
        places = torch.arange(scores.shape[-1])
        steps = 4 ** torch.arange(self.num_heads)[:, None, None]
        back = places[:, None] - places
        return scores.masked_fill((back < 0) | (back % steps != 0), -torch.inf)


@correct("heads-attend-heads")
class TalkingHeads(Plain):
    """Heads are mixed after the scores and after the softmax by (heads, heads) matrices."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.before, self.after = (
            nn.Parameter(torch.randn(num_heads, num_heads)) for _ in range(2)
        )

    def scores(self, q, k):
        return torch.einsum("bhij,hg->bgij", super().scores(q, k), self.before)

    def soften(self, scores):
        return torch.einsum("bhij,hg->bgij", scores.softmax(-1), self.after)


@fault("split-by-view")
class SplitByRavel(Plain):
    def split(self, x):
        return x.ravel().view(len(x), self.num_heads, x.shape[1], self.head_dim)


@fault("merge-by-view")
class MergeByRavel(Plain):
    def merge(self, x):
        return x.ravel().view(len(x), x.shape[2], -1)


@correct("split-by-view", "merge-by-view", silent=True)
class Ravelled(Plain):
    """The numbers are followed through any layout, whatever the operation is called."""

    def split(self, x):
        return x.ravel().view(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)

    def merge(self, x):
        return x.transpose(1, 2).ravel().view(len(x), x.shape[2], -1)
