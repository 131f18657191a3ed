"""`weft run` on the rows of a table, or on each file of a folder: a table of results, row by row."""

from __future__ import annotations

import time
from argparse import Namespace
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from weft.batch_inference.map_rows import map_rows
from weft.batch_inference.output_columns import empty_column, stack_rows
from weft.batch_inference.row_axes import RowAxes, find_row_axes
from weft.cli import inputs, output
from weft.cli.table_files import TABLES, TableFile, TableWriter, create_table, detect_table, open_table
from weft.errors import InputError, WeftError
from weft.ir.specs import TensorSpec
from weft.readers.content import DataSource, Kind
from weft.records import dataclass
from weft.runtime.model import Model

NEW_TARGETS = (".parquet", ".arrow", ".feather", ".jsonl")  # that hold rows only
SHOWN_ERRORS = 10
FILE_ROWS = 256  # of a folder's results that are in memory at once


def is_for_rows(args: Namespace) -> bool:
    """Whether the arguments ask for a table of results instead of output arrays."""
    suffix = "" if args.output is None else args.output.suffix.lower()
    return (
        suffix in NEW_TARGETS
        or args.columns is not None
        or any(detect_table(Path(text)) in ("Parquet", "Arrow") for text in args.data)
    )


def check_arguments(args: Namespace) -> None:
    """Raise InputError for arguments that do not fit rows."""
    problem = ""
    if len(args.data) != 1:
        problem = f"results of rows are written for one table or folder, not {len(args.data) or 'none'}"
    elif args.output is None:
        problem = "the results of a table are written to a file"
    elif args.output.suffix.lower() not in TABLES:
        problem = f"--output {args.output}: the results of rows are a table"
    elif args.repeat != 1 or args.labels:
        problem = f"{'--labels' if args.labels else '--repeat'} is not for rows"
    if problem:
        hint = "weft run MODEL FOLDER|TABLE -o results.parquet (or .arrow, .csv, .jsonl)"
        raise InputError(problem, hint=hint)


def run_rows(args: Namespace, model: Model) -> tuple[dict[str, Any], int]:
    """Run the model on all rows and write their results; return what is reported, and the exit status."""
    axes = find_row_axes(model)
    path = Path(args.data[0])
    kind = detect_table(path)
    shared = {} if kind is None else _read_shared(args, model)
    columns = _parse_columns(args.columns, model)
    if columns and kind is None:
        raise InputError("--columns is for tables, not for a folder")
    files = _list_files(path) if kind is None else []
    table = None if kind is None else open_table(path, kind)
    start = time.perf_counter()
    errors: list[dict[str, Any]] = []
    ranks = {spec.name: None if spec.shape is None else len(axes.row_shape(spec) or ()) for spec in model.outputs}
    with create_table(args.output, model.outputs, ranks) as writer:
        if table is not None:
            count = _write_table(table, model, axes, shared, columns, writer, errors)
        else:
            count = _write_files(files, args, model, axes, writer, errors)
    seconds = time.perf_counter() - start
    record = {
        "rows": count,
        "failed": len(errors),
        "errors": errors,
        "seconds": seconds,
        "rows_per_second": count / seconds,
        "outputs": [
            {"name": spec.name, "dtype": str(spec.element), "shape": axes.row_shape(spec)} for spec in model.outputs
        ],
        "saved": str(args.output),
    }
    return record, 1 if errors else 0


def print_rows(record: Mapping[str, Any]) -> None:
    """Print the number of rows, the errors, and where results are."""
    facts: list[tuple[str, object]] = [
        ("rows", f"{record['rows']:,} in {output.format_seconds(record['seconds'])}"),
        ("device", record["device"]),
        ("load", output.format_seconds(record["load_ms"] / 1e3)),
        ("saved", record["saved"]),
    ]
    output.console().print(output.facts(facts))
    console = output.error_console()
    for each in record["errors"][:SHOWN_ERRORS]:
        console.print(Text(output.escape_unprintable(each["error"]), "yellow"))
    if record["failed"]:
        more = record["failed"] - SHOWN_ERRORS
        listed = f", {more} more than are listed; --json lists all" if more > 0 else ""
        line = f"{record['failed']} of {record['rows']} rows failed{listed}; their outputs are empty"
        console.print(Text(line, "bold red"))


# -- tables ----------------------------------------------------------------------------------------------------------


def _write_table(
    table: TableFile,
    model: Model,
    axes: RowAxes,
    shared: Mapping[str, Any],
    columns: Mapping[str, Any],
    writer: TableWriter,
    errors: list[dict[str, Any]],
) -> int:
    parts: deque[Any] = deque()  # that were read, and whose results are not written

    def read() -> Iterator[Any]:
        for part in table.parts:
            parts.append(part)
            yield part

    for result_rows in _collect(model, read(), shared, columns, table.count, lambda: parts[0].num_rows, errors):
        _write_part(parts.popleft(), stack_rows(result_rows, model.outputs), writer)
    if not table.count:
        empty = {spec.name: empty_column(spec, axes.outputs) for spec in model.outputs}
        _write_part(table.schema.empty_table(), empty, writer)
    return table.count


