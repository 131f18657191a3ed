"""Read rows from arrays, tables, datasets and iterables as segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.batch_inference.batches import FailedRow, Segment
from weft.batch_inference.columns import read_columns
from weft.batch_inference.row_axes import RowAxes
from weft.batch_inference.tables import Column, Table, is_column, iterate_tables, table_of
from weft.errors import InputError, WeftError, short_repr
from weft.ir.arrays import Array
from weft.quantities import join_few
from weft.records import dataclass
from weft.runtime.array_likes import as_array
from weft.runtime.foreign_tensors import is_foreign

if TYPE_CHECKING:
    from weft.ir.specs import TensorSpec
    from weft.runtime.model import Model

PART_ROWS = 8192  # of a table that are converted at once
SOURCES = "pass an array, a dict of arrays, a table, a dataset, or an iterable of rows"


@dataclass(frozen=True, slots=True)
class RowSource:
    """Rows as segments, in order, and their number if it is known."""

    segments: Iterator[Segment | FailedRow]
    count: int | None


class RowReader:
    """Reads rows and columns as inputs of one model."""

    def __init__(
        self,
        model: Model,
        axes: RowAxes,
        shared: Mapping[str, Any] | None = None,
        columns: Mapping[str, Column] | None = None,
    ) -> None:
        """`shared`: inputs that are the same for all rows. `columns`: the columns of inputs with another name."""
        self.file = model.file
        self.axes = axes
        self.specs = {spec.name: spec for spec in (*model.inputs, *model.defaults)}
        self.columns: dict[str, Column] = {name: (columns or {}).get(name, name) for name in self.specs}
        self._shared = dict(_check_shared(shared, self.specs, model.file))
        joined = [name for name in self._shared if name in axes.inputs] if axes.can_join else []
        if joined:
            problem = f"input {joined[0]!r} has a row for each element of the batch, and cannot be shared"
            raise InputError(problem, file=model.file, hint="pass it with the rows")
        self.required = [spec.name for spec in model.inputs if spec.name not in self._shared]
        self._open_specs = {name: spec for name, spec in self.specs.items() if name not in self._shared}

    # -- sources -----------------------------------------------------------------------------------------------------

    def open(self, source: Any) -> RowSource:
        """Read a source of any kind."""
        table = table_of(source)
        if table is not None:
            self.check_columns(table)
            return RowSource(self.read_table(table, 0), table.count)
        tables = iterate_tables(source)
        if tables is not None:
            return RowSource(self._read_items(tables), None)
        if is_column(source):
            return self.open({self._only_input(): source})
        if isinstance(source, (np.ndarray, np.generic)) or is_foreign(source):
            return self._open_array(source)
        if isinstance(source, (str, bytes)) or not (hasattr(source, "__iter__") or hasattr(source, "__getitem__")):
            raise InputError(f"rows cannot be read from {short_repr(source)}", file=self.file, hint=SOURCES)
        count = len(source) if hasattr(source, "__len__") else None
        if count is not None and hasattr(source, "__getitem__") and not isinstance(source, Sequence):
            return RowSource(self._read_dataset(source, count), count)
        return RowSource(self._read_items(source), count)

    def _open_array(self, source: Any) -> RowSource:
        name = self._only_input()
        spec = self.specs[name]
        assert spec.element is not None
        array = as_array(source, spec.element, f"input {name!r}", self.file)
        if not array.ndim:
            raise InputError("an array of rows has at least one dimension, not none", file=self.file, hint=SOURCES)
        if name not in self.axes.inputs:
            return RowSource((self.read_row(row, number) for number, row in enumerate(array)), len(array))
        self._check_rank(array[:1], spec, "the array")
        segments = [Segment(0, len(array), {name: array}, self._shared)] if len(array) else []
        return RowSource(iter(segments), len(array))

    def _read_dataset(self, dataset: Any, count: int) -> Iterator[Segment | FailedRow]:
        for row in range(count):
            try:
                item = dataset[row]
            except Exception as error:  # of the caller's dataset
                problem = f"the dataset raised {type(error).__name__}: {error}"
                yield FailedRow(row, _caused_by(InputError(problem, file=self.file), error))
                continue
            yield self.read_row(item, row)

    def _read_items(self, items: Iterable[Any]) -> Iterator[Segment | FailedRow]:
        """Read an iterable of rows; items that are tables have many."""
        first = 0
        for item in items:
            table = None if isinstance(item, (Mapping, np.ndarray, tuple)) else table_of(item)
            if table is None:
                yield self.read_row(item, first)
                first += 1
            else:
                self.check_columns(table)
                yield from self.read_table(table, first)
                first += table.count

    # -- tables ------------------------------------------------------------------------------------------------------

    def read_table(self, table: Table, first: int) -> Iterator[Segment | FailedRow]:
        """Read the columns of a table that belong to inputs."""
        present = {name: spec for name, spec in self._open_specs.items() if not table.missing(self.columns[name])}
        columns = {name: (self.columns[name], spec) for name, spec in present.items()}
        for start in range(0, table.count, PART_ROWS):
            part = table.part(start, min(start + PART_ROWS, table.count))
            yield from read_columns(part, columns, self.axes, self._shared, first + start, self.file)

    def check_columns(self, table: Table) -> None:
        """Raise InputError if columns of required inputs are missing."""
        missing = [column for name in self.required for column in table.missing(self.columns[name])]
        if missing:
            problem = f"the table has no column {join_few(map(repr, missing), 12)}, which the model needs as input"
            hint = f"its columns are {join_few(map(repr, table.names), 12) or 'none'}"
            raise InputError(problem, file=self.file, hint=hint)

    # -- rows --------------------------------------------------------------------------------------------------------

    def read_row(self, row: Any, number: int) -> Segment | FailedRow:
        """Read one row: a dict by input, a tuple in the order of inputs, or what the only input takes."""
        try:
            return self._read_row(row, number)
        except WeftError as error:
            return FailedRow(number, error)

    def _read_row(self, row: Any, number: int) -> Segment:
        contents = self._name_contents(row)
        columns: dict[str, Array] = {}
        shared = dict(self._shared)
        for name, content in contents.items():
            spec = self._open_specs[name]
            if name not in self.axes.inputs:
                shared[name] = content if spec.element is None else self._convert(content, spec)
                continue
            array = self._convert(content, spec)
            is_whole = not self.axes.can_join and array.ndim == len(spec.shape or ()) and array.shape[:1] == (1,)
            columns[name] = array if is_whole else array[None]
            self._check_rank(columns[name], spec, "it")
        return Segment(number, 1, columns, shared)

    def _convert(self, content: Any, spec: TensorSpec) -> Array:
        assert spec.element is not None
        return as_array(content, spec.element, f"input {spec.name!r}", self.file)

    def _check_rank(self, rows: Array, spec: TensorSpec, subject: str) -> None:
        shape = self.axes.row_shape(spec)
        if shape is not None and rows.ndim - 1 != len(shape):
            problem = f"{subject} has rows of shape {list(rows.shape[1:])}, and input {spec.name!r} takes rows of"
            hint = "pass rows without the dimension of the batch"
            raise InputError(f"{problem} [{', '.join(map(str, shape))}]", file=self.file, hint=hint)

    def _name_contents(self, row: Any) -> dict[str, Any]:
        match row:
            case Mapping():
                contents = {name: row[name] for name in self._open_specs if name in row}
                missing = [name for name in self.required if name not in contents]
                if missing:
                    has = f"it has {join_few(map(repr, row), 12)}" if len(row) else "it is empty"
                    raise InputError(f"the row has no {missing[0]!r}", file=self.file, hint=has)
                return contents
            case tuple():
                if len(row) < len(self.required):
                    problem = f"the row has {len(row)} elements, and the model has {len(self.required)} inputs"
                    raise InputError(problem, file=self.file, hint=f"they are {', '.join(self.required)}")
                return dict(zip(self.required, row))
            case _:
                return {self._only_input(): row}

    def _only_input(self) -> str:
        if len(self.required) != 1:
            listing = ", ".join(self.required) or "none"
            problem = f"a row must be a dict or a tuple, since the model has {len(self.required)} inputs"
            raise InputError(problem, file=self.file, hint=f"they are {listing}")
        return self.required[0]


def _check_shared(
    shared: Mapping[str, Any] | None, specs: Mapping[str, TensorSpec], file: str
) -> Iterator[tuple[str, Any]]:
    if shared is not None and not isinstance(shared, Mapping):
        raise InputError(f"shared must be a dict of inputs, not {short_repr(shared)}", file=file)
    for name, content in (shared or {}).items():
        if name not in specs:
            problem = f"the model has no input {short_repr(name)}, which is shared"
            raise InputError(problem, file=file, hint=f"the inputs are {', '.join(specs)}")
        spec = specs[name]
        yield name, content if spec.element is None else as_array(content, spec.element, f"input {name!r}", file)


def _caused_by(error: InputError, cause: Exception) -> InputError:
    error.__cause__ = cause
    return error
