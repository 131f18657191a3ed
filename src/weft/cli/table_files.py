"""Read tables in parts, and write tables row by row: Parquet, Arrow, CSV and JSON lines."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkstemp
from typing import Any, Protocol

import numpy as np

from weft.batch_inference import arrow_columns
from weft.batch_inference.optional_packages import import_package
from weft.cli.output import plain_data
from weft.errors import InputError
from weft.ir.arrays import Array
from weft.ir.specs import TensorSpec
from weft.records import dataclass

TABLES = {".parquet": "Parquet", ".arrow": "Arrow", ".feather": "Arrow", ".csv": "CSV", ".jsonl": "JSON lines"}
INSTALL = "weft-onnx[tables]"
PART_ROWS, PART_BYTES = 4096, 16 << 20  # of a table that are in memory at once


# -- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableFile:
    """The parts of a table, as Arrow record batches, its Arrow schema, and its number of rows."""

    parts: Iterator[Any]
    schema: Any
    count: int


def detect_table(path: Path) -> str | None:
    """Return the kind of a table file, by its first bytes; CSV is known only by its suffix."""
    with suppress(OSError), path.open("rb") as file:
        head = file.read(6)
        if head[:4] == b"PAR1":
            return "Parquet"
        if head == b"ARROW1":
            return "Arrow"
    return "CSV" if path.suffix.lower() == ".csv" and path.is_file() else None


def open_table(path: Path, kind: str) -> TableFile:
    """Open a table; InputError if it is damaged."""
    arrow = import_package("pyarrow", f"reading {path.name}", INSTALL)
    try:
        match kind:
            case "Parquet":
                return _open_parquet(path)
            case "Arrow":
                reader = import_package("pyarrow.ipc", "reading Arrow files").open_file(arrow.memory_map(str(path)))
                batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
                count = sum(reader.get_batch(index).num_rows for index in range(reader.num_record_batches))
                parts = (part for batch in batches for part in _split_batch(batch))
                return TableFile(_name_errors(parts, path), reader.schema, count)
            case _:
                table = import_package("pyarrow.csv", "reading CSV files").read_csv(path)
                parts = (part for batch in table.to_batches() for part in _split_batch(batch))
                return TableFile(parts, table.schema, table.num_rows)
    except (arrow.ArrowException, OSError) as error:
        raise _damaged_file_error(path, error) from error


def _open_parquet(path: Path) -> TableFile:
    file = import_package("pyarrow.parquet", "reading Parquet files").ParquetFile(path)
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    row_bytes = sum(group.total_byte_size for group in groups) // max(file.metadata.num_rows, 1)
    rows = min(max(PART_BYTES // max(row_bytes, 1), 1), PART_ROWS)
    parts = (part for batch in file.iter_batches(batch_size=rows) for part in _split_batch(batch))
    return TableFile(_name_errors(parts, path), file.schema_arrow, file.metadata.num_rows)


def _split_batch(batch: Any) -> Iterator[Any]:
    rows = min(max(PART_BYTES // max(batch.nbytes // max(batch.num_rows, 1), 1), 1), PART_ROWS)
    return (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def _name_errors(parts: Iterator[Any], path: Path) -> Iterator[Any]:
    arrow = import_package("pyarrow", f"reading {path.name}", INSTALL)
    try:
        yield from parts
    except (arrow.ArrowException, OSError) as error:
        raise _damaged_file_error(path, error) from error


def _damaged_file_error(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: cannot be read: {error}", hint="the file may be damaged, or have another format")


# -- writing ---------------------------------------------------------------------------------------------------------


class TableWriter(Protocol):
    """Writes parts of a table, each a dict of columns."""

    def write(self, columns: Mapping[str, Any]) -> None:
        """Write rows: arrays with rows at axis 0, lists of texts, or Arrow columns."""
        ...

    def close(self) -> None: ...


@contextmanager
def create_table(path: Path, specs: Sequence[TensorSpec], ranks: Mapping[str, int | None]) -> Iterator[TableWriter]:
    """Write a table to a file, which gets its name when the table is complete.

    specs: the outputs among the columns. ranks: the ranks of their rows; None if they depend on the inputs.
    """
    kind = TABLES[path.suffix.lower()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = mkstemp(path.suffix, f".{path.stem}-", path.parent)
    except OSError as error:
        raise InputError(f"{path}: cannot write the file: {error.strerror}", hint="name another file") from error
    os.close(handle)
    unfinished = Path(name)
    try:
        writer: TableWriter = (
            _ArrowWriter(unfinished, kind, specs, ranks)
            if kind in ("Parquet", "Arrow")
            else _TextWriter(unfinished, kind)
        )
        try:
            yield writer
        finally:
            writer.close()
        unfinished.chmod(0o666 & ~_read_umask())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _read_umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


class _ArrowWriter:
    """Writes Parquet and Arrow files, whose columns keep the types of the first part."""

    def __init__(self, path: Path, kind: str, specs: Sequence[TensorSpec], ranks: Mapping[str, int | None]) -> None:
        self._arrow = import_package("pyarrow", f"writing {path.name}", INSTALL)
        self._path, self._kind = path, kind
        self._writer: Any = None
        self._types = {
            spec.name: arrow_columns.arrow_type(spec.element, rank)
            for spec in specs
            if spec.element is not None and (rank := ranks[spec.name]) is not None
        }

    def write(self, columns: Mapping[str, Any]) -> None:
        arrow = self._arrow
        arrays = {name: self._convert(name, column) for name, column in columns.items()}
        table = arrow.table(arrays)
        if self._writer is None:
            self._writer = self._open(table.schema)
        try:
            self._writer.write_table(table.cast(self._writer.schema))
        except arrow.ArrowException as error:
            raise InputError(f"a part of the results has other types than the first: {error}") from error

    def _convert(self, name: str, column: Any) -> Any:
        if not isinstance(column, np.ndarray):
            return column
        cells = arrow_columns.make_column(column, name)
        return cells.cast(self._types[name]) if name in self._types else cells

    def _open(self, schema: Any) -> Any:
        if self._kind == "Arrow":
            return _StreamWriter(self._arrow.ipc.new_file(str(self._path), schema), schema)
        return import_package("pyarrow.parquet", "writing Parquet files").ParquetWriter(self._path, schema)

    def close(self) -> None:
        if self._writer is None:
            self._writer = self._open(self._arrow.schema(list(self._types.items())))
        self._writer.close()


class _StreamWriter:
    """An Arrow file that tells its schema, as writers of Parquet do."""

    def __init__(self, writer: Any, schema: Any) -> None:
        self.schema = schema
        self.write_table = writer.write_table
        self.close = writer.close


class _TextWriter:
    """Writes CSV, with arrays as JSON, or a JSON object on each line."""

    def __init__(self, path: Path, kind: str) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._csv = csv.writer(self._file, lineterminator="\n") if kind == "CSV" else None
        self._has_header = False

    def write(self, columns: Mapping[str, Any]) -> None:
        lists = [_to_cells(column) for column in columns.values()]
        if self._csv is None:
            for row in zip(*lists):
                record = plain_data(dict(zip(columns, row)))
                self._file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
            return
        if not self._has_header:
            self._csv.writerow(columns)
            self._has_header = True
        self._csv.writerows([_to_csv_cell(cell) for cell in row] for row in zip(*lists))

    def close(self) -> None:
        self._file.close()


def _to_cells(column: Any) -> list[Any]:
    """Return plain numbers, texts and nested lists."""
    if isinstance(column, np.ndarray):
        widened: Array = arrow_columns.widen(column)
        return [cell.tolist() if isinstance(cell, np.ndarray) else cell for cell in widened.tolist()]
    return list(column.to_pylist() if hasattr(column, "to_pylist") else column)


def _to_csv_cell(cell: Any) -> Any:
    return json.dumps(plain_data(cell), ensure_ascii=False) if isinstance(cell, (list, dict)) else cell
