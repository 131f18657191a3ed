"""Convolutions of many small groups: a thread computes its results directly from the input.

A thread has some neighbouring pixels of a line, and four channels of them where groups allow it. Positions outside of
the input are masked, so there is no padded copy; on GPUs they are clamped too, so that no load waits for a test or for
another load. Weights are packed as [taps, channels of a group, features]: features are lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product as cartesian
from math import prod

import numpy as np

from weft.cost.occupancy import enough_threads
from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Number, Register, Statement
from weft.ir.layout import offset, row_major
from weft.ir.packing import Constant, Packing
from weft.ir.scalar import Index, Load
from weft.ir.target import ThreadTarget
from weft.kernels.build.convolution import CHANNEL, Convolution, constant_size, tap_slice
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.build.multiply_add import accumulator_dtype, multiply_add
from weft.kernels.build.windows import Phase
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch_run, repeat
from weft.kernels.lower.memoize import memoize_launch
from weft.kernels.lower.operations import cast
from weft.kernels.lower.tensors import LEFT, RESULT, RIGHT, Epilogue, Launch, Reference, StoredTensor, Work, Workspace
from weft.kernels.threads.maps import build_map_launch
from weft.kernels.threads.points import (
    FEW_LANES,
    MANY_THREADS,
    all_of,
    check_bounds,
    clamp_to_bounds,
    minimum_size,
    points,
    write_inside,
)
from weft.kernels.threads.size_ranges import run_where
from weft.records import dataclass

RUN = 4  # neighbouring channels that are read and written at once
MAX_CHANNELS = 16  # of a group, of the input or of the result: with more, tile products are faster
MAX_PIXELS = 4  # of a thread; twice as many where memory is slow relative to arithmetic, as on software adapters
MAX_UNROLLED_LINE = 8  # taps of a line that is not a loop
MAX_UNROLLED = 50  # taps of all of a thread's pixels that are not loops, as registers are few


def is_depthwise(convolution: Convolution) -> bool:
    """Whether a convolution has one type, small groups, and no dilated input."""
    primitive, w = convolution.primitive, convolution.w
    if convolution.x.dtype is not w.dtype or convolution.order is not None:
        return False
    if primitive.groups == 1 or any(distance != 1 for distance in convolution.input_dilations):
        return False
    features = w.shape[1] if primitive.transposed else dims.floordiv(w.shape[0], primitive.groups)
    return min(estimate(convolution.channels), estimate(features)) <= MAX_CHANNELS


def build_depthwise(convolution: Convolution, target: ThreadTarget) -> Work:
    """Build a kernel for each phase, and one that packs weights which are not constant."""
    primitive, x, w, constant_w = convolution.primitive, convolution.x, convolution.w, convolution.constant
    result, epilogue = convolution.result, convolution.epilogue
    groups = Groups(primitive.groups, convolution.channels, convolution.features, primitive.transposed)
    launches: list[Launch] = []
    constants: list[Constant] = []
    spaces: list[Workspace] = []
    for phase in convolution.phases:
        if any(window.taps == 0 for window in phase):
            weights = Reference("operand", 0)  # never read
        elif constant_w is not None:
            constants.append(pack_constant(constant_w, phase, groups))
            weights = Reference("constant", len(constants) - 1)
        else:
            weights = Reference("workspace", len(spaces))
            launch, space = build_pack_launch(w, phase, groups, target)
            spaces.append(space)
            launches.append(launch.rebound({Reference("operand", 0): RIGHT, RESULT: weights}))
        for share, active in choose_shares(phase, groups, x, result, target):
            launch = build_depthwise_launch(phase, groups, x, result, epilogue, target, share)
            launches.append(run_where(active, launch).rebound({RIGHT: weights}))
    return Work(tuple(launches), tuple(spaces), tuple(constants))


# -- weights ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Groups:
    """`count` groups of `channels` of the input and `features` of the result."""

    count: Dim
    channels: Dim
    features: Dim
    transposed: bool


def pack_constant(array: Array, phase: Phase, groups: Groups) -> Packing:
    """Pack a constant's taps of a phase as [taps, channels, features of all groups]."""
    taps = [constant_size(window.taps) for window in phase]
    shape = (*taps, constant_size(groups.channels), constant_size(groups.count) * constant_size(groups.features))
    return Packing(array, partial(_pack, phase=phase, groups=groups), shape, array.dtype)


