"""The simple pictures: what they draw and what they say."""

import io
import subprocess
import sys
from xml.etree import ElementTree

import numpy
import pytest
import torch
from matplotlib.image import imread

from attention_course.figures import bars, heat_map, heat_maps, lines, spread
from attention_course.figures.drawing import DPI, Box, Text
from attention_course.figures.sheet import Sheet

WEIGHTS = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0]])
HIDDEN = torch.tensor([[False, True, True], [False, False, True]])
ROWS, COLUMNS = ["the", "dog"], ["the", "dog", "ran"]


def test_bars_draw_each_panel_on_one_scale():
    panels = {f"panel {n}": 0.1 + n * torch.rand(3) for n in range(1, 6)}
    picture = bars(panels, ["a", "b", "c"], "weight", "Five panels", columns=2)
    axes = picture.figure.axes
    assert [ax.get_title() for ax in axes] == list(panels)  # the sixth place is empty
    assert len({ax.get_ylim() for ax in axes}) == 1
    for ax, values in zip(axes, panels.values(), strict=True):
        assert [bar.get_height() for bar in ax.patches] == pytest.approx(values.tolist())
        assert [text.get_text() for text in ax.texts] == [f"{v:.2f}" for v in values.tolist()]
    assert "Five panels" in repr(picture)
    assert "panel 5" in repr(picture)


def test_a_bar_that_rounds_to_0_has_no_number():
    (ax,) = bars({"a": [0.004, 0.25, 0.0]}, ["a", "b", "c"], "weight", "One panel").figure.axes
    assert [text.get_text() for text in ax.texts] == ["", "0.25", ""]


def test_logarithmic_axes_have_plain_numbers():
    picture = lines({"a": ([2, 32, 512], [1.0, 4.0, 16.0])}, "d", "size", "t", logx=True, logy=True)
    picture.figure.canvas.draw()
    (ax,) = picture.figure.axes
    assert [label.get_text() for label in ax.get_xticklabels()] == ["2", "32", "512"]
    assert "10" in [label.get_text() for label in ax.get_yticklabels()]


def test_numbers_beside_the_vertical_axis_can_be_chosen():
    picture = lines({"a": ([1, 2], [1.0, 4.0])}, "d", "size", "t", logy=True, yticks=[1, 2, 4])
    picture.figure.canvas.draw()
    (ax,) = picture.figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["1", "2", "4"]
    assert not [text for text in ax.get_yticklabels(minor=True) if text.get_text()]


def test_a_heat_map_numbers_what_is_seen_and_hatches_what_is_hidden():
    ax = heat_map(WEIGHTS, ROWS, COLUMNS, "weights", HIDDEN).figure.axes[0]
    assert [text.get_text() for text in ax.texts] == ["1.00", "0.25", "0.75"]
    assert [patch.get_hatch() for patch in ax.collections] == ["////"] * 3


def test_heat_maps_share_one_colour_scale():
    picture = heat_maps({"small": WEIGHTS, "large": 4 * WEIGHTS}, ROWS, COLUMNS)
    assert [ax.images[0].get_clim() for ax in picture.figure.axes] == [(0.0, 4.0)] * 2


def test_numbers_on_both_sides_of_zero_get_a_scale_with_zero_in_its_middle():
    ax = heat_map(WEIGHTS - 0.75, ROWS, COLUMNS, "scores").figure.axes[0]
    assert ax.images[0].get_clim() == (-0.75, 0.75)


def test_spread_draws_every_value_and_puts_zeros_at_the_edge():
    values = {"plain": [0.0, 1e-7, 2e-7], "masked": [0.5, 2.0]}
    ax = spread({"float32": values}, "difference", "draws", lowest=1e-9).figure.axes[0]
    xs, ys = ax.lines[0].get_data()
    assert list(xs) == [1e-9, 1e-7, 2e-7, 0.5, 2.0]
    assert list(ys) == [0, 0, 0, 1, 1]
    assert ax.get_xscale() == "log"


@pytest.mark.parametrize(
    "picture",
    [
        heat_map(WEIGHTS, ROWS, COLUMNS, "weights of a head"),
        heat_maps({"one head": WEIGHTS, "another": WEIGHTS}, ROWS, COLUMNS),
        lines({"time": ([1, 2], [3, 4])}, "heads", "seconds", "time of a pass"),
        spread({"float32": {"plain": [1e-7]}}, "difference", "two hundred draws"),
    ],
    ids=["heat_map", "heat_maps", "lines", "spread"],
)
def test_a_picture_says_in_words_what_it_shows(picture):
    data, metadata = picture._repr_mimebundle_()
    assert len(data["text/plain"].split()) >= 6
    assert metadata["image/png"]["alt"] == data["text/plain"] == repr(picture)
    assert picture.png().startswith(b"\x89PNG")


