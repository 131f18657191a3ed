"""Pack keys and values of an attention into panels: lanes are neighbouring keys, or columns of values."""

from __future__ import annotations

from weft.cost.blocks import BLOCK_ELEMENTS
from weft.ir import dims
from weft.ir.access import find_axes, stride_along, substitute_axes
from weft.ir.dims import Axis, Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Number, Statement, block, lane
from weft.ir.layout import row_major
from weft.ir.scalar import Apply, Index, Literal, Scalar, flat_loads, loads
from weft.ir.target import VectorTarget
from weft.kernels.build.contraction import zero_outside
from weft.kernels.lower.expressions import Lowering
from weft.kernels.lower.kernel_builder import KernelBuilder, define, put, repeat, transpose
from weft.kernels.lower.memoize import memoize
from weft.kernels.lower.merge_axes import flatten_loads, operand_inputs, operand_views
from weft.kernels.lower.operations import less
from weft.kernels.lower.tensors import RESULT, Launch, StoredTensor
from weft.kernels.vector.maps import build_map_kernel

FLOAT = DType.float32
WORDS = DType.int32  # of two bfloat16
MAX_LANES = 16  # of a square that is transposed in registers


def outer_axes(element: Scalar, last: int) -> list[int]:
    """Return the axes before `last`, that of the keys, along which keys or values vary."""
    return sorted(axis for axis in find_axes(element) if axis < last)