def _pack(array: Array, phase: Phase, groups: Groups) -> Iterator[Array]:
    count, channels, features = (constant_size(size) for size in (groups.count, groups.channels, groups.features))
    sides = (channels, features) if groups.transposed else (features, channels)
    arranged = array.reshape(count, *sides, *array.shape[2:])
    arranged = arranged if groups.transposed else arranged.swapaxes(1, 2)  # [groups, channels, features, kernel]
    arranged = arranged[(slice(None),) * 3 + tuple(map(tap_slice, phase))]
    yield np.moveaxis(arranged, (1, 0, 2), (-3, -2, -1))


def build_pack_launch(w: StoredTensor, phase: Phase, groups: Groups, target: ThreadTarget) -> tuple[Launch, Workspace]:
    """Pack weights that are not constant, by a kernel."""
    shape = (*(window.taps for window in phase), groups.channels, groups.count * groups.features)
    axes = [dims.axis(axis, size) for axis, size in enumerate(shape)]
    group, feature = dims.floordiv(axes[-1], groups.features), dims.mod(axes[-1], groups.features)
    places = [group * groups.channels + axes[-2], feature] if groups.transposed else [axes[-1], axes[-2]]
    places += [window.tap_first + axis * window.tap_step for window, axis in zip(phase, axes)]
    load = Load(0, tuple(map(Index, places)), w.dtype)
    packed = StoredTensor(w.dtype, shape, row_major(len(shape)))
    return build_map_launch(load, [w], packed, target), Workspace(w.dtype, dims.product(shape))


# -- threads ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Share:
    """The pixels of a thread, and the lanes of a block."""

    pixels: int
    lanes: int


def choose_shares(
    phase: Phase, groups: Groups, x: StoredTensor, result: StoredTensor, target: ThreadTarget
) -> list[tuple[Share, Dim]]:
    """Choose shares, each with an indicator of its sizes: several pixels share reads, but a GPU needs many threads."""
    run = thread_features(groups, x, result)
    count, features = phase[-1].count, dims.floordiv(result.shape[CHANNEL], run)
    lines = dims.product((x.shape[0], *(window.count for window in phase[:-1]), features))

    def threads(pixels: int) -> Dim:
        return lines * dims.ceildiv(count, pixels)

    if not target.sharing_pays:
        pixels = 2 * MAX_PIXELS
        while pixels > 1 and estimate(count) * 2 <= pixels:
            pixels //= 2
        return [(Share(pixels, target.block_threads), 1)]
    many = enough_threads(target.rates, MANY_THREADS)
    options = [pixels for pixels in (4, 2, 1) if pixels == 1 or estimate(count) * 2 > pixels]
    pixels = next((n for n in options if minimum_size(threads(n)) >= many), 1)
    lanes = target.block_threads if minimum_size(threads(pixels)) >= 2 * many else min(FEW_LANES, target.block_threads)
    few, several = Share(pixels, lanes), Share(options[0], target.block_threads)
    if few.pixels == several.pixels or not dims.symbols(threads(1)):
        return [(few, 1)]
    enough = dims.maximum(dims.minimum(threads(several.pixels) - many + 1, 1), 0)
    return [(few, 1 - enough), (several, enough)]


def thread_features(groups: Groups, x: StoredTensor, result: StoredTensor) -> int:
    is_single = groups.channels == 1 and groups.features == 1
    fits = dims.mod(groups.features, RUN) == 0 or (
        is_single and x.strides[CHANNEL] == 1 and dims.mod(result.shape[CHANNEL], RUN) == 0
    )
    return RUN if fits else 1


