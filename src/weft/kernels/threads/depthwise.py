"""Convolutions of many small groups, each result summed up by one thread straight from the input.

A thread has some neighbouring pixels of a line, and four channels of them where groups allow it. What lies outside of
the input is masked, so there is no padded copy; where lanes share memory, what is masked is read from inside, so that
no read waits for a test or another read. Weights are packed as [taps, channels of a group, features]: features are
lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product as cartesian
from math import prod
from typing import Any

import numpy as np

from weft.cost.occupancy import enough_threads
from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Number, Register, Statement
from weft.ir.layout import offset, row_major
from weft.ir.packing import Constant, Packing
from weft.ir.scalar import Index, Load
from weft.ir.target import ThreadTarget
from weft.kernels.build.convolution import CHANNEL, Convolution, fixed, kernel_slice
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.build.multiply_add import accumulator_type, multiply_add, widened
from weft.kernels.build.windows import Phase
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch_run, repeat
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.tensors import LEFT, RESULT, RIGHT, Epilogue, Launch, Reference, StoredTensor, Work, Workspace
from weft.kernels.threads.maps import region_launch
from weft.kernels.threads.points import FEW_LANES, MANY_THREADS, all_of, at_least, points, write_inside
from weft.records import dataclass

Array = np.ndarray[Any, Any]
RUN = 4  # neighbouring channels that are read and written at once
MOST_CHANNELS = 16  # of a group, of the input or of the result: beyond, products of tiles are faster
MOST_PIXELS = 4  # of a thread; twice as many where memory is slow beside arithmetic, as on software adapters
WRITTEN_OUT = 8  # taps of a line, at most, that are not a loop
ALL_WRITTEN_OUT = 50  # taps of all of a thread's pixels, at most, that are not loops: registers are few


def depthwise_applies(convolution: Convolution) -> bool:
    """Whether a convolution of one type has groups, small ones, and no zeros between the elements of its input."""
    primitive, w = convolution.primitive, convolution.w
    if convolution.x.dtype is not w.dtype or convolution.order is not None:
        return False
    if primitive.groups == 1 or any(distance != 1 for distance in convolution.distances):
        return False
    features = w.shape[1] if primitive.transposed else dims.floordiv(w.shape[0], primitive.groups)
    return min(estimate(convolution.channels), estimate(features)) <= MOST_CHANNELS


def depthwise_work(convolution: Convolution, target: ThreadTarget) -> Work:
    """One kernel for each phase, and one that packs weights which are not constant."""
    primitive, x, w, constant_w = convolution.primitive, convolution.x, convolution.w, convolution.constant
    result, epilogue = convolution.result, convolution.epilogue
    groups = Groups(primitive.groups, convolution.channels, convolution.features, primitive.transposed)
    launches: list[Launch] = []
    constants: list[Constant] = []
    spaces: list[Workspace] = []
    for phase in convolution.phases:
        if any(window.taps == 0 for window in phase):
            weights = Reference("operand", 0)  # of which nothing is read
        elif constant_w is not None:
            constants.append(packed_weights(constant_w, phase, groups))
            weights = Reference("constant", len(constants) - 1)
        else:
            weights = Reference("workspace", len(spaces))
            launch, space = pack_weights(w, phase, groups, target)
            spaces.append(space)
            launches.append(launch.rebound({Reference("operand", 0): RIGHT, RESULT: weights}))
        for sharing, active in shares_of_threads(phase, groups, x, result, target):
            launch = depthwise_launch(phase, groups, x, result, epilogue, target, sharing)
            launch = launch if active == 1 else replace(launch, blocks=launch.blocks * active)
            launches.append(launch.rebound({RIGHT: weights}))
    return Work(tuple(launches), tuple(spaces), tuple(constants))


# -- weights ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Groups:
    """So many groups of `channels` of the input and `features` of the result."""

    count: Dim
    channels: Dim
    features: Dim
    transposed: bool


def packed_weights(array: Array, phase: Phase, groups: Groups) -> Packing:
    """A constant's taps of a phase as [taps, channels, features of all groups]."""
    taps = [fixed(window.taps) for window in phase]
    shape = (*taps, fixed(groups.channels), fixed(groups.count) * fixed(groups.features))
    return Packing(array, partial(_packed, phase=phase, groups=groups), shape, array.dtype)


