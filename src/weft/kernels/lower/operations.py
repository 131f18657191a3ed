"""Constructors of common kernel expressions."""

from __future__ import annotations

from typing import overload

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer


def cast(value: Code, dtype: DType) -> Code:
    """Convert a value, unless it has the dtype already."""
    return value if value.dtype is dtype else Call("cast", (value,), dtype)


def less(left: Dim, right: Dim) -> Code:
    return Call("less", (Integer(left), Integer(right)), DType.bool)


def logical_and(left: Code, right: Code) -> Code:
    return Call("logical_and", (left, right), DType.bool)


def logical_or(left: Code, right: Code) -> Code:
    return Call("logical_or", (left, right), DType.bool)


def logical_not(value: Code) -> Code:
    return Call("logical_not", (value,), DType.bool)


@overload
def and_masks(left: Code, right: Code | None) -> Code: ...
@overload
def and_masks(left: Code | None, right: Code) -> Code: ...
@overload
def and_masks(left: Code | None, right: Code | None) -> Code | None: ...
def and_masks(left: Code | None, right: Code | None) -> Code | None:
    """Combine two masks; None stands for all lanes."""
    if left is None or right is None:
        return left if right is None else right
    return logical_and(left, right)
