"""Token by token with a cache: planted faults, and what looks like them."""

import torch
import torch.nn.functional as F
from bases import Plain, cached
from registry import correct, fault

from attention_course import rotary

fault("token-by-token", "sees token 0 and not itself", "from the first key")(
    cached.but("torch.ones(past + t, past + t).tril()[past:]", "torch.ones(t, past + t).tril()")
)
fault("token-by-token", "does not see tokens 0, 1, 2 and 3")(
    cached.but("present = k, v", "present = k[:, :, -t:], v[:, :, -t:]").but(
        "if cache is not None:", "if cache is not None and t > 1:"
    )
)
fault("token-by-token", "with other numbers")(
    cached.but("torch.cat([cache[1], v], dim=2)", "torch.cat([v, cache[1]], dim=2)")
)
fault("token-by-token", "the places of new tokens begin anew")(
    cached.but("self.places[past : past + t]", "self.places[:t]")
)
correct("token-by-token", silent=True)(cached)


class Kept(Plain):
    """The module itself keeps keys and values, between `start` and the end."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        shape = 9, num_heads, 16, d_model // num_heads
        self.register_buffer("cache_k", torch.zeros(shape), persistent=False)
        self.register_buffer("cache_v", torch.zeros(shape), persistent=False)

    def turned(self, heads, start, tokens):
        whole = F.pad(heads, (0, 0, start, 0))
        return rotary(whole)[:, :, start:]

    def keys(self, k, start, tokens):
        return self.turned(k, start, tokens)

    def all_keys(self, end):
        return self.cache_k[:, :, :end]

    def forward(self, x, start_pos=0):
        batch, tokens = x.shape[:2]
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        end = start_pos + tokens
        self.cache_k[:batch, :, start_pos:end] = self.keys(k, start_pos, tokens).detach()
        self.cache_v[:batch, :, start_pos:end] = v.detach()
        past = self.cache_k[:batch, :, :start_pos], self.cache_v[:batch, :, :start_pos]
        k = torch.cat([past[0], self.keys(k, start_pos, tokens)], 2)
        v = torch.cat([past[1], v], 2)
        scores = self.scores(self.turned(q, start_pos, tokens), k)
        hidden = torch.ones(tokens, end, dtype=torch.bool).triu(start_pos + 1)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return self.o(self.merge(weights @ v))


correct("token-by-token", silent=True)(Kept)


@fault("token-by-token", "with other numbers")
class KeysTurnedFromZero(Kept):
    def keys(self, k, start, tokens):
        return self.turned(k, 0, tokens)


@fault("token-by-token", "does not see")
class OnlyTheNewestKept(Kept):
    def forward(self, x, start_pos=0):
        self.cache_k[:, :, :start_pos] = 0
        self.cache_v[:, :, :start_pos] = 0
        return super().forward(x, start_pos)


@correct("token-by-token", "not-repeatable", note="cache")
class KeptWithoutAsking(Plain):
    """Each call goes on where the one before ended."""

    past = None

    def together(self, k, v):
        old = self.past or (k[:, :, :0], v[:, :, :0])
        self.past = torch.cat([old[0], k.detach()], 2), torch.cat([old[1], v.detach()], 2)
        return torch.cat([old[0], k], 2), torch.cat([old[1], v], 2)

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        k, v = self.together(k, v)
        new, every = q.shape[2], k.shape[2]
        hidden = torch.ones(new, every, dtype=torch.bool).triu(every - new + 1)
        weights = self.scores(q, k).masked_fill(hidden, -torch.inf).softmax(-1)
        return self.o(self.merge(weights @ v))


@fault("token-by-token", "does not see token")
class OnlyTheLastCallKept(KeptWithoutAsking):
    def together(self, k, v):
        old = self.past or (k[:, :, :0], v[:, :, :0])
        self.past = k.detach(), v.detach()
        return torch.cat([old[0], k], 2), torch.cat([old[1], v], 2)


@correct("token-by-token", note="token-by-token")
class CacheInADictionary(Plain):
    """The caller's dictionary is filled; right for one new token at a time."""

    def forward(self, x, layer_cache=None):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        if layer_cache is not None:
            if "k" in layer_cache:
                k = torch.cat([layer_cache["k"], k], 2)
                v = torch.cat([layer_cache["v"], v], 2)
            self.put(layer_cache, k, v)
        context = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] == k.shape[2])
        return self.o(self.merge(context))

    def put(self, cache, k, v):
        cache["k"], cache["v"] = k, v


@fault("token-by-token", "with other numbers")
class KeysKeptTwice(CacheInADictionary):
    def put(self, cache, k, v):
        cache["k"], cache["v"] = k, k


@correct("token-by-token", silent=True)
class LastStateOfARecurrence(Plain):
    """`state` is a context here that is added, and not a cache of keys."""

    def forward(self, x, state=None):
        out = super().forward(x)
        return out if state is None else out + state
