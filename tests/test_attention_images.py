"""Heat maps as images: labels in any script and no boxes, colours by weight."""

import numpy as np
import pytest

from attention_viewer import images
from attention_viewer.images import CELL, draw_heat_map, find_font
from attention_viewer.tokens import Tokens, visible_piece


@pytest.fixture
def without_fonts(monkeypatch):
    """A system that has no font but Pillow's own."""
    monkeypatch.setattr(images, "_fonts", tuple)


def cells_of(image, rows, columns):
    """Return the colour in the middle of each cell, which are at the lower right."""
    image = image[: -6 - 1, : -6 - 1] if image.shape[1] > columns * CELL else image
    ys = image.shape[0] - CELL // 2 - CELL * np.arange(rows)[::-1]
    xs = image.shape[1] - CELL // 2 - CELL * np.arange(columns)[::-1]
    return image[ys][:, xs]


def test_cells_are_the_darker_the_larger_the_weight():
    weights = np.array([[0.0, 0.01, 0.1, 0.3, 0.6, 1.0]])
    image = draw_heat_map(weights, Tokens(["row"]), Tokens(list("abcdef")), "")
    (row,) = cells_of(image, 1, 6)
    assert row[0].tolist() == [255, 255, 255]
    assert row[-1].tolist() == [8, 48, 107]
    assert np.all(np.diff(row.sum(axis=1).astype(int)) < 0)


def test_the_image_holds_all_labels():
    weights = np.full((2, 3), 0.5)
    small = draw_heat_map(weights, Tokens(["a", "b"]), Tokens(["c", "d", "e"]), "")
    long = draw_heat_map(weights, Tokens(["a", "x" * 10]), Tokens(["c", "d", "y" * 10]), "")
    assert long.shape[0] > small.shape[0] and long.shape[1] > small.shape[1]
    endless = draw_heat_map(weights, Tokens(["a", "x" * 500]), Tokens(["c", "d", "e"]), "")
    assert endless.shape[1] < 300
    titled = draw_heat_map(weights, Tokens(["a", "b"]), Tokens(["c", "d", "e"]), "title " * 20)
    assert titled.shape[1] > small.shape[1]


def test_what_no_font_has_is_spelt_by_its_code(without_fonts):
    def width(label):
        return draw_heat_map(np.ones((1, 1)), Tokens([label]), Tokens(["x"]), "").shape[1]

    assert find_font("火") is None
    assert width("火") == width("[U+706B]") > width("x") + 20


def test_a_font_has_every_character_asked_for():
    assert find_font("plain text") is not None or not images._fonts()
    assert find_font("a\U0010fffe") is None  # no font has it


@pytest.mark.parametrize(
    "piece, shown",
    [("▁tea", "tea"), ("▁", "␣"), ("▁a▁b", "a b"), ("a\u200bb", "a<200B>b"), ("茶", "茶")],
)
def test_pieces_are_shown_with_nothing_unseen(piece, shown):
    assert visible_piece(piece) == shown
