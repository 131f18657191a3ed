"""Keys and values of an attention packed into panels: with neighbouring keys as lanes, and with columns as lanes."""

from __future__ import annotations

from weft.cost.blocks import BLOCK_ELEMENTS
from weft.ir import dims
from weft.ir.access import axes_of, move_axes, stride_along
from weft.ir.dims import Axis, Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Number, Statement, block, lane
from weft.ir.layout import row_major
from weft.ir.scalar import Apply, Index, Literal, Scalar, flat_loads, loads
from weft.ir.target import VectorTarget
from weft.kernels.build.contraction import guarded
from weft.kernels.lower.expressions import Lowering
from weft.kernels.lower.kernel_builder import KernelBuilder, define, put, repeat, transpose
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.merge_axes import flatten_loads, operand_inputs, operand_views
from weft.kernels.lower.tensors import RESULT, Launch, StoredTensor
from weft.kernels.vector.maps import map_launch

FLOAT = DType.float32
WORDS = DType.int32  # of two bfloat16
MOST_LANES = 16  # of a square that is turned in registers


def outer_axes(element: Scalar, last: int) -> list[int]:
    """The axes before number `last`, that of the keys, along which keys or values change."""
    return sorted(axis for axis in axes_of(element) if axis < last)


def key_panels(key: Scalar, shape: tuple[Dim, ...], depth: int, lanes: int, *, pairs: bool = False) -> StoredTensor:
    """[places where keys change, panels, depth, lanes] for keys over the axes of `shape`, the last being the keys'.

    With `pairs` it is words of two bfloat16 along the depth, which is even.
    """
    outer = [shape[axis] for axis in outer_axes(key, len(shape) - 1)]
    packed = (*outer, dims.ceildiv(shape[-1], lanes), depth // 2 if pairs else depth, lanes)
    return StoredTensor(WORDS if pairs else FLOAT, packed, row_major(len(packed)))


def value_panels(value: Scalar, shape: tuple[Dim, ...], width: int, lanes: int, *, pairs: bool = False) -> StoredTensor:
    """[places where values change, panels, keys, lanes]; with `pairs` it is words of two bfloat16 along the keys."""
    outer = [shape[axis] for axis in outer_axes(value, len(shape) - 1)]
    packed = (*outer, -(-width // lanes), dims.ceildiv(shape[-1], 2) if pairs else shape[-1], lanes)
    return StoredTensor(WORDS if pairs else FLOAT, packed, row_major(len(packed)))


def pack_values(
    value: Scalar, shape: tuple[Dim, ...], width: int, operands: tuple[StoredTensor, ...], packed: StoredTensor
) -> Launch:
    """Operands are those of the value, the result the panels. Lanes without a column hold 0."""
    outer = outer_axes(value, len(shape) - 1)
    count = len(outer)
    *sizes, panels, keys, lanes = packed.shape
    column = dims.axis(count, panels) * lanes + dims.axis(count + 2, lanes)
    axes: dict[int, Dim] = dict.fromkeys(range(len(shape) - 1), 0)
    axes |= {axis: dims.axis(number, sizes[number]) for number, axis in enumerate(outer)}
    assert isinstance(lanes, int)

    def element(key: Dim) -> Scalar:
        return guarded(move_axes(value, {**axes, len(shape) - 1: key, len(shape): column}), column, width)

    key = dims.axis(count + 1, keys)
    if packed.dtype is FLOAT:
        return map_launch(element(key), list(operands), packed, lanes)
    pair = [guarded(element(2 * key + number), 2 * key + number, shape[-1]) for number in range(2)]
    return map_launch(word_of(*pair), list(operands), packed, lanes)


@memoized
def pack_keys(
    key: Scalar, shape: tuple[Dim, ...], operands: tuple[StoredTensor, ...], packed: StoredTensor, target: VectorTarget
) -> Launch:
    """Operands are those of the key, the result the panels. Lanes without a key hold any number."""
    expression = flatten_loads(key, operands)
    if _runs_along_depth(expression, len(shape)):
        return _Turning(expression, shape, operands, packed, target).launch()
    outer = outer_axes(key, len(shape) - 1)
    count = len(outer)
    *sizes, panels, depth, lanes = packed.shape
    place = dims.axis(count, panels) * lanes + dims.axis(count + 2, lanes)
    axes: dict[int, Dim] = dict.fromkeys(range(len(shape) - 1), 0)
    axes |= {axis: dims.axis(number, sizes[number]) for number, axis in enumerate(outer)}
    assert isinstance(lanes, int)

    def element(depth: Dim) -> Scalar:
        return guarded(move_axes(key, {**axes, len(shape) - 1: place, len(shape): depth}), place, shape[-1])

    step = dims.axis(count + 1, depth)
    expression = element(step) if packed.dtype is FLOAT else word_of(element(2 * step), element(2 * step + 1))
    return map_launch(expression, list(operands), packed, lanes)


def word_of(low: Scalar, high: Scalar) -> Scalar:
    """Two float32 rounded to bfloat16 in an int32, the first in the lower half, for a target with pair products."""
    bits = [Apply("cast", (Apply("half_bits", (each,), DType.uint16),), WORDS) for each in (low, high)]
    return Apply("bit_or", (bits[0], Apply("shift_left", (bits[1], Literal(16, WORDS)), WORDS)), WORDS)


def _runs_along_depth(expression: Scalar, depth: int) -> bool:
    """Whether the numbers of a key are neighbours, wherever they are loaded from."""
    for load in loads(expression):
        plain = [index.value for index in load.indices if isinstance(index, Index)]
        if any(isinstance(atom, Axis) and atom.position == depth for value in plain for atom in dims.atoms(value)):
            return False
    return all(stride_along(load.offset, depth) == 1 for load in flat_loads(expression) if depth in axes_of(load))


class _Turning:
    """Squares of numbers read key by key, and turned in registers."""

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
        self.lanes = min(target.vector_bytes // 4, MOST_LANES)
        steps, width = packed.shape[-2:]
        assert isinstance(steps, int) and isinstance(width, int)
        self.per_word = 1 if packed.dtype is FLOAT else 2
        self.depth, self.width = steps * self.per_word, width
        self.views = operand_views(operands, operand_inputs(operands, self.builder), self.builder)
        self.out = self.builder.output("out", packed.dtype, RESULT)

    def launch(self) -> Launch:
        *outer, panels, _, _ = self.packed.shape
        each = max(BLOCK_ELEMENTS // (self.depth * self.width), 1)
        chunks = dims.ceildiv(panels, each)
        count, total = self.builder.named("chunks", chunks), self.builder.named("panels", panels)
        first_let, chunk = self.builder.let("chunk", dims.mod(block(), count))
        second_let, head = self.builder.let("head", dims.floordiv(block(), count))
        statements: list[Statement] = [first_let, second_let]
        self.axes: dict[int, Dim] = dict.fromkeys(range(self.last), 0)
        rest: Dim = head
        axes = outer_axes(self.expression, self.last)
        for number in reversed(range(len(axes))):
            size = self.builder.named(f"size{number}", outer[number])
            defined, self.axes[axes[number]] = self.builder.let(f"g{number}", dims.mod(rest, size) if number else rest)
            statements.append(defined)
            rest = dims.floordiv(rest, size)
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
        """As many keys as lanes and `depth` numbers of each; the last key stands for those that are missing."""
        statements: list[Statement] = []
        end = self.builder.named("keys", self.shape[-1])
        position = d + lane(self.lanes)
        mask: Code | None = None
        if depth < self.lanes:
            mask = Call("less", (Integer(position), Integer(self.depth)), DType.bool)
        first = panel * self.width + part
        registers = self.builder.registers("x", self.lanes, FLOAT)
        for number, register in enumerate(registers):
            key = dims.minimum(first + number, end - 1)
            places = {**self.axes, self.last: key, self.last + 1: position}
            lowering = Lowering(self.views, places, self.builder, None, mask, statements)
            statements.append(define(register, lowering.code(self.expression)))
        statements.append(transpose(registers))
        of_all = head * self.builder.named("panels", self.packed.shape[-3]) + panel
        steps = self.depth // self.per_word
        for number in range(depth // self.per_word):
            row = (of_all * steps + dims.floordiv(d, self.per_word) + number) * self.width
            code = registers[number] if self.per_word == 1 else _word(*registers[2 * number : 2 * number + 2])
            statements.append(put(self.out, row + part + lane(self.lanes), code))
        return tuple(statements)


def _word(low: Code, high: Code) -> Code:
    """Do the same as `word_of` in kernel code."""
    bits = [Call("cast", (Call("half_bits", (each,), DType.uint16),), WORDS) for each in (low, high)]
    return Call("bit_or", (bits[0], Call("shift_left", (bits[1], Number(16, WORDS)), WORDS)), WORDS)
