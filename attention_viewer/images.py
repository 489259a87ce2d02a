"""Heat maps as images, for TensorBoards without the plugin, with labels in any script."""

import functools
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

from attention_viewer.tokens import Tokens, visible_piece

CELL = 18  # pixels
FONT_SIZE = 13
MAX_LABEL = 16  # characters
PAPER, INK = (255, 255, 255), (31, 35, 40)
# As in the viewer: from no weight to all of it.
STOPS = ("#ffffff", "#dbe9f6", "#a6cbe6", "#5ba3d0", "#2171b5", "#08306b")
# Where systems without fontconfig keep fonts that have Chinese.
FONT_FILES = (
    "/System/Library/Fonts/PingFang.ttc",
    "/System/Library/Fonts/Hiragino Sans GB.ttc",
    "C:/Windows/Fonts/msyh.ttc",
    "C:/Windows/Fonts/simsun.ttc",
)
NO_CHARACTER = "\U0010ffff"  # is in no font, so its picture is that of a missing one


def draw_heat_map(weights: np.ndarray, rows: Tokens, columns: Tokens, title: str) -> np.ndarray:
    """Draw a labelled heat map; its colours are linear in the square root of a weight.

    Args:
        weights: float (rows, columns), in [0, 1].
        rows: Tokens that attend.
        columns: Tokens attended to.
        title: Stands above.

    Returns:
        uint8 (height, width, 3).
    """
    row_pictures = [_picture(label) for label in _labels(rows)]
    column_pictures = [_picture(label).rotate(90, expand=True) for label in _labels(columns)]
    heading = _picture(title)
    left = max(image.width for image in row_pictures) + 6
    top = heading.height + max(image.height for image in column_pictures) + 8
    width = max(left + CELL * len(columns) + 6, heading.width + 8)
    page = Image.new("RGB", (width, top + CELL * len(rows) + 6), PAPER)
    page.paste(heading, (4, 2))
    for i, image in enumerate(row_pictures):
        page.paste(image, (left - 4 - image.width, top + i * CELL + (CELL - image.height) // 2))
    for i, image in enumerate(column_pictures):
        page.paste(image, (left + i * CELL + (CELL - image.width) // 2, top - 4 - image.height))
    cells = np.repeat(np.repeat(_colors(weights), CELL, axis=0), CELL, axis=1)
    page.paste(Image.fromarray(cells), (left, top))
    frame = (left - 1, top - 1, left + CELL * len(columns), top + CELL * len(rows))
    ImageDraw.Draw(page).rectangle(frame, outline=(200, 205, 210))
    return np.asarray(page)


def find_font(text: str) -> ImageFont.FreeTypeFont | None:
    """Return a font of this system that has every character of a text, or None."""
    for font in _fonts():
        missing = bytes(font.getmask(NO_CHARACTER))
        if all(c.isspace() or bytes(font.getmask(c)) != missing for c in set(text)):
            return font
    return None


def _picture(text: str) -> Image.Image:
    """Return a text as an image of its own; what no font has is spelt by its code."""
    font = find_font(text)
    if font is None:
        text = "".join(c if c.isascii() else f"[U+{ord(c):04X}]" for c in text)
        font = find_font(text)
    drawn_by = font or ImageFont.load_default(FONT_SIZE)
    left, _, right, _ = drawn_by.getbbox(text)
    image = Image.new("RGB", (int(max(right - left, 1)) + 2, FONT_SIZE + 6), PAPER)
    ImageDraw.Draw(image).text((1 - left, 0), text, INK, drawn_by)
    return image


@functools.cache
def _fonts() -> tuple[ImageFont.FreeTypeFont, ...]:
    """Return fonts to try: the system's own, one for each script of interest, then known files."""
    found = []
    for file, index in [*_configured_fonts(), *((file, 0) for file in FONT_FILES)]:
        try:
            found.append(ImageFont.truetype(file, FONT_SIZE, index=index))
        except OSError:
            continue  # not there, or in a format that Pillow does not read
    return tuple(found)


def _configured_fonts() -> Iterable[tuple[str, int]]:
    """Yield (file, index in it) of what fontconfig has for some scripts."""
    program = shutil.which("fc-match")
    if not program:
        return
    seen = set()
    for language in ("en", "zh-cn", "ja", "ko", "ar", "hi", "th"):
        command = [program, "-f", "%{file}\t%{index}", f"sans:lang={language}"]
        answer = subprocess.run(command, capture_output=True, text=True).stdout
        file, _, index = answer.partition("\t")
        if answer not in seen and Path(file).is_file():
            seen.add(answer)
            yield file, int(index or 0)


def _labels(tokens: Tokens) -> list[str]:
    labels = [visible_piece(piece) for piece in tokens.pieces]
    return [t if len(t) <= MAX_LABEL else t[: MAX_LABEL - 1] + "…" for t in labels]


def _colors(weights: np.ndarray) -> np.ndarray:
    """Return uint8 (rows, columns, 3)."""
    position = np.sqrt(np.clip(weights, 0, 1))
    places = np.linspace(0, 1, len(STOPS))
    channels = np.transpose([ImageColor.getrgb(stop) for stop in STOPS])
    mixed = [np.interp(position, places, channel) for channel in channels]
    return np.rint(np.stack(mixed, axis=-1)).astype(np.uint8)
