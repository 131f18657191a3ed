"""What an expression costs an element: instructions, about."""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import Compound, Dim
from weft.ir.kernel import Statement
from weft.ir.scalar import Apply, Index, Load, Scalar, walk

Body = tuple[Statement, ...]


def cost(expression: Scalar) -> int:
    """Instructions of an expression, about."""
    return sum(map(_cost_of_node, walk(expression)))


def _cost_of_node(node: Scalar) -> int:
    match node:
        case Apply(function):
            return _COSTS.get(function, 1)
        case Load(_, indices) if not all(isinstance(index, Index) for index in indices):
            return 6
        case _:
            return 0


def weight_of(expression: Scalar) -> int:
    """The work of one element, where a few instructions count as nothing beside the memory that they use."""
    return 1 + cost(expression) // 16


def divides(place: Dim) -> bool:
    """Whether a place takes divisions that are no shifts, which cost more than to look it up."""
    compounds = [atom for atom in dims.atoms(place) if isinstance(atom, Compound) and atom.operation in ("//", "%")]
    return any(not isinstance(atom.right, int) or atom.right & (atom.right - 1) != 0 for atom in compounds)


_COSTS = {
    **dict.fromkeys(("divide", "sqrt", "remainder", "fmod"), 6),
    **dict.fromkeys(("exp", "log", "log1p", "tanh", "sinh", "cosh", "erf", "sin", "cos", "atan"), 20),
    **dict.fromkeys(("power", "tan", "asin", "acos", "asinh", "acosh", "atanh"), 40),
}
