"""Find causal masks: bounds on the keys that a query can see, beyond which nothing is computed."""

from __future__ import annotations

from weft.ir.access import find_index_comparisons, find_nonlinear_axes, stride_along, without_axis
from weft.ir.attention import CausalBound
from weft.ir.dims import Dim
from weft.ir.scalar import Apply, Literal, Scalar

MASK_SCORE = -1e30  # scores up to this have a softmax weight of 0


def find_causal_bounds(score: Scalar, key: int, row: int) -> tuple[CausalBound, ...]:
    """Return upper bounds of the visible keys of a row, one for each condition that masks keys by index.

    Only bounds that do not decrease from row to row, so that the bound of the last of several rows holds for all.
    """
    match score:
        case Apply("select", (condition, inner, Literal(float(low)))) if low <= MASK_SCORE:
            ends = [
                _first_masked_key(left, relation, right, key)
                for left, relation, right in find_index_comparisons(condition)
            ]
            bounds = [bound for bound in ends if bound is not None and _is_nondecreasing(bound, row)]
            return tuple(CausalBound(bound, low) for bound in bounds) + find_causal_bounds(inner, key, row)
        case Apply("add", (left, right)):
            return find_causal_bounds(left, key, row) + find_causal_bounds(right, key, row)
        case _:
            return ()


def _first_masked_key(left: Dim, relation: str, right: Dim, key: int) -> Dim | None:
    """Return the first key from which on a comparison masks all keys."""
    if relation in ("greater", "greater_equal"):
        left, right = right, left
    elif relation not in ("less", "less_equal"):
        return None
    rest = left - right
    if key in find_nonlinear_axes(rest) or stride_along(rest, key) != 1:
        return None
    return int(relation.endswith("equal")) - without_axis(rest, key)


def _is_nondecreasing(bound: Dim, row: int) -> bool:
    step = stride_along(bound, row)
    return row not in find_nonlinear_axes(bound) and isinstance(step, int) and step >= 0
