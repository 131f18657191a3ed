"""Depthwise convolutions and small groups, with lanes along the channels.

A block computes some lines of output pixels, several neighbours at a time, without a padded copy. If sizes are known,
taps that fall outside the input at the ends of a line are left out of the code; otherwise pixels at the ends are
computed one by one, with loops over the taps inside. For groups, all lanes process the same member of their own group
at a time, so vectors are full however small groups are.
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
from weft.kernels.build.loop_axes import unravel_index
from weft.kernels.build.multiply_add import accumulator_dtype, multiply_add
from weft.kernels.build.windows import Phase, Window
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch, let, repeat
from weft.kernels.lower.memoize import memoize_launch
from weft.kernels.lower.operations import cast
from weft.kernels.lower.tensors import LEFT, RIGHT, Epilogue, Launch, StoredTensor
from weft.records import dataclass

_TILE_PIXELS = (8, 4)  # pixels of a tile, in order of preference
_MAX_RUNS = 5  # of pixels along a line, each with its own code
_PANELS_PER_STEP = 4  # vectors of channels at a time, for single pixels
_MAX_UNROLLED_TAPS = 8  # along a line; more are a loop


@dataclass(frozen=True, slots=True)
class ChannelGroup:
    """The number of input channels and of output channels of a group."""

    channels: int
    features: int

    def fills_lanes(self, lanes: int, features: Dim) -> bool:
        """Return whether lanes hold whole groups, whose input channels take at most two vectors."""
        whole = lanes % self.features == 0 and isinstance(features, int) and features % lanes == 0
        return whole and self.channels <= 2 * self.features


SINGLE_CHANNEL = ChannelGroup(1, 1)


@dataclass(frozen=True, slots=True)
class PixelTile:
    """Pixels times panels of channels that are summed together; in `whole` panels every lane has a channel.

    Along the last axis it starts at output `pixel`, and its first window at input `corner`. `taps` are the tap counters
    of the other axes. If windows share `columns` of the input, each column is combined in its own register.
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
    """Pixels first..end-1, `width` at a time, all with the same (pixel, tap) pairs outside the input."""

    width: int
    outside: frozenset[tuple[int, int]]
    first: int
    end: int