def _write_part(part: Any, outputs: Mapping[str, Any], writer: TableWriter) -> None:
    other_columns = {name: part.column(name) for name in part.schema.names if name not in outputs}
    writer.write({**other_columns, **outputs})


def _collect(
    model: Model,
    rows: Any,
    shared: Mapping[str, Any],
    columns: Mapping[str, Any],
    count: int,
    part_rows: Any,
    errors: list[dict[str, Any]],
) -> Iterator[list[dict[str, Any] | None]]:
    """Yield the results of parts of the rows, None for a row that failed, whose error is listed."""
    results: list[dict[str, Any] | None] = []
    all_results = map_rows(model, rows, errors="return", shared=shared, columns=columns, count=count)
    for row, result in enumerate(all_results):
        if isinstance(result, WeftError):
            errors.append({"row": row, "error": str(result).partition("\n")[0]})
            results.append(None)
        else:
            results.append(result)
        if len(results) == part_rows():
            yield results
            results = []
    if results:
        yield results


def _parse_columns(texts: Sequence[str] | None, model: Model) -> dict[str, Any]:
    """Return the column of inputs, or a list of columns, as `--columns INPUT=COLUMN,COLUMN` names them."""
    specs = {spec.name: spec for spec in (*model.inputs, *model.defaults)}
    columns: dict[str, Any] = {}
    for text in texts or ():
        name = max((name for name in specs if text.startswith(f"{name}=")), key=len, default=None)
        names = [] if name is None else text[len(name) + 1 :].split(",")
        if name is None or not all(names):
            hint = f"write INPUT=COLUMN or INPUT=COLUMN,COLUMN,...; the inputs are {', '.join(specs)}"
            raise InputError(f"--columns {text}: names no input and column", hint=hint)
        columns[name] = names if len(names) > 1 else names[0]
    return columns


@dataclass(frozen=True, slots=True)
class _NamedInputs:
    """The inputs that options give data for, as the declaration of a model."""

    inputs: tuple[TensorSpec, ...]
    outputs: Sequence[TensorSpec]
    defaults: tuple[TensorSpec, ...] = ()


def _read_shared(args: Namespace, model: Model) -> dict[str, Any]:
    """Read the inputs of `-i NAME=SOURCE`, which all rows of a table share."""
    specs = (*model.inputs, *model.defaults)
    named = tuple(spec for spec in specs if any(text.startswith(f"{spec.name}=") for text in args.input))
    if not args.input:
        return {}
    only_shared = Namespace(**{**vars(args), "data": []})
    return inputs.inputs_for(only_shared, _NamedInputs(named, model.outputs), lambda: model.source).arrays


# -- folders ---------------------------------------------------------------------------------------------------------


def _list_files(path: Path) -> list[str]:
    """Return the images and audio files of a folder, in the order of their names."""
    if not path.is_dir():
        hint = "tables are .parquet, .arrow or .csv files; a folder has images or audio files"
        raise InputError(
            f"{path}: is neither a folder nor a table" if path.exists() else f"{path}: no such file", hint=hint
        )
    try:
        files = [str(each) for each in sorted(path.iterdir()) if each.is_file()]
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    chosen = [file for file in files if DataSource(file).kind in (Kind.IMAGE, Kind.AUDIO)]
    if not chosen:
        raise InputError(f"{path}: a folder without images or audio files")
    return chosen


def _write_files(
    files: Sequence[str],
    args: Namespace,
    model: Model,
    axes: RowAxes,
    writer: TableWriter,
    errors: list[dict[str, Any]],
) -> int:
    start = 0
    rows = _FileRows(files, args, model, axes)
    for results in _collect(model, rows, {}, {}, len(files), lambda: FILE_ROWS, errors):
        names = files[start : start + len(results)]
        outputs = stack_rows(results, model.outputs)
        writer.write({"file" if "file" not in outputs else "source": list(names), **outputs})
        start += len(results)
    for error in errors:
        error["file"] = files[error["row"]]
    return len(files)


class _FileRows:
    """The files as a dataset: each is read as `weft run` reads a single file."""

    def __init__(self, files: Sequence[str], args: Namespace, model: Model, axes: RowAxes) -> None:
        self._files, self._args, self._model, self._axes = files, args, model, axes

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, row: int) -> dict[str, Any]:
        arguments = Namespace(**{**vars(self._args), "data": [self._files[row]]})
        arrays = inputs.inputs_for(arguments, self._model, lambda: self._model.source, quiet=True).arrays
        return {name: self._take_row(name, array) for name, array in arrays.items()}

    def _take_row(self, name: str, array: Any) -> Any:
        axis = self._axes.inputs.get(name)
        if axis is None or not array.ndim:
            return array
        if array.shape[axis] != 1:
            problem = f"it makes {array.shape[axis]} rows of input {name!r}, and a file is one row"
            raise InputError(problem, hint="run it by itself")
        return np.take(array, 0, axis)
