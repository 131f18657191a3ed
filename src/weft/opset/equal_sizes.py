"""Express sizes of inputs by other sizes that a program's guards make equal to them.

A program in which equal sizes are one expression has fewer guards, and kernels that fuse across them.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.program import TensorProgram


def find_equal_sizes(program: TensorProgram, *, only_sums: bool = False) -> dict[str, Dim]:
    """Return sizes of the inputs, by name, with an equal expression of the other sizes of inputs.

    `only_sums`: only those that equal a sum of several sizes, or of a size and a number.
    """
    order: dict[str, int] = {}
    for value in program.inputs:
        for dim in value.type.shape or ():
            order |= {name: len(order) for name in dims.symbol_names(dim) if name not in order}
    equal: dict[str, Dim] = {}
    for guard in program.guards:
        if guard.at_least:
            continue
        sides = replace_sizes(guard.left, equal), replace_sizes(guard.right, equal)
        pairs = [(side, other) for side, other in (sides, sides[::-1]) if _is_replaceable(side, other, order)]
        if only_sums:
            pairs = [(side, other) for side, other in pairs if _is_sum(other)]
        if pairs:  # of two plain sizes, that of the later input is replaced
            side, other = max(pairs, key=lambda pair: order[str(pair[0])])
            replacement = {str(side): other}
            equal = {name: replace_sizes(dim, replacement) for name, dim in equal.items()} | replacement
    return equal


def _is_replaceable(side: Dim, other: Dim, order: Mapping[str, int]) -> bool:
    symbol = dims.as_symbol(side)
    if symbol is None or symbol.name not in order:
        return False
    names = dims.symbol_names(other)
    return symbol.name not in names and all(name in order for name in names)


def _is_sum(dim: Dim) -> bool:
    if isinstance(dim, int) or dims.as_symbol(dim) is not None:
        return False
    sizes = [(monomial, coefficient) for monomial, coefficient in dim.terms if monomial]
    return all(len(monomial) == coefficient == 1 and isinstance(monomial[0], Symbol) for monomial, coefficient in sizes)


def replace_sizes(dim: Dim, sizes: Mapping[str, Dim]) -> Dim:
    """Replace sizes by name, also those of axes."""

    def replace(atom: Symbol | Axis) -> Dim:
        if isinstance(atom, Axis):
            return dims.axis(atom.position, dims.substitute(atom.size, replace))
        return sizes.get(atom.name, dims.from_atom(atom))

    return dims.substitute(dim, replace) if sizes.keys() & dims.symbol_names(dim) else dim
