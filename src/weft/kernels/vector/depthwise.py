"""Depthwise convolutions: every channel by itself, or with the few of its group, with lanes along the channels.

A block does some lines of output pixels, several neighbours at a time, and no padded copy is needed: where sizes are
known, the taps that fall outside of the input at the ends of a line are left out of the code; where they are not,
pixels at the ends go one by one, with loops over the taps inside. Of groups, one member after the other is taken for
all lanes at once, each lane that of its own group: vectors are full however small groups are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from weft.cost.blocks import DEPTHWISE_BLOCK_WORK
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Number, Register, Statement, block, lane
from weft.ir.layout import offset
from weft.ir.target import VectorTarget
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.build.loop_axes import split_index
from weft.kernels.build.multiply_add import accumulator_type, multiply_add, widened
from weft.kernels.build.windows import Phase, Window
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch, let, repeat
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.tensors import LEFT, RIGHT, Epilogue, Launch, StoredTensor
from weft.records import dataclass

_PIXELS = (8, 4)  # at a time
_MOST_RUNS = 5  # kinds of neighbours along a line that are written out
_PANELS = 4  # vectors of channels at a time, where pixels go one by one
_WRITTEN_OUT = 8  # taps of a line, at most, that are not a loop


@dataclass(frozen=True, slots=True)
class ChannelGroup:
    """So many channels of the input give so many of the result."""

    channels: int
    features: int

    def fills(self, lanes: int, features: Dim) -> bool:
        """Whether so many lanes hold whole groups, with their channels in no more than two vectors."""
        whole = lanes % self.features == 0 and isinstance(features, int) and features % lanes == 0
        return whole and self.channels <= 2 * self.features


ALONE = ChannelGroup(1, 1)


@memoized
def depthwise_launch(
    phase: Phase,
    x: StoredTensor,
    result: StoredTensor,
    epilogue: Epilogue | None,
    lanes: int,
    target: VectorTarget,
    group: ChannelGroup = ALONE,
) -> Launch:
    """Operands are x, the weights as [panels, channels of a group, taps, lanes], and the epilogue's."""
    return PixelLines(phase, x, result, epilogue, lanes, target, group).launch()


@dataclass(frozen=True, slots=True)
class PixelTile:
    """What is summed up at the same time; in whole panels every lane has a channel.

    Along the last axis it starts at output `pixel`, and its first window at input `corner`. `taps` count the taps of
    the other axes. Where windows share `columns` of the input, each is combined in a register of its own.
    """

    pixels: int
    panels: list[Dim]
    whole: bool
    pixel: Dim
    corner: Dim
    taps: Sequence[Dim]
    sums: Sequence[Register]
    columns: Mapping[int, Register] = field(default_factory=dict)

    @property
    def elements(self) -> list[tuple[int, Dim]]:
        return [(pixel, panel) for pixel in range(self.pixels) for panel in self.panels]


@dataclass(frozen=True, slots=True)
class Clip:
    """Along an axis: the first input position of a window, and the range of taps that meet the input."""

    place: Dim
    low: Dim
    high: Dim


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


