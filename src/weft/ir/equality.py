"""Compare values of the IR bit by bit, to reuse what was compiled for one in place of the other.

Numbers are compared as they are stored (-0.0 is not 0.0, and 1 is not True) and arrays by their bytes; objects of
unknown types count as different. Fields with `compare=False` are ignored.
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

_PLAIN = (str, bytes, int, NoneType, Enum, Expr, Value)  # == is exact between two of one type


def is_identical(a: Any, b: Any) -> bool:
    """Whether two values are the same, bit by bit."""
    return _is_identical(a, b, {})


Pairs = dict[tuple[int, int], tuple[Any, Any]]
"""Identical pairs by their ids, since objects are often shared; holding the objects keeps their ids unique."""


def _is_identical(a: Any, b: Any, pairs: Pairs) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, _PLAIN):
        return bool(a == b)
    if isinstance(a, (float, complex)):
        return same_number(a, b)
    if (id(a), id(b)) in pairs:
        return True
    if not _has_identical_contents(a, b, pairs):
        return False
    pairs[id(a), id(b)] = a, b
    return True


def _has_identical_contents(a: Any, b: Any, pairs: Pairs) -> bool:
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(_is_identical(x, y, pairs) for x, y in zip(a, b))
    if isinstance(a, frozenset):
        return all(isinstance(item, _PLAIN) for item in a) and sorted(map(repr, a)) == sorted(map(repr, b))
    if isinstance(a, Mapping):
        return _is_identical(list(a), list(b), pairs) and all(_is_identical(a[key], b[key], pairs) for key in a)
    if isinstance(a, np.ndarray):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        return _is_identical(a.tolist(), b.tolist(), pairs) if a.dtype == object else a.tobytes() == b.tobytes()
    if is_dataclass(a) and not isinstance(a, type):
        return all(_is_identical(getattr(a, name), getattr(b, name), pairs) for name in _compared_fields(type(a)))
    return False


@cache
def _compared_fields(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.compare)
