"""How index arithmetic and expressions depend on the axes of their domain: strides, places, what is not linear."""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir import dims
from weft.ir.dims import Axis, Dim, Expr
from weft.ir.scalar import Apply, FlatLoad, Index, Literal, Scalar, rebuild, walk
from weft.ir.types import Shape


def stride_along(value: Dim, position: int) -> Dim:
    """The factor of an axis in an offset that is linear in it."""
    total: Dim = 0
    for monomial, coefficient in value.terms if isinstance(value, Expr) else ():
        rest = [atom for atom in monomial if not (isinstance(atom, Axis) and atom.position == position)]
        if len(rest) < len(monomial):
            term: Dim = coefficient
            for atom in rest:
                term = term * Expr((((atom,), 1),))
            total = total + term
    return total


def without_axis(value: Dim, position: int) -> Dim:
    """The value where an axis stands at 0."""

    def place(atom: dims.Symbol | Axis) -> Dim:
        if isinstance(atom, Axis):
            return 0 if atom.position == position else dims.axis(atom.position, atom.size)
        return dims.symbol(atom.name, atom.low, atom.high)

    return dims.substitute(value, place)


def nonlinear_axes(value: Dim) -> set[int]:
    """Axes inside quotients and the like, or multiplied with each other."""
    if isinstance(value, int):
        return set()
    found: set[int] = set()
    for monomial, _ in value.terms:
        plain = [atom for atom in monomial if isinstance(atom, Axis)]
        if len(plain) > 1:
            found |= {atom.position for atom in plain}
        for atom in monomial:
            if not isinstance(atom, Axis):
                inner = dims.atoms(Expr((((atom,), 1),)))
                found |= {other.position for other in inner if isinstance(other, Axis)}
    return found


def axes_of(scalar: Scalar) -> set[int]:
    """Every axis that an expression depends on."""
    found: set[int] = set()
    for node in walk(scalar):
        if isinstance(node, (Index, FlatLoad)):
            value = node.value if isinstance(node, Index) else node.offset
            found |= {atom.position for atom in dims.atoms(value) if isinstance(atom, Axis)}
    return found


def move_axes(scalar: Scalar, axes: Mapping[int, Dim]) -> Scalar:
    """The expression with its axes replaced."""

    def place(atom: dims.Symbol | Axis) -> Dim:
        return axes[atom.position] if isinstance(atom, Axis) else dims.symbol(atom.name, atom.low, atom.high)

    return rebuild(scalar, atom=place)


def compared_indices(condition: Scalar) -> list[tuple[Dim, str, Dim]]:
    """The comparisons of indices that hold wherever a condition does: (left, relation, right)."""
    match condition:
        case Apply("logical_and", (left, right)):
            return compared_indices(left) + compared_indices(right)
        case Apply(relation, (Index(left), Index(right))):
            return [(left, relation, right)]
        case Apply(relation, (Index(left), Literal(int(right)))):
            return [(left, relation, right)]
        case _:
            return []


def axes_of_shape(shape: Shape) -> tuple[Dim, ...]:
    return tuple(dims.axis(axis, size) for axis, size in enumerate(shape))
