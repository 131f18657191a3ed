"""Compare a value with the expected one, by the rules of onnx's own runner.

Tensors must agree in shape and dtype, and in each element within `atol + rtol * |expected|`, with NaN equal to NaN;
the relative tolerance of bfloat16 is at least two units in the last place. Strings must be equal. Sequences and maps
must agree in length and element by element. An empty optional agrees only with an empty one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.ir.arrays import Array

DIFFERS = "differs in"  # marks wrong elements in a tensor of the right shape and dtype

_BFLOAT16_RTOL = 2.0**-6


def find_difference(actual: Any, expected: Any, *, rtol: float, atol: float) -> str | None:
    """Describe the first difference between a value and the expected one in one line; None if they agree."""
    if expected is None or actual is None:
        return None if actual is expected else _kinds_differ(actual, expected)
    if isinstance(expected, (list, tuple)):
        return _compare_sequences(actual, expected, rtol, atol)
    if isinstance(expected, Mapping):
        return _compare_maps(actual, expected, rtol, atol)
    if not isinstance(actual, (np.ndarray, np.generic)):
        return _kinds_differ(actual, expected)
    return _compare_tensors(np.asarray(actual), np.asarray(expected), rtol, atol)


def _compare_sequences(actual: Any, expected: list[Any] | tuple[Any, ...], rtol: float, atol: float) -> str | None:
    if not isinstance(actual, (list, tuple)):
        return _kinds_differ(actual, expected)
    if len(actual) != len(expected):
        return f"has {len(actual)} elements, expected {len(expected)}"
    for index, pair in enumerate(zip(actual, expected, strict=True)):
        difference = find_difference(*pair, rtol=rtol, atol=atol)
        if difference:
            return f"element {index} {difference}"
    return None


def _compare_maps(actual: Any, expected: Mapping[Any, Any], rtol: float, atol: float) -> str | None:
    if not isinstance(actual, Mapping):
        return _kinds_differ(actual, expected)
    if actual.keys() != expected.keys():
        return f"has the keys {_shorten(sorted(actual))}, expected {_shorten(sorted(expected))}"
    for key, value in expected.items():
        difference = find_difference(_to_array(actual[key]), _to_array(value), rtol=rtol, atol=atol)
        if difference:
            return f"key {key!r} {difference}"
    return None


def _compare_tensors(actual: Array, expected: Array, rtol: float, atol: float) -> str | None:
    if actual.shape != expected.shape:
        return f"has shape {list(actual.shape)}, expected {list(expected.shape)}"
    if expected.dtype == object:
        wrong = np.asarray(actual != expected)
    elif actual.dtype != expected.dtype:
        return f"has dtype {actual.dtype}, expected {expected.dtype}"
    else:
        if actual.dtype.name == "bfloat16":
            rtol = max(rtol, _BFLOAT16_RTOL)
        with np.errstate(all="ignore"):
            wrong = ~np.isclose(_comparable(actual), _comparable(expected), rtol=rtol, atol=atol, equal_nan=True)
    if not wrong.any():
        return None
    first = tuple(int(index) for index in np.argwhere(wrong)[0])
    return (
        f"{DIFFERS} {int(wrong.sum())} of {wrong.size} elements, first at {list(first)}: "
        f"{actual[first]!s}, expected {expected[first]!s}"
    )


def _comparable(array: Array) -> Array:
    """Convert an array of an ml_dtypes dtype to float32, which represents all of its values exactly."""
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)


def _to_array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, (bool, int, float, str)) else value


def _shorten(values: list[Any]) -> str:
    return str(values) if len(values) <= 8 else f"{values[:8]} and {len(values) - 8} more"


def _kinds_differ(actual: Any, expected: Any) -> str:
    return f"is {_describe_kind(actual)}, expected {_describe_kind(expected)}"


def _describe_kind(value: Any) -> str:
    match value:
        case None:
            return "an empty optional"
        case list() | tuple():
            return "a sequence"
        case Mapping():
            return "a map"
        case np.ndarray() | np.generic():
            return "a tensor"
        case _:
            return f"a {type(value).__name__}"
