"""Small gray pictures as text: half blocks in colour for a terminal, plain characters elsewhere."""

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
WIDEST = 80
GAP = 2

Image = np.ndarray[Any, Any]
Palette = tuple[tuple[int, int, int], ...]
Card = tuple[Image, int, int, float]  # picture, truth, prediction, confidence


def gallery(cards: Sequence[Card], console: Console) -> list[Text]:
    """The pictures side by side, each with what the network says below it, wrapped to the console's width."""
    columns = [_column(card, console) for card in cards]
    cell = columns[0][0].cell_len + GAP
    beside = max(1, (min(console.width, WIDEST) + GAP - 1) // cell)
    lines = []
    for start in range(0, len(columns), beside):
        for parts in zip(*columns[start : start + beside], strict=True):
            line = Text(" ")
            for part in parts:
                line.append_text(part)
                line.append(" " * (cell - part.cell_len))
            line.rstrip()
            lines.append(line)
        lines.append(Text())
    return lines


def draw_blocks(image: Image, palette: Palette) -> list[Text]:
    """Two pixel rows a line: the upper one is the colour of a half block, the lower one its background."""
    return [_block_line(image[row], image[row + 1], palette) for row in range(0, len(image), 2)]


def draw_characters(image: Image) -> list[Text]:
    """A pixel row a line, two characters a pixel, darker ones for more ink."""
    scale = (len(SHADES) - 1) / LEVELS
    return [Text("".join(SHADES[round(float(pixel) * scale)] * 2 for pixel in row)) for row in image]


def bar(fraction: float, width: int, style: str) -> Text:
    """A line of which the given fraction is coloured."""
    filled = round(min(max(fraction, 0.0), 1.0) * width)
    return Text.assemble(("━" * filled, style), ("━" * (width - filled), "bright_black"))


def _column(card: Card, console: Console) -> list[Text]:
    """One picture with its caption: prediction, a mark for right or wrong, confidence."""
    image, truth, guess, confidence = card
    right = guess == truth
    percent = f"{confidence:.1%}"
    in_colour = console.is_terminal and console.color_system is not None and not console.no_color
    if not in_colour or not console.encoding.lower().startswith("utf"):
        verdict = f"{guess}  {'right' if right else f'wrong, a {truth}'}"
        return [*draw_characters(image), Text(), Text(verdict), Text(percent)]
    picture = draw_blocks(image, WARM if console.color_system in ("256", "truecolor") else GRAY)
    style = "green" if right else "red"
    mark = Text(f"{guess} ✓" if right else f"{guess} ✗ ({truth})", f"bold {style}")
    return [*picture, bar(confidence, picture[0].cell_len, style), mark, Text(percent, "dim")]


def _block_line(upper: Image, lower: Image, palette: Palette) -> Text:
    line = Text()
    for top, bottom in zip(upper, lower, strict=True):
        line.append("▀", Style(color=_colour(top, palette), bgcolor=_colour(bottom, palette)))
    return line


def _colour(pixel: float, palette: Palette) -> str:
    """A point on the palette, 0 at its start and LEVELS at its end."""
    position = float(pixel) / LEVELS * (len(palette) - 1)
    index = min(int(position), len(palette) - 2)
    fraction = position - index
    mixed = (round(a + (b - a) * fraction) for a, b in zip(palette[index], palette[index + 1], strict=True))
    return "#{:02x}{:02x}{:02x}".format(*mixed)
