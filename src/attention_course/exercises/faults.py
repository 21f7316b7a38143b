"""Modules with one planted silent fault: the right shape, no error, a wrong answer."""

import linecache
import math
import random
import re
from dataclasses import dataclass, field

import torch
from torch import nn

from .exercise import Wrong, same

ONE_HEAD = """\
class Head(nn.Module):
    def __init__(self, d_model, head_dim):
        super().__init__()
        self.W_query = nn.Linear(d_model, head_dim, bias=False)
        self.W_key = nn.Linear(d_model, head_dim, bias=False)
        self.W_value = nn.Linear(d_model, head_dim, bias=False)

    def forward(self, x):  # (batch, tokens, d_model)
        tokens, d_model = x.shape[1], x.shape[2]
        queries, keys, values = self.W_query(x), self.W_key(x), self.W_value(x)
        head_dim = keys.shape[-1]
        scores = queries @ keys.mT
        scores = scores / math.sqrt(head_dim)
        hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(diagonal=1)
        scores = scores.masked_fill(hidden, -torch.inf)
        weights = scores.softmax(dim=-1)
        return weights @ values
"""

MANY_HEADS = """\
class Heads(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.W_query = nn.Linear(d_model, d_model, bias=False)
        self.W_key = nn.Linear(d_model, d_model, bias=False)
        self.W_value = nn.Linear(d_model, d_model, bias=False)
        self.W_out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        batch, tokens, d_model = x.shape
        heads, head_dim = self.num_heads, self.head_dim

        def split(projected):
            return projected.view(batch, tokens, heads, head_dim).transpose(1, 2)

        queries, keys, values = map(split, (self.W_query(x), self.W_key(x), self.W_value(x)))
        scores = queries @ keys.mT
        scores = scores / math.sqrt(head_dim)
        hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(diagonal=1)
        scores = scores.masked_fill(hidden, -torch.inf)
        weights = scores.softmax(dim=-1)
        context = weights @ values
        context = context.transpose(1, 2).reshape(batch, tokens, d_model)
        return self.W_out(context)
"""

# code -> the ways in which it is planted: the line as it is right, the line as it goes wrong
_FILL = "scores = scores.masked_fill(hidden, -torch.inf)"
IN_BOTH = {
    "scale": [
        ("math.sqrt(head_dim)", "math.sqrt(d_model)"),
        ("scores / math.sqrt(head_dim)", "scores * math.sqrt(head_dim)"),
        ("math.sqrt(head_dim)", "head_dim"),
    ],
    "future-visible": [
        (_FILL, "scores.masked_fill(hidden, -torch.inf)"),
        (_FILL, "scores = scores.masked_fill(hidden, -1e-9)"),
    ],
    "mask-off-by-one": [("triu(diagonal=1)", "triu(diagonal=2)")],
    "softmax-axis": [("softmax(dim=-1)", "softmax(dim=-2)")],
    "not-normalised": [
        (
            f"        {_FILL}\n        weights = scores.softmax(dim=-1)\n",
            "        weights = scores.softmax(dim=-1)\n"
            "        weights = weights.masked_fill(hidden, 0.0)\n",
        )
    ],
    "wrong-pair": [("queries @ keys.mT", "queries @ values.mT")],
    "wrong-values": [("weights @ values", "weights @ keys")],
}
IN_MANY = {
    "split-by-view": [
        (
            "view(batch, tokens, heads, head_dim).transpose(1, 2)",
            "view(batch, heads, tokens, head_dim)",
        )
    ],
    "merge-by-view": [("context.transpose(1, 2).reshape", "context.reshape")],
}

# other names for the same variables, so that not everybody reads the same text
SPELLINGS = [
    {},
    {"queries": "q", "keys": "k", "values": "v", "scores": "s", "weights": "w"},
    {"scores": "logits", "weights": "shares", "hidden": "future"},
]
TOKENS = 6

# code -> (what it means, what to say to somebody who suspects it and is wrong)
MEANINGS = {
    "scale": (
        "the scores are not divided by √head_dim",
        "the divisor is √head_dim, as it should be",
    ),
    "future-visible": ("the mask has no effect", "the mask does hide something"),
    "mask-off-by-one": ("the mask begins one place off", "the mask begins at the right place"),
    "softmax-axis": ("the softmax runs over the wrong axis", "the softmax runs along the rows"),
    "not-normalised": (
        "the weights do not add up to 1 when they meet the values",
        "nothing changes the weights between the softmax and the values",
    ),
    "wrong-pair": ("the scores are not queries times keys", "each score is a query times a key"),
    "wrong-values": ("the weights do not meet the values", "the weights meet the values"),
    "split-by-view": (
        "the heads are cut without a transpose",
        "each head gets its own columns of every token",
    ),
    "merge-by-view": (
        "the heads are joined without a transpose",
        "the heads are put back side by side for every token",
    ),
}


