"""Find the axes along which rows of different lengths can be padded to run as one batch.

Such a model has a mask: an input whose name says so, with the batch and one more dynamic dim, the length. Padding has
zeros in all inputs, and so in the mask. Runs on random inputs check that rows keep their bits when they are padded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.errors import WeftError
from weft.ir import dims
from weft.ir.program import Value
from weft.records import dataclass
from weft.runtime.batch_axes import BatchAxes, find_equal_names, has_same_bits, join_rows, split_rows
from weft.runtime.random_inputs import random_inputs

if TYPE_CHECKING:
    from weft.runtime.model import Model

MASK = re.compile(r"mask", re.IGNORECASE)
PROBE_LENGTHS = (3, 8, 5, 17, 24)  # of requests that are joined


@dataclass(frozen=True, slots=True)
class RaggedAxes:
    """The axis of the length in inputs and outputs, by name."""

    inputs: Mapping[str, int]
    outputs: Mapping[str, int]

    def length(self, arrays: Mapping[str, Any]) -> int | None:
        """Return the length of a request; None if it has several, or lacks an input."""
        lengths = {arrays[name].shape[axis] if name in arrays else None for name, axis in self.inputs.items()}
        return lengths.pop() if len(lengths) == 1 else None

    def pad(self, arrays: Mapping[str, Any], length: int) -> dict[str, Any]:
        """Pad the inputs of a request with zeros to a length."""
        padded = dict(arrays)
        for name, axis in self.inputs.items():
            array = arrays[name]
            if array.shape[axis] < length:
                width = [(0, 0)] * array.ndim
                width[axis] = (0, length - array.shape[axis])
                padded[name] = np.pad(array, width)
        return padded

    def trim(self, outputs: Mapping[str, Any], length: int) -> dict[str, Any]:
        """Cut the outputs of a padded request to its length."""
        trimmed = dict(outputs)
        for name, axis in self.outputs.items():
            if name in trimmed and trimmed[name].shape[axis] > length:
                trimmed[name] = np.ascontiguousarray(np.take(trimmed[name], range(length), axis))
        return trimmed


def length_class(length: int) -> int:
    """Return the longest length that is joined with this one: at most a third longer, from 16 on."""
    if length <= 16:
        return -(-length // 8) * 8
    power = 1 << (length - 1).bit_length()
    return power - power // 4 if length <= power - power // 4 else power


def find_ragged_axes(model: Model, axes: BatchAxes) -> RaggedAxes | None:
    """Find the axes of the length of a model that takes batches; None if rows cannot be padded."""
    program = model.session().program
    values = {value.name: value for value in program.inputs if value.has_shape}
    mask = next((values[name] for name in values if MASK.search(name) and _is_mask(values[name], axes)), None)
    if mask is None:
        return None
    batch = axes.inputs[mask.name]
    length = str(next(dim for axis, dim in enumerate(mask.shape) if axis != batch))
    names = find_equal_names(program, length)
    inputs = {name: _find_length(value, names, axes.inputs.get(name)) for name, value in values.items()}
    results = dict(zip((spec.name for spec in model.outputs), program.outputs))
    outputs = {name: _find_length(value, names, axes.outputs.get(name)) for name, value in results.items()}
    if any(axis is _OTHER for axis in (*inputs.values(), *outputs.values())):
        return None
    ragged = RaggedAxes(_with_length(inputs), _with_length(outputs))
    return ragged if _keeps_bits(model, axes, ragged, names) else None


_NONE, _OTHER = -1, -2


def _find_length(value: Value, names: frozenset[str], batch: int | None) -> int:
    """Return the axis of the length, _NONE if there is none, or _OTHER if there is anything else that is dynamic."""
    dynamic = [axis for axis, dim in enumerate(value.shape) if axis != batch and dims.symbol_names(dim)]
    if not dynamic:
        return _NONE
    dim = value.shape[dynamic[0]]
    is_length = len(dynamic) == 1 and dims.as_symbol(dim) is not None and str(dim) in names
    return dynamic[0] if is_length else _OTHER


def _with_length(axes: Mapping[str, int]) -> dict[str, int]:
    return {name: axis for name, axis in axes.items() if axis != _NONE}


def _is_mask(value: Value, axes: BatchAxes) -> bool:
    return value.rank == 2 and value.name in axes.inputs and all(dims.as_symbol(dim) is not None for dim in value.shape)


def _keeps_bits(model: Model, axes: BatchAxes, ragged: RaggedAxes, names: frozenset[str]) -> bool:
    """Whether random requests of different lengths have the same bits alone, and padded in one batch."""
    try:
        requests = [_probe_inputs(model, axes, ragged, names, size, seed) for seed, size in enumerate(PROBE_LENGTHS)]
        longest = max(PROBE_LENGTHS)
        joined = model.run(join_rows([ragged.pad(each, longest) for each in requests], axes))
        parts = split_rows(joined, axes, [1] * len(requests))
        for request, part, size in zip(requests, parts, PROBE_LENGTHS):
            alone, padded = model.run(request), ragged.trim(part, size)
            if not all(has_same_bits(array, padded[name]) for name, array in alone.items()):
                return False
    except WeftError:
        return False
    return True


def _probe_inputs(
    model: Model, axes: BatchAxes, ragged: RaggedAxes, names: frozenset[str], length: int, seed: int
) -> dict[str, Any]:
    """Generate a request of one row: nothing of it is masked."""
    specs = {spec.name: spec for spec in model.inputs}
    sizes = {str((specs[name].shape or ())[axis]): 1 for name, axis in axes.inputs.items() if name in specs}
    inputs = random_inputs(model, shapes={**sizes, **dict.fromkeys(names, length)}, seed=seed)
    masks = {name for name in ragged.inputs if MASK.search(name)}
    return {name: np.ones_like(array) if name in masks else array for name, array in inputs.items()}
