"""Drop the checks of indices that cannot be outside of their tables.

A decoder looks up embeddings by token ids, which are below the size of its vocabulary. All its other indices depend on
positions, which are below its longest length. A checked load is a step of its own, and the host waits for its outcome;
without the check, kernels can contain the load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.program import Map, Scatter, Step, TensorProgram, Value
from weft.ir.scalar import Apply, Load, Scalar, loads, rebuild


def trust_indices(program: TensorProgram, ids: Value | None, vocabulary: int, length: int) -> TensorProgram:
    """Drop checks where tables have `vocabulary` rows for indices that depend on `ids`, `length` rows for others."""
    depends: dict[Value, bool] = {} if ids is None else {ids: True}
    steps = []
    for step in program.steps:
        for result in step.results:
            depends[result] = any(depends.get(operand, False) for operand in step.operands)
        steps.append(_trust_loads(step, depends, vocabulary, length))
    return replace(program, steps=tuple(steps))


def _trust_loads(step: Step, depends: Mapping[Value, bool], vocabulary: int, length: int) -> Step:
    def is_inside(index: Scalar, size: Dim) -> bool:
        read = [step.operands[load.operand] for load in loads(index)]
        of_ids = any(depends.get(value, False) for value in read)
        if not read or (_is_assertion(index) and not of_ids):
            return True
        return isinstance(size, int) and size >= (vocabulary if of_ids else length)

    def trust(load: Load) -> Load:
        if not load.checked or not any(map(loads, load.indices)):
            return load
        table = step.operands[load.operand]
        return replace(load, checked=not all(map(is_inside, load.indices, table.shape)))

    match step.primitive:
        case Map(expression):
            return replace(step, primitive=Map(rebuild(expression, trust)))
        case Scatter(indices=indices, update=update) as scatter:
            new_indices = tuple(rebuild(index, trust) for index in indices)
            return replace(step, primitive=replace(scatter, indices=new_indices, update=rebuild(update, trust)))
        case _:
            return step


def _is_assertion(index: Scalar) -> bool:
    """Whether an index is a truth value: ops look these up in a table of one row to state what positions must be."""
    match index:
        case Apply("cast", (argument,)):
            return argument.dtype is DType.bool
        case _:
            return False
