"""Depthwise convolutions: every channel by itself, with lanes along the channels.

A block does some lines of output pixels, several neighbours at a time, and no padded copy is needed: where sizes are
known, the taps that fall outside of the input at the ends of a line are left out of the code; where they are not,
pixels at the ends go one by one, with loops over the taps inside.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.cost.blocks import DEPTHWISE_BLOCK_WORK
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Assign,
    Buffer,
    Call,
    Code,
    Define,
    Fetch,
    Integer,
    Kernel,
    Let,
    Number,
    Register,
    Repeat,
    Statement,
    block,
    lane,
    variable,
)
from weft.ir.layout import offset
from weft.ir.target import VectorTarget
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.build.loop_axes import split_index
from weft.kernels.build.multiply_add import accumulator_type, multiply_add, widened
from weft.kernels.build.windows import Phase, Window
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.parameters import Parameters
from weft.kernels.lower.tensors import Epilogue, Launch, Tensor

_PIXELS = (8, 4)  # at a time
_MOST_RUNS = 5  # kinds of neighbours along a line that are written out
_PANELS = 4  # vectors of channels at a time, where pixels go one by one
_PANEL = variable("panel")
_WRITTEN_OUT = 8  # taps of a line, at most, that are not a loop


@memoized
def depthwise_launch(
    phase: Phase, x: Tensor, result: Tensor, epilogue: Epilogue | None, lanes: int, target: VectorTarget
) -> Launch:
    """Buffers: x, the weights as [panels, taps, lanes], the epilogue's operands, and the result."""
    return Lines(phase, x, result, epilogue, lanes, target).launch()


@dataclass(frozen=True, slots=True)
class Tile:
    """What is summed up at the same time; in whole panels every lane has a channel."""

    pixels: int
    panels: list[Dim]
    whole: bool

    @property
    def elements(self) -> list[tuple[int, Dim]]:
        return [(pixel, panel) for pixel in range(self.pixels) for panel in self.panels]

    @property
    def names(self) -> list[str]:
        return [f"sum{number}" for number in range(self.pixels * len(self.panels))]


@dataclass(frozen=True, slots=True)
class Run:
    """Pixels from `first` to before `end`, `width` at a time, all with the same (pixel, tap) outside of the input."""

    width: int
    outside: frozenset[tuple[int, int]]
    first: int
    end: int


