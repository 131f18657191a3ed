"""Find causal masks: bounds on the keys that a query can see, beyond which nothing is computed."""

from __future__ import annotations

from math import inf

from weft.ir.access import find_axes, find_index_comparisons, find_nonlinear_axes, stride_along, without_axis
from weft.ir.attention import CausalBound
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.scalar import Apply, Index, Literal, Scalar, loads

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


def find_loaded_bounds(score: Scalar, key: int) -> tuple[Scalar, ...]:
    """Return upper bounds of the visible keys that depend on data, of conditions that give other keys a score of -inf.

    The score of a key past a bound depends on nothing else, so that its product need not be computed.
    """
    limits = [limit for condition in _find_conditions(score) for limit in _find_limits(condition, key)]
    return tuple(_add(limit, int(is_inside)) for limit, is_upper, is_inside in limits if is_upper)


def find_loaded_starts(score: Scalar, key: int) -> tuple[Scalar, ...]:
    """Return the first visible keys of conditions like those of `find_loaded_bounds`."""
    limits = [limit for condition in _find_conditions(score) for limit in _find_limits(condition, key)]
    return tuple(_add(limit, int(not is_inside)) for limit, is_upper, is_inside in limits if not is_upper)


def _find_conditions(score: Scalar) -> list[Scalar]:
    """Return the conditions without which a score is -inf, whatever the product."""
    match score:
        case Apply("select", (condition, inner, Literal(float(low)))) if low == -inf:
            return [condition, *_find_conditions(inner)]
        case _:
            return []


def _find_limits(condition: Scalar, key: int) -> list[tuple[Scalar, bool, bool]]:
    """Return the limits of the keys, whether they are upper ones, and whether the key at the limit is inside."""
    match condition:
        case Apply("logical_and", (left, right)):
            return _find_limits(left, key) + _find_limits(right, key)
        case Apply("less" | "less_equal" | "greater" | "greater_equal" as relation, (Index(place), limit)):
            is_upper = relation.startswith("less")
        case Apply("less" | "less_equal" | "greater" | "greater_equal" as relation, (limit, Index(place))):
            is_upper = relation.startswith("greater")
        case _:
            return []
    is_plain = limit.dtype is DType.int64 and key not in find_axes(limit) and bool(loads(limit))
    if not is_plain or key in find_nonlinear_axes(place) or stride_along(place, key) != 1:
        return []
    return [(_add(limit, -without_axis(place, key)), is_upper, relation.endswith("equal"))]


def _add(limit: Scalar, count: Dim) -> Scalar:
    return limit if count == 0 else Apply("add", (limit, Index(count)), DType.int64)


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
