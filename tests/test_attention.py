"""The mechanism against torch's own, over sizes drawn at random."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_course import (
    CausalHead,
    LoopedMultiHeadAttention,
    MultiHeadAttention,
    attention,
    causal_mask,
)

TOLERANCE = 1e-10  # float64


@st.composite
def all_different(draw):
    """Return (batch, tokens, num_heads, head_dim), no two alike: equal sizes hide faults."""
    return tuple(draw(st.lists(st.integers(1, 8), min_size=4, max_size=4, unique=True)))


def make(kind, sizes, seed=0, **options):
    """Return a float64 module with random weights and biases, and an input that fits it."""
    batch, tokens, num_heads, head_dim = sizes
    torch.manual_seed(seed)
    module = kind(num_heads * head_dim, num_heads, **options).double()
    return module, torch.randn(batch, tokens, num_heads * head_dim, dtype=torch.float64)


def input_gradient(function, x):
    """Return the gradient of a weighted sum of the outputs with respect to the input."""
    x = x.clone().requires_grad_()
    out = function(x)
    pattern = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return torch.autograd.grad((out * pattern).sum(), x)[0]


def assert_same(first, second, x):
    torch.testing.assert_close(first(x), second(x), atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(
        input_gradient(first, x), input_gradient(second, x), atol=TOLERANCE, rtol=0
    )


def torch_call(module, causal):
    """Return the same module as torch's own class, called with the mask that it needs."""
    theirs = module.to_torch()

    def call(x):
        hidden = causal_mask(x.shape[1]) if causal else None
        return theirs(x, x, x, attn_mask=hidden, need_weights=False)[0]

    return call


