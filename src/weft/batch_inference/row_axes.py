"""Where the rows of a batch are in the inputs and outputs of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.ir.arrays import Array
from weft.records import dataclass
from weft.runtime.batch_axes import find_batch_axes

if TYPE_CHECKING:
    from weft.ir.specs import TensorSpec
    from weft.runtime.model import Model


@dataclass(frozen=True, slots=True)
class RowAxes:
    """The axis of rows in inputs and outputs, by name; others have no rows.

    can_join: whether a row has the same bits in any batch; otherwise each row is a run of its own.
    """

    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    can_join: bool

    def row_shape(self, spec: TensorSpec) -> tuple[int | str, ...] | None:
        """Return the shape of one row of an input or output; None if its rank is unknown."""
        axis = {**self.inputs, **self.outputs}.get(spec.name)
        if spec.shape is None or axis is None:
            return spec.shape
        return (*spec.shape[:axis], *spec.shape[axis + 1 :])

    def put_rows(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        """Move the rows of input columns from axis 0 to the axis of the batch."""
        return {name: _move_axis(array, 0, self.inputs[name]) for name, array in columns.items()}

    def take_rows(self, outputs: Mapping[str, Any], count: int) -> dict[str, Any]:
        """Move the rows of outputs to axis 0; an output without rows, of a single row, gets this axis."""
        return {name: self._take_output(name, content, count) for name, content in outputs.items()}

    def _take_output(self, name: str, content: Any, count: int) -> Any:
        axis = self.outputs.get(name)
        if isinstance(content, np.ndarray) and axis is not None:
            return _move_axis(content, axis, 0)
        assert count == 1
        if isinstance(content, np.ndarray):
            return content[None]
        return [content]  # sequences, maps and optionals


def _move_axis(array: Array, source: int, target: int) -> Array:
    return array if source == target else np.moveaxis(array, source, target)


def find_row_axes(model: Model) -> RowAxes:
    """Find the axes of rows; those of a model whose rows cannot be joined have size 1."""
    axes = find_batch_axes(model)
    if axes.can_join or axes.inputs:
        return RowAxes(axes.inputs, axes.outputs, axes.can_join)
    inputs = _fixed_to_one((*model.inputs, *model.defaults))
    outputs = _fixed_to_one(model.outputs) if inputs else {}
    return RowAxes(inputs, outputs, False)


def _fixed_to_one(specs: Any) -> dict[str, int]:
    """Return axis 0 of the tensors whose first size is fixed to 1 in the file: a batch of one."""
    return {spec.name: 0 for spec in specs if spec.shape and spec.shape[0] == 1}