def _packed(array: Array, phase: Phase, groups: Groups) -> Iterator[Array]:
    count, channels, features = (fixed(size) for size in (groups.count, groups.channels, groups.features))
    sides = (channels, features) if groups.transposed else (features, channels)
    arranged = array.reshape(count, *sides, *array.shape[2:])
    arranged = arranged if groups.transposed else arranged.swapaxes(1, 2)  # [groups, channels, features, kernel]
    arranged = arranged[(slice(None),) * 3 + tuple(map(kernel_slice, phase))]
    yield np.moveaxis(arranged, (1, 0, 2), (-3, -2, -1))


def pack_weights(w: StoredTensor, phase: Phase, groups: Groups, target: ThreadTarget) -> tuple[Launch, Workspace]:
    """The same by a kernel."""
    shape = (*(window.taps for window in phase), groups.channels, groups.count * groups.features)
    axes = [dims.axis(axis, size) for axis, size in enumerate(shape)]
    group, feature = dims.floordiv(axes[-1], groups.features), dims.mod(axes[-1], groups.features)
    places = [group * groups.channels + axes[-2], feature] if groups.transposed else [axes[-1], axes[-2]]
    places += [window.tap_first + axis * window.tap_step for window, axis in zip(phase, axes)]
    load = Load(0, tuple(map(Index, places)), w.dtype)
    packed = StoredTensor(w.dtype, shape, row_major(len(shape)))
    return region_launch(load, [w], packed, target), Workspace(w.dtype, dims.product(shape))


# -- threads ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Share:
    """How many pixels a thread has, and how many lanes a block."""

    pixels: int
    lanes: int


def shares_of_threads(
    phase: Phase, groups: Groups, x: StoredTensor, result: StoredTensor, target: ThreadTarget
) -> list[tuple[Share, Dim]]:
    """Each with an indicator of the sizes that it is for: several pixels share reads, but a GPU needs many threads."""
    run = features_of_a_thread(groups, x, result)
    count, features = phase[-1].count, dims.floordiv(result.shape[CHANNEL], run)
    outer = dims.product((x.shape[0], *(window.count for window in phase[:-1]), features))

    def threads(pixels: int) -> Dim:
        return outer * dims.ceildiv(count, pixels)

    if not target.sharing_pays:
        pixels = 2 * MOST_PIXELS
        while pixels > 1 and estimate(count) * 2 <= pixels:
            pixels //= 2
        return [(Share(pixels, target.block_threads), 1)]
    many = enough_threads(target.rates, MANY_THREADS)
    tried = [pixels for pixels in (4, 2, 1) if pixels == 1 or estimate(count) * 2 > pixels]
    least = next((n for n in tried if at_least(threads(n)) >= many), 1)
    lanes = target.block_threads if at_least(threads(least)) >= 2 * many else min(FEW_LANES, target.block_threads)
    few, several = Share(least, lanes), Share(tried[0], target.block_threads)
    if few.pixels == several.pixels or not dims.symbols(threads(1)):
        return [(few, 1)]
    enough = dims.maximum(dims.minimum(threads(several.pixels) - many + 1, 1), 0)
    return [(few, 1 - enough), (several, enough)]


def features_of_a_thread(groups: Groups, x: StoredTensor, result: StoredTensor) -> int:
    alone = groups.channels == 1 and groups.features == 1
    shared = dims.mod(groups.features, RUN) == 0
    fits = shared or (alone and x.strides[CHANNEL] == 1 and dims.mod(result.shape[CHANNEL], RUN) == 0)
    return RUN if fits else 1


# -- the kernel ------------------------------------------------------------------------------------------------------


@memoized
def depthwise_launch(
    phase: Phase,
    groups: Groups,
    x: StoredTensor,
    result: StoredTensor,
    epilogue: Epilogue | None,
    target: ThreadTarget,
    share: Share,
) -> Launch:
    """Operands are x, the weights (of its type), and the epilogue's."""
    return _Direct(phase, groups, x, result, epilogue, target, share).launch()


