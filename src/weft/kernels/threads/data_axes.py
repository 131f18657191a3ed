"""Expressions over a domain's axes -> the same over the number of a point, where only data tells which point it is."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.dtypes import DType
from weft.ir.scalar import Apply, FlatLoad, Held, Index, Literal, Load, Scalar
from weft.records import dataclass

INT64 = DType.int64


def with_number(scalar: Scalar, axes: Sequence[int], domain: Sequence[Dim], key: str) -> Scalar:
    """The expression where `axes`, outermost first, follow from a point's number, an int64 that is held under a key.

    Axes of the domain that are not among them stay.
    """
    places: dict[int, Scalar] = {}
    rest: Scalar = Held(key, INT64)
    for axis in reversed(axes):
        size = Index(domain[axis])
        places[axis] = rest if axis == axes[0] else Apply("remainder", (rest, size), INT64)
        rest = Apply("divide", (rest, size), INT64)
    done: dict[int, Scalar] = {}

    def copy(node: Scalar) -> Scalar:
        if id(node) not in done:
            match node:
                case Literal() | Held() | FlatLoad():
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
    """Index arithmetic with expressions in place of some axes."""
    if not any(isinstance(atom, Axis) and atom.position in places for atom in dims.atoms(value)):
        return Index(value)

    def leaf(atom: Symbol | Axis) -> _Number:
        if isinstance(atom, Symbol):
            return _Number(Index(dims.symbol(atom.name, atom.low, atom.high)))
        known = places.get(atom.position)
        return _Number(Index(dims.axis(atom.position, atom.size)) if known is None else known)

    found = dims.fold(value, leaf, _COMPOUNDS)
    assert isinstance(found, _Number)
    return found.scalar


@dataclass(frozen=True, slots=True)
class _Number:
    """An int64 in the arithmetic of expressions."""

    scalar: Scalar

    def __add__(self, other: _Number | int) -> _Number:
        return _applied("add", self, other)

    def __mul__(self, other: _Number | int) -> _Number:
        return _applied("multiply", self, other)

    __radd__, __rmul__ = __add__, __mul__


def _applied(function: str, left: _Number | int, right: _Number | int) -> _Number:
    parts = tuple(Literal(part, INT64) if isinstance(part, int) else part.scalar for part in (left, right))
    return _Number(Apply(function, parts, INT64))


def _floor_divide(left: _Number | int, right: _Number | int) -> _Number:
    even = _applied("subtract", left, _applied("remainder", left, right))
    return _applied("divide", even, right)


_COMPOUNDS = {
    "//": _floor_divide,
    "%": lambda left, right: _applied("remainder", left, right),
    "min": lambda left, right: _applied("minimum", left, right),
    "max": lambda left, right: _applied("maximum", left, right),
}
