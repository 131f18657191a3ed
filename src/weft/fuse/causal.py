"""Which keys a query can see at most, by their place: what comes later need not be computed."""

from __future__ import annotations

from weft.ir.access import compared_indices, nonlinear_axes, stride_along, without_axis
from weft.ir.attention import CausalBound
from weft.ir.dims import Dim
from weft.ir.scalar import Apply, Literal, Scalar

HIDES = -1e30  # a score of no more than this has no weight beside any that a product gives


def causal_bounds(score: Scalar, key: int, row: int) -> tuple[CausalBound, ...]:
    """Where the visible keys of a row end at the latest: one bound for each condition that hides keys by place.

    Only bounds that do not fall from row to row, so that the last of several rows speaks for all.
    """
    match score:
        case Apply("select", (condition, inner, Literal(float(low)))) if low <= HIDES:
            found = [_end(left, relation, right, key) for left, relation, right in compared_indices(condition)]
            bounds = [bound for bound in found if bound is not None and _never_falls(bound, row)]
            return tuple(CausalBound(bound, low) for bound in bounds) + causal_bounds(inner, key, row)
        case Apply("add", (left, right)):
            return causal_bounds(left, key, row) + causal_bounds(right, key, row)
        case _:
            return ()


def _end(left: Dim, relation: str, right: Dim, key: int) -> Dim | None:
    """The first key that a comparison hides together with all that follow."""
    if relation in ("greater", "greater_equal"):
        left, right = right, left
    elif relation not in ("less", "less_equal"):
        return None
    rest = left - right
    if key in nonlinear_axes(rest) or stride_along(rest, key) != 1:
        return None
    return int(relation.endswith("equal")) - without_axis(rest, key)


def _never_falls(bound: Dim, row: int) -> bool:
    step = stride_along(bound, row)
    return row not in nonlinear_axes(bound) and isinstance(step, int) and step >= 0
