"""Maps and string keys of classical machine learning models."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

import numpy as np

from weft.backends.reference.host.table_cache import cached_table
from weft.backends.reference.host.text import text_array
from weft.errors import ExecutionError
from weft.ir.arrays import Array
from weft.ir.dtypes import DType


def text_positions(x: Array, keys: Array) -> tuple[Array]:
    """Look up the position of each string among the keys, the last one if a key is repeated; -1 if missing."""
    places = cached_table(_number_keys, keys)
    return (np.fromiter(map(places.get, x.ravel().tolist(), repeat(-1)), np.int64, x.size).reshape(x.shape),)


def _number_keys(keys: Array) -> dict[str, int]:
    return {str(key): place for place, key in enumerate(keys.ravel().tolist())}


def map_to_row(content: dict[int, Any], *, dtype: str, size: int | None) -> tuple[Array]:
    """List the values in the order of their keys, or (with a size) each at its key, zero or empty elsewhere."""
    target = DType(dtype)
    converters: dict[DType, Callable[[Any], Any]] = {DType.string: _format_value, DType.int64: int}
    convert = converters.get(target, float)
    values = {int(key): convert(_to_python(value)) for key, value in content.items()}
    if size is None:
        row = [values[key] for key in sorted(values)]
    else:
        outside = [key for key in values if not 0 <= key < size]
        if outside:
            raise ExecutionError(f"key {outside[0]} does not fit into a row of {size}")
        row = [values.get(place, "" if target is DType.string else 0) for place in range(size)]
    return (_row_array(row, target),)


def _to_python(value: Any) -> Any:
    return value.item() if isinstance(value, (np.ndarray, np.generic)) else value


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:f}" if isinstance(value, float) else str(value)


def _row_array(values: list[Any], dtype: DType) -> Array:
    if dtype is DType.string:
        return text_array(values, (1, len(values)))
    return np.array(values, dtype.numpy).reshape(1, len(values))


def map_to_vocabulary(content: dict[Any, Any], *, vocabulary: tuple[Any, ...], dtype: str) -> tuple[Array]:
    target = DType(dtype)
    missing = "" if target is DType.string else 0
    return (_row_array([_to_python(content.get(key, missing)) for key in vocabulary], target),)


MOST_UNROLLED = 32  # keys


def zip_map(x: Array, *, keys: tuple[Any, ...]) -> tuple[list[dict[Any, Any]]]:
    rows = x.astype(np.float32, copy=False).reshape(-1, len(keys))
    return (cached_table(_build_zip, keys)(rows.tolist(), *keys),)


def _build_zip(keys: tuple[Any, ...]) -> Callable[..., list[dict[Any, Any]]]:
    """Return a function of rows and keys; for few keys it is unrolled, which takes half the time."""
    if len(keys) > MOST_UNROLLED:
        return lambda rows, *keys: [dict(zip(keys, row)) for row in rows]
    names, places = [f"k{place}" for place in range(len(keys))], [f"v{place}" for place in range(len(keys))]
    pairs = ", ".join(map("{}: {}".format, names, places))
    zip_rows: Callable[..., list[dict[Any, Any]]] = eval(
        f"lambda rows, {', '.join(names)}: [{{{pairs}}} for {', '.join(places)}, in rows]"
    )
    return zip_rows


LEARNING: dict[str, Callable[..., tuple[Any, ...]]] = {
    "text_positions": text_positions,
    "map_to_row": map_to_row,
    "map_to_vocabulary": map_to_vocabulary,
    "zip_map": zip_map,
}
