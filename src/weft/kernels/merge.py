"""Fewer axes: neighbouring axes that everything steps through alike become one.

In: an expression over a domain, with operands and a result in given layouts. Out: the same with loads turned into
offsets where their indices are certain to lie inside, and a list of merged axes, outermost first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.ir import dims
from weft.ir.dims import Axis, Dim, Expr
from weft.ir.scalar import Index, Load, Scalar, loads, rebuild, walk
from weft.ir.types import Shape
from weft.kernels.layout import offset


@dataclass(frozen=True, slots=True)
class Merged:
    """`axes` are groups of the domain's axes, outermost first, each with its size; `places` the groups' result strides.

    The loads of `expression` from operands numbered `flat_from` on are flat: one index, an offset.
    """

    expression: Scalar
    flat_from: int
    axes: tuple[tuple[int, ...], ...]
    sizes: tuple[Dim, ...]
    result_strides: tuple[Dim, ...]


def merge_axes(
    expression: Scalar,
    operand_shapes: Sequence[Shape],
    operand_strides: Sequence[Sequence[Dim]],
    domain: Shape,
    order: Sequence[int],
    result_strides: Sequence[Dim],
) -> Merged:
    """`order` lists the domain's axes from the outermost in."""
    flat = flatten_loads(expression, operand_shapes, operand_strides)
    count = len(operand_shapes)
    offsets = [load.indices[0].value for load in loads(flat) if load.operand >= count and isinstance(load.indices[0], Index)]
    pinned = _pinned_axes(flat, count)
    kept = [axis for axis in order if domain[axis] != 1]
    groups: list[list[int]] = []
    sizes: list[Dim] = []
    for axis in kept:
        if groups and _alike(groups[-1][-1], axis, domain, offsets, result_strides, pinned):
            groups[-1].append(axis)
            sizes[-1] = sizes[-1] * domain[axis]
        else:
            groups.append([axis])
            sizes.append(domain[axis])
    strides = tuple(result_strides[group[-1]] for group in groups)
    return Merged(flat, count, tuple(map(tuple, groups)), tuple(sizes), strides)


def flatten_loads(
    expression: Scalar, operand_shapes: Sequence[Shape], operand_strides: Sequence[Sequence[Dim]]
) -> Scalar:
    """Loads that are certain to lie inside as offsets into flat operands, numbered after the others."""
    count = len(operand_shapes)

    def flatten(load: Load) -> Scalar:
        shape, strides = operand_shapes[load.operand], operand_strides[load.operand]
        places: list[Dim] = []
        for index, size in zip(load.indices, shape):
            if not isinstance(index, Index):
                return load
            if not (dims.is_at_least(index.value, 0) and dims.is_at_least(size - 1, index.value)):
                return load
            places.append(index.value)
        return Load(load.operand + count, (Index(offset(strides, places)),), load.dtype)

    return rebuild(expression, flatten)


def _pinned_axes(flat: Scalar, count: int) -> set[int]:
    """Axes that occur otherwise than as plain terms of an offset."""
    pinned: set[int] = set()
    pending = [flat]
    while pending:
        node = pending.pop()
        if isinstance(node, Load) and node.operand >= count:
            (place,) = node.indices
            assert isinstance(place, Index)
            pinned |= _nonlinear_axes(place.value)
        elif isinstance(node, Load):
            for index in node.indices:
                pinned |= _all_axes(index)
        elif isinstance(node, Index):
            pinned |= {atom.position for atom in dims.atoms(node.value) if isinstance(atom, Axis)}
        elif hasattr(node, "arguments"):
            pending.extend(node.arguments)
    return pinned


def _all_axes(scalar: Scalar) -> set[int]:
    indices = [node.value for node in walk(scalar) if isinstance(node, Index)]
    return {atom.position for value in indices for atom in dims.atoms(value) if isinstance(atom, Axis)}


def _nonlinear_axes(value: Dim) -> set[int]:
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


def _alike(
    outer: int, inner: int, domain: Shape, offsets: Sequence[Dim], result_strides: Sequence[Dim], pinned: set[int]
) -> bool:
    if outer in pinned or inner in pinned:
        return False
    size = domain[inner]
    if result_strides[outer] != result_strides[inner] * size:
        return False
    return all(stride_along(value, outer) == stride_along(value, inner) * size for value in offsets)