class _Direct:
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
        self.type = accumulator_type(x.dtype)
        self.builder = KernelBuilder("depthwise")
        self.source = self.builder.input("x", x.dtype, LEFT)
        self.weights = self.builder.input("w", x.dtype, RIGHT)
        self.epilogue_writer = EpilogueWriter(result, epilogue, self.builder, 2)
        self.alone = groups.channels == 1 and groups.features == 1
        neighbours = x.strides[CHANNEL] == 1
        self.run = features_of_a_thread(groups, x, result)
        self.deep = RUN if not self.alone and neighbours and dims.mod(groups.channels, RUN) == 0 else 1
        named = self.builder.named
        self.strides = [s if s in (0, 1) else named(f"x_{axis}", s) for axis, s in enumerate(x.strides)]
        self.sizes = [named(f"size{axis}", size) for axis, size in enumerate(x.shape[2:])]
        self.bases = [named(f"base{axis}", window.base) for axis, window in enumerate(phase)]
        self.taps = [self.number(f"taps{axis}", window.taps) for axis, window in enumerate(phase)]
        self.channels = self.number("channels", groups.channels)
        self.last = len(phase) - 1
        self.clamps = target.sharing_pays and all(dims.is_at_least(size, 1) for size in x.shape[2:])
        taps = [tap for tap in self.taps if isinstance(tap, int)]
        flat = target.sharing_pays and self.channels == 1 and len(taps) == len(self.taps)
        self.unrolled = flat and prod(taps) * self.pixels <= ALL_WRITTEN_OUT

    def number(self, name: str, value: Dim) -> Dim:
        return value if isinstance(value, int) else self.builder.named(name, value)

    def launch(self) -> Launch:
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
        products = self.all_products() if self.unrolled else self.products()
        masks = [statement for _, made in self.tests.values() for statement in made]
        statements = (*masks, *sums, *products, *self.end(here.mask))
        return self.builder.launch(self.lanes, statements, here.blocks)

    def end(self, mask: Code | None) -> list[Statement]:
        """Every pixel's sums finished and written."""
        statements: list[Statement] = []
        count = self.phase[-1].count
        for pixel in range(self.pixels):
            place = self.places[-1] + pixel
            tests = [] if mask is None else [mask]
            if dims.mod(count, self.pixels) != 0:
                limit = self.builder.named("count", count)
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
        """Loops over the taps of all axes but the last, and over the channels of a group."""
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

    def all_products(self) -> tuple[Statement, ...]:
        """The same without loops."""
        statements: list[Statement] = []
        for taps in cartesian(*(range(tap) for tap in self.taps[:-1] if isinstance(tap, int))):
            self.outer_taps = [*taps]
            tests = [self.known_inside(axis, tap * self.phase[axis].dilation) for axis, tap in enumerate(taps)]
            statements += self.some_taps(list(range(fixed(self.taps[-1]))), all_of([t for t in tests if t is not None]))
        return tuple(statements)

    def line(self, row: Code | None) -> list[Statement]:
        """The taps of the last axis."""
        taps = self.taps[-1]
        if not isinstance(taps, int) or taps > WRITTEN_OUT:
            tap = self.builder.variable(f"t{self.last}")
            return [repeat(tap, 0, taps, 1, self.some_taps([tap], row))]
        if self.deep == 1:
            return self.some_taps(list(range(taps)), row)
        return [statement for tap in range(taps) for statement in self.some_taps([tap], row)]

    def some_taps(self, taps: Sequence[Dim], row: Code | None) -> list[Statement]:
        """Weights of some taps, and every column of the input that one of them meets for some pixel."""
        statements: list[Statement] = []
        met: dict[Dim, list[tuple[int, list[list[Register]]]]] = {}
        for tap in taps:
            weights = [self.builder.registers("w", self.run, self.x.dtype) for _ in range(self.deep)]
            for deep, run in enumerate(weights):
                statements.append(fetch_run(run, self.weights, self.weight_place(tap, deep)))
            for pixel in range(self.pixels):
                window = self.phase[-1]
                met.setdefault(pixel * window.advance + tap * window.dilation, []).append((pixel, weights))
        columns = list(met)
        if self.target.sharing_pays:  # taps in their order for each pixel, however many pixels a thread has
            columns.sort(key=lambda column: column if isinstance(column, int) else 0)
        for column in columns:
            pairs = met[column]
            inside = self.column(column, statements)
            mask = all_of([test for test in (row, inside) if test is not None])
            elements = self.elements(column, mask, statements)
            for pixel, weights in pairs:
                statements += self.multiply(elements, weights, self.sums[pixel])
        return statements

    def elements(self, column: Dim, mask: Code | None, statements: list[Statement]) -> Sequence[Register]:
        """What is met at a column, 0 outside of the input."""
        read = self.builder.registers("x", self.run if self.alone else self.deep, self.x.dtype)
        place = self.element_place(column)
        statements.append(fetch_run(read, self.source, place, None if self.clamps else mask))
        if mask is None or not self.clamps:
            return read
        kept: list[Register] = []
        for element in read:
            value = Call("select", (mask, element, Number(0, self.x.dtype)), self.x.dtype)
            defined, register = self.builder.keep("x", widened(value, self.type), varying=True)
            statements.append(defined)
            kept.append(register)
        return kept

    def multiply(
        self, elements: Sequence[Register], weights: Sequence[Sequence[Register]], sums: Sequence[Register]
    ) -> list[Statement]:
        """What a pixel meets at a tap, by the tap's weights, added to its sums."""
        statements: list[Statement] = []
        for deep in range(self.deep):
            for number, total in enumerate(sums):
                element, weight = elements[number if self.alone else deep], weights[deep][number]
                left, right = widened(element, self.type), widened(weight, self.type)
                statements.append(assign(total, multiply_add(self.target, left, right, total)))
        return statements

    # -- places ------------------------------------------------------------------------------------------------------

    def weight_place(self, tap: Dim, deep: int) -> Dim:
        place: Dim = 0
        for size, at in zip(self.taps, (*self.outer_taps, tap)):
            place = place * size + at
        channel = 0 if self.channels == 1 else self.channel + deep
        features = self.builder.named("features", self.result.shape[CHANNEL])
        return (place * self.channels + channel) * features + self.feature

    def element_place(self, column: Dim) -> Dim:
        """Where the element of x is for the loops' taps, at a column from the first one of the thread on."""
        positions = [self.readable(n, tap * self.phase[n].dilation) for n, tap in enumerate(self.outer_taps)]
        positions.append(self.readable(self.last, column))
        channel = self.feature
        if not self.alone:
            group = dims.floordiv(self.feature, self.number("features_each", self.groups.features))
            channel = group * self.channels + self.channel
        return offset(self.strides, [self.image, channel, *positions])

    def position(self, axis: int, further: Dim) -> Dim:
        return self.bases[axis] + self.places[axis] * self.phase[axis].advance + further

    def readable(self, axis: int, further: Dim) -> Dim:
        """A position, or where reads do not wait for tests, the nearest one inside."""
        position = self.position(axis, further)
        before, behind = self.may_leave(axis, further) if self.clamps else (False, False)
        position = dims.maximum(position, 0) if before else position
        return dims.minimum(position, self.sizes[axis] - 1) if behind else position

    def column(self, column: Dim, statements: list[Statement]) -> Code | None:
        """Whether a column is inside: found out once where it is known beforehand, else here."""
        if not isinstance(column, int):
            return self.inside(self.last, column, statements)
        return self.known_inside(self.last, column)

    def known_inside(self, axis: int, further: int) -> Code | None:
        """Whether what is met so far from the first tap is inside, found out before all else."""
        if (axis, further) not in self.tests:
            made: list[Statement] = []
            self.tests[axis, further] = self.inside(axis, further, made), made
        return self.tests[axis, further][0]

    def inside(self, axis: int, further: Dim, statements: list[Statement]) -> Code | None:
        """Whether what is met so far from the first tap is inside, in a register; None where it certainly is."""
        before, behind = self.may_leave(axis, further)
        position = Integer(self.position(axis, further))
        tests: list[Code] = []
        if before:
            tests.append(Call("greater_equal", (position, Integer(0)), DType.bool))
        if behind:
            tests.append(Call("less", (position, Integer(self.sizes[axis])), DType.bool))
        test = all_of(tests)
        if test is None:
            return None
        defined, inside = self.builder.keep("column" if axis == self.last else "row", test, varying=True)
        statements.append(defined)
        return inside

    def may_leave(self, axis: int, further: Dim) -> tuple[bool, bool]:
        """Whether positions may be before the input's first, and behind its last."""
        window, size = self.phase[axis], self.x.shape[2 + axis]
        innermost = axis == self.last
        count = dims.ceildiv(window.count, self.pixels) * self.pixels if innermost else window.count
        ahead = self.pixels if innermost else 1
        least, most = further, further
        if not isinstance(further, int):
            least, most = 0, (window.taps - 1) * window.dilation
            most = most + (self.pixels - 1) * window.advance if innermost else most
        end = window.base + (count - ahead) * window.advance + most
        return not dims.is_at_least(window.base + least, 0), not dims.is_at_least(size - 1, end)
