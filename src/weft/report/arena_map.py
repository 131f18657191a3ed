"""Draw the arena as SVG or, with Pillow, as PNG: time from left to right, addresses upward."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from hashlib import sha256
from html import escape

from weft.errors import InputError
from weft.ir.work import Allocation
from weft.quantities import format_bytes, format_plural
from weft.records import dataclass

WIDTH, HEIGHT = 1200, 640  # of the drawing; the list of tensors is below it
LISTED = 16  # largest tensors
_LEFT, _TOP, _RIGHT, _BOTTOM = 90, 64, 24, 56
_MIN_LABEL = 44, 13  # pixels of a rectangle with a label
_CHARACTER = 7.0  # pixels, approximately
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
    """An arena of `size` bytes over `steps` launches, with its peak use at step `peak`."""

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
    """A text whose start, middle or end is at a position; `kind` is its style. Rotated text runs upward."""

    x: float
    y: float
    text: str
    kind: str = ""
    anchor: str = "start"
    rotated: bool = False


def draw_svg(drawing: ArenaMap) -> str:
    """Draw as SVG, in the reader's light or dark scheme; rectangles have tool tips."""
    height = _drawing_height(drawing)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(drawing.title)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}"/>',
        *_grid(drawing),
        *(_rectangle(box) for box in _boxes(drawing)),
        *(
            f'<rect x="{_LEFT}" y="{y - 10:.0f}" width="12" height="12" fill="{_hex(_colour(allocation))}"/>'
            for y, allocation in _listed_tensors(drawing)
        ),
        f'<line class="peak" x1="{_peak_x(drawing):.1f}" y1="{_TOP}" x2="{_peak_x(drawing):.1f}" y2="{_FLOOR}"/>',
        *map(_svg_text, _labels(drawing)),
        "</svg>",
        "",
    ]
    return "\n".join(lines)


def _svg_text(label: _Label) -> str:
    styled = f' class="{label.kind}"' if label.kind else ""
    placed = "" if label.anchor == "start" else f' text-anchor="{label.anchor}"'
    where = f'x="{label.x:.1f}" y="{label.y:.1f}"'
    if label.rotated:
        where = f'transform="translate({label.x:.1f} {label.y:.1f}) rotate(-90)"'
    return f'<text{styled} {where}{placed} pointer-events="none">{escape(label.text)}</text>'


