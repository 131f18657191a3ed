"""The iteration space of a row group: a domain whose rows maps and reductions share."""

from __future__ import annotations

from weft.ir import dims
from weft.ir.access import axes_of_shape, substitute_axes
from weft.ir.dims import Dim
from weft.ir.program import Map, Reduce, Step, Value
from weft.ir.scalar import Index, Literal, Load, Scalar, loads
from weft.ir.types import Shape
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class RowFrame:
    """A domain and its reduced axes; a row spans the reduced axes at one position of the others.

    A value of the group is either full, with an element for each point of the domain, or a row value, with one for each
    row: its reduced axes are missing or of size 1.
    """

    domain: Shape
    reduced: frozenset[int]

    def is_full(self, value: Value) -> bool:
        return value.known_shape == self.domain

    def row_axes(self, value: Value) -> tuple[int | None, ...] | None:
        """Return the domain's axis for each axis of a row value (None for size 1), or None for other values."""
        shape = value.known_shape
        if shape is None:
            return None
        outer = [axis for axis in range(len(self.domain)) if axis not in self.reduced]
        if shape == tuple(self.domain[axis] for axis in outer):
            return tuple(outer)
        if shape == tuple(1 if axis in self.reduced else size for axis, size in enumerate(self.domain)):
            return tuple(None if axis in self.reduced else axis for axis in range(len(shape)))
        return None

    def places(self, value: Value) -> tuple[Dim, ...] | None:
        """Return the indices of a value's element at a point of the domain; None if its shape does not match."""
        if self.is_full(value):
            return axes_of_shape(self.domain)
        axes = self.row_axes(value)
        return None if axes is None else tuple(0 if a is None else dims.axis(a, self.domain[a]) for a in axes)

    def over_domain(self, step: Step) -> Scalar:
        """Rewrite a map's expression over the domain's axes."""
        assert isinstance(step.primitive, Map)
        places = self.places(step.results[0])
        assert places is not None
        return substitute_axes(step.primitive.expression, places)

    def fits(self, step: Step, inside: set[Value]) -> bool:
        """Whether the step works on these rows, and reads values `inside` the group only at its own position."""
        match step.primitive:
            case Reduce(_, axes):
                return frozenset(axes) == self.reduced and step.operands[0].known_shape == self.domain
            case Map():
                if self.places(step.results[0]) is None:
                    return False
                row = not self.is_full(step.results[0])
                return all(
                    self.reads_own_position(load, step.operands[load.operand], row)
                    for load in loads(self.over_domain(step))
                    if step.operands[load.operand] in inside
                )
            case _:
                return False

    def reads_own_position(self, load: Load, value: Value, row: bool) -> bool:
        places = self.places(value)
        if places is None or (row and self.is_full(value)):
            return False
        positions = [index.value for index in load.indices if isinstance(index, (Index, Literal))]
        return len(positions) == len(load.indices) and tuple(positions) == places
