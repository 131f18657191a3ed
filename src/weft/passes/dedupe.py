"""Common subexpression elimination: merge equal steps on equal operands, and small equal constants."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np

from weft.ir.program import Observe, Random, Step, TensorProgram, Value, bodies
from weft.opset.trace import Evaluator
from weft.passes.rewrite import everywhere, redirect, redirect_outputs

LARGEST_COMPARED = 4096  # bytes; larger constants are not compared


def merge_duplicates(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Compute every value only once."""
    program = everywhere(merge_duplicates, program, evaluator)
    replaced: dict[Value, Value] = {}
    constants: dict[Value, Any] = {}
    first_constant: dict[Hashable, Value] = {}
    for value, content in program.constants.items():
        key = _constant_key(value, content)
        first = first_constant.setdefault(key, value)
        if first is value:
            constants[value] = content
        else:
            replaced[value] = first
    steps: list[Step] = []
    first_step: dict[Hashable, Step] = {}
    for step in program.steps:
        step = redirect(step, replaced)
        key = _step_key(step)
        if key is not None and key in first_step:
            replaced.update(zip(step.results, first_step[key].results))
            continue
        if key is not None:
            first_step[key] = step
        steps.append(step)
    return replace(program, steps=tuple(steps), constants=constants, outputs=redirect_outputs(program, replaced))


def _constant_key(value: Value, content: Any) -> Hashable:
    if not isinstance(content, np.ndarray) or content.dtype == object or content.nbytes > LARGEST_COMPARED:
        return value
    return value.type, content.tobytes()


def _step_key(step: Step) -> Hashable | None:
    if isinstance(step.primitive, (Random, Observe)) or bodies(step.primitive):
        return None
    try:
        key = (step.primitive, step.operands, tuple(value.type for value in step.results))
        hash(key)
    except TypeError:
        return None
    return key
