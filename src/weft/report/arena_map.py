"""The arena as a picture, time from left to right and addresses upward: as SVG, or as PNG without any library."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from hashlib import sha256
from html import escape

from weft.ir.work import Allocation
from weft.records import dataclass

WIDTH, HEIGHT = 1200, 640
_LEFT, _TOP, _RIGHT, _BOTTOM = 90, 40, 20, 40
_LABELLED = 60, 14  # pixels from which on a rectangle has its name written in


@dataclass(frozen=True, slots=True)
class ArenaMap:
    """What is drawn: an arena of `size` bytes over `steps` launches; most of it is in use at step `peak`."""

    title: str
    allocations: Sequence[Allocation]
    size: int
    steps: int
    peak: int


@dataclass(frozen=True, slots=True)
class _Box:
    x: float
    y: float
    width: float
    height: float
    colour: tuple[int, int, int]
    allocation: Allocation


def svg(drawing: ArenaMap) -> str:
    """The picture as SVG; every rectangle tells what it is when pointed at."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(drawing.title)}</text>',
    ]
    for box in _boxes(drawing):
        one = box.allocation
        tip = f"{one.name}: {one.size:,} bytes at {one.offset:,}, launches {one.first} to {one.last}; {one.origin}"
        colour = "#{:02x}{:02x}{:02x}".format(*box.colour)
        lines.append(
            f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" fill="{colour}" '
            f'stroke="white" stroke-width="0.5"><title>{escape(tip)}</title></rect>'
        )
        if box.width >= _LABELLED[0] and box.height >= _LABELLED[1]:
            lines.append(_text(box.x + 3, box.y + 12, one.name[: int(box.width / 7)], "start"))
    x = _column(drawing, drawing.peak) + _step_width(drawing) / 2
    lines.append(
        f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{HEIGHT - _BOTTOM}" stroke="#c00" stroke-dasharray="4 3"/>'
    )
    for part in range(5):
        y = HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * part / 4
        lines.append(_text(_LEFT - 6, y + 4, _short(drawing.size * part / 4), "end"))
    scale = f"launches 0 to {max(drawing.steps - 1, 0)}; peak at {drawing.peak}"
    lines.append(_text(_LEFT, HEIGHT - 14, scale, "start"))
    return "\n".join((*lines, "</svg>", ""))


def _text(x: float, y: float, text: str, anchor: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text font-size="12" {place} pointer-events="none">{escape(text)}</text>'


def png(drawing: ArenaMap) -> bytes:
    """The same rectangles and the mark of the peak, without text."""
    rows = [bytearray(b"\xff" * (WIDTH * 3)) for _ in range(HEIGHT)]
    for box in _boxes(drawing):
        left, right = round(box.x), max(round(box.x + box.width), round(box.x) + 1)
        top, bottom = round(box.y), max(round(box.y + box.height), round(box.y) + 1)
        inside = bytes(box.colour) * (right - left)
        if right - left > 2:
            inside = inside[:-3] + b"\xff\xff\xff"
        for row in rows[top : max(bottom - 1, top + 1)]:
            row[left * 3 : right * 3] = inside
    x = round(_column(drawing, drawing.peak) + _step_width(drawing) / 2)
    for number in range(_TOP, HEIGHT - _BOTTOM):
        if number % 7 < 4:
            rows[number][x * 3 : x * 3 + 3] = b"\xcc\x00\x00"
    for edge in (_TOP - 1, HEIGHT - _BOTTOM):
        rows[edge][_LEFT * 3 : (WIDTH - _RIGHT) * 3] = b"\x99" * ((WIDTH - _LEFT - _RIGHT) * 3)
    content = zlib.compress(b"".join(b"\0" + bytes(row) for row in rows), 9)
    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", content) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


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


def _short(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"