def _rectangle(box: _Box) -> str:
    allocation = box.allocation
    tip = (
        f"{allocation.name}: {format_bytes(allocation.size)} ({allocation.size:,} bytes) at {allocation.offset:,}, "
        f"launches {allocation.first} to {allocation.last}\n{allocation.origin}"
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
        x = _column_x(drawing, step) + _step_width(drawing) / 2
        yield f'<line class="frame" x1="{x:.1f}" y1="{_FLOOR}" x2="{x:.1f}" y2="{_FLOOR + 5}"/>'
    yield f'<rect class="frame" x="{_LEFT}" y="{_TOP}" width="{_END - _LEFT}" height="{_FLOOR - _TOP}"/>'


def draw_png(drawing: ArenaMap) -> bytes:
    """Draw as PNG; rotated labels are left out."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        hint = "pip install 'weft-onnx[image]', or write an .svg file"
        raise InputError("drawing a PNG file needs Pillow", hint=hint) from error
    image = Image.new("RGB", (WIDTH, _drawing_height(drawing)), "white")
    pen = ImageDraw.Draw(image)
    for box in _boxes(drawing):
        right, bottom = max(box.x + box.width - 2, box.x), max(box.y + box.height - 2, box.y)
        pen.rectangle((box.x, box.y, right, bottom), fill=box.colour)
    pen.rectangle((_LEFT, _TOP, _END, _FLOOR), outline="#8c959f")
    for top in range(_TOP, _FLOOR, 8):
        pen.line((_peak_x(drawing), top, _peak_x(drawing), min(top + 4, _FLOOR)), fill=_INKS["mark"], width=2)
    for y, allocation in _listed_tensors(drawing):
        pen.rectangle((_LEFT, y - 10, _LEFT + 12, y + 2), fill=_colour(allocation))
    anchors = {"start": "ls", "middle": "ms", "end": "rs"}
    for label in (label for label in _labels(drawing) if not label.rotated):
        font = ImageFont.load_default(_SIZES.get(label.kind, 12))
        ink = _INKS.get(label.kind, "#1f2328")
        pen.text((label.x, label.y), label.text, fill=ink, font=font, anchor=anchors[label.anchor])
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


# -- shared by both formats ------------------------------------------------------------------------------------------


def _labels(drawing: ArenaMap) -> Iterator[_Label]:
    yield _Label(_LEFT, 26, drawing.title, "title")
    yield _Label(_LEFT, 44, _summary(drawing), "quiet")
    yield _Label(18, (_TOP + _FLOOR) / 2, "offset in the arena", "quiet", "middle", rotated=True)
    for part in range(5):
        y = _FLOOR - (_FLOOR - _TOP) * part / 4
        yield _Label(_LEFT - 8, y + 4, format_bytes(drawing.size * part / 4), "quiet", "end")
    for step in _ticks(drawing.steps):
        yield _Label(_column_x(drawing, step) + _step_width(drawing) / 2, _FLOOR + 18, str(step), "quiet", "middle")
    yield _Label((_LEFT + _END) / 2, _FLOOR + 38, "launches, in order", "quiet", "middle")
    for box in _boxes(drawing):
        yield from _box_labels(box)
    near_end = _peak_x(drawing) > WIDTH - 140
    x = _peak_x(drawing) + (-6 if near_end else 6)
    yield _Label(x, _TOP - 5, "peak", "mark", "end" if near_end else "start")
    rows = list(_listed_tensors(drawing))
    count = len(drawing.allocations)
    top = HEIGHT + 16
    head = "tensors" if count <= len(rows) else f"the {len(rows)} largest of {count:,} tensors"
    yield _Label(_LEFT, top, head, "head")
    yield _Label(_SIZE_COLUMN, top, "size", "quiet", "end")
    yield _Label(_LAUNCH_COLUMN, top, "launches", "quiet", "end")
    for y, allocation in rows:
        yield _Label(_LEFT + 20, y, _shorten(_node_name(allocation), 100))
        yield _Label(_SIZE_COLUMN, y, format_bytes(allocation.size), "", "end")
        yield _Label(_LAUNCH_COLUMN, y, f"{allocation.first} to {allocation.last}", "", "end")


def _box_labels(box: _Box) -> Iterator[_Label]:
    """Yield the name and size of a rectangle that is large enough."""
    size = format_bytes(box.allocation.size)
    name = box.allocation.origin.split(" + ")[-1] or box.allocation.name
    room = int((max(box.width, box.height) - 8) / _CHARACTER)
    middle = box.y + box.height / 2
    if min(box.width, box.height) < _MIN_LABEL[1] or max(box.width, box.height) < _MIN_LABEL[0]:
        return
    if box.width < _MIN_LABEL[0]:
        label = f"{_shorten(name, room - len(size) - 2)}  {size}" if room >= len(size) + 8 else _shorten(name, room)
        yield _Label(box.x + box.width / 2 + 4, box.y + box.height - 4, label, "inside", rotated=True)
        return
    room = int((box.width - 8) / _CHARACTER)
    if box.height >= 2 * _MIN_LABEL[1] + 4:
        yield _Label(box.x + 4, middle - 2, _shorten(name, room), "inside")
        yield _Label(box.x + 4, middle + 12, _shorten(size, room), "inside")
    else:
        label = f"{_shorten(name, room - len(size) - 2)}  {size}" if room >= len(size) + 8 else _shorten(name, room)
        yield _Label(box.x + 4, middle + 4, label, "inside")


def _listed_tensors(drawing: ArenaMap) -> Iterator[tuple[float, Allocation]]:
    """Yield the largest tensors, each with its y in the list below the drawing."""
    largest = sorted(
        drawing.allocations, key=lambda allocation: (-allocation.size, allocation.first, allocation.offset)
    )[:LISTED]
    yield from ((HEIGHT + 16 + number * _ROW, allocation) for number, allocation in enumerate(largest, 1))


def _drawing_height(drawing: ArenaMap) -> int:
    return HEIGHT + 36 + _ROW * min(len(drawing.allocations), LISTED)


def _summary(drawing: ArenaMap) -> str:
    launches = "1 launch" if drawing.steps == 1 else f"{drawing.steps:,} launches"
    arena = f"arena of {format_bytes(drawing.size)} ({drawing.size:,} bytes)"
    parts = [arena, launches, format_plural(len(drawing.allocations), "tensor"), drawing.about]
    return ", ".join(part for part in parts if part)


def _ticks(steps: int) -> Iterator[int]:
    """Yield about ten round numbers from 0 to `steps`."""
    every = next(size * 10**power for power in range(12) for size in (1, 2, 5) if steps <= size * 10**power * 14)
    yield from range(0, max(steps, 1), every)


def _node_name(allocation: Allocation) -> str:
    """Return the last node of a tensor, which gave it its shape, and the number of others."""
    nodes = allocation.origin.split(" + ") if allocation.origin else []
    more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return f"{nodes[-1]}{more}" if nodes else allocation.name


def _shorten(text: str, longest: int) -> str:
    """Remove the middle of a text that is too long."""
    if len(text) <= longest:
        return text
    if longest < 4:
        return ""
    head = (longest - 1) // 3
    return f"{text[:head]}…{text[len(text) - (longest - 1 - head) :]}"


def _peak_x(drawing: ArenaMap) -> float:
    return _column_x(drawing, drawing.peak) + _step_width(drawing) / 2


def _boxes(drawing: ArenaMap) -> list[_Box]:
    scale = (HEIGHT - _TOP - _BOTTOM) / max(drawing.size, 1)
    boxes = []
    for allocation in drawing.allocations:
        x = _column_x(drawing, allocation.first)
        width = _column_x(drawing, allocation.last + 1) - x
        top = HEIGHT - _BOTTOM - (allocation.offset + allocation.size) * scale
        boxes.append(_Box(x, top, width, allocation.size * scale, _colour(allocation), allocation))
    return boxes


def _column_x(drawing: ArenaMap, step: int) -> float:
    return _LEFT + step * _step_width(drawing)


def _step_width(drawing: ArenaMap) -> float:
    return (WIDTH - _LEFT - _RIGHT) / max(drawing.steps, 1)


def _colour(allocation: Allocation) -> tuple[int, int, int]:
    """Return a pastel colour by name; workspaces are grey."""
    if allocation.name == "workspace":
        return 190, 190, 190
    first, second, third = sha256(f"{allocation.name} {allocation.origin}".encode()).digest()[:3]
    return 120 + first * 110 // 255, 120 + second * 110 // 255, 140 + third * 110 // 255


def _hex(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
