"""Masks that forward takes."""

import pytest
from bases import padded
from faults.mask_arguments import MaskRequired, MaskTurned, NearFill, PairsOfThreeInputs
from faults.roles import Looking
from registry import faults_of, look_alikes_of, notes
from torch import nn

from attention_check import check_attention


@faults_of("mask_arguments")
def test_faults_are_found(fault):
    fault.judge()


@look_alikes_of("mask_arguments")
def test_look_alikes_are_left_alone(correct):
    correct.judge()


def test_the_convention_of_a_mask_is_noted():
    assert {"hidden-row", "mask-convention"} <= set(notes(check_attention(padded.make)))


def test_what_a_mask_should_hide_is_marked():
    assert check_attention(NearFill)._repr_html_().count("✗ 1<") == 4  # one column of five
    assert check_attention(MaskTurned)._repr_html_().count("✗ 1<") == 10  # the future


def test_a_mask_inside_an_encoder_is_not_judged_by_what_the_decoder_sees():
    report = check_attention(nn.Transformer(24, 4, 1, 1, 40, batch_first=True))
    assert not report.findings, report
    [sentence, memory] = sorted(report.cannot_tell, key=lambda told: "memory" in told)
    assert memory.startswith("mask-argument of memory_mask and")
    assert "memory_key_padding_mask not judged, because the tokens that it hides go" in memory
    why = "because it hides pairs in an encoder"
    assert sentence.startswith(f"mask-argument of src_mask not judged, {why}")
    understood = [note.message.partition(",")[0] for note in report.notes]
    names = "tgt_mask", "src_key_padding_mask", "tgt_key_padding_mask"
    assert understood == [f"{name} is understood as Boolean" for name in names]


def test_a_mask_of_numbers_is_told_by_them():
    [note] = check_attention(PairsOfThreeInputs).notes
    assert note.message == "mask is understood as 1 = keep, 0 = hidden, shape (tokens, tokens)."


class MaskOfTheMemoryIgnored(Looking):
    def forward(self, x, memory, memory_mask):
        return super().forward(x, memory)


def test_the_mask_of_a_memory_is_judged():
    [finding] = check_attention(MaskOfTheMemoryIgnored).findings
    assert finding.code == "mask-argument"
    assert "forward takes memory_mask, but no mask changes the output" in finding.message


class FourAxesOfTheMask(MaskRequired):
    def forward(self, x, mask):
        if mask.dim() != 4 or mask.shape[:2] != (1, 1):
            raise ValueError
        return super().forward(x, mask)


def test_a_mask_of_an_unknown_shape_is_asked_for():
    with pytest.raises(ValueError, match="needs mask, and no mask of a shape that the check"):
        check_attention(FourAxesOfTheMask)
