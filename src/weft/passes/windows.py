"""Windows that reach beyond what there is: taps of a filter that only ever meet padding are left out.

Deep in a network for small pictures a map may be a pixel or two wide; most of a filter then reads zeros, and most of
its weights need not be read at all.
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


def narrow_windows(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Cut constant filters down to the taps that meet an element somewhere."""
    program = everywhere(narrow_windows, program, evaluator)
    constants: dict[Value, Any] = dict(program.constants)
    steps: list[Step] = []
    number = next_number(program)
    for step in program.steps:
        cut = _cut(step, constants)
        if cut is None:
            steps.append(step)
            continue
        filters, pads = cut
        kind = step.operands[1].type
        assert isinstance(kind, TensorType)
        assert isinstance(step.primitive, Convolve)
        value = Value(number, replace(kind, shape=filters.shape), step.operands[1].name)
        number += 1
        constants[value] = filters
        operands = (step.operands[0], value, *step.operands[2:])
        steps.append(replace(step, primitive=replace(step.primitive, pads=pads), operands=operands))
    if len(constants) == len(program.constants):
        return program
    return replace(program, steps=tuple(steps), constants=constants)


def _cut(step: Step, constants: dict[Value, Any]) -> tuple[Any, Pads] | None:
    """The filters and pads that do for a convolution; None where those that it has do."""
    convolve = step.primitive
    if not isinstance(convolve, Convolve) or convolve.transposed or step.operands[1] not in constants:
        return None
    sizes, counts = _space(step.operands[0]), _space(step.results[0])
    pads = [(before, after) for before, after in convolve.pads if isinstance(before, int) and isinstance(after, int)]
    if sizes is None or counts is None or len(pads) != len(convolve.pads):
        return None
    filters = np.asarray(constants[step.operands[1]])
    parts: list[slice] = []
    fitting: list[tuple[int, int]] = []
    for axis, (size, count, (before, after)) in enumerate(zip(sizes, counts, pads, strict=True)):
        taps, stride, dilation = filters.shape[2 + axis], convolve.strides[axis], convolve.dilations[axis]
        met = [tap for tap in range(taps) if _meets(tap * dilation - before, stride, count, size)]
        if not met:
            return None
        first, last = met[0], met[-1]
        left = before - first * dilation, after - (taps - 1 - last) * dilation
        if min(left) < 0:
            first, last, left = 0, taps - 1, (before, after)
        parts.append(slice(first, last + 1))
        fitting.append(left)
    places = (slice(None), slice(None), *parts)
    kept = filters[places]
    if kept.size == filters.size or not np.isfinite(filters).all():  # nothing times infinity is not nothing
        return None
    return np.ascontiguousarray(kept), tuple(fitting)


def _meets(start: int, stride: int, count: int, size: int) -> bool:
    """Whether a tap, which is at `start` first, is ever on one of so many elements."""
    first = max(0, -(start // stride)) if start < 0 else 0
    return first < count and start + first * stride < size


def _space(value: Value) -> Sequence[int] | None:
    """The spatial sizes, where they are known."""
    if not isinstance(value.type, TensorType) or value.type.shape is None:
        return None
    sizes = [size for size in value.type.shape[2:] if isinstance(size, int)]
    return sizes if len(sizes) == len(value.type.shape) - 2 else None
