"""Maps that only pick: columns of a table, or entries of a list by their places. numpy does each in one call.

They are most of what hosts do with strings, of which models choose columns and look labels up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.backends.reference.small_maps import SmallMap
from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.program import Map
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar
from weft.ir.types import TensorType, Type

Array = np.ndarray[Any, Any]
Entry = tuple[int, bool]  # a number, and whether it is an axis of the result rather than a place


def picked_map(primitive: Map, result: Type) -> SmallMap | None:
    """A function of operands and sizes; it gives None where sizes do not fit. None: the map does more than pick."""
    if not isinstance(result, TensorType) or result.shape is None or not isinstance(primitive.expression, Load):
        return None
    load, shape = primitive.expression, tuple(map(_named, result.shape))
    entries = _entries(load, result.shape)
    if entries is not None:
        return lambda operands, sizes: _picked(operands[load.operand], entries, shape, sizes)
    if len(load.indices) != 1 or (places := _places(load.indices[0])) is None:
        return None
    where, last = places
    inner = _entries(where, result.shape)
    if inner is None:
        return None

    def look_up(operands: Sequence[Any], sizes: Mapping[str, int]) -> Array | None:
        table, chosen = operands[load.operand], _picked(operands[where.operand], inner, shape, sizes)
        if chosen is None or len(table) != (last or len(table)) or (last is None and chosen.size and chosen.min() < 0):
            return None
        return np.asarray(table.take(chosen), table.dtype)

    return look_up


def _entries(load: Load, shape: Sequence[Dim]) -> tuple[Entry, ...] | None:
    """The indices of a load that are places or axes, in order; all others of the result have size 1."""
    entries: list[Entry] = []
    axes: list[int] = []
    for index in load.indices:
        if not isinstance(index, Index):
            return None
        if isinstance(index.value, int):
            entries.append((index.value, False))
            continue
        (monomial, times), *more = index.value.terms
        if more or times != 1 or len(monomial) != 1 or not isinstance(monomial[0], Axis):
            return None
        entries.append((monomial[0].position, True))
        axes.append(monomial[0].position)
    rest = [size for axis, size in enumerate(shape) if axis not in axes]
    return tuple(entries) if axes == sorted(set(axes)) and all(size == 1 for size in rest) else None


def _places(index: Scalar) -> tuple[Load, int | None] | None:
    """A load of places, and the size that is added to those below zero, where that is done."""
    match index:
        case Load():
            return index, None
        case Apply(
            "select", (Apply("less", (Load() as tested, Literal(0))), Apply("add", (first, Index(int(size)))), other)
        ):
            return (tested, size) if tested == first == other else None
    return None


def _named(size: Dim) -> Dim | str:
    """A size that is a symbol alone by its name, which is found at once."""
    if not isinstance(size, int) and len(size.terms) == 1:
        (monomial, times), *_ = size.terms
        if times == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0].name
    return size


def _picked(
    source: Any, entries: Sequence[Entry], shape: Sequence[Dim | str], sizes: Mapping[str, int]
) -> Array | None:
    wanted = tuple(
        [
            sizes[size] if isinstance(size, str) else size if isinstance(size, int) else dims.evaluate(size, sizes)
            for size in shape
        ]
    )
    if type(source) is not np.ndarray or source.ndim != len(entries):
        return None
    chosen: list[Any] = []
    for (number, is_axis), size in zip(entries, source.shape):
        if is_axis:
            number = wanted[number]
        if not (number <= size if is_axis else 0 <= number < size):
            return None
        chosen.append(slice(number) if is_axis else number)
    picked: Array = source[tuple(chosen)]
    if type(picked) is not np.ndarray:  # a lone entry
        picked = np.asarray(picked, source.dtype)
    return picked if picked.shape == wanted else picked.reshape(wanted)
