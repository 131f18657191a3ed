"""Read the columns of a table as inputs: numbers take the type of the input, lists and cells its shape."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from weft.batch_inference.batches import FailedRow, Segment
from weft.batch_inference.row_axes import RowAxes
from weft.errors import InputError, WeftError, short_repr
from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.quantities import join_few
from weft.readers.numbers import convert
from weft.runtime.array_likes import as_array, decode_bytes, is_textual

if TYPE_CHECKING:
    from weft.batch_inference.tables import Column, Table
    from weft.ir.specs import TensorSpec

DASK_HINT = "Dask's from_pandas makes texts of arrays, unless dask.config.set({'dataframe.convert-string': False})"
Cells = Union[Array, "list[Any]"]


def read_columns(
    table: Table,
    specs: Mapping[str, tuple[Column, TensorSpec]],
    axes: RowAxes,
    shared: Mapping[str, Any],
    first: int,
    file: str,
) -> Iterator[Segment | FailedRow]:
    """Read inputs, each from a column with a spec: one segment, or one for each row if rows have different shapes."""
    if not table.count:
        return
    columns: dict[str, Cells] = {
        name: ColumnReader(column, spec, axes.row_shape(spec), file).read(table.cells(column))
        for name, (column, spec) in specs.items()
    }
    with_rows = {
        name: cells for name, cells in columns.items() if name in axes.inputs and isinstance(cells, np.ndarray)
    }
    if len(with_rows) == len(columns):
        yield Segment(first, table.count, with_rows, shared)
        return
    for row in range(table.count):
        cells = {name: column[row] for name, column in columns.items()}
        error = next((cell for cell in cells.values() if isinstance(cell, WeftError)), None)
        if error is not None:
            yield FailedRow(first + row, error)
            continue
        rows = {name: np.asarray(cell)[None] for name, cell in cells.items() if name in axes.inputs}
        others = {name: np.asarray(cell) for name, cell in cells.items() if name not in axes.inputs}
        yield Segment(first + row, 1, rows, {**shared, **others})


class ColumnReader:
    """Reads a column as one input."""

    def __init__(self, column: Column, spec: TensorSpec, shape: tuple[int | str, ...] | None, file: str) -> None:
        """`shape`: the shape of a row."""
        if spec.element is None:
            problem = f"input {spec.name!r} is a {spec.type}, which a column cannot hold"
            raise InputError(problem, file=file, hint="pass rows as dicts instead of a table")
        self._where = f"columns {join_few(map(repr, column), 3)}" if isinstance(column, list) else f"column {column!r}"
        self._spec = spec
        self._element: DType = spec.element
        self._shape = shape
        self._file = file

    def read(self, cells: Cells) -> Cells:
        """Return an array with rows at axis 0, or a list of arrays and of errors of rows."""
        try:
            return self._fit_shape(self._convert_column(cells))
        except WeftError:
            pass  # find out which rows are wrong, or have another shape
        rows: list[Any] = []
        for cell in cells:
            try:
                rows.append(self._read_cell(cell))
            except WeftError as error:
                rows.append(error)
        return rows

    def _convert_column(self, cells: Cells) -> Array:
        """Convert a whole column at once; InputError if rows differ in shape or some are empty."""
        if self._element is DType.string:
            return self._convert_strings(cells)
        if not isinstance(cells, np.ndarray):
            if any(cell is None or isinstance(cell, (str, bytes)) for cell in cells):
                raise self._error("has cells that are not numbers")
            try:
                cells = np.stack([np.asarray(cell) for cell in cells])
            except (ValueError, TypeError):
                raise self._error("has rows of different shapes") from None
        return self._convert_numbers(cells)

    def _convert_numbers(self, array: Array) -> Array:
        if array.dtype == self._element.numpy:
            return array
        if is_textual(array) or (array.dtype.kind not in "biuf" and array.dtype.isbuiltin == 1):
            kind = "texts" if is_textual(array) else str(array.dtype)
            hint = DASK_HINT if is_textual(array) and "dask.dataframe" in sys.modules else None
            raise self._error(f"has {kind}, but input {self._spec.name!r} takes {self._element}", hint)
        return convert(array, self._spec, self._where)

    def _convert_strings(self, cells: Any) -> Array:
        array = np.asarray(cells, object)
        texts = np.empty(array.size, object)
        for index, item in enumerate(array.reshape(-1)):
            try:
                text = decode_bytes(item)
            except UnicodeDecodeError as error:
                raise self._error(f"has bytes that are not UTF-8: {error}") from None
            if not isinstance(text, str):
                raise self._error(f"has {short_repr(item)}, but input {self._spec.name!r} takes strings")
            texts[index] = str(text)
        return texts.reshape(array.shape)

    def _read_cell(self, cell: Any) -> Array:
        if cell is None:
            raise self._error("is empty", hint="remove the row, or fill the cell")
        if self._element is DType.string:
            array = self._convert_strings(cell)
        else:
            if _is_nested(cell):
                cell = as_array(_unnest(cell), self._element, self._where, self._file)
            array = self._convert_numbers(np.asarray(cell))
        row: Array = self._fit_shape(array[None])[0, ...]
        return row

    def _fit_shape(self, rows: Array) -> Array:
        """Check the rank of rows; a number is a row of one element, and a flat list takes a shape that is fixed."""
        shape = self._shape
        if shape is None or rows.ndim - 1 == len(shape):
            return rows
        if rows.ndim <= 2 and all(isinstance(size, int) for size in shape):
            sizes = [int(size) for size in shape]
            if math.prod(sizes) == math.prod(rows.shape[1:]):
                return rows.reshape(len(rows), *sizes)
        if rows.ndim == 1 and len(shape) == 1:  # one element along a dynamic dim
            return rows.reshape(-1, 1)
        problem = f"has rows of shape {list(rows.shape[1:])}, but input {self._spec.name!r} takes rows of shape"
        raise self._error(f"{problem} [{', '.join(map(str, shape))}]")

    def _error(self, problem: str, hint: str | None = None) -> InputError:
        return InputError(f"{self._where} {problem}", file=self._file, hint=hint)


def _is_nested(cell: Any) -> bool:
    """Whether a cell is of lists, or of arrays of arrays."""
    return isinstance(cell, (list, tuple)) or (isinstance(cell, np.ndarray) and cell.dtype == object)


def _unnest(cell: Any) -> Any:
    """Return nested arrays as nested lists."""
    return [_unnest(each) for each in cell] if isinstance(cell, (list, tuple, np.ndarray)) else cell
