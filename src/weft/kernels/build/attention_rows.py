"""The axes of attention's rows: which of them share keys and values."""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir import dims
from weft.ir.access import find_axes, substitute_axes
from weft.ir.attention import Attention
from weft.ir.dims import Axis, Compound, Dim
from weft.ir.scalar import Index, Scalar, walk
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class RowAxes:
    """The axes of rows with their numbers of rows, and the axes of blocks with their numbers of blocks.

    An axis in both has groups of rows with the same keys: its position is block * rows + row.
    """

    rows: tuple[tuple[int, Dim], ...]
    grid: tuple[tuple[int, Dim], ...]

    @property
    def count(self) -> Dim:
        return dims.product(size for _, size in self.rows)

    def position(self, axis: int, block: Dim, row: Dim) -> Dim:
        return block * dict(self.rows).get(axis, 1) + row

    def find_group(self) -> int:
        """Return the known factor of the number of rows."""
        group = 1
        for _, size in self.rows:
            group *= size if isinstance(size, int) else 1
        return group

    def has_monotonic(self, bound: Dim) -> bool:
        """Whether a bound that does not decrease along the last axis of rows is constant along the others."""
        last = self.rows[-1][0] if self.rows else None
        axes = {atom.position for atom in dims.atoms(bound) if isinstance(atom, Axis)}
        grouped = {axis for axis, _ in self.rows} & {axis for axis, _ in self.grid}
        return not axes & ({axis for axis, _ in self.rows if axis != last} | grouped)


def find_row_axes(attention: Attention, *, in_place: bool) -> RowAxes:
    """Find the axes of rows; if keys are read in place, as many rows as possible share them."""
    sizes = {axis: size for axis, size in enumerate(attention.shape[:-1]) if size != 1}
    if not in_place:
        rows = {axis: sizes[axis] for axis in attention.rows if axis in sizes}
        grid = {axis: size for axis, size in sizes.items() if axis not in rows}
        return RowAxes(tuple(rows.items()), tuple(grid.items()))
    rows, grid = {}, {}
    for axis, size in sizes.items():
        if axis not in find_axes(attention.key) | find_axes(attention.value):
            rows[axis] = size
            continue
        group = _find_group_size(attention, axis)
        grid[axis] = dims.floordiv(size, group)
        if group > 1:
            rows[axis] = group
    return RowAxes(tuple(rows.items()), tuple((axis, size) for axis, size in grid.items() if size != 1))


def _find_group_size(attention: Attention, axis: int) -> int:
    """Return how many neighbours along an axis have the same keys and values: 1 unless both depend on a quotient."""
    size = attention.shape[axis]
    if not isinstance(size, int):
        return 1
    sizes = [_find_quotient(expression, axis, size) for expression in (attention.key, attention.value)]
    return sizes[0] if sizes[0] == sizes[1] else 1


def _find_quotient(expression: Scalar, axis: int, size: int) -> int:
    """Return the largest divisor of an axis through whose quotient alone an expression depends on the axis."""
    indices = [node.value for node in walk(expression) if isinstance(node, Index)]
    compounds = [atom for value in indices for atom in dims.atoms(value) if isinstance(atom, Compound)]
    divisors = {atom.right for atom in compounds if isinstance(atom.right, int) and size % atom.right == 0}
    places: Mapping[int, Dim] = {a: dims.symbol(f"axis{a}", 0) for a in find_axes(expression)}
    for divisor in sorted(divisors, reverse=True):
        within = dims.axis(0, divisor)
        split = substitute_axes(expression, {**places, axis: places[axis] * divisor + within})
        if not find_axes(split):
            return divisor
    return 1
