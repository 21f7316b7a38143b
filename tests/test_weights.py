"""The weights of any module, confirmed in a second way: torch's, the module's, a derivative."""

import math

import faults  # noqa: F401 (they register themselves)
import pytest
import registry
import torch
from bases import Plain, separate
from torch import nn
from torch.overrides import TorchFunctionMode

from attention_check import weights as weights_file
from attention_check.weights import NotRead, Reader, by_derivative
from attention_course import LoopedMultiHeadAttention, MultiHeadAttention, causal_mask

CORRECT = {str(one): registry.factory(one) for one in registry.CORRECT}


def inputs(reader, batch=2, tokens=5):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(batch, tokens, reader.d_model, generator=generator)


def close(first, second):
    return first.shape == second.shape and torch.allclose(first, second, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", [LoopedMultiHeadAttention, MultiHeadAttention])
def test_the_courses_own_modules(kind, causal):
    module = kind(12, 3, head_dim=5, causal=causal, bias=True)
    reader = Reader(module)
    x = inputs(reader, batch=2, tokens=7)
    split = module if kind is MultiHeadAttention else MultiHeadAttention.from_heads(module)
    with torch.no_grad():
        output, wanted = split(x, need_weights=True)
    (layer,) = reader.layers(x)
    assert close(layer.weights, wanted)
    assert layer.hidden.equal((causal_mask(7) & causal).expand(2, 3, 7, 7))
    assert torch.allclose(reader.output(x), output, atol=1e-5)
    assert layer.how == ("softmax" if kind is LoopedMultiHeadAttention else "kernel")
    assert reader.mask is None


@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_module_and_its_mask(batch_first):
    module = nn.MultiheadAttention(12, 3, dropout=0.5, batch_first=batch_first).eval()
    reader = Reader(module)
    assert reader.mask == "attn_mask"
    x = inputs(reader, tokens=6)
    given = x if batch_first else x.transpose(0, 1)
    for masked in (True, False):
        mask = causal_mask(6) if masked else None
        with torch.no_grad():
            wanted = module(given, given, given, attn_mask=mask, average_attn_weights=False)[1]
        (layer,) = reader.layers(x, masked=masked)
        assert close(layer.weights, wanted)
        assert layer.hidden.any() == masked


def test_each_layer_of_an_encoder_in_order():
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(12, 3, 20, batch_first=True), 3, enable_nested_tensor=False
    )
    for layer in encoder.layers:
        nn.init.normal_(layer.self_attn.in_proj_weight)
    reader = Reader(encoder)
    x, wanted = inputs(reader), []
    with torch.no_grad():
        given = x
        for layer in encoder.eval().layers:
            wanted.append(layer.self_attn(given, given, given, average_attn_weights=False)[1])
            given = layer(given)
    layers = reader.layers(x, masked=False)
    assert [layer.path for layer in layers] == [f"layers.{n}.self_attn" for n in range(3)]
    for layer, weights in zip(layers, wanted, strict=True):
        assert close(layer.weights, weights)


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_blocks_of_transformers_with_and_without_the_kernel(name):
    pytest.importorskip("transformers")
    eager, fused = (CORRECT[f"{name} {kind}"](24, 4).eval() for kind in ("eager", "fused"))
    fused.load_state_dict(eager.state_dict())
    x = torch.randn(2, 6, 24)
    with torch.no_grad():
        wanted = eager(x, output_attentions=True)[1]
    for module, how in ((eager, "softmax"), (fused, "kernel")):
        (layer,) = Reader(module).layers(x)
        assert layer.how == how
        if (name, how) == ("gpt2", "kernel"):  # the model above it gives the mask to the other way
            wanted = wanted.tril() / wanted.tril().sum(-1, keepdim=True)
        assert close(layer.weights, wanted)


@pytest.mark.parametrize("name", ["ByBlocks", "TokenByToken", "HeadsOfSteps", "TokensFirst"])
def test_styles_that_make_no_table_of_weights_are_read_by_the_derivative(name):
    torch.manual_seed(0)
    plain = CORRECT["Plain"](24, 4)
    module = CORRECT[name](24, 4)
    reader = Reader(module)
    x = inputs(reader)
    (layer,) = reader.layers(x)
    if name != "HeadsOfSteps":
        module.load_state_dict(plain.state_dict(), strict=False)
        (layer,), (wanted,) = Reader(module).layers(x), Reader(plain).layers(x)
        assert close(layer.weights, wanted.weights)
    assert torch.allclose(layer.weights.sum(-1), torch.ones(()), atol=1e-5)


class HeadsBeforeBatch(Plain):
    """(num_heads * batch, tokens, head_dim): the sentences of a head lie side by side."""

    def split(self, x):
        return super().split(x).transpose(0, 1).flatten(0, 1)

    def merge(self, x):
        return super().merge(x.unflatten(0, (self.num_heads, -1)).transpose(0, 1))


def test_each_sentence_gets_its_own_weights_in_whatever_order_they_lie():
    plain = CORRECT["Plain"](24, 4)
    module = HeadsBeforeBatch(24, 4)
    module.load_state_dict(plain.state_dict())
    x = inputs(reader := Reader(module), batch=3)
    (layer,), (wanted,) = reader.layers(x), Reader(plain).layers(x)
    assert close(layer.weights, wanted.weights)