def key_panels(key: Scalar, shape: tuple[Dim, ...], depth: int, lanes: int, *, pairs: bool = False) -> StoredTensor:
    """Return the panels [outer axes, panels, depth, lanes] of keys over the axes of `shape`, the last being the keys'.

    With `pairs` elements are words of two bfloat16 along the depth, which is even.
    """
    outer = [shape[axis] for axis in outer_axes(key, len(shape) - 1)]
    packed = (*outer, dims.ceildiv(shape[-1], lanes), depth // 2 if pairs else depth, lanes)
    return StoredTensor(WORDS if pairs else FLOAT, packed, row_major(len(packed)))


def value_panels(value: Scalar, shape: tuple[Dim, ...], width: int, lanes: int, *, pairs: bool = False) -> StoredTensor:
    """Return the panels [outer axes, panels, keys, lanes] of values; with `pairs`, words of two along the keys."""
    outer = [shape[axis] for axis in outer_axes(value, len(shape) - 1)]
    packed = (*outer, -(-width // lanes), dims.ceildiv(shape[-1], 2) if pairs else shape[-1], lanes)
    return StoredTensor(WORDS if pairs else FLOAT, packed, row_major(len(packed)))


def _locate_panels(element: Scalar, shape: tuple[Dim, ...], packed: StoredTensor) -> tuple[dict[int, Dim], Dim, Dim]:
    """Return the positions of the outer axes, the position across panels and lanes, and that along panels.

    All are over the axes of the packed panels.
    """
    outer = outer_axes(element, len(shape) - 1)
    axes: dict[int, Dim] = dict.fromkeys(range(len(shape) - 1), 0)
    axes |= {axis: dims.axis(number, packed.shape[number]) for number, axis in enumerate(outer)}
    panel, along, within = (dims.axis(n, packed.shape[n]) for n in range(len(outer), len(outer) + 3))
    return axes, panel * packed.shape[-1] + within, along


def pack_values(
    value: Scalar, shape: tuple[Dim, ...], width: int, operands: tuple[StoredTensor, ...], packed: StoredTensor
) -> Launch:
    """Pack the operands of a value into panels; lanes without a column hold 0."""
    axes, column, key = _locate_panels(value, shape, packed)
    lanes = packed.shape[-1]
    assert isinstance(lanes, int)

    def element(key: Dim) -> Scalar:
        return zero_outside(substitute_axes(value, {**axes, len(shape) - 1: key, len(shape): column}), column, width)

    if packed.dtype is FLOAT:
        return build_map_kernel(element(key), list(operands), packed, lanes)
    pair = [zero_outside(element(2 * key + number), 2 * key + number, shape[-1]) for number in range(2)]
    return build_map_kernel(pack_pair(*pair), list(operands), packed, lanes)


@memoize
def pack_keys(
    key: Scalar, shape: tuple[Dim, ...], operands: tuple[StoredTensor, ...], packed: StoredTensor, target: VectorTarget
) -> Launch:
    """Pack the operands of a key into panels; lanes without a key hold arbitrary numbers."""
    expression = flatten_loads(key, operands)
    if _runs_along_depth(expression, len(shape)):
        return _KeyTransposer(expression, shape, operands, packed, target).build_launch()
    axes, place, step = _locate_panels(key, shape, packed)
    lanes = packed.shape[-1]
    assert isinstance(lanes, int)

    def element(depth: Dim) -> Scalar:
        return zero_outside(substitute_axes(key, {**axes, len(shape) - 1: place, len(shape): depth}), place, shape[-1])

    expression = element(step) if packed.dtype is FLOAT else pack_pair(element(2 * step), element(2 * step + 1))
    return build_map_kernel(expression, list(operands), packed, lanes)


def pack_pair(low: Scalar, high: Scalar) -> Scalar:
    """Round two float32 to bfloat16 and pack them into an int32, the first in the lower half."""
    bits = [Apply("cast", (Apply("half_bits", (half,), DType.uint16),), WORDS) for half in (low, high)]
    return Apply("bit_or", (bits[0], Apply("shift_left", (bits[1], Literal(16, WORDS)), WORDS)), WORDS)


def _runs_along_depth(expression: Scalar, depth: int) -> bool:
    """Return whether all loads of a key are contiguous along its depth."""
    for load in loads(expression):
        plain = [index.value for index in load.indices if isinstance(index, Index)]
        if any(isinstance(atom, Axis) and atom.position == depth for value in plain for atom in dims.atoms(value)):
            return False
    return all(stride_along(load.offset, depth) == 1 for load in flat_loads(expression) if depth in find_axes(load))


class _KeyTransposer:
    """Reads squares of elements key by key, and transposes them in registers."""

    def __init__(
        self,
        expression: Scalar,
        shape: tuple[Dim, ...],
        operands: tuple[StoredTensor, ...],
        packed: StoredTensor,
        target: VectorTarget,
    ) -> None:
        self.expression, self.shape, self.packed = expression, shape, packed
        self.builder = KernelBuilder("keys")
        self.last = len(shape) - 1
        self.lanes = min(target.vector_bytes // 4, MAX_LANES)
        steps, width = packed.shape[-2:]
        assert isinstance(steps, int) and isinstance(width, int)
        self.per_word = 1 if packed.dtype is FLOAT else 2
        self.depth, self.width = steps * self.per_word, width
        self.views = operand_views(operands, operand_inputs(operands, self.builder), self.builder)
        self.out = self.builder.output("out", packed.dtype, RESULT)

    def build_launch(self) -> Launch:
        *outer, panels, _, _ = self.packed.shape
        each = max(BLOCK_ELEMENTS // (self.depth * self.width), 1)
        chunks = dims.ceildiv(panels, each)
        count, total = self.builder.parameter("chunks", chunks), self.builder.parameter("panels", panels)
        first_let, chunk = self.builder.let("chunk", dims.mod(block(), count))
        second_let, head = self.builder.let("head", dims.floordiv(block(), count))
        statements: list[Statement] = [first_let, second_let]
        self.axes: dict[int, Dim] = dict.fromkeys(range(self.last), 0)
        remaining: Dim = head
        axes = outer_axes(self.expression, self.last)
        for number in reversed(range(len(axes))):
            size = self.builder.parameter(f"size{number}", outer[number])
            position = dims.mod(remaining, size) if number else remaining
            defined, self.axes[axes[number]] = self.builder.let(f"g{number}", position)
            statements.append(defined)
            remaining = dims.floordiv(remaining, size)
        whole = self.depth // self.lanes * self.lanes
        panel, part = self.builder.variable("panel"), self.builder.variable("part")

        def squares(start: int, stop: int, depth: int) -> Statement:
            d = self.builder.variable("d")
            return repeat(d, start, stop, self.lanes, self.square(head, panel, part, d, depth))

        inner = [squares(0, whole, self.lanes)]
        if whole < self.depth:
            inner.append(squares(whole, self.depth, self.depth - whole))
        first = chunk * each
        parts = repeat(part, 0, self.width, self.lanes, inner)
        statements.append(repeat(panel, first, dims.minimum(first + each, total), 1, (parts,)))
        return self.builder.launch(self.lanes, statements, dims.product(outer) * chunks)

    def square(self, head: Dim, panel: Dim, part: Dim, d: Dim, depth: int) -> tuple[Statement, ...]:
        """Pack as many keys as lanes, `depth` elements of each; the last key stands in for missing ones."""
        statements: list[Statement] = []
        end = self.builder.parameter("keys", self.shape[-1])
        position = d + lane(self.lanes)
        mask: Code | None = None
        if depth < self.lanes:
            mask = less(position, self.depth)
        first = panel * self.width + part
        registers = self.builder.registers("x", self.lanes, FLOAT)
        for number, register in enumerate(registers):
            key = dims.minimum(first + number, end - 1)
            places = {**self.axes, self.last: key, self.last + 1: position}
            lowering = Lowering(self.views, places, self.builder, None, mask, statements)
            statements.append(define(register, lowering.code(self.expression)))
        statements.append(transpose(registers))
        of_all = head * self.builder.parameter("panels", self.packed.shape[-3]) + panel
        steps = self.depth // self.per_word
        for number in range(depth // self.per_word):
            row = (of_all * steps + dims.floordiv(d, self.per_word) + number) * self.width
            code = registers[number] if self.per_word == 1 else _pack_pair_code(*registers[2 * number : 2 * number + 2])
            statements.append(put(self.out, row + part + lane(self.lanes), code))
        return tuple(statements)


def _pack_pair_code(low: Code, high: Code) -> Code:
    """Round and pack two float32 like `pack_pair`, in kernel code."""
    bits = [Call("cast", (Call("half_bits", (half,), DType.uint16),), WORDS) for half in (low, high)]
    return Call("bit_or", (bits[0], Call("shift_left", (bits[1], Number(16, WORDS)), WORDS)), WORDS)
