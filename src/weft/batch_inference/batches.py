"""Group rows into batches: rows of a batch have arrays of the same shapes.

A batch is emitted when it is full, or when its first row is `window` rows behind the last one that was read. So results
can be put in order within a bounded number of rows, also if every row has another shape.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft.batch_inference.row_axes import RowAxes
from weft.errors import WeftError
from weft.ir.arrays import Array
from weft.records import dataclass

WINDOW_BATCHES = 4  # rows of different shapes that wait for others of their shape, in batches
MIN_BATCH, MAX_BATCH = 32, 1024  # rows of a batch, if the caller does not choose
INPUT_BYTES = 1 << 18  # of a batch, within these limits


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive rows: columns with the rows at axis 0, and inputs that all rows share."""

    first: int
    count: int
    columns: Mapping[str, Array]
    shared: Mapping[str, Any]

    def part(self, start: int, stop: int) -> Segment:
        """Return some of the rows."""
        if start == 0 and stop == self.count:
            return self
        columns = {name: array[start:stop] for name, array in self.columns.items()}
        return Segment(self.first + start, stop - start, columns, self.shared)

    @property
    def end(self) -> int:
        return self.first + self.count

    @property
    def row_bytes(self) -> int:
        return sum(array.nbytes for array in self.columns.values()) // max(self.count, 1)


@dataclass(frozen=True, slots=True)
class FailedRow:
    """A row that could not be read."""

    first: int
    error: WeftError

    @property
    def end(self) -> int:
        return self.first + 1


@dataclass(frozen=True, slots=True)
class Batch:
    """Segments of the same shapes and the inputs of the run that joins them; without inputs, each row is a run."""

    segments: Sequence[Segment]
    inputs: Mapping[str, Any] | None


def make_batches(
    source: Iterable[Segment | FailedRow], axes: RowAxes, batch_size: int | None
) -> Iterator[Batch | FailedRow]:
    """Group segments into batches; rows that an error of the source cuts off are emitted before it is raised."""
    groups: dict[Hashable, _Group] = {}  # in the order of their first rows
    failure: Exception | None = None
    size = batch_size or 0
    rows = iter(source)
    while True:
        try:
            segment = next(rows, None)
        except Exception as error:  # of the caller's iterable
            failure, segment = error, None
        if segment is None:
            break
        if isinstance(segment, FailedRow):
            yield segment
        else:
            size = size or choose_batch_size(segment)
            key = _shape_key(segment) if axes.can_join else None
            for part in _split(segment, groups, key, size):
                group = groups.setdefault(key, _Group())
                group.add(part)
                if group.count == size:
                    yield groups.pop(key).batch(axes)
        while groups and segment.end - next(iter(groups.values())).first >= WINDOW_BATCHES * size:
            yield groups.pop(next(iter(groups))).batch(axes)
    for group in groups.values():
        yield group.batch(axes)
    if failure is not None:
        raise failure


def choose_batch_size(segment: Segment) -> int:
    """Return more rows for a batch the smaller they are."""
    return min(max(INPUT_BYTES // max(segment.row_bytes, 1), MIN_BATCH), MAX_BATCH)


def _split(segment: Segment, groups: Mapping[Hashable, _Group], key: Hashable, size: int) -> Iterator[Segment]:
    """Yield the parts of a segment that fill up batches."""
    start = 0
    while start < segment.count:
        room = size - (groups[key].count if key in groups else 0)
        stop = min(start + room, segment.count)
        yield segment.part(start, stop)
        start = stop


def _shape_key(segment: Segment) -> Hashable:
    """Return a key that is equal for segments whose rows can be joined."""
    columns = tuple((name, array.dtype, array.shape[1:]) for name, array in segment.columns.items())
    return columns, tuple((name, _content_key(content)) for name, content in segment.shared.items())


def _content_key(content: Any) -> Hashable:
    if isinstance(content, np.ndarray):
        elements = tuple(content.ravel().tolist()) if content.dtype == object else content.tobytes()
        return content.dtype, content.shape, elements
    return id(content)


class _Group:
    """Segments of the same shapes that wait for more rows."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.count = 0

    @property
    def first(self) -> int:
        return self.segments[0].first

    def add(self, segment: Segment) -> None:
        self.segments.append(segment)
        self.count += segment.count

    def batch(self, axes: RowAxes) -> Batch:
        return Batch(self.segments, join_segments(self.segments, axes) if axes.can_join else None)


def join_segments(segments: Sequence[Segment], axes: RowAxes) -> dict[str, Any]:
    """Return the inputs of a run on the rows of all segments."""
    first = segments[0]
    if len(segments) == 1:
        columns = first.columns
    else:
        columns = {name: np.concatenate([each.columns[name] for each in segments]) for name in first.columns}
    return {**axes.put_rows(columns), **first.shared}
