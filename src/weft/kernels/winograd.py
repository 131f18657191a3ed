"""3 x 3 convolutions with fewer multiplications: tiles of the input are transformed, multiplied and transformed back.

A tile of m x m outputs needs (m + 2)^2 products for each pair of channels instead of 9 m^2: polynomials are multiplied
by their values at m + 1 points and at infinity. The products of all tiles at one pair of points are a matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
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
from weft.ir.program import Convolve
from weft.ir.target import Target
from weft.kernels.ending import Ending, ending_references
from weft.kernels.launch import Epilogue, Launch, Reference, Tensor, Work, Workspace
from weft.kernels.layout import channels_last, offset, row_major
from weft.kernels.parameters import Parameters
from weft.kernels.tiles import Product, Walk, lanes_for, multiply_add, product_kernel, split_index

Array = np.ndarray[Any, Any]
Matrix = tuple[tuple[Fraction, ...], ...]
# opposite points follow each other; these give a third of the error that 1 and 2 give
_POINTS: dict[int, tuple[Fraction, ...]] = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(3, 2), Fraction(-3, 2)),
}
_TAPS = 3
_LINE_WORK = 32768  # elements that a block transforms, about
_WORTH = 0.9  # of the time that the direct way takes, at most
_LARGEST_WEIGHTS = 6 << 20  # bytes of transformed weights, which are 1.8 or 4 times the weights
_FLOPS_PER_BYTE = 6  # multiply-adds that take as long as moving a byte to or from memory


def winograd_work(
    primitive: Convolve,
    x: Tensor,
    w: Array,
    result: Tensor,
    epilogue: Epilogue | None,
    target: Target,
    size: int | None = None,
) -> Work | None:
    """The convolution with constant weights; None where it cannot be done so, or would not be faster.

    `size` is that of a tile of outputs, 2 or 4; without one it is chosen.
    """
    if not _fits(primitive, x, w, result):
        return None
    if size is None:
        costs = {size: _cost(w, result, size) for size in _POINTS if _weight_bytes(w, size) <= _LARGEST_WEIGHTS}
        size = min(costs, key=lambda size: costs[size], default=None)
        if size is None or costs[size] > _WORTH * _direct_cost(w, result):
            return None
    return _Builder(primitive, x, w, result, epilogue, target, size).work()


def _fits(primitive: Convolve, x: Tensor, w: Array, result: Tensor) -> bool:
    plain = primitive.strides == primitive.dilations == (1, 1) and primitive.groups == 1 and not primitive.transposed
    last = channels_last(4)
    return plain and w.shape[2:] == (_TAPS, _TAPS) and x.dtype is DType.float32 and x.layout == last == result.layout


def _pixels(result: Tensor, size: int) -> int:
    """Outputs with those that fill up tiles; symbolic sizes are taken for images of a usual size."""
    batch, height, width = (s if isinstance(s, int) else n for s, n in zip(_image(result), (1, 56, 56)))
    return batch * -(-height // size) * -(-width // size) * size * size


def _image(result: Tensor) -> tuple[Dim, Dim, Dim]:
    return result.shape[0], result.shape[2], result.shape[3]


def _direct_cost(w: Array, result: Tensor) -> float:
    return float(2 * _pixels(result, 1) * w.size + _FLOPS_PER_BYTE * 4 * w.size)


def _weight_bytes(w: Array, size: int) -> int:
    return int(4 * (size + _TAPS - 1) ** 2 * w.shape[0] * w.shape[1])


def _cost(w: Array, result: Tensor, size: int) -> float:
    """In operations at full speed: products, and the weights, transformed inputs and products that are moved."""
    features, channels = w.shape[:2]
    points = (size + _TAPS - 1) ** 2
    tiles = _pixels(result, size) // size**2
    products = 2 * points * tiles * features * channels
    moved = 4 * points * (features * channels + 2 * tiles * (features + channels))
    return float(products + _FLOPS_PER_BYTE * moved)


# -- the transforms --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Transforms:
    """y = output . ((kernel g kernel^T) * (input d input^T)) . output^T, for a tile of `size` x `size` outputs."""

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

    def square(self, matrix: Matrix, tile: list[list[Code]]) -> list[list[Code]]:
        """matrix . tile . matrix^T"""
        columns = [self.apply(matrix, list(column)) for column in zip(*tile)]
        return [self.apply(matrix, list(row)) for row in zip(*columns)]

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

    first: int
    count: Dim


class _Builder:
    def __init__(
        self,
        primitive: Convolve,
        x: Tensor,
        w: Array,
        result: Tensor,
        epilogue: Epilogue | None,
        target: Target,
        size: int,
    ) -> None:
        self.x, self.w, self.result, self.epilogue, self.target = x, w, result, epilogue, target
        self.pads = tuple(before for before, _ in primitive.pads)
        self.transforms = transforms(size)
        self.size = size
        self.side = size + _TAPS - 1
        self.features, self.channels = w.shape[:2]
        self.lanes = target.vector_bytes // 4
        self.columns = lanes_for(target, DType.float32, self.features)
        self.counts = [dims.ceildiv(extent, size) for extent in result.shape[2:]]
        self.tiles = result.shape[0] * dims.product(self.counts)

    def work(self) -> Work:
        taken, products = Reference("workspace", 0), Reference("workspace", 1)
        strips = self.strips()
        largest = strips[0].count
        spaces = [Workspace(DType.float32, largest * self.side**2 * c) for c in (self.channels, self.features)]
        launches: list[tuple[Launch, tuple[Reference, ...]]] = []
        for strip in strips:
            launches.append((self.transform_input(strip), (Reference("operand", 0), taken)))
            launches.append((self.product(strip), (taken, Reference("constant", 0), products)))
            launches.append((self.transform_output(strip), (products, *ending_references(self.epilogue))))
        return Work(tuple(launches), tuple(spaces), (self.weights(),))

    def strips(self) -> list[Strip]:
        """All tiles, in parts whose transformed elements stay in a cache, unless the weights are what fills it."""
        points = 4 * self.side**2
        room = 4 * max(self.target.cache_bytes, points * self.channels * self.features)
        most = max(room // (points * (self.channels + self.features)), 1)
        if not isinstance(self.tiles, int) or self.tiles <= most:
            return [Strip(0, self.tiles)]
        each = -(-self.tiles // -(-self.tiles // most))
        return [Strip(first, min(each, self.tiles - first)) for first in range(0, self.tiles, each)]

    def weights(self) -> Array:
        """Transformed weights as [points, panels, channels, lanes]."""
        points, lanes = self.side**2, self.columns
        panels = -(-self.features // lanes)
        kernel = np.array(self.transforms.kernel, dtype=np.float64)
        transformed = np.einsum("ia,mcab,jb->ijcm", kernel, self.w.astype(np.float64), kernel)
        padded = np.zeros((points, self.channels, panels * lanes), np.float32)
        padded[:, :, : self.features] = transformed.reshape(points, self.channels, self.features)
        return np.ascontiguousarray(padded.reshape(points, self.channels, panels, lanes).transpose(0, 2, 1, 3))

    def product(self, strip: Strip) -> Launch:
        """Tiles times weights for every point."""
        points, lanes = self.side**2, self.columns
        panels, panel = -(-self.features // lanes), self.channels * lanes
        product = Product(
            left=DType.float32,
            right=DType.float32,
            result=Tensor(DType.float32, (strip.count, points, self.features), row_major(3)),
            epilogue=None,
            grid=(Walk(points, self.channels, panels * panel, 1),),
            rows=(Walk(strip.count, points * self.channels, axis=0),),
            column=Walk(self.features, axis=2),
            sums=(Walk(self.channels, 1, lanes),),
            lanes=lanes,
            panel=panel,
            padded=True,
        )
        return product_kernel("winograd_product", product, self.target)

    def transform_input(self, strip: Strip) -> Launch:
        kernel = _Loops(self, strip, self.channels)
        strides = [kernel.stride(f"x{axis}", stride) for axis, stride in enumerate(self.x.strides)]
        sizes = [kernel.parameters.named(f"size{axis}", size) for axis, size in enumerate(self.x.shape[2:])]
        pads = [kernel.parameters.named(f"pad{axis}", pad) for axis, pad in enumerate(self.pads)]
        corner = [variable(f"y{axis + 1}") * self.size - pad for axis, pad in enumerate(pads)]

        def body(inside: bool) -> list[Statement]:
            def load(row: int, column: int) -> Code:
                places = [corner[0] + row, corner[1] + column]
                mask = kernel.mask()
                for place, size in zip(places, sizes) if not inside else ():
                    mask = _and(mask, _and(_less(-1, place), _less(place, size)))
                at = offset(strides, [variable("y0"), kernel.channel(), *places])
                return Fetch("x", at, DType.float32, mask=mask)

            lines = _Lines(self.target)
            tile = [[lines.keep(load(row, column)) for column in range(self.side)] for row in range(self.side)]
            values = lines.square(self.transforms.input, tile)
            places = [kernel.at(number) for number in range(self.side**2)]
            flat = [value for row in values for value in row]
            puts = [Put("out", place, value, mask=kernel.mask()) for place, value in zip(places, flat)]
            return [*lines.statements, *puts]

        whole = _all([_less(-1, place) for place in corner])
        for place, size in zip(corner, sizes):
            whole = _and(whole, _less(place + self.side - 1, size))
        assert whole is not None
        buffers = (Buffer("x", DType.float32, False), Buffer("out", DType.float32, True))
        return kernel.launch("winograd_input", buffers, [When(whole, tuple(body(True)), tuple(body(False)))])

    def transform_output(self, strip: Strip) -> Launch:
        kernel = _Loops(self, strip, self.features)
        ending = Ending(self.result, self.epilogue, kernel.parameters)
        sizes = [kernel.parameters.named(f"size{axis}", size) for axis, size in enumerate(self.result.shape[2:])]
        corner = [variable(f"y{axis + 1}") * self.size for axis in range(2)]

        def write(value: Code, row: Dim, column: Dim, inside: bool, prefix: str) -> tuple[Statement, ...]:
            places = [corner[0] + row, corner[1] + column]
            mask = kernel.mask()
            for place, size in zip(places, sizes) if not inside else ():
                mask = _and(mask, _less(place, size))
            return ending.write(
                value, {0: variable("y0"), 1: kernel.channel(), 2: places[0], 3: places[1]}, mask, prefix
            )

        lines = _Lines(self.target)
        points = [kernel.at(number) for number in range(self.side**2)]
        flat = [lines.keep(Fetch("in", place, DType.float32, mask=kernel.mask())) for place in points]
        tile = [flat[row * self.side : (row + 1) * self.side] for row in range(self.side)]
        columns = [lines.apply(*lines.paired(self.transforms.output, list(column))) for column in zip(*tile)]
        values = [lines.apply(*lines.paired(self.transforms.output, list(row))) for row in zip(*columns)]
        ends = self.endings(values, ending, write)
        whole = _all([_less(place + self.size - 1, size) for place, size in zip(corner, sizes)])
        assert whole is not None
        local = (Buffer("tile", DType.float32, True, self.size**2 * self.lanes),) if ending.is_long else ()
        buffers = (Buffer("in", DType.float32, False), *ending.buffers, *local)
        body = [*lines.statements, When(whole, ends(True), ends(False))]
        return kernel.launch("winograd_output", buffers, body)

    def endings(
        self, values: list[list[Code]], ending: Ending, write: Callable[..., tuple[Statement, ...]]
    ) -> Callable[[bool], tuple[Statement, ...]]:
        """What writes a tile; a long epilogue as a loop, so that the code stays small."""

        def ends(inside: bool) -> tuple[Statement, ...]:
            statements: list[Statement] = []
            for number, value in enumerate(value for row in values for value in row):
                row, column = divmod(number, self.size)
                if ending.is_long:
                    statements.append(Put("tile", number * self.lanes + lane(self.lanes), value))
                else:
                    statements.extend(write(value, row, column, inside, f"e{number}_"))
            if ending.is_long:
                at = variable("e")
                value = Fetch("tile", at * self.lanes + lane(self.lanes), DType.float32)
                row_place, column_place = split_index(at, [self.size, self.size])
                loop = write(value, row_place, column_place, inside, "e_")
                statements.append(Repeat("e", 0, self.size**2, 1, loop))
            return tuple(statements)

        return ends


class _Loops:
    """Loops over all tiles (image y0, row y1, column y2) and vectors of channels, which the transforms share."""

    def __init__(self, builder: _Builder, strip: Strip, channels: int) -> None:
        self.builder = builder
        self.strip = strip
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
        points = self.builder.side**2
        return (variable("number") * points + point) * self.parameters.named("channels", self.channels) + self.channel()

    def launch(self, name: str, buffers: tuple[Buffer, ...], body: list[Statement]) -> Launch:
        named = self.parameters.named
        tiles = self.strip.count
        each = max(1, _LINE_WORK // (self.builder.side**2 * self.channels))
        start = block() * named("tiles_each", each)
        stop = dims.minimum(start + named("tiles_each", each), named("tiles", tiles))
        sizes = [
            named(f"tiles{n}", size) for n, size in enumerate((self.builder.result.shape[0], *self.builder.counts))
        ]
        places = split_index(variable("number") + named("first", self.strip.first), sizes)
        lets = [Let(f"y{number}", place) for number, place in enumerate(places)]
        panels = named("panels", -(-self.channels // self.lanes))
        statements = (Repeat("number", start, stop, 1, (*lets, Repeat("panel", 0, panels, 1, tuple(body)))),)
        kernel = Kernel(name, buffers, tuple(self.parameters.values), self.lanes, statements)
        return Launch(kernel, dims.ceildiv(tiles, each), tuple(self.parameters.values.values()))


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
