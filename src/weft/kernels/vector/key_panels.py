"""Keys and values of an attention packed into panels: with neighbouring keys as lanes, and with columns as lanes."""

from __future__ import annotations

from weft.cost.blocks import BLOCK_ELEMENTS
from weft.ir import dims
from weft.ir.access import axes_of, move_axes, stride_along
from weft.ir.dims import Axis, Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Buffer,
    Call,
    Code,
    Define,
    Integer,
    Kernel,
    Let,
    Put,
    Register,
    Repeat,
    Statement,
    Transpose,
    block,
    lane,
    variable,
)
from weft.ir.layout import row_major
from weft.ir.scalar import Index, Scalar, loads
from weft.ir.target import VectorTarget
from weft.kernels.build.contraction import guarded
from weft.kernels.lower.expressions import Lowering
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.merge_axes import flatten_loads, operand_views
from weft.kernels.lower.parameters import Parameters
from weft.kernels.lower.tensors import Launch, Tensor
from weft.kernels.vector.maps import map_launch

FLOAT = DType.float32
MOST_LANES = 16  # of a square that is turned in registers


def outer_axes(element: Scalar, last: int) -> list[int]:
    """The axes before number `last`, that of the keys, along which keys or values change."""
    return sorted(axis for axis in axes_of(element) if axis < last)


def key_panels(key: Scalar, shape: tuple[Dim, ...], depth: int, lanes: int) -> Tensor:
    """[places where keys change, panels, depth, lanes] for keys over the axes of `shape`, the last being the keys'."""
    outer = [shape[axis] for axis in outer_axes(key, len(shape) - 1)]
    packed = (*outer, dims.ceildiv(shape[-1], lanes), depth, lanes)
    return Tensor(FLOAT, packed, row_major(len(packed)))


