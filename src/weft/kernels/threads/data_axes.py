"""Rewrite expressions over a domain's axes to a point number that is only known as data."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.dtypes import DType
from weft.ir.scalar import Apply, FlatLoad, Index, Literal, Load, Placeholder, Scalar
from weft.records import dataclass

INT64 = DType.int64


def substitute_axes(scalar: Scalar, axes: Sequence[int], domain: Sequence[Dim], key: str) -> Scalar:
    """Substitute `axes`, outermost first, by positions computed from a point's number, an int64 placeholder.

    Other axes of the domain stay.
    """
    places: dict[int, Scalar] = {}
    remaining: Scalar = Placeholder(key, INT64)
    for axis in reversed(axes):
        size = Index(domain[axis])
        places[axis] = remaining if axis == axes[0] else Apply("remainder", (remaining, size), INT64)
        remaining = Apply("divide", (remaining, size), INT64)
    done: dict[int, Scalar] = {}

    def copy(node: Scalar) -> Scalar:
        if id(node) not in done:
            match node:
                case Literal() | Placeholder() | FlatLoad():
                    done[id(node)] = node
                case Index(value):
                    done[id(node)] = _index(value, places)
                case Load(source, indices, dtype, checked):
                    done[id(node)] = Load(source, tuple(map(copy, indices)), dtype, checked)
                case Apply(function, arguments, dtype):
                    done[id(node)] = Apply(function, tuple(map(copy, arguments)), dtype)
        return done[id(node)]

    return copy(scalar)


def _index(value: Dim, places: dict[int, Scalar]) -> Scalar:
    """Rewrite index arithmetic with expressions in place of some axes."""
    if not any(isinstance(atom, Axis) and atom.position in places for atom in dims.atoms(value)):
        return Index(value)

    def leaf(atom: Symbol | Axis) -> _Number:
        if isinstance(atom, Symbol):
            return _Number(Index(dims.from_atom(atom)))
        place = places.get(atom.position)
        return _Number(Index(dims.axis(atom.position, atom.size)) if place is None else place)

    folded = dims.fold(value, leaf, _COMPOUNDS)
    assert isinstance(folded, _Number)
    return folded.scalar


@dataclass(frozen=True, slots=True)
class _Number:
    """An int64 expression with Python's operators."""

    scalar: Scalar

    def __add__(self, other: _Number | int) -> _Number:
        return _apply("add", self, other)

    def __mul__(self, other: _Number | int) -> _Number:
        return _apply("multiply", self, other)

    __radd__, __rmul__ = __add__, __mul__


def _apply(function: str, left: _Number | int, right: _Number | int) -> _Number:
    parts = tuple(Literal(part, INT64) if isinstance(part, int) else part.scalar for part in (left, right))
    return _Number(Apply(function, parts, INT64))


def _floor_divide(left: _Number | int, right: _Number | int) -> _Number:
    multiple = _apply("subtract", left, _apply("remainder", left, right))
    return _apply("divide", multiple, right)


_COMPOUNDS = {
    "//": _floor_divide,
    "%": lambda left, right: _apply("remainder", left, right),
    "min": lambda left, right: _apply("minimum", left, right),
    "max": lambda left, right: _apply("maximum", left, right),
}
