"""`check_attention` against planted faults, right variants, and modules that misbehave."""

import random
import subprocess
import sys
import threading
import time

import numpy
import pytest
import torch
from correct import CORRECT, Plain, SpareDropout
from planted import BASES, COMBINED, PLANTED, make, together
from torch import nn

from attention_check import check, check_attention
from attention_check.__main__ import main
from attention_check.rules import registry
from attention_course import MultiHeadAttention

CODES = [code for code, _, _ in PLANTED]


def _listed(answers):
    return answers if isinstance(answers, list) else [answers]


@pytest.fixture(autouse=True)
def _loud(request, monkeypatch):
    """A test of the check that fails itself is an error here, not a silent `not judged`."""
    monkeypatch.setattr(registry, "_asked", lambda rule, facts: _listed(rule.ask(facts)))


def codes(report):
    return [finding.code for finding in report.findings]


def named(cases):
    return ["-".join([str(n), *map(str, case[:2])]) for n, case in enumerate(cases)]


# --- verdicts -------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "base", "changes"), PLANTED, ids=named(PLANTED))
def test_planted_fault_is_found(code, base, changes):
    report = check_attention(make(base, *changes))
    assert codes(report) == [code], report


@pytest.mark.parametrize(("base", "expected"), COMBINED, ids=named(COMBINED))
def test_several_faults_are_all_reported_in_causal_order(base, expected):
    report = check_attention(together(base, *expected))
    assert codes(report) == expected, report


@pytest.mark.parametrize("name", CORRECT)
def test_right_variants_are_left_alone(name):
    report = check_attention(CORRECT[name])
    assert report.ok, report


def test_each_kind_is_planted_in_two_bases():
    bases = {code: {base for c, base, _ in PLANTED if c == code} for code in CODES}
    assert len(PLANTED) >= 55
    assert all(len(found) >= 2 for found in bases.values()), bases
    assert sum(len(found) == 2 for _, found in COMBINED) >= 10
    assert sum(len(found) == 3 for _, found in COMBINED) >= 3
    assert len(CORRECT) >= 30


@pytest.mark.parametrize(
    ("d_model", "num_heads"), [(6, 2), (16, 4), (10, 1), (8, 8), (12, 3), (768, 12)]
)
def test_a_module_is_taken_as_it_is(d_model, num_heads):
    assert check_attention(MultiHeadAttention(d_model, num_heads, dropout=0.1)).ok
    wrong = make("separate", ("self.head_dim**0.5", "(self.head_dim + 1)"))(d_model, num_heads)
    assert codes(check_attention(wrong)) == ["scale"]


def test_width_is_seen_with_two_widths():
    source = BASES["separate"].replace("d_model, num_heads, dropout=0.1", "d_in, d_out, num_heads")
    source = source.replace("nn.Linear(d_model, d_model, bias", "nn.Linear(d_in, d_out, bias")
    source = source.replace("nn.Linear(d_model, d_model)", "nn.Linear(d_out, d_out)")
    source = source.replace("= d_model, num_heads", "= d_out, num_heads")
    source = source.replace("d_model // num_heads", "d_out // num_heads")
    source = source.replace("Dropout(dropout)", "Dropout(0.1)")
    space = {"torch": torch, "nn": nn}
    exec(source, space)
    assert codes(check_attention(space["Attention"])) == ["width"]
    assert codes(check_attention(space["Attention"](18, 24, 4))) == ["width"]
    exec(source.replace("view(b, t, d)", "view(b, t, self.d_model)"), space)
    assert check_attention(space["Attention"]).ok
    assert check_attention(space["Attention"](18, 24, 4)).ok


def test_causal_says_what_is_meant():
    two_way, causal = CORRECT["TwoWay"], CORRECT["Plain"]
    assert codes(check_attention(two_way, causal=True)) == ["future-visible"]
    assert codes(check_attention(causal, causal=False)) == ["future-hidden"]
    assert check_attention(two_way, causal=False).ok
    assert check_attention(causal, causal=True).ok
    assert [note.code for note in check_attention(two_way).notes] == ["two-way"]


def test_a_hidden_row_is_a_note():
    notes = [note.code for note in check_attention(CORRECT["base padded"]).notes]
    assert "hidden-row" in notes
    assert "mask-convention" in notes


@pytest.mark.parametrize("dropout", [0, 0.0, 0.1])
def test_a_spare_dropout_layer_is_a_note_where_the_kernel_drops(dropout):
    module = SpareDropout(24, 3, dropout)
    report = check_attention(module)
    assert report.ok, report
    assert [note.code for note in report.notes] == ["dropout-unused"]
    assert "attn_dropout is never used here" in report.notes[0].message
    module.out_dropout, module.left_out = nn.Identity(), nn.Dropout(dropout)
    [finding] = check_attention(module).findings  # two spare layers, one kernel
    assert "The dropout layers attn_dropout and left_out never drop anything" in finding.message


