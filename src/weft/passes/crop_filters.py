"""Crop constant filters: remove taps that only ever meet padding.

Deep in a network for small images, a feature map may be one or two pixels wide, and most taps of a filter read zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.ir.program import Convolve, Step, TensorProgram, Value
from weft.ir.types import TensorType
from weft.opset.trace import Evaluator
from weft.passes.rewrite import everywhere, next_number

Pads = tuple[tuple[int, int], ...]


def crop_filters(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Crop constant filters to the taps that meet an element somewhere."""
    program = everywhere(crop_filters, program, evaluator)
    constants: dict[Value, Any] = dict(program.constants)
    steps: list[Step] = []
    number = next_number(program)
    for step in program.steps:
        cropped = _crop(step, constants)
        if cropped is None:
            steps.append(step)
            continue
        filters, pads = cropped
        assert isinstance(step.primitive, Convolve)
        value = Value(number, TensorType(step.operands[1].dtype, filters.shape), step.operands[1].name)
        number += 1
        constants[value] = filters
        operands = (step.operands[0], value, *step.operands[2:])
        steps.append(replace(step, primitive=replace(step.primitive, pads=pads), operands=operands))
    if len(constants) == len(program.constants):
        return program
    return replace(program, steps=tuple(steps), constants=constants)


def _crop(step: Step, constants: dict[Value, Any]) -> tuple[Any, Pads] | None:
    """Return the cropped filters and pads of a convolution, or None if there is nothing to crop."""
    convolve = step.primitive
    if not isinstance(convolve, Convolve) or convolve.transposed or step.operands[1] not in constants:
        return None
    sizes, counts = _spatial_sizes(step.operands[0]), _spatial_sizes(step.results[0])
    pads = [(before, after) for before, after in convolve.pads if isinstance(before, int) and isinstance(after, int)]
    if sizes is None or counts is None or len(pads) != len(convolve.pads):
        return None
    filters = np.asarray(constants[step.operands[1]])
    slices: list[slice] = []
    cropped_pads: list[tuple[int, int]] = []
    for axis, (size, count, (before, after)) in enumerate(zip(sizes, counts, pads, strict=True)):
        taps, stride, dilation = filters.shape[2 + axis], convolve.strides[axis], convolve.dilations[axis]
        used_taps = [tap for tap in range(taps) if _meets_input(tap * dilation - before, stride, count, size)]
        if not used_taps:
            return None
        first, last = used_taps[0], used_taps[-1]
        remaining = before - first * dilation, after - (taps - 1 - last) * dilation
        if min(remaining) < 0:
            first, last, remaining = 0, taps - 1, (before, after)
        slices.append(slice(first, last + 1))
        cropped_pads.append(remaining)
    crop = (slice(None), slice(None), *slices)
    cropped = filters[crop]
    if cropped.size == filters.size or not np.isfinite(filters).all():  # 0 * inf is NaN
        return None
    return np.ascontiguousarray(cropped), tuple(cropped_pads)


def _meets_input(start: int, stride: int, count: int, size: int) -> bool:
    """Whether a tap with its first position at `start` ever meets one of `size` elements."""
    first = max(0, -(start // stride)) if start < 0 else 0
    return first < count and start + first * stride < size


def _spatial_sizes(value: Value) -> Sequence[int] | None:
    """Return the spatial sizes if all are static."""
    if not value.has_shape:
        return None
    sizes = [size for size in value.shape[2:] if isinstance(size, int)]
    return sizes if len(sizes) == value.rank - 2 else None
