"""Collect the results of rows as columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.batch_inference.run_batches import RowResults
from weft.ir.arrays import Array
from weft.ir.specs import TensorSpec


def collect_columns(
    results: Iterable[RowResults], specs: Sequence[TensorSpec], axes: Mapping[str, int]
) -> dict[str, Array]:
    """Return a column for each output.

    Rows of different shapes are the elements of an object array, and so are all if a row failed: its cells are None.
    """
    ordered = sorted(results, key=lambda each: each.first)
    return {spec.name: _join_rows(ordered, spec, axes) for spec in specs}


def _join_rows(results: Sequence[RowResults], spec: TensorSpec, axes: Mapping[str, int]) -> Array:
    parts: list[Any] = [None if each.error is not None else each.outputs[spec.name] for each in results]
    if not parts:
        return empty_column(spec, axes)
    shapes = {part.shape[1:] if isinstance(part, np.ndarray) else None for part in parts}
    if len(shapes) == 1 and None not in shapes:
        rows: Array = np.concatenate(parts) if len(parts) > 1 else parts[0]
        return rows
    cells: list[Any] = []
    for part in parts:
        if isinstance(part, np.ndarray):
            cells += (part[row, ...] for row in range(len(part)))
        else:
            cells += [None] if part is None else part  # sequences, maps and optionals
    return _object_column(cells)


def stack_rows(rows: Sequence[Mapping[str, Any] | None], specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Return a column for each output of the results of `Model.map`; None stands for a row that failed."""
    columns = {}
    for spec in specs:
        cells = [None if row is None else row[spec.name] for row in rows]
        arrays = [np.asarray(cell) for cell in cells if cell is not None and spec.dtype not in (None, object)]
        is_uniform = len(arrays) == len(cells) and len({array.shape for array in arrays}) == 1
        columns[spec.name] = np.stack(arrays) if is_uniform else _object_column(cells)
    return columns


def _object_column(cells: Sequence[Any]) -> Array:
    column = np.empty(len(cells), object)
    for row, cell in enumerate(cells):
        column[row] = cell
    return column


def empty_column(spec: TensorSpec, axes: Mapping[str, int]) -> Array:
    """Return a column without rows, of the dtype and rank of an output."""
    shape = list(spec.shape or ())
    if spec.name in axes:
        del shape[axes[spec.name]]
    sizes = [size if isinstance(size, int) else 0 for size in shape]
    return np.empty((0, *sizes), object if spec.dtype is None else spec.dtype)
