"""`Model.map`: yield the results of rows in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft.batch_inference.row_axes import RowAxes, find_row_axes
from weft.batch_inference.rows import RowReader, RowSource
from weft.batch_inference.run_batches import WORKERS, RowResults, name_row, run_batches
from weft.errors import InputError, short_repr
from weft.runtime.arguments import whole_number
from weft.runtime.progress import stages

if TYPE_CHECKING:
    from weft.batch_inference.tables import Column
    from weft.runtime.model import Model

ERRORS = ("raise", "return")


def map_rows(
    model: Model,
    rows: Any,
    batch_size: int | None = None,
    workers: int | None = None,
    errors: str = "raise",
    shared: Mapping[str, Any] | None = None,
    columns: Mapping[str, Column] | None = None,
    count: int | None = None,
) -> Iterator[Any]:
    """Check the arguments of `Model.map`, and return the generator of results.

    columns: the columns of inputs with another name. count: the number of rows, if `rows` cannot tell it.
    """
    size = check_batch_size(batch_size, model.file)
    runs = WORKERS if workers is None else whole_number(workers, "workers", model.file)
    if errors not in ERRORS:
        raise InputError(f"errors must be 'raise' or 'return', not {short_repr(errors)}", file=model.file)
    axes = find_row_axes(model)
    source = RowReader(model, axes, shared, columns).open(rows)
    if count is not None:
        source = replace(source, count=count)
    return _iterate_results(model, axes, source, size, runs, errors == "return")


def check_batch_size(batch_size: Any, file: str) -> int | None:
    return None if batch_size is None else whole_number(batch_size, "batch_size", file)


def _iterate_results(
    model: Model, axes: RowAxes, source: RowSource, batch_size: int | None, workers: int, return_errors: bool
) -> Iterator[Any]:
    waiting: dict[int, RowResults] = {}  # results after the next row, by their first row
    row = 0
    with stages("running") as progress:
        for results in run_batches(model, axes, source.segments, batch_size, workers):
            waiting[results.first] = results
            while (ready := waiting.pop(row, None)) is not None:
                if ready.error is not None:
                    error = name_row(ready.error, row)
                    if not return_errors:
                        raise error
                    yield error
                else:
                    for index in range(ready.count):
                        yield {name: array[index] for name, array in ready.outputs.items()}
                row += ready.count
            done = f"{row} of {source.count}" if source.count is not None else str(row)
            progress.stage("row", row / source.count if source.count else 0.0, done)
