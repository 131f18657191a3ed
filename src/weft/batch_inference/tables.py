"""Tables of any kind: dicts of arrays, pandas DataFrames, Arrow tables and record batches.

A package is looked up among the imported modules, never imported: without it there is no such table.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal, Union

import numpy as np

from weft.batch_inference import arrow_columns
from weft.batch_inference.optional_packages import import_package
from weft.errors import InputError
from weft.ir.arrays import Array
from weft.records import dataclass
from weft.runtime.foreign_tensors import as_numpy, is_foreign

Kind = Literal["dict", "pandas", "arrow", "polars"]
Column = Union[Hashable, "list[Hashable]"]  # a column, or a list of columns of numbers that make one input


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of equal lengths: the object that the caller passed, for polars as an Arrow table."""

    kind: Kind
    source: Any
    names: tuple[Any, ...]
    count: int

    def missing(self, column: Column) -> list[Hashable]:
        """Return the names of columns that the table lacks."""
        return [name for name in (column if isinstance(column, list) else [column]) if name not in self.names]

    def cells(self, column: Column) -> Array | list[Any]:
        """Return a column as an array with rows at axis 0, or as a list of cells, None where a cell is empty."""
        if not isinstance(column, list):
            return self._read(column)
        columns = [self._read(name) for name in column]
        if all(isinstance(each, np.ndarray) and each.ndim == 1 for each in columns):
            return np.stack(columns, axis=1)
        return [None if any(cell is None for cell in row) else list(row) for row in zip(*columns)]

    def _read(self, name: Hashable) -> Array | list[Any]:
        match self.kind:
            case "pandas":
                return _series_cells(self.source[name])
            case "arrow" | "polars":
                return arrow_columns.read_cells(self.source.column(name))
            case _:
                return _column_cells(self.source[name])

    def part(self, start: int, stop: int) -> Table:
        """Return some of the rows."""
        if start == 0 and stop == self.count:
            return self
        match self.kind:
            case "pandas":
                rows = self.source.iloc[start:stop]
            case "arrow" | "polars":
                rows = self.source.slice(start, stop - start)
            case _:
                rows = {name: _slice(column, start, stop) for name, column in self.source.items()}
        return Table(self.kind, rows, self.names, stop - start)

    def build(self, names: Sequence[Any], outputs: Mapping[Any, Array]) -> Any:
        """Return a table of the same kind: columns of this one, and outputs, which replace columns of their name."""
        names = [name for name in names if name not in outputs]
        match self.kind:
            case "pandas":
                result = self.source[names].copy(deep=False)
                for name, array in outputs.items():
                    result[name] = _series_values(array)
                return result
            case "arrow" | "polars":
                columns = {name: self.source.column(name) for name in names}
                columns |= {name: arrow_columns.make_column(array, name) for name, array in outputs.items()}
                result = type(self.source).from_pydict(columns)
                return result if self.kind == "arrow" else sys.modules["polars"].from_arrow(result)
            case _:
                widened = {name: arrow_columns.widen(array) for name, array in outputs.items()}
                return {**{name: self.source[name] for name in names}, **widened}


def table_of(source: Any) -> Table | None:
    """Return a table; None for anything else."""
    if isinstance(source, Mapping):
        return _dict_table(source)
    pandas, arrow = sys.modules.get("pandas"), sys.modules.get("pyarrow")
    if pandas is not None and isinstance(source, pandas.DataFrame):
        return Table("pandas", source, _unique(source.columns), len(source))
    if arrow is not None and isinstance(source, (arrow.Table, arrow.RecordBatch)):
        return Table("arrow", source, _unique(source.schema.names), source.num_rows)
    if hasattr(source, "height") and type(source).__module__.partition(".")[0] == "polars":
        arrow = import_package("pyarrow", "reading polars' tables", "weft-onnx[tables]")
        return Table("polars", arrow.table(source), tuple(source.columns), source.height)
    return None


def is_column(source: Any) -> bool:
    """Whether this is a single column: a Series of pandas or polars, or an Arrow array."""
    package = type(source).__module__.partition(".")[0]
    return hasattr(source, "iloc") or (package in ("pyarrow", "polars") and hasattr(source, "to_numpy"))


def _unique(names: Any) -> tuple[Any, ...]:
    repeated = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if repeated is not None:
        raise InputError(f"the table has two columns named {repeated!r}", hint="rename one of them")
    return tuple(names)


def iterate_tables(source: Any) -> Iterator[Any] | None:
    """Return the record batches of an Arrow reader or dataset; None for anything else."""
    arrow = sys.modules.get("pyarrow")
    if arrow is None:
        return None
    if isinstance(source, arrow.RecordBatchReader):
        tables: Iterator[Any] = iter(source)
        return tables
    dataset = sys.modules.get("pyarrow.dataset")
    if dataset is not None and isinstance(source, (dataset.Dataset, dataset.Scanner)):
        batches: Iterator[Any] = source.to_batches()
        return batches
    return None


def _dict_table(columns: Mapping[Any, Any]) -> Table:
    lengths: dict[str, int] = {}
    for name, column in columns.items():
        try:
            if isinstance(column, (str, bytes, Mapping)):
                raise TypeError
            lengths[name] = len(column)
        except TypeError:
            hint = "pass the value of all rows as shared={name: value}"
            raise InputError(f"column {name!r} has no rows: it is a {type(column).__name__}", hint=hint) from None
    first = next(iter(lengths), None)
    for name, length in lengths.items():
        if first is not None and length != lengths[first]:
            problem = f"column {name!r} has {length} rows, but column {first!r} has {lengths[first]}"
            raise InputError(problem, hint="columns have a row for each element of axis 0")
    return Table("dict", columns, tuple(lengths), 0 if first is None else lengths[first])


def _slice(column: Any, start: int, stop: int) -> Any:
    if hasattr(column, "iloc"):  # a pandas Series, whose index need not count from 0
        return column.iloc[start:stop]
    return (
        column[start:stop]
        if isinstance(column, (np.ndarray, list)) or is_column(column) or is_foreign(column)
        else list(column)[start:stop]
    )


def _column_cells(column: Any) -> Array | list[Any]:
    if not is_column(column):
        return _as_cells(column)
    if hasattr(column, "iloc"):
        return _series_cells(column)
    return arrow_columns.read_cells(column.to_arrow() if hasattr(column, "to_arrow") else column)


def _as_cells(column: Any) -> Array | list[Any]:
    if isinstance(column, np.ndarray):
        return column if column.dtype != object else list(column)
    if is_foreign(column):
        array: Array = as_numpy(column)
        return array
    return list(column)


def _series_cells(series: Any) -> Array | list[Any]:
    if isinstance(series.dtype, np.dtype):
        return _as_cells(series.to_numpy())
    arrow: Any = sys.modules.get("pyarrow")
    if arrow is not None and "[pyarrow]" in str(series.dtype):
        return arrow_columns.read_cells(arrow.array(series))
    if series.isna().any():
        return [None if is_empty else cell for cell, is_empty in zip(series.astype(object), series.isna())]
    return _as_cells(series.to_numpy())


def _series_values(array: Array) -> Any:
    """Return the cells of a column of pandas: numbers and strings, or an array for each row."""
    if array.ndim == 1 and array.dtype != object:
        return arrow_columns.widen(array)
    cells = np.empty(len(array), object)
    for row, cell in enumerate(array):
        is_array = isinstance(cell, np.ndarray)
        cells[row] = arrow_columns.to_nested_lists(arrow_columns.widen(cell)) if is_array else cell
    return cells
