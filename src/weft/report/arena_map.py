"""The arena as a picture, time from left to right and addresses upward: as SVG, or as PNG, for whose text is Pillow."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from hashlib import sha256
from html import escape
from importlib.util import find_spec

from weft.ir.work import Allocation
from weft.quantities import format_bytes, format_plural
from weft.records import dataclass

WIDTH, HEIGHT = 1200, 640  # of the drawing; the list of names is below it
LISTED = 16  # of the largest tensors
_LEFT, _TOP, _RIGHT, _BOTTOM = 90, 64, 24, 56
_LABELLED = 44, 13  # pixels from which on a rectangle has its name written in
_CHARACTER = 7.0  # pixels, about
_ROW = 20
_FLOOR, _END = HEIGHT - _BOTTOM, WIDTH - _RIGHT
_SIZE_COLUMN, _LAUNCH_COLUMN = 900, 1010
_SIZES = {"title": 16, "inside": 11}
_INKS = {"quiet": "#59636e", "mark": "#cf222e"}
_STYLE = """
  text { font: 12px system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: #1f2328 }
  .page { fill: #ffffff } .frame { fill: none; stroke: #8c959f } .grid { stroke: #d0d7de; stroke-width: .6 }
  .title { font-size: 16px; font-weight: 600 } .quiet { fill: #59636e } .inside { font-size: 11px; fill: #1f2328 }
  .box { stroke: #ffffff; stroke-width: .7 } .peak { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 5 3 }
  .mark { fill: #cf222e; font-weight: 600 } .head { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .page { fill: #0d1117 } .frame { stroke: #6e7681 } .grid { stroke: #30363d }
    .quiet { fill: #9198a1 } .inside { fill: #10151b } .box { stroke: #0d1117 } .peak { stroke: #ff7b72 }
    .mark { fill: #ff7b72 }
  }
"""


@dataclass(frozen=True, slots=True)
class ArenaMap:
    """What is drawn: an arena of `size` bytes over `steps` launches; most of it is in use at step `peak`."""

    title: str
    allocations: Sequence[Allocation]
    size: int
    steps: int
    peak: int
    about: str = ""


@dataclass(frozen=True, slots=True)
class _Box:
    x: float
    y: float
    width: float
    height: float
    colour: tuple[int, int, int]
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class _Label:
    """A text with its first, middle or last character at a place; `kind` is its style. If turned, it goes upward."""

    x: float
    y: float
    text: str
    kind: str = ""
    anchor: str = "start"
    turned: bool = False


def svg(drawing: ArenaMap) -> str:
    """The picture as SVG, which follows the reader's choice of light or dark; rectangles tell what they are."""
    height = _height(drawing)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(drawing.title)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}"/>',
        *_grid(drawing),
        *(_rectangle(box) for box in _boxes(drawing)),
        *(
            f'<rect x="{_LEFT}" y="{y - 10:.0f}" width="12" height="12" fill="{_hex(_colour(one))}"/>'
            for y, one in _rows(drawing)
        ),
        f'<line class="peak" x1="{_peak(drawing):.1f}" y1="{_TOP}" x2="{_peak(drawing):.1f}" y2="{_FLOOR}"/>',
        *map(_svg_text, _labels(drawing)),
        "</svg>",
        "",
    ]
    return "\n".join(lines)


def _svg_text(label: _Label) -> str:
    styled = f' class="{label.kind}"' if label.kind else ""
    placed = "" if label.anchor == "start" else f' text-anchor="{label.anchor}"'
    where = f'x="{label.x:.1f}" y="{label.y:.1f}"'
    if label.turned:
        where = f'transform="translate({label.x:.1f} {label.y:.1f}) rotate(-90)"'
    return f'<text{styled} {where}{placed} pointer-events="none">{escape(label.text)}</text>'


def _rectangle(box: _Box) -> str:
    one = box.allocation
    tip = (
        f"{one.name}: {format_bytes(one.size)} ({one.size:,} bytes) at {one.offset:,}, launches {one.first} to "
        f"{one.last}\n{one.origin}"
    )
    return (
        f'<rect class="box" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" '
        f'fill="{_hex(box.colour)}"><title>{escape(tip)}</title></rect>'
    )


def _grid(drawing: ArenaMap) -> Iterator[str]:
    for part in range(5):
        y = _FLOOR - (_FLOOR - _TOP) * part / 4
        yield f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_END}" y2="{y:.1f}"/>'
    for step in _ticks(drawing.steps):
        x = _column(drawing, step) + _step_width(drawing) / 2
        yield f'<line class="frame" x1="{x:.1f}" y1="{_FLOOR}" x2="{x:.1f}" y2="{_FLOOR + 5}"/>'
    yield f'<rect class="frame" x="{_LEFT}" y="{_TOP}" width="{_END - _LEFT}" height="{_FLOOR - _TOP}"/>'


def png(drawing: ArenaMap) -> bytes:
    """The same picture. Without Pillow it has no text: rectangles and the mark of the peak alone."""
    rows = [bytearray(b"\xff" * (WIDTH * 3)) for _ in range(_height(drawing) if has_text() else HEIGHT)]
    for box in _boxes(drawing):
        left, right = round(box.x), max(round(box.x + box.width), round(box.x) + 1)
        top, bottom = round(box.y), max(round(box.y + box.height), round(box.y) + 1)
        inside = bytes(box.colour) * (right - left)
        if right - left > 2:
            inside = inside[:-3] + b"\xff\xff\xff"
        for row in rows[top : max(bottom - 1, top + 1)]:
            row[left * 3 : right * 3] = inside
    x = round(_peak(drawing))
    for number in range(_TOP, _FLOOR):
        if number % 7 < 4:
            rows[number][x * 3 : x * 3 + 3] = b"\xcc\x00\x00"
    for edge in (_TOP - 1, _FLOOR):
        rows[edge][_LEFT * 3 : _END * 3] = b"\x99" * ((_END - _LEFT) * 3)
    pixels = b"".join(map(bytes, rows))
    if has_text():
        pixels = _written(drawing, pixels, len(rows))
    line = WIDTH * 3
    content = zlib.compress(b"".join(b"\0" + pixels[place : place + line] for place in range(0, len(pixels), line)), 9)
    head = struct.pack(">IIBBBBB", WIDTH, len(rows), 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", content) + _chunk(b"IEND", b"")


def has_text() -> bool:
    """Whether text can be drawn into a PNG."""
    return find_spec("PIL") is not None


def _written(drawing: ArenaMap, pixels: bytes, height: int) -> bytes:
    """The pixels with text over them."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.frombytes("RGB", (WIDTH, height), pixels)
    pen = ImageDraw.Draw(image)
    fonts = {size: ImageFont.load_default(size) for size in set(_SIZES.values()) | {12}}
    for y, one in _rows(drawing):
        pen.rectangle((_LEFT, y - 10, _LEFT + 12, y + 2), fill=_colour(one))
    for label in (label for label in _labels(drawing) if not label.turned):
        font = fonts[_SIZES.get(label.kind, 12)]
        width = pen.textlength(label.text, font=font)
        x = label.x - {"start": 0, "middle": width / 2, "end": width}[label.anchor]
        pen.text(
            (x, label.y - _SIZES.get(label.kind, 12)), label.text, fill=_INKS.get(label.kind, "#1f2328"), font=font
        )
    return bytes(image.tobytes())


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


# -- what both show --------------------------------------------------------------------------------------------------


def _labels(drawing: ArenaMap) -> Iterator[_Label]:
    yield _Label(_LEFT, 26, drawing.title, "title")
    yield _Label(_LEFT, 44, _summary(drawing), "quiet")
    yield _Label(18, (_TOP + _FLOOR) / 2, "place in the arena", "quiet", "middle", turned=True)
    for part in range(5):
        y = _FLOOR - (_FLOOR - _TOP) * part / 4
        yield _Label(_LEFT - 8, y + 4, format_bytes(drawing.size * part / 4), "quiet", "end")
    for step in _ticks(drawing.steps):
        yield _Label(_column(drawing, step) + _step_width(drawing) / 2, _FLOOR + 18, str(step), "quiet", "middle")
    yield _Label((_LEFT + _END) / 2, _FLOOR + 38, "launches, in order", "quiet", "middle")
    for box in _boxes(drawing):
        yield from _inside(box)
    near_end = _peak(drawing) > WIDTH - 140
    place = _peak(drawing) + (-6 if near_end else 6)
    yield _Label(place, _TOP - 5, "most in use", "mark", "end" if near_end else "start")
    shown = list(_rows(drawing))
    count = len(drawing.allocations)
    top = HEIGHT + 16
    head = "tensors" if count <= len(shown) else f"the {len(shown)} largest of {count:,} tensors"
    yield _Label(_LEFT, top, head, "head")
    yield _Label(_SIZE_COLUMN, top, "size", "quiet", "end")
    yield _Label(_LAUNCH_COLUMN, top, "launches", "quiet", "end")
    for y, one in shown:
        yield _Label(_LEFT + 20, y, _cut(_named(one), 100))
        yield _Label(_SIZE_COLUMN, y, format_bytes(one.size), "", "end")
        yield _Label(_LAUNCH_COLUMN, y, f"{one.first} to {one.last}", "", "end")


def _inside(box: _Box) -> Iterator[_Label]:
    """What a rectangle is, where it is large enough for that."""
    size = format_bytes(box.allocation.size)
    name = box.allocation.origin.split(" + ")[-1] or box.allocation.name
    room = int((max(box.width, box.height) - 8) / _CHARACTER)
    middle = box.y + box.height / 2
    if min(box.width, box.height) < _LABELLED[1] or max(box.width, box.height) < _LABELLED[0]:
        return
    if box.width < _LABELLED[0]:
        label = f"{_cut(name, room - len(size) - 2)}  {size}" if room >= len(size) + 8 else _cut(name, room)
        yield _Label(box.x + box.width / 2 + 4, box.y + box.height - 4, label, "inside", turned=True)
        return
    room = int((box.width - 8) / _CHARACTER)
    if box.height >= 2 * _LABELLED[1] + 4:
        yield _Label(box.x + 4, middle - 2, _cut(name, room), "inside")
        yield _Label(box.x + 4, middle + 12, _cut(size, room), "inside")
    else:
        label = f"{_cut(name, room - len(size) - 2)}  {size}" if room >= len(size) + 8 else _cut(name, room)
        yield _Label(box.x + 4, middle + 4, label, "inside")


def _rows(drawing: ArenaMap) -> Iterator[tuple[float, Allocation]]:
    """The largest tensors, each with its place in the list: they may be too small to be written in."""
    largest = sorted(drawing.allocations, key=lambda one: (-one.size, one.first, one.offset))[:LISTED]
    yield from ((HEIGHT + 16 + number * _ROW, one) for number, one in enumerate(largest, 1))


def _height(drawing: ArenaMap) -> int:
    return HEIGHT + 36 + _ROW * min(len(drawing.allocations), LISTED)


def _summary(drawing: ArenaMap) -> str:
    launches = "1 launch" if drawing.steps == 1 else f"{drawing.steps:,} launches"
    arena = f"arena of {format_bytes(drawing.size)} ({drawing.size:,} bytes)"
    parts = [arena, launches, format_plural(len(drawing.allocations), "tensor"), drawing.about]
    return ", ".join(part for part in parts if part)


def _ticks(steps: int) -> Iterator[int]:
    """About ten round numbers below so many."""
    every = next(size * 10**power for power in range(12) for size in (1, 2, 5) if steps <= size * 10**power * 14)
    yield from range(0, max(steps, 1), every)


def _named(one: Allocation) -> str:
    """The last node that a tensor comes from says most: it is what gave it its form."""
    nodes = one.origin.split(" + ") if one.origin else []
    more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return f"{nodes[-1]}{more}" if nodes else one.name


def _cut(text: str, longest: int) -> str:
    """A text without its middle where it is longer."""
    if len(text) <= longest:
        return text
    if longest < 4:
        return ""
    head = (longest - 1) // 3
    return f"{text[:head]}…{text[len(text) - (longest - 1 - head) :]}"


def _peak(drawing: ArenaMap) -> float:
    return _column(drawing, drawing.peak) + _step_width(drawing) / 2


def _boxes(drawing: ArenaMap) -> list[_Box]:
    scale = (HEIGHT - _TOP - _BOTTOM) / max(drawing.size, 1)
    boxes = []
    for one in drawing.allocations:
        x = _column(drawing, one.first)
        width = _column(drawing, one.last + 1) - x
        top = HEIGHT - _BOTTOM - (one.offset + one.size) * scale
        boxes.append(_Box(x, top, width, one.size * scale, _colour(one), one))
    return boxes


def _column(drawing: ArenaMap, step: int) -> float:
    return _LEFT + step * _step_width(drawing)


def _step_width(drawing: ArenaMap) -> float:
    return (WIDTH - _LEFT - _RIGHT) / max(drawing.steps, 1)


def _colour(one: Allocation) -> tuple[int, int, int]:
    """A pastel of its own for every name; workspaces are grey."""
    if one.name == "workspace":
        return 190, 190, 190
    first, second, third = sha256(f"{one.name} {one.origin}".encode()).digest()[:3]
    return 120 + first * 110 // 255, 120 + second * 110 // 255, 140 + third * 110 // 255


def _hex(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