def test_a_mask_in_training_mode_only_or_not_at_all():
    class EvalOnly(Plain):
        def hide(self, scores):
            return scores if self.training else super().hide(scores)

    report = check_attention(lambda d_model, num_heads: EvalOnly(d_model, num_heads))
    assert codes(report) == ["future-visible"]
    assert "training mode" in report.findings[0].message


# --- what is said ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "base", "said"),
    [
        ("length", "separate", ["works for 8 tokens", "fails for 5", "mask[:tokens, :tokens]"]),
        ("nan", "separate", ["Row 0 is NaN"]),
        ("nan", "fused", ["Row 4, the last"]),
        ("scale", "separate", ["√24", "6 numbers", "half as large"]),
        ("scale", "fused", ["not divided at all", "√6"]),
        ("future-visible", "separate", ["Position 2 sees position 4", "masked_fill_"]),
        ("future-visible", "heads", ["-1e-09", "too close"]),
        ("mask-off-by-one", "separate", ["Position 0 sees position 1"]),
        ("heads-attend-heads", "separate", ["Token 4 ignores tokens 0 to 3", "(4, 4)"]),
        ("input-cut", "separate", ["6 of the 24 numbers"]),
        ("wrong-pair", "separate", ["W_key changes nothing", "values"]),
        ("not-registered", "heads", ["self.heads", "nn.ModuleList"]),
        ("not-a-buffer", "separate", ["self.mask", "register_buffer"]),
        ("unused-layer", "separate", ["out_proj"]),
        ("softmax-axis", "fused", ["Columns sum to one", "dim=-1"]),
    ],
)
def test_messages_give_positions_sizes_and_factors(code, base, said):
    message = check_attention(together(base, code)).findings[0].message
    assert all(words in message for words in said), message


def test_a_report_reads_and_draws_itself():
    report = check_attention(together("separate", "dropout-unused", "future-visible", "scale"))
    assert not report.ok
    assert str(report).startswith("Attention: 3 things are wrong")
    drawn = report._repr_html_()
    assert drawn.count("<details open>") == 1
    assert "✗" in drawn
    again = check_attention(together("separate", "dropout-unused", "future-visible", "scale"))
    assert again._repr_html_() == drawn
    with pytest.raises(AssertionError, match="scale"):
        report.raise_if_wrong()


def test_what_was_not_judged_stands_beside_ok():
    report = check_attention(CORRECT["TokenByToken"])
    assert report.ok
    assert "scale not judged, because the softmax cannot be seen" in report.headline
    codes = "split-by-view, merge-by-view, softmax-axis and not-normalised"
    assert f"{codes} not judged, because no softmax is in sight" in report.headline
    assert report.raise_if_wrong() is report


def test_no_quote_where_the_source_is_not_to_be_had():
    space = {"torch": torch, "nn": nn}
    text = BASES["fused"].replace("att = att.masked_fill", "att.masked_fill")
    exec("import math\nimport torch.nn.functional as F\n" + text, space)
    report = check_attention(space["Attention"])
    assert "the result of masked_fill is thrown away. " in report.findings[0].message


def test_queries_and_keys_with_their_names_swapped_are_the_same_function():
    swapped = ("queries @ keys.transpose(2, 3)", "keys @ queries.transpose(2, 3)")
    assert check_attention(make("separate", swapped)).ok


# --- no attention ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    [nn.Linear(24, 24), nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 24))],
)
def test_a_module_without_attention_is_no_finding(module):
    with pytest.raises(ValueError, match="No attention is in sight"):
        check_attention(module)


def test_tokens_that_mix_without_attention_are_said_to():
    report = check_attention(nn.LSTM(24, 24, batch_first=True))
    assert report.ok
    assert "may be no attention at all" in report.headline


class Entrywise(Plain):
    def forward(self, x):
        return self.o((self.q(x) * self.k(x)).softmax(-1) * self.v(x))


def test_an_entrywise_product_is_a_finding_all_the_same():
    report = check_attention(Entrywise(24, 4))
    assert codes(report) == ["past-hidden"]
    assert "queries @ keys.mT" in report.findings[0].message


# --- the caller's state ---------------------------------------------------------------------


