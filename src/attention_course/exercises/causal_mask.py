"""Notebook 2: a test for the future, a causal head; Further: a silent fault, two masks."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from ..attention import attention, causal_mask
from .exercise import Wrong, blame, draw, exercise, numbers, run, same
from .faults import Answer

FURTHER = "02_masks"  # in notebooks/further/
ZEROED = "zero after the softmax"
NORMED = "no mask, behind a LayerNorm"


class _AsModule(nn.Module):
    """A function of x and three matrices as a module, so that `check_attention` takes it."""

    def __init__(self, function, d_model, head_dim):
        super().__init__()
        self.function = function
        self.W_query, self.W_key, self.W_value = (
            nn.Parameter(matrix) for matrix in draw(*[(d_model, head_dim)] * 3)
        )

    def forward(self, x):
        return self.function(x, self.W_query, self.W_key, self.W_value)


@exercise("sees_future", 2, "A test for the future")
def check_sees_future(answer):
    """attend (tokens, width) -> (tokens, width) and x -> whether an output uses a later token."""
    seers = list(_seers())
    try:
        found = [
            _said(run(answer, _attend(hidden, name), *draw((5, 3)))) for name, hidden, *_ in seers
        ]
    except Wrong as mistake:
        empty = " Before token 0 there is no output: begin with token 1."
        raise Wrong(f"{mistake}{empty if 'numel() == 0' in mistake.error else ''}") from None
    if all(said != sees for said, (_, _, sees, _) in zip(found, seers, strict=True)):
        raise Wrong("True and False are exchanged: True where the future is seen.")
    for said, (name, _, sees, hint) in zip(found, seers, strict=True):
        if said != sees:
            raise Wrong(f"{sees} is wanted for {name}. {hint}")
    return "It tells seven leaks from two masks that hide the future."


def _said(found):
    if isinstance(found, torch.Tensor) and found.dtype == torch.bool and found.dim() == 0:
        found = found.item()
    if not isinstance(found, bool):
        raise Wrong(f"True or False is wanted, but this is a {type(found).__name__}.")
    return found


def _seers():
    """Yield (what it is, mask, whether it shows the future, what to say to who misses it)."""
    causal, nothing = causal_mask(5), torch.zeros(5, 5, dtype=torch.bool)
    past = ~causal & ~torch.eye(5, dtype=torch.bool)
    other = "The outputs of the edited token and of those after it may move: look at those before."
    copied = "Every output uses every token. Edit a copy, x.clone(), and compare with x as it was."
    small = "The earlier outputs move only a little: allow for no more than rounding."
    each = "Token {} betrays it and no other: edit each token in turn."
    yield "a causal mask", causal, False, other
    yield "no mask", nothing, True, copied
    yield "the mask begun one place late", causal.triu(2), True, "Each token sees the next one."
    yield ZEROED, causal, True, small
    yield NORMED, nothing, True, "What is added to all numbers of a token alike is lost there."
    for row, column in ((0, 4), (1, 3)):
        hole = causal.clone()
        hole[row, column] = False
        name = f"a mask with one hole: token {row} sees token {column}"
        yield name, hole, True, each.format(column)
    yield "a mask that hides the past", past, True, "Each token sees all that come after it."
    more = causal.clone()
    more[3, 0] = True
    yield "a causal mask that hides token 0 from token 3 too", more, False, "It hides the future."


def _attend(hidden, name):
    """Return a function of x: attention with the mask, plain or as its name says."""

    def attend(x):
        if name == NORMED:
            x = F.layer_norm(x, x.shape[-1:])
        if name == ZEROED:
            return attention(x, x, x)[1].masked_fill(hidden, 0.0) @ x
        return attention(x, x, x, hidden)[0]

    return attend


@exercise("causal_head", 2, "A causal head")
def check_causal_head(answer):
    """x (batch, tokens, 7) and three matrices (7, 3) -> context (batch, tokens, 3)."""
    for batch, tokens in ((2, 5), (4, 6)):
        x, *matrices = draw((batch, tokens, 7), *[(7, 3)] * 3)
        wanted = "batch, tokens, head_dim"
        try:
            context = numbers_or_nan(run(answer, x, *matrices), (batch, tokens, 3), wanted)
        except Wrong as mistake:
            hint = _head_hint(f"{mistake} {mistake.error}", tokens)
            raise Wrong(f"{mistake}{hint}") from None
        queries, keys, values = (x @ W for W in matrices)
        hidden = causal_mask(tokens)
        if not same(context, attention(queries, keys, values, hidden)[0]):
            if same(context, attention(keys, queries, values, hidden)[0]):
                raise Wrong(
                    "Queries and keys have changed places: row i holds query i with every key, "
                    "queries @ keys.mT."
                )
            scores = queries @ keys.mT / math.sqrt(3)
            if same(context, scores.masked_fill(hidden, 1e9).softmax(dim=-1) @ values):
                raise Wrong(
                    "The hidden scores become a large number, its minus forgotten, so the future "
                    "takes all: −∞, -torch.inf, hides."
                )
            if same(context, attention(queries * math.sqrt(3), keys, values, hidden)[0]):
                raise Wrong("The scores are not divided. A query is 3 wide here: divide by √3.")
            blame(_AsModule(answer, 7, 3), num_heads=1, causal=True, d_model=7)
            raise Wrong("The shape is right and the numbers are not.")
    return "No token sees a later one, and check_attention finds nothing wrong."


def _head_hint(mistake, tokens):
    """Return what is probably behind an error of torch."""
    if "matmul of (7, 3) and" in mistake:
        return " The tokens stand on the left: x @ W_query."
    if ".T" in mistake or "Expected size for first two dimensions" in mistake:
        return " A batch stands in front: `keys.mT` exchanges the last two axes only."
    if "must match the size" in mistake and f"({tokens})" in mistake:
        return f" x has {tokens} tokens in this call: make the mask for x.shape[1] of them."
    if f", {tokens}, {tokens})" in mistake:
        return " One number for each query and key: the values have not been met yet."
    return " Return the context alone." if "this is a tuple" in mistake else ""


def numbers_or_nan(result, shape, meaning):
    """As `numbers`; NaN passes, for check_attention says where it comes from."""
    tensor = result.nan_to_num(1e9) if isinstance(result, torch.Tensor) else result
    return numbers(tensor, shape, meaning)


@exercise("silent_fault", FURTHER, "Find the silent fault")
def check_silent_fault(answer):
    """What is wrong with a dealt module, and a token whose output is wrong: `case.answer(…)`."""
    if not isinstance(answer, Answer):
        raise Wrong('Answer with silent_fault = case.answer(code="…", token=…).')
    return answer.judged()


@exercise("keep_mask", FURTHER, "The mask that keeps")
def check_keep_mask(answer):
    """tokens -> Boolean (tokens, tokens), True where the token may be seen."""
    mask = run(answer, 5)
    if isinstance(mask, list | tuple):
        raise Wrong(f"This is a {type(mask).__name__}; a Boolean tensor is wanted.")
    numbers(mask, (5, 5), "a row for each token that attends, a column for each attended to")
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, torch.Tensor) else type(mask).__name__
        added = "hides what holds −∞ and nothing else"
        raise Wrong(
            f"The mask holds {kind}, and a mask of numbers is added to the scores: it {added}. "
            f"A mask that keeps is Boolean: dtype=torch.bool."
        )
    hidden = causal_mask(5)
    mistakes = {
        "This is the mask that hides: True stands on the future. Turn it round with ~.": hidden,
        "The triangle is swapped: each token keeps the future and not the past.": ~hidden.mT,
        "The future is gone, but no token sees itself: keep the diagonal too.": hidden.mT,
        "The diagonal is off by one: each token keeps the next one too.": ~hidden.triu(2),
    }
    for sentence, mask_of_mistake in mistakes.items():
        if torch.equal(mask, mask_of_mistake):
            raise Wrong(sentence)
    if not torch.equal(mask, ~hidden):
        raise Wrong("Row i should be True up to column i, itself included, and False after it.")
    return "True on the diagonal and below it: what F.scaled_dot_product_attention keeps."
