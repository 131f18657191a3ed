"""Whether a value is what the suite expects, by the rules of onnx's own runner.

Tensors agree in shape and dtype, and in each element within `atol + rtol * |expected|`, NaN equal to NaN; bfloat16
gets a relative tolerance of at least two units in the last place. Strings are equal. Sequences and maps agree in
length and element by element, an absent optional only with an absent one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.ir.arrays import Array

DIFFERS = "differs in"  # says that elements are wrong, in a tensor of the right shape and dtype

_BFLOAT16_RTOL = 2.0**-6


def difference(actual: Any, expected: Any, *, rtol: float, atol: float) -> str | None:
    """One line on the first disagreement between a value and the expected one; None where they agree."""
    if expected is None or actual is None:
        return None if actual is expected else f"is {_kind(actual)}, expected {_kind(expected)}"
    if isinstance(expected, (list, tuple)):
        return _sequence_difference(actual, expected, rtol, atol)
    if isinstance(expected, Mapping):
        return _map_difference(actual, expected, rtol, atol)
    if not isinstance(actual, (np.ndarray, np.generic)):
        return f"is {_kind(actual)}, expected {_kind(expected)}"
    return _tensor_difference(np.asarray(actual), np.asarray(expected), rtol, atol)


def _sequence_difference(actual: Any, expected: list[Any] | tuple[Any, ...], rtol: float, atol: float) -> str | None:
    if not isinstance(actual, (list, tuple)):
        return f"is {_kind(actual)}, expected {_kind(expected)}"
    if len(actual) != len(expected):
        return f"has {len(actual)} elements, expected {len(expected)}"
    for position, pair in enumerate(zip(actual, expected, strict=True)):
        found = difference(*pair, rtol=rtol, atol=atol)
        if found:
            return f"element {position} {found}"
    return None


def _map_difference(actual: Any, expected: Mapping[Any, Any], rtol: float, atol: float) -> str | None:
    if not isinstance(actual, Mapping):
        return f"is {_kind(actual)}, expected {_kind(expected)}"
    if actual.keys() != expected.keys():
        return f"has the keys {_shorten(sorted(actual))}, expected {_shorten(sorted(expected))}"
    for key, value in expected.items():
        found = difference(_as_array(actual[key]), _as_array(value), rtol=rtol, atol=atol)
        if found:
            return f"key {key!r} {found}"
    return None


def _tensor_difference(actual: Array, expected: Array, rtol: float, atol: float) -> str | None:
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
    place = tuple(int(index) for index in np.argwhere(wrong)[0])
    return (
        f"{DIFFERS} {int(wrong.sum())} of {wrong.size} elements, first at {list(place)}: "
        f"{actual[place]!s}, expected {expected[place]!s}"
    )


def _comparable(array: Array) -> Array:
    """The array in a dtype that numpy mixes with floats; float32 holds every value of ml_dtypes exactly."""
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)


def _as_array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, (bool, int, float, str)) else value


def _shorten(values: list[Any]) -> str:
    return str(values) if len(values) <= 8 else f"{values[:8]} and {len(values) - 8} more"


def _kind(value: Any) -> str:
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
