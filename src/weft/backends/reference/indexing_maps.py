"""Maps that only index: slices of a tensor, or a table lookup. numpy does each in one call.

Most maps of strings are of this kind: models select columns and look up labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.backends.reference.small_maps import SmallMap
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.program import Map
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar
from weft.ir.types import Type

Entry = tuple[int, bool]  # a position, or an axis of the result and True


def compile_indexing_map(primitive: Map, result: Type) -> SmallMap | None:
    """Compile a map to a function of operands and sizes, which returns None for sizes that do not fit.

    None: the map does more than index.
    """
    if result.shape is None or not isinstance(primitive.expression, Load):
        return None
    load, shape = primitive.expression, tuple(map(_symbol_name, result.shape))
    entries = _match_entries(load, result.shape)
    if entries is not None:
        return lambda operands, sizes: _index(operands[load.operand], entries, shape, sizes)
    if len(load.indices) != 1 or (lookup := _match_lookup(load.indices[0])) is None:
        return None
    where, last = lookup
    inner = _match_entries(where, result.shape)
    if inner is None:
        return None

    def look_up(operands: Sequence[Any], sizes: Mapping[str, int]) -> Array | None:
        table, positions = operands[load.operand], _index(operands[where.operand], inner, shape, sizes)
        if positions is None or len(table) != (last or len(table)):
            return None
        if last is None and positions.size and positions.min() < 0:
            return None
        return np.asarray(table.take(positions), table.dtype)

    return look_up


def _match_entries(load: Load, shape: Sequence[Dim]) -> tuple[Entry, ...] | None:
    """Match a load at positions and axes in order, where all other axes of the result have size 1."""
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
    other_sizes = [size for axis, size in enumerate(shape) if axis not in axes]
    return tuple(entries) if axes == sorted(set(axes)) and all(size == 1 for size in other_sizes) else None


def _match_lookup(index: Scalar) -> tuple[Load, int | None] | None:
    """Match a load of positions; also return the size that is added to negative ones, if it is."""
    match index:
        case Load():
            return index, None
        case Apply(
            "select", (Apply("less", (Load() as tested, Literal(0))), Apply("add", (first, Index(int(size)))), other)
        ):
            return (tested, size) if tested == first == other else None
    return None


def _symbol_name(size: Dim) -> Dim | str:
    """Return the name of a size that is a single symbol, for fast lookup; other sizes unchanged."""
    if not isinstance(size, int) and len(size.terms) == 1:
        (monomial, times), *_ = size.terms
        if times == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0].name
    return size


def _index(source: Any, entries: Sequence[Entry], shape: Sequence[Dim | str], sizes: Mapping[str, int]) -> Array | None:
    result_shape = tuple(
        [
            sizes[size] if isinstance(size, str) else size if isinstance(size, int) else dims.evaluate(size, sizes)
            for size in shape
        ]
    )
    if type(source) is not np.ndarray or source.ndim != len(entries):
        return None
    index: list[Any] = []
    for (number, is_axis), size in zip(entries, source.shape):
        if is_axis:
            number = result_shape[number]
        if not (number <= size if is_axis else 0 <= number < size):
            return None
        index.append(slice(number) if is_axis else number)
    elements: Array = source[tuple(index)]
    if type(elements) is not np.ndarray:  # a single element
        elements = np.asarray(elements, source.dtype)
    return elements if elements.shape == result_shape else elements.reshape(result_shape)
