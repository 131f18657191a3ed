"""Check what callers pass beside arrays: numbers, sizes and names, of whatever type they come in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import index
from threading import TIMEOUT_MAX
from typing import Any, Union

import numpy as np

from weft.errors import InputError, shown

Shapes = dict[str, Union[int, tuple[int, ...]]]


def whole_number(given: Any, name: str, file: str | None = None) -> int:
    """A positive whole number of any integer type; InputError for anything else."""
    number = _integer(given)
    if number is None or number < 1:
        raise InputError(f"{name} must be a positive number, not {shown(given)}", file=file)
    return number


def seconds_to_run(given: Any, file: str) -> float | None:
    """A timeout in seconds, of any type of number; None for one that never comes."""
    try:
        seconds = None if isinstance(given, (bool, str, bytes)) else float(given)
    except Exception:  # whatever a type that is no number does
        seconds = None
    if seconds is None or not seconds > 0:
        raise InputError(f"timeout must be a positive number of seconds, not {shown(given)}", file=file)
    return seconds if seconds < TIMEOUT_MAX else None


def whole_shapes(shapes: Any, file: str) -> Shapes:
    """Sizes of dims and shapes of inputs, by name, as plain numbers; InputError where they are none."""
    if shapes is None:
        return {}
    if not isinstance(shapes, Mapping):
        hint = 'for instance {"batch": 8}, or {"x": (8, 3, 224, 224)}'
        raise InputError(f"shapes must be a dict of sizes by name, not {_kind(shapes)}", file=file, hint=hint)
    found: Shapes = {}
    for name, given in shapes.items():
        if not isinstance(name, str):
            raise InputError(f"a dim or an input is named by a string, not {shown(name)}", file=file)
        size = _integer(given)
        sizes = _integers(given) if size is None else None
        if size is None and sizes is None:
            raise InputError(f"the size or shape of {name!r} must be whole numbers, not {shown(given)}", file=file)
        if min(sizes or (size or 0,)) < 0:
            raise InputError(f"{name!r} has a negative size: {shown(given)}", file=file)
        found[name] = sizes if sizes is not None else size or 0
    return found


def listed(given: Any, option: str, file: str | None = None) -> tuple[Any, ...]:
    """The parts of a list of names, whatever they are; InputError where it is no list."""
    hint = None
    if isinstance(given, str):
        hint = f"write {option}=[{given!r}]"
    elif isinstance(given, Mapping):
        hint = "arrays to write outputs to are passed as into="
    elif not isinstance(given, bytes) and (not isinstance(given, np.ndarray) or given.dtype.kind in "OUT"):
        try:
            return tuple(name.item() if isinstance(name, np.generic) else name for name in given)
        except Exception:  # whatever comes of going through something that is no list
            pass
    raise InputError(f"{option} must be a list of names, not {_kind(given)}", file=file, hint=hint)


def _integers(given: Any) -> tuple[int, ...] | None:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        return None
    try:
        numbers = tuple(_integer(item) for item in given)
    except Exception:  # an array without dimensions, a closed file
        return None
    return None if any(number is None for number in numbers) else numbers  # type: ignore[return-value]


def _integer(given: Any) -> int | None:
    """A whole number of any type but bool, as an int."""
    if isinstance(given, bool):
        return None
    try:
        return index(given)
    except TypeError:
        return None


def _kind(given: Any) -> str:
    return f"the string {shown(given)}" if isinstance(given, str) else f"a {type(given).__name__}"