class PixelLines:
    """Sums of weighted taps; what else can be made of the taps of each channel by itself is a subclass."""

    name = "depthwise"
    operands = 2  # before the epilogue's

    def __init__(
        self,
        phase: Phase,
        x: StoredTensor,
        result: StoredTensor,
        epilogue: Epilogue | None,
        lanes: int,
        target: VectorTarget,
        group: ChannelGroup = ALONE,
    ) -> None:
        self.grouped = group
        self.phase, self.x, self.result, self.lanes, self.target = phase, x, result, lanes, target
        self.type = accumulator_type(x.dtype)
        self.builder = KernelBuilder(self.name)
        self.source = self.builder.input("x", x.dtype, LEFT)
        self.add_operands()
        self.epilogue_writer = EpilogueWriter(result, epilogue, self.builder, self.operands)
        named = self.builder.named
        self.strides = [self.stride(f"x{axis}", stride) for axis, stride in enumerate(x.strides)]
        self.sizes = [named(f"size{axis}", size) for axis, size in enumerate(x.shape[2:])]
        self.bases = [named(f"base{axis}", window.base) for axis, window in enumerate(phase)]
        self.taps = [
            window.taps if isinstance(window.taps, int) else named(f"taps{axis}", window.taps)
            for axis, window in enumerate(phase)
        ]
        self.counts = [named(f"count{axis}", window.count) for axis, window in enumerate(phase)]
        self.channels = result.shape[1]
        self.member = self.builder.variable("member")  # of a group, that is taken
        self.panels = named("panels", dims.ceildiv(self.channels, lanes))

    def stride(self, name: str, value: Dim) -> Dim:
        return value if value in (0, 1) else self.builder.named(name, value)

    def launch(self) -> Launch:
        named = self.builder.named
        lines = self.x.shape[0] * dims.product(window.count for window in self.phase[:-1])
        taps = dims.product(window.taps for window in self.phase) * self.grouped.channels
        work = self.phase[-1].count * self.channels * (taps + 1) * 2
        most = dims.maximum(dims.floordiv(DEPTHWISE_BLOCK_WORK, work + 1), 1)
        chunks = dims.maximum(dims.ceildiv(lines, most * 2) * 2, 1)  # an even number, as that of threads mostly is
        each = dims.maximum(dims.ceildiv(lines, chunks), 1)
        start = block() * named("lines_each", each)
        stop = dims.minimum(start + named("lines_each", each), named("lines", lines))
        line = self.builder.variable("line")
        body = (*self.line(line), *self.pixels())
        return self.builder.launch(self.lanes, [repeat(line, start, stop, 1, body)], dims.ceildiv(lines, each))

    def add_operands(self) -> None:
        self.weights = self.builder.input("w", self.x.dtype, RIGHT)

    def tile(self, pixels: int, panels: list[Dim], whole: bool, pixel: Dim, corner: Dim) -> PixelTile:
        taps = self.builder.variables("t", len(self.phase) - 1)
        sums = self.builder.registers("sum", pixels * len(panels), self.type)
        return PixelTile(pixels, panels, whole, pixel, corner, taps, sums)

    def gathered(self, tile: PixelTile, taps: list[Statement]) -> list[Statement]:
        """The sums of a tile, from statements for all taps."""
        return [*(define(total, Number(0, self.type)) for total in tile.sums), *taps]

    def line(self, number: Dim) -> list[Statement]:
        """The places of a line, and which taps of the outer axes stay inside."""
        sizes = [self.builder.named("images", self.x.shape[0]), *self.counts[:-1]]
        self.places = self.builder.variables("o", len(sizes))
        statements: list[Statement] = [let(name, place) for name, place in zip(self.places, split_index(number, sizes))]
        self.clips: list[Clip] = []
        for axis, window in enumerate(self.phase[:-1]):
            position = self.bases[axis] + self.places[axis + 1] * window.advance
            lets, clip = self.clip(axis, window, position)
            statements.extend(lets)
            self.clips.append(clip)
        return statements

    def clip(self, axis: int, window: Window, position: Dim) -> tuple[list[Statement], Clip]:
        """`position`, and the range of taps from there that lie inside."""
        first, place = self.builder.let(f"in{axis}", position, None)
        low = dims.maximum(dims.ceildiv(-place, window.dilation), 0)
        high = dims.minimum(dims.ceildiv(self.sizes[axis] - place, window.dilation), self.taps[axis])
        second, low = self.builder.let(f"in{axis}_low", low)
        third, high = self.builder.let(f"in{axis}_high", high, None)
        return [first, second, third], Clip(place, low, high)

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
        from_first, inside = self.builder.let("inside", first)
        to_end, inside_end = self.builder.let("inside_end", end)
        statements: list[Statement] = [from_first, to_end, self.single_pixels(0, inside)]
        start: Dim = inside
        for number, width in enumerate(_PIXELS):
            to_stop, stop = self.builder.let(f"stop{number}", start + dims.floordiv(inside_end - start, width) * width)
            statements += [to_stop, self.group(start, stop, width)]
            start = stop
        statements.append(self.single_pixels(start, count))
        return tuple(statements)

    def run(self, number: int, run: Run) -> Statement:
        first, end = (self.builder.named(f"run{number}_{name}", getattr(run, name)) for name in ("first", "end"))
        return self.group(first, end, run.width, run.outside)

    def single_pixels(self, first: Dim, end: Dim) -> Statement:
        """One pixel at a time with the taps that lie inside, several panels at a time."""
        last, window = len(self.phase) - 1, self.phase[-1]
        pixel = self.builder.variable("pixel")
        lets, clip = self.clip(last, window, self.bases[last] + pixel * window.advance)

        def panels(start: Dim, stop: Dim, width: int) -> Statement:
            panel, tap = self.builder.variable("panel"), self.builder.variable(f"t{last}")
            tile = self.tile(1, [panel + number for number in range(width)], width > 1, pixel, clip.place)
            inner: list[Statement] = [repeat(tap, clip.low, clip.high, 1, self.multiply(tile, tap))]
            return repeat(panel, start, stop, width, self.sum_up(tile, inner))

        whole = self.builder.named("whole", dims.floordiv(self.channels, self.lanes * _PANELS) * _PANELS)
        body = (*lets, panels(0, whole, _PANELS), panels(whole, self.panels, 1))
        return repeat(pixel, first, end, 1, body)

    def group(self, first: Dim, end: Dim, width: int, outside: frozenset[tuple[int, int]] = frozenset()) -> Statement:
        """Neighbouring pixels, so many at a time, whose windows lie inside, but for the given (pixel, tap)."""
        last, window = len(self.phase) - 1, self.phase[-1]
        pixel = self.builder.variable("pixel")
        place, corner = self.builder.let(f"in{last}", self.bases[last] + pixel * window.advance, None)
        taps = self.taps[last]

        def panels(start: Dim, stop: Dim, *, whole: bool) -> Statement:
            panel = self.builder.variable("panel")
            tile = self.tile(width, [panel], whole, pixel, corner)
            inner: list[Statement]
            if isinstance(taps, int) and taps <= _WRITTEN_OUT:
                inner = [statement for tap in range(taps) for statement in self.multiply(tile, tap, outside)]
            else:
                tap = self.builder.variable(f"t{last}")
                inner = [repeat(tap, 0, taps, 1, self.multiply(tile, tap))]
            return repeat(panel, start, stop, 1, self.sum_up(tile, inner))

        if not isinstance(window.count, int) or (isinstance(self.channels, int) and self.channels % self.lanes == 0):
            return repeat(pixel, first, end, width, (place, panels(0, self.panels, whole=False)))
        full = self.builder.named("full", dims.floordiv(self.channels, self.lanes))
        body = (place, panels(0, full, whole=True), panels(full, self.panels, whole=False))
        return repeat(pixel, first, end, width, body)

    def sum_up(self, tile: PixelTile, inner: list[Statement]) -> list[Statement]:
        for tap, clip in reversed(list(zip(tile.taps, self.clips))):
            inner = [repeat(tap, clip.low, clip.high, 1, inner)]
        if self.grouped != ALONE:
            inner = [repeat(self.member, 0, self.grouped.channels, 1, inner)]
        statements = self.gathered(tile, inner)
        for total, (pixel, panel) in zip(tile.sums, tile.elements):
            axes: dict[int, Dim] = {0: self.places[0], 1: self.channel(panel)}
            for axis, (window, place) in enumerate(zip(self.phase, [*self.places[1:], tile.pixel + pixel])):
                axes[2 + axis] = window.first + place * window.step
            statements.extend(self.epilogue_writer.write(total, axes, self.mask(tile, panel)))
        return statements

    def multiply(self, tile: PixelTile, tap: Dim, outside: frozenset[tuple[int, int]] = frozenset()) -> list[Statement]:
        """One tap of the last axis for a tile."""
        statements: list[Statement] = []
        weights: dict[Dim, Register] = {}
        for panel in tile.panels:
            place = panel if self.grouped == ALONE else panel * self.grouped.channels + self.member
            for size, position in zip(self.taps, [*tile.taps, tap]):
                place = place * size + position
            vector = fetch(self.weights, place * self.lanes + lane(self.lanes))
            defined, weights[panel] = self.builder.keep("w", widened(vector, self.type))
            statements.append(defined)
        for total, (pixel, panel) in zip(tile.sums, tile.elements):
            if (pixel, tap) not in outside:
                element = self.element(tile, pixel, panel, tap)
                statements.append(assign(total, multiply_add(self.target, element, weights[panel], total)))
        return statements

    def element(self, tile: PixelTile, pixel: int, panel: Dim, tap: Dim) -> Code:
        """What a pixel meets at a tap of the last axis, and at those of the others that loops are at."""
        corners = [*(clip.place for clip in self.clips), tile.corner]
        places = [
            corner + position * window.dilation
            for corner, window, position in zip(corners, self.phase, [*tile.taps, tap])
        ]
        places[-1] = places[-1] + pixel * self.phase[-1].advance
        at = offset(self.strides, [self.places[0], self.taken_channel(panel), *places])
        return widened(fetch(self.source, at, mask=self.mask(tile, panel)), self.type)

    def channel(self, panel: Dim) -> Dim:
        return panel * self.lanes + lane(self.lanes)

    def taken_channel(self, panel: Dim) -> Dim:
        """The input's channel that a vector of results takes."""
        if self.grouped == ALONE:
            return self.channel(panel)
        groups = self.lanes // self.grouped.features
        number = panel * groups + dims.floordiv(lane(self.lanes), self.grouped.features)
        return number * self.grouped.channels + self.member

    def mask(self, tile: PixelTile, panel: Dim) -> Code | None:
        if tile.whole or (isinstance(self.channels, int) and self.channels % self.lanes == 0):
            return None
        limit = Integer(self.builder.named("channels", self.channels))
        return Call("less", (Integer(self.channel(panel)), limit), DType.bool)
