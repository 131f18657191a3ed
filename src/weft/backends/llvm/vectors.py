"""Lanes: how they are filled, combined, exchanged, and read from and written to memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.functions import apply
from weft.backends.llvm.instructions import Builder, Value, declare, suffix
from weft.backends.llvm.types import BIT, INT32, POINTER, vector
from weft.ir.dtypes import DType
from weft.ir.kernel import ACROSS_FUNCTIONS


def broadcast(builder: Builder, value: Value, lanes: int) -> Value:
    """A scalar in every lane."""
    kind = vector(value.type, lanes)
    if isinstance(value, ir.Constant):
        return ir.Constant(kind, None if value.constant is None else [value.constant] * lanes)
    single = builder.insert_element(ir.Constant(kind, ir.Undefined), value, INT32(0))
    return builder.shuffle_vector(single, ir.Constant(kind, ir.Undefined), ir.Constant(vector(INT32, lanes), None))


def opaque(builder: Builder, address: Value) -> Value:
    """The same address, as one that LLVM does not compute again at each use to save registers."""
    return builder.asm(ir.FunctionType(POINTER, [POINTER]), "", "=r,0", [address])


def across(builder: Builder, kind: str, value: Value, dtype: DType) -> Value:
    """All lanes combined, halving by halving, so that the order is always the same."""
    lanes = value.type.count
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


def any_lane(builder: Builder, mask: Value) -> Value:
    """Whether a mask holds in some lane."""
    bits = builder.bitcast(mask, ir.IntType(mask.type.count))
    return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))


def transpose(builder: Builder, rows: Sequence[Value]) -> list[Value]:
    """A square of vectors with rows and columns exchanged: halves of ever smaller squares change places."""
    rows, lanes = list(rows), len(rows)
    distance = lanes // 2
    while distance:
        chosen = vector(INT32, lanes)
        upper = [lane if not lane & distance else lanes + lane - distance for lane in range(lanes)]
        lower = [lane + distance if not lane & distance else lanes + lane for lane in range(lanes)]
        for number in range(lanes):
            if not number & distance:
                pair = rows[number], rows[number + distance]
                rows[number] = builder.shuffle_vector(*pair, ir.Constant(chosen, upper))
                rows[number + distance] = builder.shuffle_vector(*pair, ir.Constant(chosen, lower))
        distance //= 2
    return rows


def pattern_load(
    builder: Builder,
    kind: Any,
    address: Callable[[int], Value],
    places: Sequence[int],
    align: int,
    mask: Value | None = None,
) -> Value:
    """Elements at constant places, from vectors of neighbours: nothing is read beyond the least and the greatest.

    `address` gives where the element at a place lies. With a mask, only what its lanes ask for is read.
    """
    lanes = kind.count
    low, high = min(places), max(places)
    starts = [low] if high - low < lanes else [*range(low, high - lanes + 1, lanes), high - lanes + 1]
    sources = [min((place - low) // lanes, len(starts) - 1) for place in places]
    parts = []
    for number, start in enumerate(starts):
        wanted = {place - start: lane for lane, place in enumerate(places) if sources[lane] == number}
        inside = _part_mask(builder, lanes, high - start + 1, wanted, places, mask)
        if inside is None:
            parts.append(builder.load(address(start), align=align, typ=kind))
        else:
            parts.append(masked_load(builder, kind, address(start), inside, align))
    result = parts[0]
    for number in range(max(len(parts) - 1, 1)):
        following = parts[number + 1] if len(parts) > 1 else ir.Constant(kind, ir.Undefined)
        order = []
        for lane, (place, source) in enumerate(zip(places, sources, strict=True)):
            if source == number + 1:
                order.append(lanes + place - starts[source])
            else:
                order.append(place - low if number == 0 and source == 0 else lane)
        result = builder.shuffle_vector(result, following, ir.Constant(vector(INT32, lanes), order))
    return result


def _part_mask(
    builder: Builder, lanes: int, length: int, wanted: dict[int, int], places: Sequence[int], mask: Value | None
) -> Value | None:
    """Which of a vector of neighbours may be read; None for all. `wanted` names a lane for each that is asked for."""
    if mask is None:
        return None if length >= lanes else ir.Constant(vector(BIT, lanes), [lane < length for lane in range(lanes)])
    if len(set(places)) < lanes:  # several lanes share an element: whichever asks for it
        pairs = [
            (element, [n for n, place in enumerate(places) if place == places[lane]])
            for element, lane in wanted.items()
        ]
        rounds = max((len(users) for _, users in pairs), default=0)
    else:
        pairs, rounds = [(element, [lane]) for element, lane in wanted.items()], 1
    nothing = ir.Constant(mask.type, None)
    total: Value | None = None
    for turn in range(rounds):
        order = [lanes] * lanes
        for element, users in pairs:
            order[element] = users[turn] if turn < len(users) else lanes
        part = builder.shuffle_vector(mask, nothing, ir.Constant(vector(INT32, lanes), order))
        total = part if total is None else builder.or_(total, part)
    return total


def masked_load(builder: Builder, kind: Any, address: Value, mask: Value, align: int) -> Value:
    name = f"llvm.masked.load.{suffix(kind)}.p0"
    function = declare(builder, name, ir.FunctionType(kind, [POINTER, INT32, mask.type, kind]))
    return builder.call(function, [address, INT32(align), mask, ir.Constant(kind, None)])


def masked_store(builder: Builder, value: Value, address: Value, mask: Value, align: int) -> None:
    name = f"llvm.masked.store.{suffix(value.type)}.p0"
    function = declare(builder, name, ir.FunctionType(ir.VoidType(), [value.type, POINTER, INT32, mask.type]))
    builder.call(function, [value, address, INT32(align), mask])


def gather(builder: Builder, kind: Any, addresses: Value, mask: Value, align: int) -> Value:
    pointers = vector(POINTER, kind.count)
    name = f"llvm.masked.gather.{suffix(kind)}.v{kind.count}p0"
    function = declare(builder, name, ir.FunctionType(kind, [pointers, INT32, mask.type, kind]))
    return builder.call(function, [addresses, INT32(align), mask, ir.Constant(kind, None)])


def scatter(builder: Builder, value: Value, addresses: Value, mask: Value, align: int) -> None:
    pointers = vector(POINTER, value.type.count)
    name = f"llvm.masked.scatter.{suffix(value.type)}.v{value.type.count}p0"
    function = declare(builder, name, ir.FunctionType(ir.VoidType(), [value.type, pointers, INT32, mask.type]))
    builder.call(function, [value, addresses, INT32(align), mask])