def find_runs(window: Window, size: Dim) -> list[Run] | None:
    """All pixels of a line, shared out evenly; None where sizes are unknown, or too much would be written out."""
    count, base, taps = window.count, window.base, window.taps
    if not (isinstance(count, int) and isinstance(base, int) and isinstance(taps, int) and isinstance(size, int)):
        return None
    groups = max(-(-count // _PIXELS[0]), 1)
    runs: list[Run] = []
    first = 0
    for number in range(groups):
        width = count // groups + (number < count % groups)
        places = {
            (pixel, tap): base + (first + pixel) * window.advance + tap * window.dilation
            for pixel in range(width)
            for tap in range(taps)
        }
        outside = frozenset(key for key, place in places.items() if not 0 <= place < size)
        if runs and (runs[-1].width, runs[-1].outside) == (width, outside):
            runs[-1] = Run(width, outside, runs[-1].first, first + width)
        else:
            runs.append(Run(width, outside, first, first + width))
        first += width
    return runs if len(runs) <= _MOST_RUNS and taps <= _WRITTEN_OUT else None


class Lines:
    """Sums of weighted taps; what else can be made of the taps of each channel by itself is a subclass."""

    name = "depthwise"

    def __init__(
        self, phase: Phase, x: Tensor, result: Tensor, epilogue: Epilogue | None, lanes: int, target: VectorTarget
    ) -> None:
        self.phase, self.x, self.result, self.lanes, self.target = phase, x, result, lanes, target
        self.type = accumulator_type(x.dtype)
        self.parameters = Parameters()
        self.epilogue_writer = EpilogueWriter(result, epilogue, self.parameters)
        named = self.parameters.named
        self.strides = [self.stride(f"x{axis}", stride) for axis, stride in enumerate(x.strides)]
        self.sizes = [named(f"size{axis}", size) for axis, size in enumerate(x.shape[2:])]
        self.bases = [named(f"base{axis}", window.base) for axis, window in enumerate(phase)]
        self.taps = [
            window.taps if isinstance(window.taps, int) else named(f"taps{axis}", window.taps)
            for axis, window in enumerate(phase)
        ]
        self.counts = [named(f"count{axis}", window.count) for axis, window in enumerate(phase)]
        self.channels = x.shape[1]
        self.panels = named("panels", dims.ceildiv(self.channels, lanes))

    def stride(self, name: str, value: Dim) -> Dim:
        return value if value in (0, 1) else self.parameters.named(name, value)

    def launch(self) -> Launch:
        named = self.parameters.named
        lines = self.x.shape[0] * dims.product(window.count for window in self.phase[:-1])
        taps = dims.product(window.taps for window in self.phase)
        work = self.phase[-1].count * self.channels * (taps + 1) * 2
        most = dims.maximum(dims.floordiv(DEPTHWISE_BLOCK_WORK, work + 1), 1)
        chunks = dims.maximum(dims.ceildiv(lines, most * 2) * 2, 1)  # an even number, as that of threads mostly is
        each = dims.maximum(dims.ceildiv(lines, chunks), 1)
        start = block() * named("lines_each", each)
        stop = dims.minimum(start + named("lines_each", each), named("lines", lines))
        body = (*self.line(), *self.pixels())
        buffers = (*(Buffer(name, self.x.dtype, False) for name in self.operands()), *self.epilogue_writer.buffers)
        statements = (Repeat("line", start, stop, 1, body),)
        kernel = Kernel(self.name, buffers, tuple(self.parameters.values), self.lanes, statements)
        return Launch(kernel, dims.ceildiv(lines, each), tuple(self.parameters.values.values()))

    def operands(self) -> tuple[str, ...]:
        return "x", "w"

    def gathered(self, tile: Tile, taps: list[Statement]) -> list[Statement]:
        """The sums of a tile, from statements for all taps."""
        return [*(Define(name, Number(0, self.type), True) for name in tile.names), *taps]

    def line(self) -> list[Statement]:
        """The places of a line, and which taps of the outer axes stay inside."""
        sizes = [self.parameters.named("images", self.x.shape[0]), *self.counts[:-1]]
        statements: list[Statement] = []
        for number, place in enumerate(split_index(variable("line"), sizes)):
            statements.append(Let(f"o{number}", place))
        for axis, window in enumerate(self.phase[:-1]):
            position = self.bases[axis] + variable(f"o{axis + 1}") * window.advance
            statements.extend(self.clip(axis, window, position, f"in{axis}"))
        return statements

    def clip(self, axis: int, window: Window, position: Dim, name: str) -> list[Statement]:
        """`position`, and the range of taps from there that lie inside."""
        place = variable(name, None)
        low = dims.maximum(dims.ceildiv(-place, window.dilation), 0)
        high = dims.minimum(dims.ceildiv(self.sizes[axis] - place, window.dilation), self.taps[axis])
        return [Let(name, position), Let(f"{name}_low", low), Let(f"{name}_high", high)]

    def pixels(self) -> tuple[Statement, ...]:
        """All pixels of a line: in runs, or those at its start, those inside in groups, and the rest."""
        runs = find_runs(self.phase[-1], self.x.shape[-1])
        if runs is not None:
            return tuple(self.run(number, run) for number, run in enumerate(runs) if run.width)
        window, count = self.phase[-1], self.counts[-1]
        last = len(self.phase) - 1
        base = self.bases[last]
        room = self.sizes[last] - 1 - (self.taps[last] - 1) * window.dilation - base
        advance = max(window.advance, 1)
        first = dims.minimum(dims.maximum(dims.ceildiv(-base, advance), 0), count)
        end = dims.maximum(dims.minimum(dims.floordiv(room, advance) + 1, count), first)
        statements: list[Statement] = [Let("inside", first), Let("inside_end", end)]
        statements.append(Repeat("pixel", 0, variable("inside"), 1, self.pixel()))
        start: Dim = variable("inside")
        for number, width in enumerate(_PIXELS):
            stop = start + dims.floordiv(variable("inside_end") - start, width) * width
            statements.append(Let(f"stop{number}", stop))
            statements.append(Repeat("pixel", start, variable(f"stop{number}"), width, self.group(width)))
            start = variable(f"stop{number}")
        statements.append(Repeat("pixel", start, count, 1, self.pixel()))
        return tuple(statements)

    def run(self, number: int, run: Run) -> Statement:
        first, end = (self.parameters.named(f"run{number}_{name}", getattr(run, name)) for name in ("first", "end"))
        return Repeat("pixel", first, end, run.width, self.group(run.width, run.outside))

    def pixel(self) -> tuple[Statement, ...]:
        """One pixel with the taps that lie inside, several panels at a time."""
        last, window = len(self.phase) - 1, self.phase[-1]
        name = f"in{last}"
        position = self.bases[last] + variable("pixel") * window.advance
        low, high = variable(f"{name}_low"), variable(f"{name}_high", None)

        def some(panels: int) -> tuple[Statement, ...]:
            tile = Tile(1, [_PANEL + number for number in range(panels)], panels > 1)
            step = self.multiply(tile, variable(f"t{last}"))
            return tuple(self.sum_up(tile, [Repeat(f"t{last}", low, high, 1, tuple(step))]))

        whole = self.parameters.named("whole", dims.floordiv(self.channels, self.lanes * _PANELS) * _PANELS)
        loops = (Repeat("panel", 0, whole, _PANELS, some(_PANELS)), Repeat("panel", whole, self.panels, 1, some(1)))
        return (*self.clip(last, window, position, name), *loops)

    def group(self, width: int, outside: frozenset[tuple[int, int]] = frozenset()) -> tuple[Statement, ...]:
        """Neighbouring pixels whose windows lie inside, but for the given (pixel, tap)."""
        last, window = len(self.phase) - 1, self.phase[-1]
        position = self.bases[last] + variable("pixel") * window.advance
        taps = self.taps[last]

        def panels(first: Dim, end: Dim, *, whole: bool) -> Statement:
            tile = Tile(width, [_PANEL], whole)
            inner: list[Statement]
            if isinstance(taps, int) and taps <= _WRITTEN_OUT:
                inner = [statement for tap in range(taps) for statement in self.multiply(tile, tap, outside)]
            else:
                inner = [Repeat(f"t{last}", 0, taps, 1, tuple(self.multiply(tile, variable(f"t{last}"))))]
            return Repeat("panel", first, end, 1, tuple(self.sum_up(tile, inner)))

        place = Let(f"in{last}", position)
        if not isinstance(window.count, int) or (isinstance(self.channels, int) and self.channels % self.lanes == 0):
            return (place, panels(0, self.panels, whole=False))
        whole = self.parameters.named("full", dims.floordiv(self.channels, self.lanes))
        return (place, panels(0, whole, whole=True), panels(whole, self.panels, whole=False))

    def sum_up(self, tile: Tile, inner: list[Statement]) -> list[Statement]:
        for axis in reversed(range(len(self.phase) - 1)):
            inner = [Repeat(f"t{axis}", variable(f"in{axis}_low"), variable(f"in{axis}_high", None), 1, tuple(inner))]
        statements = self.gathered(tile, inner)
        for number, (pixel, panel) in enumerate(tile.elements):
            axes: dict[int, Dim] = {0: variable("o0"), 1: self.channel(panel)}
            places = [*(variable(f"o{axis + 1}") for axis in range(len(self.phase) - 1)), variable("pixel") + pixel]
            for axis, (window, place) in enumerate(zip(self.phase, places)):
                axes[2 + axis] = window.first + place * window.step
            value = Register(f"sum{number}", self.type, True)
            statements.extend(self.epilogue_writer.write(value, axes, self.mask(tile, panel), f"e{number}_"))
        return statements

    def multiply(self, tile: Tile, tap: Dim, outside: frozenset[tuple[int, int]] = frozenset()) -> list[Statement]:
        """One tap of the last axis for a tile."""
        taps = [*(variable(f"t{axis}") for axis in range(len(self.phase) - 1)), tap]
        suffix = f"_{tap}" if isinstance(tap, int) else ""
        statements: list[Statement] = []
        for number, panel in enumerate(tile.panels):
            place = panel
            for size, position in zip(self.taps, taps):
                place = place * size + position
            weights = Fetch("w", place * self.lanes + lane(self.lanes), self.x.dtype)
            statements.append(Define(f"w{number}{suffix}", widened(weights, self.type), True))
        for number, (pixel, panel) in enumerate(tile.elements):
            if (pixel, tap) in outside:
                continue
            weight = Register(f"w{tile.panels.index(panel)}{suffix}", self.type, True)
            total = Register(f"sum{number}", self.type, True)
            element = self.element(tile, pixel, panel, tap)
            statements.append(Assign(total.name, multiply_add(self.target, element, weight, total)))
        return statements

    def element(self, tile: Tile, pixel: int, panel: Dim, tap: Dim) -> Code:
        """What a pixel meets at a tap of the last axis, and at those of the others that loops are at."""
        last = len(self.phase) - 1
        taps = [*(variable(f"t{axis}") for axis in range(last)), tap]
        places = [
            variable(f"in{axis}", None) + position * window.dilation
            for axis, (window, position) in enumerate(zip(self.phase, taps))
        ]
        places[-1] = places[-1] + pixel * self.phase[-1].advance
        at = offset(self.strides, [variable("o0"), self.channel(panel), *places])
        return widened(Fetch("x", at, self.x.dtype, mask=self.mask(tile, panel)), self.type)

    def channel(self, panel: Dim) -> Dim:
        return panel * self.lanes + lane(self.lanes)

    def mask(self, tile: Tile, panel: Dim) -> Code | None:
        if tile.whole or (isinstance(self.channels, int) and self.channels % self.lanes == 0):
            return None
        limit = Integer(self.parameters.named("channels", self.channels))
        return Call("less", (Integer(self.channel(panel)), limit), DType.bool)
