"""Convolutions with 3 taps an axis and fewer multiplications: tiles of the input are transformed, multiplied and
transformed back.

Along an axis, m outputs need m + 2 products for each pair of channels instead of 3 m: polynomials are multiplied by
their values at m + 1 points and at infinity. Axes with one tap are left as they are. The products of all tiles at one
combination of points are a matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import prod
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Buffer,
    Call,
    Code,
    Define,
    Fetch,
    Integer,
    Kernel,
    Let,
    Number,
    Put,
    Register,
    Repeat,
    Statement,
    When,
    block,
    lane,
    variable,
)
from weft.ir.packing import Packing
from weft.ir.program import Convolve
from weft.ir.target import Target
from weft.kernels.ending import Ending, ending_references
from weft.kernels.launch import Epilogue, Launch, Reference, Tensor, Work, Workspace
from weft.kernels.layout import channels_last, offset, row_major
from weft.kernels.multiply import multiply_add
from weft.kernels.panels import panels_for
from weft.kernels.parameters import Parameters
from weft.kernels.remember import remembered
from weft.kernels.tiles import Product, product_kernel
from weft.kernels.walks import Walk, split_index

Array = np.ndarray[Any, Any]
Matrix = tuple[tuple[Fraction, ...], ...]
# opposite points follow each other; these give a third of the error that 1 and 2 give
_POINTS: dict[int, tuple[Fraction, ...]] = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(3, 2), Fraction(-3, 2)),
}
_TAPS = 3
_MOST_STRIPS = 8  # where only a run will tell how many tiles there are; the last ones are empty where these are few
_USUAL_COUNT = 32  # tiles along an axis of unknown size
_LINE_WORK = 32768  # elements that a block transforms, about
_ALIAS = 4096  # bytes between places that compete for the same lines of a cache
SIZES = tuple(_POINTS)  # of tiles, along an axis


def applies(primitive: Convolve, dtype: DType, kernel: Sequence[Dim]) -> bool:
    """Whether a convolution with constant weights can be done so; `kernel` is the number of taps along each axis."""
    plain = primitive.groups == 1 and not primitive.transposed and len(kernel) <= 2
    unit = all(step == 1 for step in (*primitive.strides, *primitive.dilations))
    return plain and unit and dtype is DType.float32 and _TAPS in kernel and all(k in (1, _TAPS) for k in kernel)


def tile_sides(kernel: Sequence[int], size: int) -> list[tuple[int, int]]:
    """Outputs and inputs of a tile, along each axis."""
    return [(size, size + _TAPS - 1) if taps == _TAPS else (1, 1) for taps in kernel]


def winograd_work(
    primitive: Convolve, x: Tensor, w: Array, result: Tensor, epilogue: Epilogue | None, target: Target, size: int
) -> Work | None:
    """The convolution with constant weights, in tiles of `size` outputs along each axis; None where it cannot be."""
    last = channels_last(w.ndim)
    if not applies(primitive, x.dtype, w.shape[2:]) or not x.layout == last == result.layout:
        return None
    builder, work = _built(primitive, x, w.shape, result, epilogue, target, size)
    return replace(work, constants=(builder.packing(w),))


@remembered
def _built(
    primitive: Convolve,
    x: Tensor,
    weights: tuple[int, ...],
    result: Tensor,
    epilogue: Epilogue | None,
    target: Target,
    size: int,
) -> tuple[_Builder, Work]:
    """The work without its weights, which is the same for equal layers, and what packs them."""
    builder = _Builder(primitive, x, weights, result, epilogue, target, size)
    return builder, builder.work()


# -- the transforms --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Transforms:
    """y = output . ((kernel . g) * (input . d)) along an axis, for `size` outputs."""

    size: int
    input: Matrix
    kernel: Matrix
    output: Matrix


def transforms(size: int) -> Transforms:
    """Interpolation at some points and at infinity, in exact arithmetic."""
    points = _POINTS[size]
    values, kernel = [], []
    for point in points:
        others = _polynomial([other for other in points if other != point])
        scale = sum(c * point**power for power, c in enumerate(others))
        values.append((*others, Fraction(0)))
        kernel.append(tuple(point**power / scale for power in range(_TAPS)))
    values.append(_polynomial(points))
    kernel.append((*[Fraction(0)] * (_TAPS - 1), Fraction(1)))
    output = [(*(point**power for point in points), Fraction(int(power == size - 1))) for power in range(size)]
    return Transforms(size, tuple(values), tuple(kernel), tuple(output))


_SAME = Transforms(1, ((Fraction(1),),), ((Fraction(1),),), ((Fraction(1),),))


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Coefficients of the product of (x - root), the constant one first."""
    found = [Fraction(1)]
    for root in roots:
        found = [low - root * high for low, high in zip([Fraction(0), *found], [*found, Fraction(0)])]
    return tuple(found)