def test_the_lines_that_made_them_are_told():
    (layer,) = (reader := Reader(CORRECT["Plain"])).layers(inputs(reader))
    told = {step: text for step, (_, _, text) in layer.lines.items()}
    assert told["scores"] == "return q @ k.mT / math.sqrt(self.head_dim)"
    assert told["mask"].startswith("return scores.masked_fill(")
    assert told["softmax"] == "return scores.softmax(-1)"
    assert told["context"] == "return self.o(self.merge(weights @ v))"


class Channels(nn.Module):
    """Attention of channels to channels: its weights are no table of tokens."""

    def __init__(self, d_model):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x):
        weights = (self.q(x).mT @ self.k(x) / math.sqrt(x.shape[1])).softmax(-1)
        return self.v(x) @ weights.mT


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Sequential(nn.Linear(12, 12), nn.GELU()), "No softmax, no fused kernel"),
        (Channels(12), "not for all 5 tokens"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_sentence(module, said):
    reader = Reader(module)
    with pytest.raises(NotRead, match=said):
        reader.layers(inputs(reader))


def test_a_module_that_fails_on_an_input_says_so():
    reader = Reader(separate.make)  # its mask is 8 by 8
    with pytest.raises(NotRead, match="fails on 9 tokens of width 24"):
        reader.layers(inputs(reader, tokens=9))


def test_weights_that_do_not_explain_the_context_are_not_told(monkeypatch):
    real = weights_file.cores

    def wrong(flow):
        found = real(flow)
        for core in found:
            core.weights = core.weights.roll(1, -1)
        return found

    module = MultiHeadAttention(12, 3)
    reader = Reader(module)
    monkeypatch.setattr(weights_file, "cores", wrong)
    (layer,) = reader.layers(inputs(reader))
    assert layer.how == "derivative"
    with torch.no_grad():
        assert close(layer.weights, module(inputs(reader), need_weights=True)[1])


def test_the_module_and_the_random_state_stay_as_they_were():
    module = nn.MultiheadAttention(12, 3, dropout=0.3)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = torch.get_rng_state()
    reader = Reader(module)
    reader.layers(inputs(reader), training=True)
    assert torch.get_rng_state().equal(state)
    assert module.training
    assert all(tensor.equal(before[name]) for name, tensor in module.state_dict().items())


def test_in_training_mode_what_dropout_leaves_is_told():
    module = LoopedMultiHeadAttention(24, 4, dropout=0.5)
    reader = Reader(module)
    x = inputs(reader)
    (calm,), (noisy,) = reader.layers(x), reader.layers(x, training=True)
    kept = noisy.weights != 0
    assert 0 < kept.sum() < (calm.weights != 0).sum()
    assert torch.allclose(noisy.weights[kept], calm.weights[kept] * 2, atol=1e-5)


class Torchs(TorchFunctionMode):
    """Keeps the weights that torch itself makes: of a softmax, or of the kernel, whose values are
    the identity for once."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, getattr(function, "__name__", "")
        output = function(*args, **kwargs)
        if name in ("softmax", "_softmax"):
            self.made.append(output)
        if name == "scaled_dot_product_attention":
            names = "query", "key", "value", "attn_mask", "dropout_p", "is_causal"
            given = dict(zip(names, args, strict=False)) | kwargs
            keys = given["key"]
            values = torch.eye(keys.shape[-2]).to(keys).expand(*keys.shape[:-1], -1)
            self.made.append(function(**given | {"value": values}))
        return output

    def confirms(self, layer):
        """Whether one of them, or all together, hold the numbers of a layer's weights."""
        mine = layer.weights.flatten().sort().values
        every = [made.flatten() for made in self.made]
        sets = [made.sort().values for made in (*every, torch.cat(every))] if every else []
        return any(one.shape == mine.shape and torch.allclose(one, mine, atol=1e-5) for one in sets)


def confirmed(reader, x, layers):
    """Whether a second way gives the same weights: the derivative, or torch's own; None: no way."""
    if layers[0].how != "derivative":
        second = by_derivative(reader, x)
        if second is not None and second.weights.shape == layers[0].weights.shape:
            return torch.allclose(second.weights, layers[0].weights, atol=1e-4)
    with Torchs() as torchs:
        reader.output(x)
    return all(map(torchs.confirms, layers)) or None


@pytest.mark.long
def test_every_correct_module_is_read_and_nearly_all_are_confirmed_in_a_second_way():
    answers, unread = {}, []
    for name, build in CORRECT.items():
        torch.manual_seed(0)
        try:
            reader = Reader(build)
            x = inputs(reader, 1, 16 if name == "FixedGrid" else 5)
            answers[name] = confirmed(reader, x, reader.layers(x))
        except NotRead:
            unread.append(name)
    assert False not in answers.values(), answers
    assert unread == []
    assert sum(answer is True for answer in answers.values()) >= 0.97 * len(CORRECT)