def test_pictures_do_without_pyplot():
    code = "import sys, attention_course.figures; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("text", ["8", "0.25", "1.5"])
def test_a_number_stands_centred_where_it_is_put(text):
    sheet = Sheet()
    sheet.text(310, 45, text, 40, "center")
    pixels = imread(io.BytesIO(sheet.picture(100, "").png()))[..., 0]  # 0 is black
    rows, columns = (pixels < 0.5).nonzero()
    scale = DPI / 96
    assert (columns.min() + columns.max()) / 2 / scale == pytest.approx(310, abs=2)
    assert (rows.min() + rows.max()) / 2 / scale == pytest.approx(45, abs=3)
    assert (rows.max() - rows.min()) / scale == pytest.approx(0.73 * 40, abs=2)


def test_what_comes_later_lies_over_what_came_before():
    sheet = Sheet(width=100)
    sheet.text(0, 50, "MMMMMMMMMMMM", 40)
    sheet.cells(0, 0, (100, 100), numpy.array([[[255, 0, 0]]], dtype=numpy.uint8))
    sheet.box(20, 20, 60, 60, "#00ff00")
    sheet.line([(0, 50), (100, 50)], "#0000ff", width=10)
    picture = sheet.picture(100, "")
    pixels = imread(io.BytesIO(picture.png()))[..., :3]
    middle = len(pixels) // 2
    assert pixels[middle, middle].tolist() == [0, 0, 1]
    assert pixels[middle // 2, middle].tolist() == [0, 1, 0]
    assert pixels[3, middle].tolist() == [1, 0, 0]
    kinds = [node.tag.split("}")[1] for node in ElementTree.fromstring(picture.svg())]
    assert kinds == ["defs", "rect", "text", "g", "rect", "polyline"]


def test_svg_says_where_each_thing_stands():
    sheet = Sheet()
    sheet.box(1.5, 2, 30, 40, "#abcdef", "#123456", 2)
    sheet.box(5, 6, 7, 8, hatched=True)
    sheet.text(10, 20, "a < b", 10, "right", "#111111", bold=True)
    sheet.text(50, 60, "up", 10, upright=True)
    sheet.cells(1, 2, (10, 20), numpy.array([[[255, 0, 16], [0, 1, 2]]], dtype=numpy.uint8))
    root = ElementTree.fromstring(sheet.picture(300, "").svg())
    assert root.attrib["viewBox"] == "0 0 500 300"
    _, _, box, hatched, text, upright, cells = root
    assert {**box.attrib, "x": "1.5", "fill": "#abcdef", "stroke-width": "2"} == box.attrib
    assert (hatched.attrib["fill"], "stroke" in hatched.attrib) == ("url(#hidden)", False)
    assert (text.text, text.attrib["text-anchor"], text.attrib["y"]) == ("a < b", "end", "23.6")
    assert text.attrib["font-weight"] == "bold"
    assert upright.attrib["transform"] == "rotate(-90 53.6 60)"
    assert [cell.attrib["fill"] for cell in cells] == ["#ff0010", "#000102"]
    assert [cell.attrib["d"] for cell in cells] == ["M1 2h10v20h-10z", "M11 2h10v20h-10z"]


def test_a_matrix_writes_each_number_into_its_own_cell():
    values = torch.tensor([[0.25, -1.5, 3.0], [4.0, 0.5, -0.01]])
    hidden = torch.tensor([[False, False, False], [True, True, False]])
    sheet = Sheet()
    sheet.matrix(10, 20, values, (30, 24), hidden=hidden, decimals=1)
    texts = {(item.x, item.y): item.text for item in sheet.items if isinstance(item, Text)}
    assert texts == {(25, 32): "0.2", (55, 32): "-1.5", (85, 32): "3.0", (85, 56): "0.0"}
    (hatched,) = [item for item in sheet.items if isinstance(item, Box) and item.hatched]
    assert (hatched.x, hatched.y, hatched.width, hatched.height) == (10, 44, 60, 24)