@dataclass(frozen=True)
class Case:
    """A module with one silent fault. `module` and `x` (1, tokens, d_model) are there to try.

    Shown, it prints the module's text and the codes of what may be wrong. `answer` takes what
    you found.
    """

    seed: int
    source: str
    module: nn.Module
    x: torch.Tensor
    codes: tuple
    _planted: str = field(repr=False)
    _right: torch.Tensor = field(repr=False)

    def answer(self, code=None, token=None):
        """Return your answer; None as long as it is empty.

        code: what is wrong. token: the number, from 0, of a token whose output is wrong on x.
        """
        return None if code is None and token is None else Answer(self, code, token)

    def __repr__(self):
        meanings = "\n".join(f"  {code:16} {MEANINGS[code][0]}" for code in self.codes)
        return f"{self.source}\nOne of these is wrong with it:\n{meanings}"


@dataclass(frozen=True)
class Answer:
    """What a learner says is wrong with a case, and which token betrays it."""

    case: Case
    code: str
    token: int

    def judged(self, token_asked=True):
        """Return what `check_attention` says of the case, or raise Wrong.

        token_asked: False where the code alone is wanted.
        """
        case = self.case
        if self.code not in case.codes:
            raise Wrong(
                f"The code is {self.code!r}, but one of these is wanted: {', '.join(case.codes)}."
            )
        if self.code != case._planted:
            raise Wrong(f'It is not "{self.code}": {MEANINGS[self.code][1]}.')
        if token_asked:
            self._judge_token()
        from attention_check import check_attention

        return f"check_attention says: {check_attention(case.module, causal=True).findings[0]}"

    def _judge_token(self):
        case = self.case
        if self.token is None:
            raise Wrong(
                f"{self.code} it is. The token is missing: a number from 0 to {TOKENS - 1}."
            )
        if isinstance(self.token, bool) or self.token not in range(TOKENS):
            raise Wrong(f"{self.code} it is. There is no token {self.token!r}: 0 to {TOKENS - 1}.")
        output = case.module(case.x).detach()
        if same(output[0, self.token], case._right[0, self.token]):
            raise Wrong(
                f"{self.code} it is, but the output of token {self.token} is what a right module "
                f"gives. Which token does the fault reach?"
            )


def find_the_fault(seed, num_heads=1):
    """Deal a module with one planted silent fault: another for each seed.

    num_heads: 1 for one causal head, more for several heads split and merged. Returns a Case.
    Raises ValueError where seed is no whole number or num_heads is less than 1.
    """
    for name, value, least in (("seed", seed, 0), ("num_heads", num_heads, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be a whole number, {least} or more, but is {value!r}.")
    text, kinds = (ONE_HEAD, IN_BOTH) if num_heads == 1 else (MANY_HEADS, IN_BOTH | IN_MANY)
    ways = [(code, *way) for code, listed in kinds.items() for way in listed]
    code, old, new = ways[seed * 7 % len(ways)]  # neighbours get different faults
    chance = random.Random(seed)
    sizes = _sizes(num_heads, chance)
    words = chance.choice(SPELLINGS)
    source, right = (_spelled(t, words) for t in (text.replace(old, new), text))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        correct = _made(right, sizes)
        x = torch.randn(1, TOKENS, sizes[0])
        module = _made(source, sizes)
    module.load_state_dict(correct.state_dict())
    return Case(seed, source, module, x, tuple(kinds), code, correct(x).detach())


def _sizes(num_heads, chance):
    """Return what the class takes, all sizes different: (d_model, head_dim or num_heads)."""
    if num_heads == 1:
        return chance.choice([(7, 3), (8, 5), (9, 4)])
    return num_heads * chance.choice([n for n in (3, 4, 5) if n != num_heads]), num_heads


def _spelled(text, words):
    for word, other in words.items():
        text = re.sub(rf"\b{word}\b", other, text)
    return text


def _made(source, sizes):
    """Make the module of a text, whose lines tracebacks and `check_attention` can quote."""
    file = f"<attention {hash(source)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace = {"nn": nn, "torch": torch, "math": math, "__name__": "find_the_fault"}
    exec(compile(source, file, "exec"), namespace)
    return namespace["Head" if "class Head(" in source else "Heads"](*sizes)
