"""Run batches: a thread prepares the next ones while the current one runs."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from weft.batch_inference.batches import Batch, FailedRow, Segment, join_segments, make_batches
from weft.batch_inference.row_axes import RowAxes
from weft.errors import ExecutionError, WeftError
from weft.records import dataclass
from weft.threads import HelperPool, PendingTask

if TYPE_CHECKING:
    from weft.runtime.model import Model

WORKERS = 1  # a run uses all threads of the model; a second one at the same time competes for them
_AHEAD = 2  # batches that are prepared while others run


@dataclass(frozen=True, slots=True)
class RowResults:
    """The outputs of consecutive rows, with the rows at axis 0, or the error of one row."""

    first: int
    count: int
    outputs: dict[str, Any]
    error: WeftError | None = None


def run_batches(
    model: Model, axes: RowAxes, source: Iterable[Segment | FailedRow], batch_size: int | None, workers: int = WORKERS
) -> Iterator[RowResults]:
    """Yield the results of all rows, out of order where rows of different shapes follow each other."""
    batches = make_batches(source, axes, batch_size)
    process = os.getpid()
    # shared, since another thread than the one that takes the first result may take the next ones
    with HelperPool(1, is_shared=True) as preparer, HelperPool(workers, is_shared=True) as runners:
        runners.start_all()

        def prepare() -> PendingTask[list[RowResults]] | None:
            batch = next(batches, None)
            return None if batch is None else runners.submit(_run_whole_batch, model, axes, batch)

        steps = deque(preparer.submit(prepare) for _ in range(workers + _AHEAD))
        while (run := steps.popleft().result()) is not None:
            results = run.result()
            del run
            steps.append(preparer.submit(prepare))
            yield from results
            if os.getpid() != process:
                problem = "the results of `map` are read in a forked process, where its threads do not run"
                raise ExecutionError(problem, file=model.file, hint="call `map` in the process that reads its results")


def run_batch(model: Model, axes: RowAxes, batch: Batch | FailedRow) -> Iterator[RowResults]:
    """Run a batch; if that fails, run its rows one by one, to find out which of them fail."""
    if isinstance(batch, FailedRow):
        yield RowResults(batch.first, 1, {}, batch.error)
        return
    if batch.inputs is not None:
        count = sum(segment.count for segment in batch.segments)
        try:
            yield from _split_outputs(axes.take_rows(model.run(batch.inputs), count), batch)
            return
        except WeftError as error:
            if count == 1:
                yield RowResults(batch.segments[0].first, 1, {}, error)
                return
    for segment in batch.segments:
        for row in range(segment.count):
            yield _run_row(model, axes, segment.part(row, row + 1))


def _run_whole_batch(model: Model, axes: RowAxes, batch: Batch | FailedRow) -> list[RowResults]:
    return list(run_batch(model, axes, batch))


def _split_outputs(outputs: dict[str, Any], batch: Batch) -> list[RowResults]:
    results = []
    start = 0
    for segment in batch.segments:
        stop = start + segment.count
        parts = {name: array[start:stop] for name, array in outputs.items()} if len(batch.segments) > 1 else outputs
        results.append(RowResults(segment.first, segment.count, parts))
        start = stop
    return results


def _run_row(model: Model, axes: RowAxes, row: Segment) -> RowResults:
    try:
        return RowResults(row.first, 1, axes.take_rows(model.run(join_segments([row], axes)), 1))
    except WeftError as error:
        return RowResults(row.first, 1, {}, error)


def name_row(error: WeftError, row: int) -> WeftError:
    """Add the number of a row to the message of an error."""
    error.problem = f"row {row}: {error.problem}"
    error.args = (error.problem,)
    return error
