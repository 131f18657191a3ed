"""Small grey images as text: coloured half blocks in a terminal, plain characters elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.style import Style
from rich.text import Text

LEVELS = 16
SHADES = " .:-=+*#%@"
WARM = ((22, 18, 44), (64, 38, 124), (170, 62, 130), (245, 136, 84), (255, 240, 190))
GRAY = ((0, 0, 0), (255, 255, 255))
MAX_WIDTH = 80
GAP = 2

Image = np.ndarray[Any, Any]
Palette = tuple[tuple[int, int, int], ...]
Sample = tuple[Image, int, int, float]  # image, truth, prediction, confidence


def format_gallery(samples: Sequence[Sample], console: Console) -> list[Text]:
    """Format images side by side with their predictions, wrapped to the width of the console."""
    columns = [_format_sample(sample, console) for sample in samples]
    cell = columns[0][0].cell_len + GAP
    per_row = max(1, (min(console.width, MAX_WIDTH) + GAP - 1) // cell)
    lines = []
    for start in range(0, len(columns), per_row):
        for parts in zip(*columns[start : start + per_row], strict=True):
            line = Text(" ")
            for part in parts:
                line.append_text(part)
                line.append(" " * (cell - part.cell_len))
            line.rstrip()
            lines.append(line)
        lines.append(Text())
    return lines


def draw_blocks(image: Image, palette: Palette) -> list[Text]:
    """Draw two rows of pixels per line: the upper as colour of a half block, the lower as background."""
    return [_block_line(image[row], image[row + 1], palette) for row in range(0, len(image), 2)]


def draw_characters(image: Image) -> list[Text]:
    """Draw a row of pixels per line, with two characters per pixel."""
    scale = (len(SHADES) - 1) / LEVELS
    return [Text("".join(SHADES[round(float(pixel) * scale)] * 2 for pixel in row)) for row in image]


def draw_bar(fraction: float, width: int, style: str) -> Text:
    """Draw a line of which a fraction is coloured."""
    done = round(min(max(fraction, 0.0), 1.0) * width)
    return Text.assemble(("━" * done, style), ("━" * (width - done), "bright_black"))


def _format_sample(sample: Sample, console: Console) -> list[Text]:
    """Return an image with its caption: prediction, correct or wrong, confidence."""
    image, truth, prediction, confidence = sample
    is_correct = prediction == truth
    percent = f"{confidence:.1%}"
    in_colour = console.is_terminal and console.color_system is not None and not console.no_color
    if not in_colour or not console.encoding.lower().startswith("utf"):
        verdict = f"{prediction}  {'correct' if is_correct else f'wrong, a {truth}'}"
        return [*draw_characters(image), Text(), Text(verdict), Text(percent)]
    blocks = draw_blocks(image, WARM if console.color_system in ("256", "truecolor") else GRAY)
    style = "green" if is_correct else "red"
    mark = Text(f"{prediction} ✓" if is_correct else f"{prediction} ✗ ({truth})", f"bold {style}")
    return [*blocks, draw_bar(confidence, blocks[0].cell_len, style), mark, Text(percent, "dim")]


def _block_line(upper: Image, lower: Image, palette: Palette) -> Text:
    line = Text()
    for top, bottom in zip(upper, lower, strict=True):
        line.append("▀", Style(color=_colour(top, palette), bgcolor=_colour(bottom, palette)))
    return line


def _colour(pixel: float, palette: Palette) -> str:
    """Interpolate the palette, from 0 at its start to LEVELS at its end."""
    position = float(pixel) / LEVELS * (len(palette) - 1)
    index = min(int(position), len(palette) - 2)
    fraction = position - index
    mixed = (round(a + (b - a) * fraction) for a, b in zip(palette[index], palette[index + 1], strict=True))
    return "#{:02x}{:02x}{:02x}".format(*mixed)
