"""Convert numbers from texts and arrays to an input's element type without changing an integer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from weft.errors import InputError, short_repr
from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.ir.specs import TensorSpec

EXACT = 2**53  # float64 represents every integer up to here


def parse_number(text: str) -> int | float:
    """Parse a number, as an int where a float64 would round an integer; ValueError if it is none or too large."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if math.isinf(number) and "inf" not in text.lower():
        raise ValueError(f"{text[:40]} is larger than any float64")
    if abs(number) < EXACT or not math.isfinite(number):
        return number
    exact = Decimal(text)
    return int(exact) if exact == exact.to_integral_value() else number


def is_whole(element: DType | None) -> bool:
    """Whether elements are integers or booleans."""
    return element is not None and (element.is_integer or element is DType.bool)


def as_integer(number: int | float, element: DType) -> int:
    """Return a number as an integer that the type holds; ValueError says why it does not."""
    if isinstance(number, float) and not number.is_integer():
        raise ValueError(f"{number!r} is not a whole number")
    low, high = _integer_limits(element)
    if not low <= number <= high:
        raise ValueError(f"{_shorten_number(number)} is outside {element}'s range")
    return int(number)


def integer_array(content: Any, shape: Sequence[int], spec: TensorSpec, name: str) -> Array:
    """Convert nested lists of numbers to an array of integers."""
    element = spec.element
    assert element is not None
    items = np.empty(shape, object)
    items[...] = np.asarray(content, object)
    integers = np.empty(shape, element.numpy)
    for index, item in np.ndenumerate(items):
        if not isinstance(item, (bool, int, float)):
            raise InputError(f"{name}: {_shorten_number(item)}{_format_index(index)} is not a number")
        try:
            integers[index] = as_integer(item, element)
        except ValueError as error:
            raise _misfit_error(name, spec, f"{error}{_format_index(index)}") from None
    return integers


def convert(array: Array, spec: TensorSpec, name: str) -> Array:
    """Convert an array of numbers; InputError names the first element that the input's type cannot represent."""
    element = spec.element
    assert element is not None
    if array.dtype.isbuiltin != 1:  # bfloat16, float8 and int4 fit into float64
        array = array.astype(np.float64)
    with np.errstate(all="ignore"):
        converted = array.astype(element.numpy)
        if is_whole(element):
            low, high = _integer_limits(element)
            misfits = array != np.trunc(array) if array.dtype.kind == "f" else np.zeros(array.shape, bool)
            if array.dtype.kind == "f":  # both bounds are powers of 2, or 0
                misfits |= ~((array >= float(low)) & (array < float(high + 1)))
            elif array.dtype.kind in "iu" and array.size and (int(array.min()) < low or int(array.max()) > high):
                misfits = np.vectorize(lambda number: not low <= int(number) <= high, [bool])(array)
        elif array.dtype.kind in "iuf":
            misfits = np.isfinite(array) & ~np.isfinite(converted.astype(np.float64))
        else:
            return np.asarray(converted)
    if misfits.any():
        index = tuple(np.argwhere(misfits)[0].tolist())
        number = array[index].item()
        whole = isinstance(number, int) or not is_whole(element) or float(number).is_integer()
        why = f"is outside {element}'s range" if whole else "is not a whole number"
        raise _misfit_error(name, spec, f"{_shorten_number(number)}{_format_index(index)} {why}")
    return np.asarray(converted)


def _integer_limits(element: DType) -> tuple[int, int]:
    if element is DType.bool:
        return 0, 1
    low, high = element.limits
    return int(low), int(high)


def _misfit_error(name: str, spec: TensorSpec, problem: str) -> InputError:
    hint = "round or clip the numbers first" if is_whole(spec.element) else "clip the numbers first"
    return InputError(f"{name}: {problem}, but input {spec.name!r} takes {spec.element}", hint=hint)


def _shorten_number(item: Any) -> str:
    return (
        f"a number of about {item.bit_length()} bits"
        if isinstance(item, int) and item.bit_length() > 128
        else short_repr(item)
    )


def _format_index(index: Sequence[int]) -> str:
    return f" at [{', '.join(map(str, index))}]" if index else ""
