"""Whether two values of the ir are the same to the last bit: what is made of one can then be used for the other.

Numbers are compared as they are stored (-0.0 is not 0.0, and 1 is not True), arrays by their bytes, and whatever is of
an unknown kind counts as different. Fields that a data class leaves out of comparisons are left out here, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any

import numpy as np

from weft.ir.dims import Expr
from weft.ir.program import Value
from weft.ir.scalar import same_number

_PLAIN = (str, bytes, int, NoneType, Enum, Expr, Value)  # whose == is exact, between two of one type


def alike(one: Any, other: Any) -> bool:
    """Whether two values are the same, wherever they are kept."""
    return _alike(one, other, {})


Known = dict[tuple[int, int], tuple[Any, Any]]
"""Pairs that were found to be alike, since parts are often shared; they are kept, so that their ids stay theirs."""


def _alike(one: Any, other: Any, known: Known) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, _PLAIN):
        return bool(one == other)
    if isinstance(one, (float, complex)):
        return same_number(one, other)
    if (id(one), id(other)) in known:
        return True
    if not _same_parts(one, other, known):
        return False
    known[id(one), id(other)] = one, other
    return True


def _same_parts(one: Any, other: Any, known: Known) -> bool:
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(_alike(*pair, known) for pair in zip(one, other))
    if isinstance(one, frozenset):
        return all(isinstance(item, _PLAIN) for item in one) and sorted(map(repr, one)) == sorted(map(repr, other))
    if isinstance(one, Mapping):
        return _alike(list(one), list(other), known) and all(_alike(one[key], other[key], known) for key in one)
    if isinstance(one, np.ndarray):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        return _alike(one.tolist(), other.tolist(), known) if one.dtype == object else one.tobytes() == other.tobytes()
    if is_dataclass(one) and not isinstance(one, type):
        return all(_alike(getattr(one, name), getattr(other, name), known) for name in _compared(type(one)))
    return False


@cache
def _compared(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.compare)