class _Lines:
    """Statements for linear combinations of vectors, each in a register of its own."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.dtype = DType.float32
        self.statements: list[Statement] = []

    def keep(self, value: Code) -> Code:
        name = f"v{len(self.statements)}"
        self.statements.append(Define(name, value, True))
        return Register(name, self.dtype, True)

    def along(self, axis: int, change: Callable[[list[Code]], list[Code]], tile: Array) -> Array:
        """A tile with every line along an axis changed."""
        lines = np.moveaxis(tile, axis, -1)
        changed = [change(list(lines[place])) for place in np.ndindex(lines.shape[:-1])]
        found = np.empty((*lines.shape[:-1], len(changed[0])), object)
        for place, line in zip(np.ndindex(lines.shape[:-1]), changed):
            for number, value in enumerate(line):
                at = (*place, number)
                found[at] = value
        return np.moveaxis(found, -1, axis)

    def apply(self, matrix: Matrix, values: list[Code]) -> list[Code]:
        """matrix . values; rows of opposite points by way of what they have in common."""
        found: dict[int, Code] = {}
        for number, row in enumerate(matrix):
            if number in found:
                continue
            partner = next((n for n in range(number + 1, len(matrix)) if _is_mirrored(row, matrix[n])), None)
            if partner is None:
                found[number] = self.combine(row, values)
            else:
                even = self.combine([c if power % 2 == 0 else Fraction(0) for power, c in enumerate(row)], values)
                odd = self.combine([c if power % 2 else Fraction(0) for power, c in enumerate(row)], values)
                found[number] = self.keep(Call("add", (even, odd), self.dtype))
                found[partner] = self.keep(Call("subtract", (even, odd), self.dtype))
        return [found[number] for number in range(len(matrix))]

    def paired(self, matrix: Matrix, values: list[Code]) -> tuple[Matrix, list[Code]]:
        """The same product with sums and differences of the values that belong to opposite points."""
        taken = list(values)
        columns = [list(column) for column in zip(*matrix)]
        for first in range(1, len(columns) - 2, 2):
            plus = self.keep(Call("add", (values[first], values[first + 1]), self.dtype))
            minus = self.keep(Call("subtract", (values[first], values[first + 1]), self.dtype))
            taken[first], taken[first + 1] = plus, minus
            point = columns[first]
            columns[first] = [c if power % 2 == 0 else Fraction(0) for power, c in enumerate(point)]
            columns[first + 1] = [c if power % 2 else Fraction(0) for power, c in enumerate(point)]
        return tuple(zip(*columns)), taken

    def back(self, matrix: Matrix, values: list[Code]) -> list[Code]:
        """matrix . values, for values at points that come in opposite pairs."""
        return self.apply(*self.paired(matrix, values))

    def combine(self, factors: Sequence[Fraction], values: Sequence[Code]) -> Code:
        """The sum of products, starting from a value that is taken as it is where there is one."""
        terms = sorted(((f, v) for f, v in zip(factors, values) if f), key=lambda term: term[0] != 1)
        (first, start), *rest = terms
        total = start if first == 1 else self.keep(Call("multiply", (self.number(first), start), self.dtype))
        for factor, value in rest:
            if abs(factor) == 1:
                total = self.keep(Call("add" if factor == 1 else "subtract", (total, value), self.dtype))
            else:
                total = self.keep(multiply_add(self.target, self.number(factor), value, total))
        return total

    def number(self, value: Fraction) -> Number:
        return Number(float(value), self.dtype)


def _is_mirrored(row: Sequence[Fraction], other: Sequence[Fraction]) -> bool:
    return all(b == (a if power % 2 == 0 else -a) for power, (a, b) in enumerate(zip(row, other)))


# -- the kernels -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Strip:
    """Some of all tiles, one after the other."""

    first: Dim
    count: Dim


class _Builder:
    def __init__(
        self,
        primitive: Convolve,
        x: Tensor,
        weights: tuple[int, ...],
        result: Tensor,
        epilogue: Epilogue | None,
        target: Target,
        size: int,
    ) -> None:
        self.x, self.result, self.epilogue, self.target = x, result, epilogue, target
        self.features, self.channels, *kernel = weights
        self.pads = tuple(before for before, _ in primitive.pads)
        self.transforms = [transforms(size) if taps == _TAPS else _SAME for taps in kernel]
        sides = tile_sides(kernel, size)
        self.sizes, self.sides = [outputs for outputs, _ in sides], [inputs for _, inputs in sides]
        self.points = prod(self.sides)
        self.lanes = target.vector_bytes // 4
        self.panels = panels_for(target, DType.float32, self.features)
        self.counts = [dims.ceildiv(extent, size) for extent, size in zip(result.shape[2:], self.sizes)]
        self.tiles = result.shape[0] * dims.product(self.counts)

    def pitch(self, channels: int) -> int:
        """Elements between points of a tile, such that neighbouring tiles do not compete for lines of a cache."""
        aliased = self.points * channels * 4 % _ALIAS == 0
        return channels + self.lanes if aliased else channels

    def work(self) -> Work:
        """Without the weights."""
        taken, products = Reference("workspace", 0), Reference("workspace", 1)
        strips = self.strips()
        pitches = self.pitch(self.channels), self.pitch(self.features)
        spaces = [Workspace(DType.float32, strips[0].count * self.points * pitch) for pitch in pitches]
        before, after = self.transform_input(), self.transform_output()
        launches: list[tuple[Launch, tuple[Reference, ...]]] = []
        for strip in strips:
            launches.append((_for_strip(before, strip), (Reference("operand", 0), taken)))
            launches.append((self.product(strip), (taken, Reference("constant", 0), products)))
            launches.append((_for_strip(after, strip), (products, *ending_references(self.epilogue))))
        return Work(tuple(launches), tuple(spaces))

    def strips(self) -> list[Strip]:
        """All tiles, in parts whose transformed elements stay in a cache, unless the weights are what fills it."""
        points = 4 * self.points
        room = 4 * max(self.target.cache_bytes, points * self.channels * self.features)
        most = max(room // (points * (self.channels + self.features)), 1)
        if not isinstance(self.tiles, int):
            parts = min(max(-(-self.usual_tiles() // most), 1), _MOST_STRIPS)
            some = dims.maximum(dims.ceildiv(self.tiles, parts), most)
            firsts = [number * some for number in range(parts)]
            return [Strip(first, dims.minimum(dims.maximum(self.tiles - first, 0), some)) for first in firsts]
        if self.tiles <= most:
            return [Strip(0, self.tiles)]
        each = -(-self.tiles // -(-self.tiles // most))
        return [Strip(first, min(each, self.tiles - first)) for first in range(0, self.tiles, each)]

    def usual_tiles(self) -> int:
        """How many tiles there are, about, where only a run will tell: those of one large image."""
        counts = [count if isinstance(count, int) else _USUAL_COUNT for count in self.counts]
        batch = self.result.shape[0]
        return prod(counts) * (batch if isinstance(batch, int) else 1)

    def packing(self, w: Array) -> Packing:
        """Transformed weights: packed ones for each point."""
        shape = self.panels.packed_shape(self.points, self.channels)
        return Packing(w, self.weights, shape, np.dtype(np.float32))

    def weights(self, w: Array) -> Iterator[Array]:
        """One piece for each point along the first axis."""
        first, *others = self.transforms
        points = self.points // len(first.kernel)

        def part(row: Array, columns: slice) -> Array:
            found = np.tensordot(w[columns].astype(np.float64), row, (2, 0))
            for transform in others:
                found = np.tensordot(found, np.array(transform.kernel, np.float64), (2, 1))
            arranged: Array = found.reshape(found.shape[0], self.channels, points).transpose(2, 1, 0)
            return arranged

        for row in np.array(first.kernel, np.float64):
            yield self.panels.pack_parts(points, self.channels, np.float32, partial(part, row))

    def product(self, strip: Strip) -> Launch:
        """Tiles times weights for every point."""
        points, step = self.points, self.panels.step
        pitch, padded = self.pitch(self.channels), self.pitch(self.features)
        results = Tensor(DType.float32, (strip.count, points, padded), row_major(3))
        product = Product(
            left=DType.float32,
            right=DType.float32,
            result=results,
            epilogue=None,
            grid=(Walk(points, pitch, self.channels * self.panels.stored(packed=True), 1),),
            rows=(Walk(strip.count, points * pitch, axis=0),),
            column=Walk(self.features, axis=2),
            sums=(Walk(self.channels, 1, step),),
            panels=self.panels,
            panel=self.channels * step,
            padded=True,
            packed=True,
        )
        return product_kernel("winograd_product", product, self.target)

    def transform_input(self) -> Launch:
        kernel = _Loops(self, self.channels)
        strides = [kernel.stride(f"x{axis}", stride) for axis, stride in enumerate(self.x.strides)]
        sizes = [kernel.parameters.named(f"size{axis}", size) for axis, size in enumerate(self.x.shape[2:])]
        pads = [kernel.parameters.named(f"pad{axis}", pad) for axis, pad in enumerate(self.pads)]
        corner = [variable(f"y{axis + 1}") * self.sizes[axis] - pad for axis, pad in enumerate(pads)]

        def body(inside: bool) -> list[Statement]:
            def load(place: tuple[int, ...]) -> Code:
                places = [first + further for first, further in zip(corner, place)]
                mask = kernel.mask()
                for at, size in zip(places, sizes) if not inside else ():
                    mask = _and(mask, _and(_less(-1, at), _less(at, size)))
                at = offset(strides, [variable("y0"), kernel.channel(), *places])
                return Fetch("x", at, DType.float32, mask=mask)

            lines = _Lines(self.target)
            tile = _tile(self.sides, lambda place: lines.keep(load(place)))
            for axis, transform in enumerate(self.transforms):
                tile = lines.along(axis, partial(lines.apply, transform.input), tile)
            places = [kernel.at(number) for number in range(self.points)]
            flat = tile.ravel().tolist()
            puts = [Put("out", place, value, mask=kernel.mask()) for place, value in zip(places, flat)]
            return [*lines.statements, *puts]

        whole = _all([_less(-1, place) for place in corner])
        for place, side, size in zip(corner, self.sides, sizes):
            whole = _and(whole, _less(place + side - 1, size))
        assert whole is not None
        buffers = (Buffer("x", DType.float32, False), Buffer("out", DType.float32, True))
        return kernel.launch("winograd_input", buffers, [When(whole, tuple(body(True)), tuple(body(False)))])

    def transform_output(self) -> Launch:
        kernel = _Loops(self, self.features)
        ending = Ending(self.result, self.epilogue, kernel.parameters)
        sizes = [kernel.parameters.named(f"size{axis}", size) for axis, size in enumerate(self.result.shape[2:])]
        corner = [variable(f"y{axis + 1}") * size for axis, size in enumerate(self.sizes)]

        def write(value: Code, place: Sequence[Dim], inside: bool, prefix: str) -> tuple[Statement, ...]:
            places = [first + further for first, further in zip(corner, place)]
            mask = kernel.mask()
            for at, size in zip(places, sizes) if not inside else ():
                mask = _and(mask, _less(at, size))
            return ending.write(value, dict(enumerate((variable("y0"), kernel.channel(), *places))), mask, prefix)

        lines = _Lines(self.target)
        points = [kernel.at(number) for number in range(self.points)]
        flat = [lines.keep(Fetch("in", place, DType.float32, mask=kernel.mask())) for place in points]
        values = _tile(self.sides, lambda place: flat[int(np.ravel_multi_index(place, self.sides))])
        for axis, transform in enumerate(self.transforms):
            values = lines.along(axis, partial(lines.back, transform.output), values)
        ends = self.endings(values, ending, write)
        whole = _all([_less(at + side - 1, size) for at, side, size in zip(corner, self.sizes, sizes)])
        assert whole is not None
        local = (Buffer("tile", DType.float32, True, prod(self.sizes) * self.lanes),) if ending.is_long else ()
        buffers = (Buffer("in", DType.float32, False), *ending.buffers, *local)
        body = [*lines.statements, When(whole, ends(True), ends(False))]
        return kernel.launch("winograd_output", buffers, body)

    def endings(
        self, values: Array, ending: Ending, write: Callable[..., tuple[Statement, ...]]
    ) -> Callable[[bool], tuple[Statement, ...]]:
        """What writes a tile; a long epilogue as a loop, so that the code stays small."""

        def ends(inside: bool) -> tuple[Statement, ...]:
            statements: list[Statement] = []
            for number, place in enumerate(np.ndindex(values.shape)):
                value = values[place]
                if ending.is_long:
                    statements.append(Put("tile", number * self.lanes + lane(self.lanes), value))
                else:
                    statements.extend(write(value, place, inside, f"e{number}_"))
            if ending.is_long:
                at = variable("e")
                value = Fetch("tile", at * self.lanes + lane(self.lanes), DType.float32)
                loop = write(value, split_index(at, self.sizes), inside, "e_")
                statements.append(Repeat("e", 0, values.size, 1, loop))
            return tuple(statements)

        return ends


def _tile(sides: Sequence[int], make: Callable[[tuple[int, ...]], Code]) -> Array:
    """An array of what is made for every place."""
    tile = np.empty(tuple(sides), object)
    for place in np.ndindex(tile.shape):
        tile[place] = make(place)
    return tile


class _Loops:
    """Loops that the transforms share: over tiles (image y0, then y1, y2 along the spatial axes) and channels."""

    def __init__(self, builder: _Builder, channels: int) -> None:
        self.builder = builder
        self.channels = channels
        self.lanes = builder.lanes
        self.parameters = Parameters()

    def stride(self, name: str, value: Dim) -> Dim:
        return value if value in (0, 1) else self.parameters.named(name, value)

    def channel(self) -> Dim:
        return variable("panel") * self.lanes + lane(self.lanes)

    def mask(self) -> Code | None:
        if self.channels % self.lanes == 0:
            return None
        return _less(self.channel(), self.parameters.named("channels", self.channels))

    def at(self, point: int) -> Dim:
        """Where a tile's element for a point lies among the transformed ones."""
        pitch = self.parameters.named("pitch", self.builder.pitch(self.channels))
        return (variable("number") * self.builder.points + point) * pitch + self.channel()

    def launch(self, name: str, buffers: tuple[Buffer, ...], body: list[Statement]) -> Launch:
        named = self.parameters.named
        tiles = self.builder.tiles
        each = max(1, _LINE_WORK // (self.builder.points * self.channels))
        start = block() * named("tiles_each", each)
        stop = dims.minimum(start + named("tiles_each", each), named("tiles", tiles))
        sizes = [
            named(f"tiles{n}", size) for n, size in enumerate((self.builder.result.shape[0], *self.builder.counts))
        ]
        places = split_index(variable("number") + named("first", 0), sizes)
        lets = [Let(f"y{number}", place) for number, place in enumerate(places)]
        panels = named("panels", -(-self.channels // self.lanes))
        statements = (Repeat("number", start, stop, 1, (*lets, Repeat("panel", 0, panels, 1, tuple(body)))),)
        kernel = Kernel(name, buffers, tuple(self.parameters.values), self.lanes, statements)
        return Launch(kernel, dims.ceildiv(tiles, each), tuple(self.parameters.values.values()))


def _for_strip(launch: Launch, strip: Strip) -> Launch:
    """A launch over all tiles, for some of them."""
    values = dict(zip(launch.kernel.parameters, launch.parameters, strict=True))
    values |= {"first": strip.first, "tiles": strip.count}
    return Launch(launch.kernel, dims.ceildiv(strip.count, values["tiles_each"]), tuple(values.values()))


def _less(left: Dim, right: Dim) -> Code:
    return Call("less", (Integer(left), Integer(right)), DType.bool)


def _and(left: Code | None, right: Code | None) -> Code | None:
    if left is None or right is None:
        return right if left is None else left
    return Call("logical_and", (left, right), DType.bool)


def _all(conditions: Sequence[Code]) -> Code | None:
    found: Code | None = None
    for condition in conditions:
        found = _and(found, condition)
    return found
