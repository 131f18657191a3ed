"""Estimate the instructions of an expression per element."""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import Compound, Dim
from weft.ir.scalar import Apply, Index, Load, Scalar, walk


def cost(expression: Scalar) -> int:
    """Estimate the instructions of an expression."""
    return sum(map(_node_cost, walk(expression)))


def _node_cost(node: Scalar) -> int:
    match node:
        case Apply(function):
            return _COSTS.get(function, 1)
        case Load(_, indices) if not all(isinstance(index, Index) for index in indices):
            return 6
        case _:
            return 0


def relative_work(expression: Scalar) -> int:
    """Return the relative work of one element, of which memory access is 1 and 16 instructions are another 1."""
    return 1 + cost(expression) // 16


def divides(index: Dim) -> bool:
    """Whether an index needs divisions other than shifts, which cost more than loading it."""
    compounds = [atom for atom in dims.atoms(index) if isinstance(atom, Compound) and atom.operation in ("//", "%")]
    return any(not isinstance(atom.right, int) or atom.right & (atom.right - 1) != 0 for atom in compounds)


_COSTS = {
    **dict.fromkeys(("divide", "sqrt", "remainder", "fmod"), 6),
    **dict.fromkeys(("exp", "log", "log1p", "tanh", "sinh", "cosh", "erf", "sin", "cos", "atan"), 20),
    **dict.fromkeys(("power", "tan", "asin", "acos", "asinh", "acosh", "atanh"), 40),
}
