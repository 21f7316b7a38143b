"""The simple pictures: what they draw and what they say."""

import pytest
import torch

from attention_course.figures import bars, lines


def test_bars_draw_each_panel_on_one_scale():
    panels = {f"panel {n}": torch.rand(3) * n for n in range(1, 6)}
    picture = bars(panels, ["a", "b", "c"], "weight", "Five panels", columns=2)
    axes = picture.figure.axes
    assert [ax.get_title() for ax in axes] == list(panels)  # the sixth place is empty
    assert len({ax.get_ylim() for ax in axes}) == 1
    for ax, values in zip(axes, panels.values(), strict=True):
        assert [bar.get_height() for bar in ax.patches] == pytest.approx(values.tolist())
        assert [text.get_text() for text in ax.texts] == [f"{v:.2f}" for v in values.tolist()]
    assert "Five panels" in repr(picture)
    assert "panel 5" in repr(picture)


def test_logarithmic_axes_have_plain_numbers():
    picture = lines({"a": ([2, 32, 512], [1.0, 4.0, 16.0])}, "d", "size", "t", logx=True, logy=True)
    picture.figure.canvas.draw()
    (ax,) = picture.figure.axes
    assert [label.get_text() for label in ax.get_xticklabels()] == ["2", "32", "512"]
    assert "10" in [label.get_text() for label in ax.get_yticklabels()]