@given(sizes=all_different(), causal=st.booleans(), bias=st.booleans(), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_loop_split_and_torch_give_the_same(sizes, causal, bias, seed):
    looped, x = make(LoopedMultiHeadAttention, sizes, seed, causal=causal, bias=bias)
    split = MultiHeadAttention.from_heads(looped)
    assert_same(looped, split, x)
    assert_same(split, torch_call(split, causal), x)
    assert_same(split, lambda x: split(x, need_weights=True)[0], x)


@given(sizes=all_different(), causal=st.booleans(), bias=st.booleans())
@settings(deadline=None, max_examples=30)
def test_weights_are_torchs_weights_per_head(sizes, causal, bias):
    split, x = make(MultiHeadAttention, sizes, causal=causal, bias=bias)
    hidden = causal_mask(x.shape[1]) if causal else None
    theirs = split.to_torch()(x, x, x, attn_mask=hidden, average_attn_weights=False)[1]
    torch.testing.assert_close(split(x, need_weights=True)[1], theirs, atol=TOLERANCE, rtol=0)


@given(sizes=all_different(), others=st.integers(1, 8), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_attention_is_the_fused_kernel_under_any_mask(sizes, others, seed):
    batch, tokens, num_heads, head_dim = sizes
    torch.manual_seed(seed)
    queries = torch.randn(batch, num_heads, tokens, head_dim, dtype=torch.float64)
    keys = torch.randn(batch, num_heads, others, head_dim, dtype=torch.float64)
    values = torch.randn(batch, num_heads, others, head_dim + 1, dtype=torch.float64)
    hidden = torch.rand(tokens, others) < 0.4  # some rows may be hidden whole

    def ours(queries):
        return attention(queries, keys, values, hidden)[0]

    def fused(queries):
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=~hidden)

    assert_same(ours, fused, queries)


def test_a_row_with_every_key_hidden_is_zero_and_so_is_its_gradient():
    torch.manual_seed(0)
    queries = torch.randn(2, 5, 3, requires_grad=True)
    hidden = causal_mask(5)
    hidden[2] = True
    context, weights = attention(queries, queries.detach(), queries.detach(), hidden)
    assert torch.equal(weights[:, 2], torch.zeros(2, 5))
    assert torch.equal(context[:, 2], torch.zeros(2, 3))
    gradient = torch.autograd.grad(context.square().sum(), queries)[0]
    assert gradient.isfinite().all()
    assert torch.equal(gradient[:, 2], torch.zeros(2, 3))
    assert gradient[:, 3].abs().max() > 0


def test_the_mask_is_true_above_the_diagonal():
    assert causal_mask(3).tolist() == [
        [False, True, True],
        [False, False, True],
        [False, False, False],
    ]


def test_the_caller_keeps_queries_keys_values_and_mask():
    torch.manual_seed(0)
    given = [torch.randn(2, 4, 3) for _ in range(3)]
    hidden = causal_mask(4)
    before = [tensor.clone() for tensor in (*given, hidden)]
    attention(*given, hidden)
    for tensor, old in zip((*given, hidden), before, strict=True):
        assert torch.equal(tensor, old)


@given(sizes=all_different(), data=st.data())
@settings(deadline=None, max_examples=30)
def test_no_token_sees_the_future(sizes, data):
    tokens = sizes[1]
    place = data.draw(st.integers(0, tokens - 1))
    split, x = make(MultiHeadAttention, sizes)
    changed = x.clone()
    changed[:, place] += 5.0
    for forward in (split, lambda x: split(x, need_weights=True)[0]):
        difference = (forward(changed) - forward(x)).abs().amax(dim=(0, 2))
        assert (difference[:place] == 0).all()
        assert (difference[place:] > 1e-6).all()


@given(sizes=all_different(), causal=st.booleans())
@settings(deadline=None, max_examples=30)
def test_one_sequence_does_not_see_another(sizes, causal):
    split, x = make(MultiHeadAttention, sizes, causal=causal)
    alone = torch.cat([split(sequence.unsqueeze(0)) for sequence in x])
    torch.testing.assert_close(split(x), alone, atol=TOLERANCE, rtol=0)


@given(sizes=all_different(), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_without_a_mask_the_rows_move_with_the_tokens(sizes, seed):
    split, x = make(MultiHeadAttention, sizes, seed, causal=False)
    order = torch.randperm(sizes[1])
    torch.testing.assert_close(split(x[:, order]), split(x)[:, order], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("need_weights", [False, True])
def test_dropout_keeps_the_mean_and_acts_in_training_only(need_weights):
    torch.manual_seed(0)
    split = MultiHeadAttention(12, 3, dropout=0.2).double()
    x = torch.randn(2, 5, 12, dtype=torch.float64)

    def run():
        out = split(x, need_weights=need_weights)
        return out[0] if need_weights else out

    split.eval()
    expected = run()
    assert torch.equal(run(), expected)
    split.train()
    runs = torch.stack([run() for _ in range(4000)])
    assert runs.std(dim=0).max() > 0.01
    # four standard errors at each of the 120 entries
    assert ((runs.mean(dim=0) - expected).abs() <= 4.5 * runs.std(dim=0) / 4000**0.5).all()


def test_a_weight_that_survives_dropout_is_scaled_up():
    torch.manual_seed(0)
    scores = torch.zeros(1, 1, 1000)  # one query, a thousand equal weights
    keys = torch.zeros(1, 1000, 1)
    values = torch.eye(1000).unsqueeze(0)
    context, weights = attention(scores[..., :1], keys, values, dropout=0.2)
    assert torch.allclose(weights, torch.full_like(weights, 0.001))  # before dropout
    kept = context[context != 0]
    assert torch.allclose(kept, torch.full_like(kept, 0.001 / 0.8))
    assert 740 < len(kept) < 860


def test_from_heads_and_to_torch_keep_mode_type_and_dropout():
    looped = LoopedMultiHeadAttention(12, 3, causal=False, dropout=0.2, bias=True).double().eval()
    split = MultiHeadAttention.from_heads(looped)
    assert (split.causal, split.dropout, split.training) == (False, 0.2, False)
    assert split.W_query.weight.dtype == torch.float64
    theirs = split.to_torch()
    assert (theirs.dropout, theirs.training, theirs.batch_first) == (0.2, False, True)
    assert theirs.in_proj_weight.dtype == torch.float64


def test_heads_as_wide_as_wanted_work_in_loop_and_split():
    torch.manual_seed(0)
    looped = LoopedMultiHeadAttention(6, 4, head_dim=5).double()
    split = MultiHeadAttention.from_heads(looped)
    assert_same(looped, split, torch.randn(2, 3, 6, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"4 \* 5 = 20 and d_model = 6"):
        split.to_torch()


def test_parameters_do_not_depend_on_the_number_of_heads():
    counts = {
        sum(p.numel() for p in kind(12, heads).parameters())
        for kind in (LoopedMultiHeadAttention, MultiHeadAttention)
        for heads in (1, 2, 3, 4, 6, 12)
    }
    assert counts == {4 * 12 * 12}


X = torch.zeros(2, 5, 12)
GIVEN_QKV = (torch.zeros(5, 4), torch.zeros(6, 4), torch.zeros(6, 3))
SPLIT = MultiHeadAttention(12, 3)
UNSUITABLE = [
    (lambda: MultiHeadAttention(6, 4), "6 numbers .* 4 heads .* 1, 2, 3, 6"),
    (lambda: LoopedMultiHeadAttention(6, 4), "6 numbers .* 4 heads .* 1, 2, 3, 6"),
    (lambda: MultiHeadAttention(12, 0), "num_heads must be a whole number, 1 or more, but is 0"),
    (lambda: MultiHeadAttention(-12, 3), "d_model must be a whole number, 1 or more, but is -12"),
    (lambda: MultiHeadAttention(12, 3.0), r"num_heads must be a whole number.* but is 3\.0"),
    (lambda: MultiHeadAttention(12, 3, head_dim=0), "head_dim must be"),
    (lambda: CausalHead(12, 0), "head_dim must be"),
    (lambda: CausalHead(12, 3, dropout=1), "below 1, such as 0.2, but is 1"),
    (lambda: MultiHeadAttention(12, 3, dropout=-0.1), r"but is -0\.1"),
    (lambda: LoopedMultiHeadAttention(12, 3, dropout=1.5), r"but is 1\.5"),
    (lambda: attention(*GIVEN_QKV, dropout=1.0), r"but is 1\.0"),
    (lambda: causal_mask(0), "tokens must be"),
    (lambda: SPLIT(X[0]), r"\(5, 12\): the batch is missing.*\(1, 5, 12\)"),
    (lambda: SPLIT(X[:, :0]), r"each at least 1, but has shape \(2, 0, 12\)"),
    (lambda: SPLIT(X[:0]), r"each at least 1, but has shape \(0, 5, 12\)"),
    (lambda: SPLIT(X[..., :7]), r"\(2, 5, 7\): each token has 7 numbers instead of 12"),
    (lambda: SPLIT(X.unsqueeze(0)), r"\(1, 2, 5, 12\)"),
    (lambda: SPLIT(X.long()), r"torch\.int64: use x\.float\(\)"),
    (lambda: SPLIT([[1.0]]), "but is a list"),
    (lambda: CausalHead(12, 3)(X[0]), "the batch is missing"),
    (lambda: LoopedMultiHeadAttention(12, 3)(X[0]), "the batch is missing"),
    (lambda: attention(GIVEN_QKV[2], *GIVEN_QKV[1:]), "3 wide, keys .* 4 wide"),
    (lambda: attention(*GIVEN_QKV[:2], torch.zeros(5, 3)), "6 tokens, values .* 5 tokens"),
    (lambda: attention(torch.zeros(0, 4), *GIVEN_QKV[1:]), "each size at least 1"),
    (lambda: attention(torch.zeros(4), *GIVEN_QKV[1:]), "must have shape"),
    (
        lambda: attention(torch.zeros(2, 5, 4), torch.zeros(3, 6, 4), torch.zeros(6, 3)),
        "before the last two must agree",
    ),
    (lambda: attention(*GIVEN_QKV, hidden=torch.zeros(5, 6)), r"Boolean .* torch\.float32"),
    (lambda: attention(*GIVEN_QKV, hidden=causal_mask(5)), r"\(5, 5\), .* would be \(5, 6\)"),
]


@pytest.mark.parametrize(("call", "sentence"), UNSUITABLE)
def test_unsuitable_input_gets_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
