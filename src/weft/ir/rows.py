"""The rows that a group of maps and reductions works on."""

from __future__ import annotations

from weft.ir import dims
from weft.ir.access import move_axes
from weft.ir.dims import Dim
from weft.ir.program import Map, Reduce, Step, Value
from weft.ir.scalar import Index, Literal, Load, Scalar, loads
from weft.ir.types import Shape, TensorType
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class RowFrame:
    """A domain and its reduced axes: a row is what these span for fixed other axes.

    A value of the group is either full, an element for each point of the domain, or a row value, one for each row, with
    the reduced axes missing or of size 1.
    """

    domain: Shape
    reduced: frozenset[int]

    def is_full(self, value: Value) -> bool:
        return _shape(value) == self.domain

    def row_axes(self, value: Value) -> tuple[int | None, ...] | None:
        """The domain's axis that each axis of a row value is, None for one of size 1; None if it is no row value."""
        shape = _shape(value)
        if shape is None:
            return None
        kept = [axis for axis in range(len(self.domain)) if axis not in self.reduced]
        if shape == tuple(self.domain[axis] for axis in kept):
            return tuple(kept)
        if shape == tuple(1 if axis in self.reduced else size for axis, size in enumerate(self.domain)):
            return tuple(None if axis in self.reduced else axis for axis in range(len(shape)))
        return None

    def places(self, value: Value) -> tuple[Dim, ...] | None:
        """The indices of a value's element at a point of the domain; None for a value that does not fit in."""
        if self.is_full(value):
            return tuple(dims.axis(axis, size) for axis, size in enumerate(self.domain))
        axes = self.row_axes(value)
        return None if axes is None else tuple(0 if a is None else dims.axis(a, self.domain[a]) for a in axes)

    def over_domain(self, step: Step) -> Scalar:
        """A map's expression with the domain's axes in place of its own."""
        assert isinstance(step.primitive, Map)
        places = self.places(step.results[0])
        assert places is not None
        return move_axes(step.primitive.expression, dict(enumerate(places)))

    def fits(self, step: Step, inside: set[Value]) -> bool:
        """Whether the step works on these rows, and reads values `inside` the group only where it stands."""
        match step.primitive:
            case Reduce(_, axes):
                return frozenset(axes) == self.reduced and _shape(step.operands[0]) == self.domain
            case Map():
                if self.places(step.results[0]) is None:
                    return False
                row = not self.is_full(step.results[0])
                return all(
                    self.reads_here(load, step.operands[load.operand], row)
                    for load in loads(self.over_domain(step))
                    if step.operands[load.operand] in inside
                )
            case _:
                return False

    def reads_here(self, load: Load, value: Value, row: bool) -> bool:
        places = self.places(value)
        if places is None or (row and self.is_full(value)):
            return False
        found = [index.value for index in load.indices if isinstance(index, (Index, Literal))]
        return len(found) == len(load.indices) and tuple(found) == places


def _shape(value: Value) -> Shape | None:
    return value.type.shape if isinstance(value.type, TensorType) else None
