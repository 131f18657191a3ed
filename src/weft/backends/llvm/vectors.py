"""Vector operations: broadcasts, reductions, transpositions, masked loads and stores, and vectors of other widths."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.functions import apply
from weft.backends.llvm.instructions import Builder, Value, declare, like, suffix
from weft.backends.llvm.types import BIT, INT32, POINTER, vector
from weft.ir.dtypes import DType
from weft.ir.kernel import ACROSS_FUNCTIONS, AcrossGroup
from weft.records import dataclass

Instruction = Callable[[Builder, Value, Value, Value], Value]


@dataclass(frozen=True, slots=True)
class DotProducts:
    """The dot products of a processor, on vectors of any width; a scalar is one lane.

    `dot4` adds that of four uint8 and four int8 to each int32 lane, `dot2` that of two pairs of bfloat16 to each float.
    """

    dot4: Instruction
    dot2: Instruction


def broadcast(builder: Builder, value: Value, lanes: int) -> Value:
    """Copy a scalar to every lane."""
    kind = vector(value.type, lanes)
    if isinstance(value, ir.Constant):
        return ir.Constant(kind, None if value.constant is None else [value.constant] * lanes)
    single = builder.insert_element(ir.Constant(kind, ir.Undefined), value, INT32(0))
    return builder.shuffle_vector(single, ir.Constant(kind, ir.Undefined), ir.Constant(vector(INT32, lanes), None))


def opaque(builder: Builder, address: Value) -> Value:
    """Hide how an address is computed, so that LLVM does not recompute it at each use to save registers."""
    return builder.asm(ir.FunctionType(POINTER, [POINTER]), "", "=r,0", [address])


def across(builder: Builder, kind: str, value: Value, dtype: DType) -> Value:
    """Reduce all lanes by combining halves, so that the order is always the same."""
    lanes = value.lanes
    while lanes > 1:
        lanes //= 2
        undefined = ir.Constant(value.type, ir.Undefined)
        halves = [
            builder.shuffle_vector(
                value, undefined, ir.Constant(vector(INT32, lanes), list(range(start, start + lanes)))
            )
            for start in (0, lanes)
        ]
        value = apply(builder, ACROSS_FUNCTIONS[kind], halves, [dtype, dtype], dtype)
    return builder.extract_element(value, INT32(0))


def across_group(builder: Builder, across: AcrossGroup, value: Value) -> Value:
    """Reduce each group of lanes by exchanging values with lanes ever further away."""
    lanes, dtype, distance = value.lanes, across.dtype, across.step
    while distance < across.step * across.members:
        other = pick_lanes(builder, value, [lane ^ distance for lane in range(lanes)])
        value = apply(builder, ACROSS_FUNCTIONS[across.kind], [value, other], [dtype, dtype], dtype)
        distance *= 2
    return value


def split_lanes(
    widths: Sequence[int], instruction: Instruction, builder: Builder, left: Value, right: Value, total: Value
) -> Value:
    """Apply an instruction that exists for vectors of some widths, widest first, to any number of lanes or a scalar."""
    if not isinstance(total.type, ir.VectorType):
        single = [
            builder.insert_element(ir.Constant(vector(v.type, widths[-1]), None), v, INT32(0))
            for v in (left, right, total)
        ]
        return builder.extract_element(instruction(builder, *single), INT32(0))
    lanes = total.type.count
    width = next((width for width in widths if width <= lanes), widths[-1])
    parts = []
    for start in range(0, lanes, width):
        part_lanes = [min(lane, lanes - 1) for lane in range(start, start + width)]
        parts.append(instruction(builder, *(pick_lanes(builder, v, part_lanes) for v in (left, right, total))))
    return concatenate(builder, parts, lanes)


def pick_lanes(builder: Builder, value: Value, lanes: list[int]) -> Value:
    """Return the lanes of a vector with these indices."""
    if lanes == list(range(value.lanes)):
        return value
    undefined = ir.Constant(value.type, ir.Undefined)
    return builder.shuffle_vector(value, undefined, ir.Constant(vector(INT32, len(lanes)), lanes))


def concatenate(builder: Builder, parts: list[Value], lanes: int) -> Value:
    """Concatenate vectors, and drop the padding of the last."""
    while len(parts) > 1:
        parts = [*parts, parts[-1]] if len(parts) % 2 else parts
        parts = [_join(builder, parts[n], parts[n + 1]) for n in range(0, len(parts), 2)]
    return pick_lanes(builder, parts[0], list(range(lanes)))


def _join(builder: Builder, low: Value, high: Value) -> Value:
    lanes = low.lanes + high.lanes
    return builder.shuffle_vector(low, high, ir.Constant(vector(INT32, lanes), list(range(lanes))))


def half_bits(builder: Builder, value: Value) -> Value:
    """Round float32 to bfloat16 as 16 bits; targets with `dot2` have an instruction for it."""
    rounded = builder.fptrunc(value, like(value, ir.BFloatType()))
    return builder.bitcast(rounded, like(value, ir.IntType(16)))


def any_lane(builder: Builder, mask: Value) -> Value:
    """Test whether a mask is set in any lane."""
    bits = builder.bitcast(mask, ir.IntType(mask.lanes))
    return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))


def transpose(builder: Builder, rows: Sequence[Value]) -> list[Value]:
    """Transpose a square of vectors by exchanging halves of ever smaller squares."""
    rows, lanes = list(rows), len(rows)
    distance = lanes // 2
    while distance:
        indices = vector(INT32, lanes)
        upper = [lane if not lane & distance else lanes + lane - distance for lane in range(lanes)]
        lower = [lane + distance if not lane & distance else lanes + lane for lane in range(lanes)]
        for number in range(lanes):
            if not number & distance:
                pair = rows[number], rows[number + distance]
                rows[number] = builder.shuffle_vector(*pair, ir.Constant(indices, upper))
                rows[number + distance] = builder.shuffle_vector(*pair, ir.Constant(indices, lower))
        distance //= 2
    return rows


def pattern_load(
    builder: Builder,
    kind: ir.VectorType,
    address: Callable[[int], Value],
    offsets: Sequence[int],
    align: int,
    mask: Value | None = None,
) -> Value:
    """Load elements at constant offsets by shuffling vectors of neighbours.

    `address` returns the address of an offset. Nothing outside of the smallest and the largest offset is read, and with
    a mask only elements of its lanes.
    """
    lanes = kind.count
    low, high = min(offsets), max(offsets)
    starts = [low] if high - low < lanes else [*range(low, high - lanes + 1, lanes), high - lanes + 1]
    sources = [min((offset - low) // lanes, len(starts) - 1) for offset in offsets]
    parts = []
    for number, start in enumerate(starts):
        users = {offset - start: lane for lane, offset in enumerate(offsets) if sources[lane] == number}
        inside = _part_mask(builder, lanes, high - start + 1, users, offsets, mask)
        if inside is None:
            parts.append(builder.load(address(start), align=align, typ=kind))
        else:
            parts.append(masked_load(builder, kind, address(start), inside, align))
    result = parts[0]
    for number in range(max(len(parts) - 1, 1)):
        following = parts[number + 1] if len(parts) > 1 else ir.Constant(kind, ir.Undefined)
        order = []
        for lane, (offset, source) in enumerate(zip(offsets, sources, strict=True)):
            if source == number + 1:
                order.append(lanes + offset - starts[source])
            else:
                order.append(offset - low if number == 0 and source == 0 else lane)
        result = builder.shuffle_vector(result, following, ir.Constant(vector(INT32, lanes), order))
    return result


def _part_mask(
    builder: Builder, lanes: int, length: int, users: dict[int, int], offsets: Sequence[int], mask: Value | None
) -> Value | None:
    """Compute which elements of a vector may be read; None for all. `users` maps each used element to a lane."""
    if mask is None:
        return None if length >= lanes else ir.Constant(vector(BIT, lanes), [lane < length for lane in range(lanes)])
    if len(set(offsets)) < lanes:  # several lanes share an element: any of them may need it
        pairs = [
            (element, [n for n, offset in enumerate(offsets) if offset == offsets[lane]])
            for element, lane in users.items()
        ]
        rounds = max((len(sharing) for _, sharing in pairs), default=0)
    else:
        pairs, rounds = [(element, [lane]) for element, lane in users.items()], 1
    nothing = ir.Constant(mask.type, None)
    total: Value | None = None
    for turn in range(rounds):
        order = [lanes] * lanes
        for element, sharing in pairs:
            order[element] = sharing[turn] if turn < len(sharing) else lanes
        part = builder.shuffle_vector(mask, nothing, ir.Constant(vector(INT32, lanes), order))
        total = part if total is None else builder.or_(total, part)
    return total


def masked_load(builder: Builder, kind: ir.Type, address: Value, mask: Value, align: int) -> Value:
    name = f"llvm.masked.load.{suffix(kind)}.p0"
    function = declare(builder, name, ir.FunctionType(kind, [POINTER, INT32, mask.type, kind]))
    return builder.call(function, [address, INT32(align), mask, ir.Constant(kind, None)])


def masked_store(builder: Builder, value: Value, address: Value, mask: Value, align: int) -> None:
    name = f"llvm.masked.store.{suffix(value.type)}.p0"
    function = declare(builder, name, ir.FunctionType(ir.VoidType(), [value.type, POINTER, INT32, mask.type]))
    builder.call(function, [value, address, INT32(align), mask])


def gather(builder: Builder, kind: ir.VectorType, addresses: Value, mask: Value, align: int) -> Value:
    pointers = vector(POINTER, kind.count)
    name = f"llvm.masked.gather.{suffix(kind)}.v{kind.count}p0"
    function = declare(builder, name, ir.FunctionType(kind, [pointers, INT32, mask.type, kind]))
    return builder.call(function, [addresses, INT32(align), mask, ir.Constant(kind, None)])


def scatter(builder: Builder, value: Value, addresses: Value, mask: Value, align: int) -> None:
    pointers = vector(POINTER, value.lanes)
    name = f"llvm.masked.scatter.{suffix(value.type)}.v{value.lanes}p0"
    function = declare(builder, name, ir.FunctionType(ir.VoidType(), [value.type, pointers, INT32, mask.type]))
    builder.call(function, [value, addresses, INT32(align), mask])