class Uncopyable(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.lock, self.kept = threading.Lock(), self.q(torch.randn(2, d_model))


class NeverCopied(Plain):
    def __deepcopy__(self, memo):
        raise RuntimeError("not copied")


@pytest.mark.parametrize("kind", [Plain, Uncopyable, NeverCopied])
def test_the_callers_state_is_as_it_was(kind):
    module, called = kind(24, 4).train(), []
    module(torch.randn(2, 5, 24)).sum().backward()
    module.register_forward_hook(lambda *_: called.append(1))
    weights = [p.clone() for p in module.parameters()]
    grads = [p.grad.clone() for p in module.parameters()]
    torch.manual_seed(3)
    random.seed(3)
    numpy.random.seed(3)
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    torch.set_default_dtype(torch.float64)
    try:
        assert check_attention(module).ok
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), numpy.random.get_state()[1].tolist())
    assert not called
    assert len(module._forward_hooks) == 1
    assert module.training
    assert all(map(torch.equal, weights, module.parameters()))
    assert all(torch.equal(g, p.grad) for g, p in zip(grads, module.parameters(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_another_precision_is_checked_in_float32(dtype):
    module = Plain(24, 4).to(dtype)
    assert check_attention(module).ok
    assert {p.dtype for p in module.parameters()} == {dtype}


# --- modules that misbehave -----------------------------------------------------------------


def misbehaving(act):
    class Odd(Plain):
        def forward(self, x):
            return act(self, x, super().forward)

    return lambda d_model, num_heads: Odd(d_model, num_heads)


def _raise(self, x, forward):
    raise RuntimeError("nothing works")


def _default_dtype(self, x, forward):
    torch.set_default_dtype(torch.float64)
    return forward(x)


def _seed(self, x, forward):
    torch.manual_seed(1)
    return forward(x)


def _no_training(self, x, forward):
    if self.training:
        raise RuntimeError("not in training")
    return forward(x)


def _in_place(self, x, forward):
    return forward(x).exp().mul_(2).sigmoid_().add_(1)


@pytest.mark.parametrize(
    ("act", "code", "said"),
    [
        (_raise, "crash", "nothing works"),
        (lambda self, x, forward: "text", "crash", "returned a str"),
        (lambda self, x, forward: None, "crash", "returned a NoneType"),
        (lambda self, x, forward: forward(x).detach().numpy(), "crash", "returned a ndarray"),
        (lambda self, x, forward: forward(x).mean(1), "crash", "instead of"),
        (lambda self, x, forward: forward(x.cuda()), "crash", "CUDA"),
        (_default_dtype, "global-state", "default dtype"),
        (_seed, "global-state", "seed"),
        (_no_training, "crash", "fails in training mode"),
        (_in_place, "crash", "backward fails"),
    ],
)
def test_a_misbehaving_module_gets_a_clear_finding(act, code, said):
    report = check_attention(misbehaving(act))
    assert codes(report)[0] == code, report
    assert said in report.findings[0].message, report


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        ("text", "takes a module"),
        (nn.Module(), "d_model=24"),
        (lambda d_model, num_heads: 1 / 0, "could not be made"),
        (lambda d_model, num_heads: torch.relu, "should return an nn.Module"),
        (nn.Embedding, "def make"),
        (lambda d_model, num_heads: nn.Sequential(nn.Embedding(9, d_model)), "token numbers"),
        (MultiHeadAttention(24, 4).to("meta"), "meta"),
    ],
)
def test_what_cannot_be_checked_is_a_sentence(thing, said):
    with pytest.raises(ValueError, match=said):
        check_attention(thing)


def test_a_slow_module_is_cut_off(monkeypatch):
    monkeypatch.setattr(check, "SECONDS", 1)

    def slow(self, x, forward):
        time.sleep(0.15)
        return forward(x)

    report = check_attention(misbehaving(slow))
    assert "stopped after 1 seconds" in str(report)
    assert report.ok


def test_one_endless_call_is_cut_off(monkeypatch):
    monkeypatch.setattr(check, "SECONDS", 1)

    def endless(self, x, forward):
        while True:
            pass

    report = check_attention(misbehaving(endless))
    assert "not checked" in report.headline
    with pytest.raises(AssertionError, match="nothing was judged"):
        report.raise_if_wrong()


# --- the command ----------------------------------------------------------------------------

FILE = """
import torch
from torch import nn
from attention_course import MultiHeadAttention as Right

class Wrong(Right):
    def forward(self, x):
        return super().forward(x.flip(1)).flip(1)

def make(d_model, num_heads):
    return Wrong(d_model, num_heads)

class Config(nn.Module):
    def __init__(self, config):
        super().__init__()

module = Right(12, 3)
"""


@pytest.mark.parametrize(
    ("name", "status"),
    [("Right", 0), ("module", 0), ("Wrong", 1), ("make", 1), ("Config", 2), ("absent", 2)],
)
def test_the_command_ends_with_a_status(name, status, tmp_path, capsys):
    file = tmp_path / "learner.py"
    file.write_text(FILE)
    sizes = [] if name == "module" else ["--d-model", "24", "--num-heads", "4"]
    assert main([f"{file}:{name}", *sizes]) == status
    printed = capsys.readouterr()
    assert ("def make(d_model, num_heads):" in printed.err) == (name == "Config")
    assert ("past-hidden" in printed.out) == (status == 1)


def test_the_command_runs_as_a_module(tmp_path):
    file = tmp_path / "learner.py"
    file.write_text(FILE)
    command = [sys.executable, "-m", "attention_check", f"{file}:make"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stderr
    assert "past-hidden" in run.stdout
