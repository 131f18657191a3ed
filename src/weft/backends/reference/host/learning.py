"""Maps and string keys of classical models."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

import numpy as np

from weft.backends.reference.host.memory import remembered
from weft.backends.reference.host.text import text_array
from weft.errors import ExecutionError
from weft.ir.dtypes import DType

Array = np.ndarray[Any, Any]


def text_positions(x: Array, keys: Array) -> tuple[Array]:
    """The place of each string among the keys, the last one if a key is repeated; -1 for the others."""
    places = remembered(_places, keys)
    return (np.fromiter(map(places.get, x.ravel().tolist(), repeat(-1)), np.int64, x.size).reshape(x.shape),)


def _places(keys: Array) -> dict[str, int]:
    return {str(key): place for place, key in enumerate(keys.ravel().tolist())}


def map_to_row(content: dict[int, Any], *, dtype: str, size: int | None) -> tuple[Array]:
    """The values in the order of their keys, or (with a size) each at its key, zero or empty elsewhere."""
    target = DType(dtype)
    converters: dict[DType, Callable[[Any], Any]] = {DType.string: _as_text, DType.int64: int}
    convert = converters.get(target, float)
    values = {int(key): convert(_plain(value)) for key, value in content.items()}
    if size is None:
        row = [values[key] for key in sorted(values)]
    else:
        outside = [key for key in values if not 0 <= key < size]
        if outside:
            raise ExecutionError(f"key {outside[0]} does not fit into a row of {size}")
        row = [values.get(place, "" if target is DType.string else 0) for place in range(size)]
    return (_row(row, target),)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, (np.ndarray, np.generic)) else value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:f}" if isinstance(value, float) else str(value)


def _row(values: list[Any], dtype: DType) -> Array:
    if dtype is DType.string:
        return text_array(values, (1, len(values)))
    return np.array(values, dtype.numpy).reshape(1, len(values))


def map_to_vocabulary(content: dict[Any, Any], *, vocabulary: tuple[Any, ...], dtype: str) -> tuple[Array]:
    target = DType(dtype)
    missing = "" if target is DType.string else 0
    return (_row([_plain(content.get(key, missing)) for key in vocabulary], target),)


MOST_WRITTEN = 32  # keys


def zip_map(x: Array, *, keys: tuple[Any, ...]) -> tuple[list[dict[Any, Any]]]:
    rows = x.astype(np.float32, copy=False).reshape(-1, len(keys))
    return (remembered(_rows_of_maps, keys)(rows.tolist(), *keys),)


def _rows_of_maps(keys: tuple[Any, ...]) -> Callable[..., list[dict[Any, Any]]]:
    """A function of rows and keys. Written out, where keys are few, which takes half the time."""
    if len(keys) > MOST_WRITTEN:
        return lambda rows, *keys: [dict(zip(keys, row)) for row in rows]
    names, places = [f"k{place}" for place in range(len(keys))], [f"v{place}" for place in range(len(keys))]
    pairs = ", ".join(map("{}: {}".format, names, places))
    made: Any = eval(f"lambda rows, {', '.join(names)}: [{{{pairs}}} for {', '.join(places)}, in rows]")
    return made  # type: ignore[no-any-return]


LEARNING: dict[str, Callable[..., tuple[Any, ...]]] = {
    "text_positions": text_positions,
    "map_to_row": map_to_row,
    "map_to_vocabulary": map_to_vocabulary,
    "zip_map": zip_map,
}