# -- the kernel ------------------------------------------------------------------------------------------------------


class _DepthwiseKernel:
    """Operands are x, the weights (of its type), and the epilogue's."""

    def __init__(
        self,
        phase: Phase,
        groups: Groups,
        x: StoredTensor,
        result: StoredTensor,
        epilogue: Epilogue | None,
        target: ThreadTarget,
        share: Share,
    ) -> None:
        self.phase, self.groups, self.x, self.result, self.target = phase, groups, x, result, target
        self.pixels, self.lanes = share.pixels, share.lanes
        self.type = accumulator_dtype(x.dtype)
        self.builder = KernelBuilder("depthwise")
        self.source = self.builder.input("x", x.dtype, LEFT)
        self.weights = self.builder.input("w", x.dtype, RIGHT)
        self.epilogue_writer = EpilogueWriter(result, epilogue, self.builder, 2)
        self.is_single = groups.channels == 1 and groups.features == 1
        is_contiguous = x.strides[CHANNEL] == 1
        self.run = thread_features(groups, x, result)
        self.deep = RUN if not self.is_single and is_contiguous and dims.mod(groups.channels, RUN) == 0 else 1
        parameter = self.builder.parameter
        self.strides = [s if s in (0, 1) else parameter(f"x_{axis}", s) for axis, s in enumerate(x.strides)]
        self.sizes = [parameter(f"size{axis}", size) for axis, size in enumerate(x.shape[2:])]
        self.bases = [parameter(f"base{axis}", window.base) for axis, window in enumerate(phase)]
        self.taps = [self.number(f"taps{axis}", window.taps) for axis, window in enumerate(phase)]
        self.channels = self.number("channels", groups.channels)
        self.last = len(phase) - 1
        self.clamps = target.sharing_pays and all(dims.is_at_least(size, 1) for size in x.shape[2:])
        taps = [tap for tap in self.taps if isinstance(tap, int)]
        is_flat = target.sharing_pays and self.channels == 1 and len(taps) == len(self.taps)
        self.unrolled = is_flat and prod(taps) * self.pixels <= MAX_UNROLLED

    def number(self, name: str, value: Dim) -> Dim:
        return value if isinstance(value, int) else self.builder.parameter(name, value)

    def build_launch(self) -> Launch:
        parts = [window.count for window in self.phase]
        parts[-1] = dims.ceildiv(parts[-1], self.pixels)
        sizes = (self.x.shape[0], *parts, dims.floordiv(self.result.shape[CHANNEL], self.run))
        here = points(sizes, self.builder, self.lanes)
        self.image, *self.places, feature = here.places
        self.places[-1] = self.places[-1] * self.pixels
        self.feature = feature * self.run
        self.tests: dict[tuple[int, Dim], tuple[Code | None, list[Statement]]] = {}
        self.sums = [self.builder.registers(f"sum{n}_", self.run, self.type) for n in range(self.pixels)]
        self.outer_taps: list[Dim] = [*self.builder.variables("t", self.last)]
        self.channel = 0 if self.channels == 1 else self.builder.variable("c")  # of the group
        sums = [define(total, Number(0, self.type)) for pixel in self.sums for total in pixel]
        products = self.unrolled_products() if self.unrolled else self.products()
        masks = [statement for _, statements in self.tests.values() for statement in statements]
        statements = (*masks, *sums, *products, *self.end(here.mask))
        return self.builder.launch(self.lanes, statements, here.blocks)

    def end(self, mask: Code | None) -> list[Statement]:
        """Finish and write the sums of every pixel."""
        statements: list[Statement] = []
        count = self.phase[-1].count
        for pixel in range(self.pixels):
            place = self.places[-1] + pixel
            tests = [] if mask is None else [mask]
            if dims.mod(count, self.pixels) != 0:
                limit = self.builder.parameter("count", count)
                tests.append(Call("less", (Integer(place), Integer(limit)), DType.bool))
                place = dims.minimum(place, limit - 1) if self.target.sharing_pays else place
            axes = {0: self.image, CHANNEL: self.feature}
            for axis, (window, at) in enumerate(zip(self.phase, (*self.places[:-1], place))):
                axes[2 + axis] = window.first + at * window.step
            inside = all_of(tests)
            if self.target.sharing_pays:
                statements += write_inside(self.epilogue_writer, self.sums[pixel], axes, CHANNEL, inside)
            else:
                statements += self.epilogue_writer.write_run(self.sums[pixel], axes, CHANNEL, inside)
        return statements

    # -- sums --------------------------------------------------------------------------------------------------------

    def products(self) -> tuple[Statement, ...]:
        """Build the loops over the taps of all axes but the last, and over the channels of a group."""
        rows: list[list[Statement]] = []
        masks: list[Code] = []
        for axis in range(self.last):
            row: list[Statement] = []
            test = self.inside(axis, self.outer_taps[axis] * self.phase[axis].dilation, row)
            rows.append(row)
            masks += [] if test is None else [test]
        body: tuple[Statement, ...] = tuple(self.line(all_of(masks)))
        if self.channels != 1:
            body = (repeat(self.channel, 0, self.channels, self.deep, body),)
        for tap, count, row in reversed(list(zip(self.outer_taps, self.taps, rows))):
            body = (repeat(tap, 0, count, 1, (*row, *body)),)
        return body

    def unrolled_products(self) -> tuple[Statement, ...]:
        """Build all products unrolled, without loops."""
        statements: list[Statement] = []
        for taps in cartesian(*(range(tap) for tap in self.taps[:-1] if isinstance(tap, int))):
            self.outer_taps = [*taps]
            tests = [self.hoisted_inside(axis, tap * self.phase[axis].dilation) for axis, tap in enumerate(taps)]
            statements += self.process_taps(list(range(constant_size(self.taps[-1]))), all_of(tests))
        return tuple(statements)

    def line(self, row: Code | None) -> list[Statement]:
        """Process the taps of the last axis."""
        taps = self.taps[-1]
        if not isinstance(taps, int) or taps > MAX_UNROLLED_LINE:
            tap = self.builder.variable(f"t{self.last}")
            return [repeat(tap, 0, taps, 1, self.process_taps([tap], row))]
        if self.deep == 1:
            return self.process_taps(list(range(taps)), row)
        return [statement for tap in range(taps) for statement in self.process_taps([tap], row)]

    def process_taps(self, taps: Sequence[Dim], row: Code | None) -> list[Statement]:
        """Process some taps: read each column of the input once, and multiply it for all pixels that use it."""
        statements: list[Statement] = []
        uses: dict[Dim, list[tuple[int, list[list[Register]]]]] = {}
        for tap in taps:
            weights = [self.builder.registers("w", self.run, self.x.dtype) for _ in range(self.deep)]
            for deep, run in enumerate(weights):
                statements.append(fetch_run(run, self.weights, self.weight_place(tap, deep)))
            for pixel in range(self.pixels):
                window = self.phase[-1]
                uses.setdefault(pixel * window.advance + tap * window.dilation, []).append((pixel, weights))
        columns = list(uses)
        if self.target.sharing_pays:  # each pixel's taps stay in order, however many pixels a thread has
            columns.sort(key=lambda column: column if isinstance(column, int) else 0)
        for column in columns:
            mask = all_of([row, self.column_inside(column, statements)])
            elements = self.elements(column, mask, statements)
            for pixel, weights in uses[column]:
                statements += self.multiply(elements, weights, self.sums[pixel])
        return statements

    def elements(self, column: Dim, mask: Code | None, statements: list[Statement]) -> Sequence[Register]:
        """Read the elements at a column, 0 outside the input."""
        loaded = self.builder.registers("x", self.run if self.is_single else self.deep, self.x.dtype)
        place = self.element_place(column)
        statements.append(fetch_run(loaded, self.source, place, None if self.clamps else mask))
        if mask is None or not self.clamps:
            return loaded
        masked: list[Register] = []
        for element in loaded:
            value = Call("select", (mask, element, Number(0, self.x.dtype)), self.x.dtype)
            definition, register = self.builder.keep("x", cast(value, self.type), varying=True)
            statements.append(definition)
            masked.append(register)
        return masked

    def multiply(
        self, elements: Sequence[Register], weights: Sequence[Sequence[Register]], sums: Sequence[Register]
    ) -> list[Statement]:
        """Add the products of a tap's elements and weights to a pixel's sums."""
        statements: list[Statement] = []
        for deep in range(self.deep):
            for number, total in enumerate(sums):
                element, weight = elements[number if self.is_single else deep], weights[deep][number]
                left, right = cast(element, self.type), cast(weight, self.type)
                statements.append(assign(total, multiply_add(self.target, left, right, total)))
        return statements

    # -- places ------------------------------------------------------------------------------------------------------

    def weight_place(self, tap: Dim, deep: int) -> Dim:
        place: Dim = 0
        for size, at in zip(self.taps, (*self.outer_taps, tap)):
            place = place * size + at
        channel = 0 if self.channels == 1 else self.channel + deep
        features = self.builder.parameter("features", self.result.shape[CHANNEL])
        return (place * self.channels + channel) * features + self.feature

    def element_place(self, column: Dim) -> Dim:
        """Return the offset of the element of x for the loops' taps, at a column relative to the thread's first."""
        positions = [self.clamp(n, tap * self.phase[n].dilation) for n, tap in enumerate(self.outer_taps)]
        positions.append(self.clamp(self.last, column))
        channel = self.feature
        if not self.is_single:
            group = dims.floordiv(self.feature, self.number("features_each", self.groups.features))
            channel = group * self.channels + self.channel
        return offset(self.strides, [self.image, channel, *positions])

    def position(self, axis: int, distance: Dim) -> Dim:
        return self.bases[axis] + self.places[axis] * self.phase[axis].advance + distance

    def clamp(self, axis: int, distance: Dim) -> Dim:
        """Return the position to read at: the nearest one inside if this kernel clamps positions."""
        position = self.position(axis, distance)
        if not self.clamps:
            return position
        return clamp_to_bounds(position, self.sizes[axis], self.may_leave(axis, distance))

    def column_inside(self, column: Dim, statements: list[Statement]) -> Code | None:
        """Test whether a column is inside: before all loops if it is constant, otherwise here."""
        if not isinstance(column, int):
            return self.inside(self.last, column, statements)
        return self.hoisted_inside(self.last, column)

    def hoisted_inside(self, axis: int, distance: int) -> Code | None:
        """Test whether a position is inside before all loops, once for each axis and distance."""
        if (axis, distance) not in self.tests:
            statements: list[Statement] = []
            self.tests[axis, distance] = self.inside(axis, distance, statements), statements
        return self.tests[axis, distance][0]

    def inside(self, axis: int, distance: Dim, statements: list[Statement]) -> Code | None:
        """Test whether the position at a distance from the first tap is inside; None where it always is."""
        hint = "column" if axis == self.last else "row"
        bounds = self.may_leave(axis, distance)
        return check_bounds(self.builder, hint, self.position(axis, distance), self.sizes[axis], bounds, statements)

    def may_leave(self, axis: int, distance: Dim) -> tuple[bool, bool]:
        """Whether positions may be before the first of the input, and after the last."""
        window, size = self.phase[axis], self.x.shape[2 + axis]
        is_innermost = axis == self.last
        count = dims.ceildiv(window.count, self.pixels) * self.pixels if is_innermost else window.count
        ahead = self.pixels if is_innermost else 1
        low, high = distance, distance
        if not isinstance(distance, int):
            low, high = 0, (window.taps - 1) * window.dilation
            high = high + (self.pixels - 1) * window.advance if is_innermost else high
        end = window.base + (count - ahead) * window.advance + high
        return not dims.is_at_least(window.base + low, 0), not dims.is_at_least(size - 1, end)


build_depthwise_launch = memoize_launch(_DepthwiseKernel)
