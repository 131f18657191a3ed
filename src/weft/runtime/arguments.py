"""Check arguments other than arrays: numbers, sizes and names of any type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import index
from threading import TIMEOUT_MAX
from typing import Any, Union

import numpy as np

from weft.errors import InputError, short_repr

Shapes = dict[str, Union[int, tuple[int, ...]]]


def whole_number(value: Any, name: str, file: str | None = None, least: int = 1) -> int:
    """Return a whole number of any integer type from `least` on; InputError for anything else."""
    number = _to_integer(value)
    if number is None or number < least:
        description = "a positive number" if least == 1 else f"a whole number from {least} on"
        raise InputError(f"{name} must be {description}, not {short_repr(value)}", file=file)
    return number


def seconds_to_run(value: Any, file: str) -> float | None:
    """Return a timeout in seconds; None for one beyond what the system can wait."""
    try:
        seconds = None if isinstance(value, (bool, str, bytes)) else float(value)
    except Exception:  # any error of a type that is not a number
        seconds = None
    if seconds is None or not seconds > 0:
        raise InputError(f"timeout must be a positive number of seconds, not {short_repr(value)}", file=file)
    return seconds if seconds < TIMEOUT_MAX else None


def whole_shapes(shapes: Any, file: str) -> Shapes:
    """Return sizes of dims and shapes of inputs, by name, as plain numbers; InputError for anything else."""
    if shapes is None:
        return {}
    if not isinstance(shapes, Mapping):
        hint = 'for instance {"batch": 8}, or {"x": (8, 3, 224, 224)}'
        raise InputError(f"shapes must be a dict of sizes by name, not {_describe_value(shapes)}", file=file, hint=hint)
    checked_shapes: Shapes = {}
    for name, value in shapes.items():
        if not isinstance(name, str):
            raise InputError(f"a dim or an input is named by a string, not {short_repr(name)}", file=file)
        size = _to_integer(value)
        sizes = _to_integers(value) if size is None else None
        if size is None and sizes is None:
            raise InputError(f"the size or shape of {name!r} must be whole numbers, not {short_repr(value)}", file=file)
        if min(sizes or (size or 0,)) < 0:
            raise InputError(f"{name!r} has a negative size: {short_repr(value)}", file=file)
        checked_shapes[name] = sizes if sizes is not None else size or 0
    return checked_shapes


def listed(value: Any, option: str, file: str | None = None) -> tuple[Any, ...]:
    """Return the items of a list of names, unchecked; InputError if it is not a list."""
    hint = None
    if isinstance(value, str):
        hint = f"write {option}=[{value!r}]"
    elif isinstance(value, Mapping):
        hint = "arrays to write outputs to are passed as into="
    elif not isinstance(value, bytes) and (not isinstance(value, np.ndarray) or value.dtype.kind in "OUT"):
        try:
            return tuple(name.item() if isinstance(name, np.generic) else name for name in value)
        except Exception:  # any error of an object that cannot be iterated
            pass
    raise InputError(f"{option} must be a list of names, not {_describe_value(value)}", file=file, hint=hint)


def _to_integers(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        return None
    try:
        items = [_to_integer(item) for item in value]
    except Exception:  # an array without dimensions, a closed file
        return None
    numbers = tuple(item for item in items if item is not None)
    return numbers if len(numbers) == len(items) else None


def _to_integer(value: Any) -> int | None:
    """Return a whole number of any type but bool as an int; None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)
    except TypeError:
        return None


def _describe_value(value: Any) -> str:
    return f"the string {short_repr(value)}" if isinstance(value, str) else f"a {type(value).__name__}"
