"""Convert between Arrow columns and arrays: lists of any depth are tensors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.ir.arrays import Array
from weft.ir.dtypes import DType, from_numpy


def _arrow() -> Any:
    return sys.modules["pyarrow"]


# -- columns to arrays ---------------------------------------------------------------------------------------------


def read_cells(column: Any) -> Array | list[Any]:
    """Read a column as an array with rows at axis 0; as a list of cells if rows have different shapes or are empty."""
    arrow = _arrow()
    if isinstance(column, arrow.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        if isinstance(column, arrow.ChunkedArray):  # of chunks that do not fit into one array
            return [cell for chunk in column.chunks for cell in _list_cells(read_cells(chunk))]
    if isinstance(column.type, arrow.BaseExtensionType):
        return _read_extension(column)
    if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.null_count:
        return _read_with_empty(column)
    return _read_plain(column)


def _list_cells(cells: Array | list[Any]) -> list[Any]:
    return list(cells)


def _read_with_empty(column: Any) -> list[Any]:
    """Read a column with empty cells: these are None."""
    present = column.is_valid().to_numpy(zero_copy_only=False)
    cells: list[Any] = [None] * len(column)
    for row, cell in zip(np.flatnonzero(present).tolist(), _list_cells(_read_plain(column.drop_null()))):
        cells[row] = cell
    return cells


def _read_extension(column: Any) -> Array | list[Any]:
    if hasattr(column, "to_numpy_ndarray"):  # Arrow's own tensors of one shape
        tensors: Array = column.to_numpy_ndarray()
        return tensors
    if column.type.extension_name.startswith("ray.data.arrow"):
        array = column.to_numpy(zero_copy_only=False)
        return array if array.dtype != object else list(array)
    return read_cells(column.storage)


def _read_plain(column: Any) -> Array | list[Any]:
    """Read a column without empty cells."""
    types = _arrow().types
    kind = column.type
    if types.is_fixed_size_list(kind):
        return _split_uniform(column.flatten(), len(column), kind.list_size)
    if types.is_list(kind) or types.is_large_list(kind):
        offsets = column.offsets.to_numpy()
        lengths = np.diff(offsets)
        if not len(lengths) or (lengths == lengths[0]).all():
            return _split_uniform(column.flatten(), len(column), int(lengths[0]) if len(lengths) else 0)
        return _split_ragged(column.flatten(), offsets - offsets[0])
    if types.is_decimal(kind):
        return _read_plain(column.cast("float64"))
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        numbers: Array = column.to_numpy(zero_copy_only=False)
        return numbers
    return list(column.to_pylist())


def _split_uniform(values: Any, count: int, size: int) -> Array | list[Any]:
    """Read lists of one length from their concatenated elements."""
    cells = read_cells(values)
    if isinstance(cells, np.ndarray):
        return cells.reshape(count, size, *cells.shape[1:])
    return [cells[row * size : (row + 1) * size] for row in range(count)]


def _split_ragged(values: Any, offsets: Array) -> list[Any]:
    cells = read_cells(values)
    return [cells[start:stop] for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist())]


# -- arrays to columns ---------------------------------------------------------------------------------------------


def make_column(array: Array, name: str) -> Any:
    """Make a column with a cell for each row: a number, a string, or lists nested like the dimensions of the row.

    The elements of an object array are rows of different shapes, strings, or None for empty cells.
    """
    arrow = _arrow()
    try:
        if array.dtype == object and array.ndim == 1:
            return _make_ragged(array)
        values = _make_values(array)
    except (arrow.ArrowException, TypeError, ValueError) as error:
        hint = "leave it out: outputs=[...]"
        raise InputError(f"output {name!r} does not fit into a table: {error}", hint=hint) from error
    for size, count in reversed(
        [(array.shape[axis], int(np.prod(array.shape[:axis]))) for axis in range(1, array.ndim)]
    ):
        offsets = np.arange(count + 1, dtype=np.int64) * size
        values = _make_lists(offsets, values)
    return values


def _make_ragged(rows: Array) -> Any:
    arrow = _arrow()
    first = next((row for row in rows if row is not None), None)
    if first is None:
        return arrow.nulls(len(rows)) if len(rows) else arrow.array([], arrow.string())
    if not isinstance(first, np.ndarray):
        return arrow.array(rows.tolist())
    cells = [None if row is None else to_nested_lists(widen(row)) for row in rows]
    return arrow.array(cells, arrow_type(from_numpy(first.dtype), first.ndim))


def _make_values(array: Array) -> Any:
    flat = widen(array).reshape(-1)
    if flat.dtype == object:
        return _arrow().array(flat.tolist(), _arrow().string())
    return _arrow().array(np.ascontiguousarray(flat))


def _make_lists(offsets: Array, values: Any) -> Any:
    arrow = _arrow()
    if offsets[-1] < 1 << 31:  # readers other than Arrow, such as Spark, know no large lists
        return arrow.ListArray.from_arrays(offsets.astype(np.int32), values)
    return arrow.LargeListArray.from_arrays(offsets, values)


def widen(array: Array) -> Array:
    """Return types that tables lack, such as bfloat16 and int4, as float32 or int8."""
    if array.dtype == object:
        return array
    dtype = from_numpy(array.dtype)
    if dtype is DType.string:
        return array.astype(object)
    if dtype.value in np.sctypeDict:
        return array
    return array.astype(np.float32 if dtype.is_float else np.int8)


def arrow_type(element: DType, rank: int) -> Any:
    """Return the type of a column whose rows are tensors of this rank."""
    arrow = _arrow()
    numpy = widen(np.empty(0, element.numpy))
    value = arrow.string() if numpy.dtype == object else arrow.from_numpy_dtype(numpy.dtype)
    for _ in range(rank):
        value = arrow.list_(value)
    return value


def to_nested_lists(row: Array) -> Any:
    """Return a row as lists of one-dimensional arrays, which Arrow can convert."""
    if row.ndim > 1:
        return [to_nested_lists(each) for each in row]
    return row if row.ndim else row.item()