def value_panels(value: Scalar, shape: tuple[Dim, ...], width: int, lanes: int) -> Tensor:
    """[places where values change, panels, keys, lanes]."""
    outer = [shape[axis] for axis in outer_axes(value, len(shape) - 1)]
    packed = (*outer, -(-width // lanes), shape[-1], lanes)
    return Tensor(FLOAT, packed, row_major(len(packed)))


def pack_values(
    value: Scalar, shape: tuple[Dim, ...], width: int, operands: tuple[Tensor, ...], packed: Tensor
) -> Launch:
    """Buffers: the operands, then the panels. Lanes without a column hold 0."""
    outer = outer_axes(value, len(shape) - 1)
    count = len(outer)
    *sizes, panels, keys, lanes = packed.shape
    column = dims.axis(count, panels) * lanes + dims.axis(count + 2, lanes)
    axes: dict[int, Dim] = dict.fromkeys(range(len(shape) - 1), 0)
    axes |= {axis: dims.axis(number, sizes[number]) for number, axis in enumerate(outer)}
    axes |= {len(shape) - 1: dims.axis(count + 1, keys), len(shape): column}
    assert isinstance(lanes, int)
    return map_launch(guarded(move_axes(value, axes), column, width), list(operands), packed, lanes)


@memoized
def pack_keys(
    key: Scalar, shape: tuple[Dim, ...], operands: tuple[Tensor, ...], packed: Tensor, target: VectorTarget
) -> Launch:
    """Buffers: the operands, then the panels. Lanes without a key hold any number."""
    expression = flatten_loads(key, operands)
    if _runs_along_depth(expression, len(operands), len(shape)):
        return _Turning(expression, shape, operands, packed, target).launch()
    outer = outer_axes(key, len(shape) - 1)
    count = len(outer)
    *sizes, panels, depth, lanes = packed.shape
    place = dims.axis(count, panels) * lanes + dims.axis(count + 2, lanes)
    axes: dict[int, Dim] = dict.fromkeys(range(len(shape) - 1), 0)
    axes |= {axis: dims.axis(number, sizes[number]) for number, axis in enumerate(outer)}
    axes |= {len(shape) - 1: place, len(shape): dims.axis(count + 1, depth)}
    assert isinstance(lanes, int)
    return map_launch(guarded(move_axes(key, axes), place, shape[-1]), list(operands), packed, lanes)


def _runs_along_depth(expression: Scalar, count: int, depth: int) -> bool:
    """Whether the numbers of a key are neighbours, wherever they are loaded from."""
    for load in loads(expression):
        if depth in {
            a.position for i in load.indices if isinstance(i, Index) for a in dims.atoms(i.value) if isinstance(a, Axis)
        }:
            (index, *others) = load.indices
            if others or load.operand < count or not isinstance(index, Index) or stride_along(index.value, depth) != 1:
                return False
    return True


class _Turning:
    """Squares of numbers read key by key, and turned in registers."""

    def __init__(
        self,
        expression: Scalar,
        shape: tuple[Dim, ...],
        operands: tuple[Tensor, ...],
        packed: Tensor,
        target: VectorTarget,
    ) -> None:
        self.expression, self.shape, self.operands, self.packed = expression, shape, operands, packed
        self.parameters = Parameters()
        self.last = len(shape) - 1
        self.lanes = min(target.vector_bytes // 4, MOST_LANES)
        depth, width = packed.shape[-2:]
        assert isinstance(depth, int) and isinstance(width, int)
        self.depth, self.width = depth, width
        self.views = operand_views(operands, self.parameters)

    def launch(self) -> Launch:
        *outer, panels, _, _ = self.packed.shape
        each = max(BLOCK_ELEMENTS // (self.depth * self.width), 1)
        chunks = dims.ceildiv(panels, each)
        count, total = self.parameters.named("chunks", chunks), self.parameters.named("panels", panels)
        statements: list[Statement] = [
            Let("chunk", dims.mod(block(), count)),
            Let("head", dims.floordiv(block(), count)),
        ]
        self.axes: dict[int, Dim] = dict.fromkeys(range(self.last), 0)
        rest: Dim = variable("head")
        axes = outer_axes(self.expression, self.last)
        for number in reversed(range(len(axes))):
            size = self.parameters.named(f"size{number}", outer[number])
            statements.append(Let(f"g{number}", dims.mod(rest, size) if number else rest))
            self.axes[axes[number]] = variable(f"g{number}")
            rest = dims.floordiv(rest, size)
        whole = self.depth // self.lanes * self.lanes
        squares: list[Statement] = [Repeat("d", 0, whole, self.lanes, self.square(self.lanes))]
        if whole < self.depth:
            squares.append(Repeat("d", whole, self.depth, self.lanes, self.square(self.depth - whole)))
        first = variable("chunk") * each
        part = Repeat("part", 0, self.width, self.lanes, tuple(squares))
        statements.append(Repeat("panel", first, dims.minimum(first + each, total), 1, (part,)))
        buffers = [Buffer(f"in{number}", tensor.dtype, False) for number, tensor in enumerate(self.operands)]
        kernel = Kernel(
            "keys",
            (*buffers, Buffer("out", FLOAT, True)),
            tuple(self.parameters.values),
            self.lanes,
            tuple(statements),
        )
        return Launch(kernel, dims.product(outer) * chunks, tuple(self.parameters.values.values()))

    def square(self, depth: int) -> tuple[Statement, ...]:
        """As many keys as lanes and `depth` numbers of each; the last key stands for those that are missing."""
        statements: list[Statement] = []
        end = self.parameters.named("keys", self.shape[-1])
        position = variable("d") + lane(self.lanes)
        mask: Code | None = None
        if depth < self.lanes:
            mask = Call("less", (Integer(position), Integer(self.depth)), DType.bool)
        first = variable("panel") * self.width + variable("part")
        for number in range(self.lanes):
            key = dims.minimum(first + number, end - 1)
            places = {**self.axes, self.last: key, self.last + 1: position}
            lowering = Lowering(self.views, places, self.parameters, None, mask, statements, f"t{number}_")
            statements.append(Define(f"x{number}", lowering.code(self.expression), True))
        statements.append(Transpose(tuple(f"x{number}" for number in range(self.lanes))))
        panel = variable("head") * self.parameters.named("panels", self.packed.shape[-3]) + variable("panel")
        for number in range(depth):
            row = (panel * self.depth + variable("d") + number) * self.width
            place = row + variable("part") + lane(self.lanes)
            statements.append(Put("out", place, Register(f"x{number}", FLOAT, True)))
        return tuple(statements)