def find_runs(window: Window, size: Dim) -> list[Run] | None:
    """Split the pixels of a line evenly into runs; None if sizes are unknown or the code would be too long."""
    count, base, taps = window.count, window.base, window.taps
    if not (isinstance(count, int) and isinstance(base, int) and isinstance(taps, int) and isinstance(size, int)):
        return None
    groups = max(-(-count // _TILE_PIXELS[0]), 1)
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
    return runs if len(runs) <= _MAX_RUNS and taps <= _MAX_UNROLLED_TAPS else None


class PixelLines:
    """Builds lines of output pixels from weighted taps; subclasses combine the taps differently.

    Operands are x, the weights as [panels, channels of a group, taps, lanes], and the epilogue's.
    """

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
        group: ChannelGroup = SINGLE_CHANNEL,
    ) -> None:
        self.channel_group = group
        self.phase, self.x, self.result, self.lanes, self.target = phase, x, result, lanes, target
        self.type = accumulator_dtype(x.dtype)
        self.builder = KernelBuilder(self.name)
        self.source = self.builder.input("x", x.dtype, LEFT)
        self.add_operands()
        self.epilogue_writer = EpilogueWriter(result, epilogue, self.builder, self.operands)
        parameter = self.builder.parameter
        self.strides = [self.stride(f"x{axis}", stride) for axis, stride in enumerate(x.strides)]
        self.sizes = [parameter(f"size{axis}", size) for axis, size in enumerate(x.shape[2:])]
        self.bases = [parameter(f"base{axis}", window.base) for axis, window in enumerate(phase)]
        self.taps = [
            window.taps if isinstance(window.taps, int) else parameter(f"taps{axis}", window.taps)
            for axis, window in enumerate(phase)
        ]
        self.counts = [parameter(f"count{axis}", window.count) for axis, window in enumerate(phase)]
        self.channels = result.shape[1]
        self.member = self.builder.variable("member")  # the current input channel within a group
        self.panels = parameter("panels", dims.ceildiv(self.channels, lanes))

    def stride(self, name: str, value: Dim) -> Dim:
        return value if value in (0, 1) else self.builder.parameter(name, value)

    def build_launch(self) -> Launch:
        parameter = self.builder.parameter
        lines = self.x.shape[0] * dims.product(window.count for window in self.phase[:-1])
        taps = dims.product(window.taps for window in self.phase) * self.channel_group.channels
        work = self.phase[-1].count * self.channels * (taps + 1) * 2
        max_lines = dims.maximum(dims.floordiv(DEPTHWISE_BLOCK_WORK, work + 1), 1)
        chunks = dims.maximum(dims.ceildiv(lines, max_lines * 2) * 2, 1)  # even, as the number of threads usually is
        each = dims.maximum(dims.ceildiv(lines, chunks), 1)
        start = block() * parameter("lines_each", each)
        stop = dims.minimum(start + parameter("lines_each", each), parameter("lines", lines))
        line = self.builder.variable("line")
        body = (*self.locate_line(line), *self.pixels())
        return self.builder.launch(self.lanes, [repeat(line, start, stop, 1, body)], dims.ceildiv(lines, each))

    def add_operands(self) -> None:
        self.weights = self.builder.input("w", self.x.dtype, RIGHT)

    def tile(self, pixels: int, panels: list[Dim], whole: bool, pixel: Dim, corner: Dim) -> PixelTile:
        taps = self.builder.variables("t", len(self.phase) - 1)
        sums = self.builder.registers("sum", pixels * len(panels), self.type)
        return PixelTile(pixels, panels, whole, pixel, corner, taps, sums)

    def accumulate_taps(self, tile: PixelTile, taps: list[Statement]) -> list[Statement]:
        """Clear the sums of a tile, then run the statements of all taps."""
        return [*(define(total, Number(0, self.type)) for total in tile.sums), *taps]

    def locate_line(self, number: Dim) -> list[Statement]:
        """Compute the position of a line, and the taps of the outer axes that are inside the input."""
        sizes = [self.builder.parameter("images", self.x.shape[0]), *self.counts[:-1]]
        self.places = self.builder.variables("o", len(sizes))
        statements: list[Statement] = [
            let(name, place) for name, place in zip(self.places, unravel_index(number, sizes))
        ]
        self.clips: list[Clip] = []
        for axis, window in enumerate(self.phase[:-1]):
            position = self.bases[axis] + self.places[axis + 1] * window.advance
            lets, clip = self.clip(axis, window, position)
            statements.extend(lets)
            self.clips.append(clip)
        return statements

    def clip(self, axis: int, window: Window, position: Dim) -> tuple[list[Statement], Clip]:
        """Compute the range of taps from `position` on that are inside the input."""
        first, place = self.builder.let(f"in{axis}", position, None)
        low = dims.maximum(dims.ceildiv(-place, window.dilation), 0)
        high = dims.minimum(dims.ceildiv(self.sizes[axis] - place, window.dilation), self.taps[axis])
        second, low = self.builder.let(f"in{axis}_low", low)
        third, high = self.builder.let(f"in{axis}_high", high, None)
        return [first, second, third], Clip(place, low, high)

    def pixels(self) -> tuple[Statement, ...]:
        """Build all pixels of a line: as runs, or pixels at the start, tiles of inner pixels, and the rest."""
        runs = find_runs(self.phase[-1], self.x.shape[-1])
        if runs is not None:
            return tuple(self.build_run(number, run) for number, run in enumerate(runs) if run.width)
        window, count = self.phase[-1], self.counts[-1]
        last = len(self.phase) - 1
        base = self.bases[last]
        last_corner = self.sizes[last] - 1 - (self.taps[last] - 1) * window.dilation - base
        advance = max(window.advance, 1)
        first = dims.minimum(dims.maximum(dims.ceildiv(-base, advance), 0), count)
        end = dims.maximum(dims.minimum(dims.floordiv(last_corner, advance) + 1, count), first)
        from_first, inside = self.builder.let("inside", first)
        to_end, inside_end = self.builder.let("inside_end", end)
        statements: list[Statement] = [from_first, to_end, self.build_single_pixels(0, inside)]
        start: Dim = inside
        for number, width in enumerate(_TILE_PIXELS):
            to_stop, stop = self.builder.let(f"stop{number}", start + dims.floordiv(inside_end - start, width) * width)
            statements += [to_stop, self.build_group(start, stop, width)]
            start = stop
        statements.append(self.build_single_pixels(start, count))
        return tuple(statements)

    def build_run(self, number: int, run: Run) -> Statement:
        first, end = (self.builder.parameter(f"run{number}_{name}", getattr(run, name)) for name in ("first", "end"))
        return self.build_group(first, end, run.width, run.outside)

    def build_single_pixels(self, first: Dim, end: Dim) -> Statement:
        """Build pixels one at a time with the taps that are inside the input, several panels at a time."""
        last, window = len(self.phase) - 1, self.phase[-1]
        pixel = self.builder.variable("pixel")
        lets, clip = self.clip(last, window, self.bases[last] + pixel * window.advance)

        def panels(start: Dim, stop: Dim, width: int) -> Statement:
            panel, tap = self.builder.variable("panel"), self.builder.variable(f"t{last}")
            tile = self.tile(1, [panel + number for number in range(width)], width > 1, pixel, clip.place)
            body: list[Statement] = [repeat(tap, clip.low, clip.high, 1, self.multiply(tile, tap))]
            return repeat(panel, start, stop, width, self.finish_tile(tile, body))

        whole = self.builder.parameter(
            "whole", dims.floordiv(self.channels, self.lanes * _PANELS_PER_STEP) * _PANELS_PER_STEP
        )
        body = (*lets, panels(0, whole, _PANELS_PER_STEP), panels(whole, self.panels, 1))
        return repeat(pixel, first, end, 1, body)

    def build_group(
        self, first: Dim, end: Dim, width: int, outside: frozenset[tuple[int, int]] = frozenset()
    ) -> Statement:
        """Build neighbouring pixels, `width` at a time; only the (pixel, tap) in `outside` are outside the input."""
        last, window = len(self.phase) - 1, self.phase[-1]
        pixel = self.builder.variable("pixel")
        place, corner = self.builder.let(f"in{last}", self.bases[last] + pixel * window.advance, None)
        taps = self.taps[last]

        def panels(start: Dim, stop: Dim, *, whole: bool) -> Statement:
            panel = self.builder.variable("panel")
            tile = self.tile(width, [panel], whole, pixel, corner)
            body: list[Statement]
            if isinstance(taps, int) and taps <= _MAX_UNROLLED_TAPS:
                body = [statement for tap in range(taps) for statement in self.multiply(tile, tap, outside)]
            else:
                tap = self.builder.variable(f"t{last}")
                body = [repeat(tap, 0, taps, 1, self.multiply(tile, tap))]
            return repeat(panel, start, stop, 1, self.finish_tile(tile, body))

        if not isinstance(window.count, int) or (isinstance(self.channels, int) and self.channels % self.lanes == 0):
            return repeat(pixel, first, end, width, (place, panels(0, self.panels, whole=False)))
        full = self.builder.parameter("full", dims.floordiv(self.channels, self.lanes))
        body = (place, panels(0, full, whole=True), panels(full, self.panels, whole=False))
        return repeat(pixel, first, end, width, body)

    def finish_tile(self, tile: PixelTile, body: list[Statement]) -> list[Statement]:
        for tap, clip in reversed(list(zip(tile.taps, self.clips))):
            body = [repeat(tap, clip.low, clip.high, 1, body)]
        if self.channel_group != SINGLE_CHANNEL:
            body = [repeat(self.member, 0, self.channel_group.channels, 1, body)]
        statements = self.accumulate_taps(tile, body)
        for total, (pixel, panel) in zip(tile.sums, tile.elements):
            axes: dict[int, Dim] = {0: self.places[0], 1: self.channel(panel)}
            for axis, (window, place) in enumerate(zip(self.phase, [*self.places[1:], tile.pixel + pixel])):
                axes[2 + axis] = window.first + place * window.step
            statements.extend(self.epilogue_writer.write(total, axes, self.mask(tile, panel)))
        return statements

    def multiply(self, tile: PixelTile, tap: Dim, outside: frozenset[tuple[int, int]] = frozenset()) -> list[Statement]:
        """Multiply a tile with one tap of the last axis."""
        statements: list[Statement] = []
        weights: dict[Dim, Register] = {}
        for panel in tile.panels:
            place = panel if self.channel_group == SINGLE_CHANNEL else panel * self.channel_group.channels + self.member
            for size, position in zip(self.taps, [*tile.taps, tap]):
                place = place * size + position
            vector = fetch(self.weights, place * self.lanes + lane(self.lanes))
            defined, weights[panel] = self.builder.keep("w", cast(vector, self.type))
            statements.append(defined)
        for total, (pixel, panel) in zip(tile.sums, tile.elements):
            if (pixel, tap) not in outside:
                element = self.element(tile, pixel, panel, tap)
                statements.append(assign(total, multiply_add(self.target, element, weights[panel], total)))
        return statements

    def element(self, tile: PixelTile, pixel: int, panel: Dim, tap: Dim) -> Code:
        """Fetch the input of a pixel at a tap of the last axis, and the current taps of the others."""
        corners = [*(clip.place for clip in self.clips), tile.corner]
        places = [
            corner + position * window.dilation
            for corner, window, position in zip(corners, self.phase, [*tile.taps, tap])
        ]
        places[-1] = places[-1] + pixel * self.phase[-1].advance
        at = offset(self.strides, [self.places[0], self.input_channel(panel), *places])
        return cast(fetch(self.source, at, mask=self.mask(tile, panel)), self.type)

    def channel(self, panel: Dim) -> Dim:
        return panel * self.lanes + lane(self.lanes)

    def input_channel(self, panel: Dim) -> Dim:
        """Return the input channel that a vector of results reads."""
        if self.channel_group == SINGLE_CHANNEL:
            return self.channel(panel)
        groups = self.lanes // self.channel_group.features
        number = panel * groups + dims.floordiv(lane(self.lanes), self.channel_group.features)
        return number * self.channel_group.channels + self.member

    def mask(self, tile: PixelTile, panel: Dim) -> Code | None:
        if tile.whole or (isinstance(self.channels, int) and self.channels % self.lanes == 0):
            return None
        limit = Integer(self.builder.parameter("channels", self.channels))
        return Call("less", (Integer(self.channel(panel)), limit), DType.bool)


build_depthwise_launch = memoize_launch(PixelLines)
