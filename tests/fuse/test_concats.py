"""Small concatenations become maps on targets with expensive launches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from frontend.samples import model, node, tensor, value
from kernels.threads.emulation import SHARING
from peers import trace_model

from weft.backends.reference.interpret import run
from weft.fuse import fuse
from weft.fuse.concats import inline_concats
from weft.fuse.grouping import single_group
from weft.ir.groups import FusedProgram
from weft.ir.program import Concat, Map


def concatenating(axis: int, *, shared: bool = False) -> Any:
    """Beside each other: the end of x negated, its square, and its begin; `shared`, one of them is an output too."""
    nodes = [
        node("Slice", ["x", "two", "nine", "axis"], ["end"]),
        node("Neg", ["end"], ["a"]),
        node("Mul", ["x", "x"], ["b"]),
        node("Slice", ["x", "zero", "two", "axis"], ["c"]),
        node("Concat", ["a", "b", "c"], ["d"], axis=axis),
        node("Relu", ["d"], ["y"]),
    ]
    names = {"zero": 0, "two": 2, "nine": 9, "axis": axis}
    constants = [tensor(name, np.array([number])) for name, number in names.items()]
    outputs = [value("y", None), *([value("b", None)] if shared else [])]
    return model(nodes, [value("x", [3, "n", 5])], outputs, constants)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_operands_are_selected_by_position(axis: int) -> None:
    program = trace_model(concatenating(axis))
    fused = inline_concats(FusedProgram(program, tuple(map(single_group, program.steps))), SHARING)
    assert not any(isinstance(step.primitive, Concat) for step in fused.program.steps)
    x = np.random.default_rng(1).standard_normal((3, 4, 5)).astype(np.float32)
    begin, end = np.split(x, [2], axis)
    expected = np.maximum(np.concatenate([-end, x * x, begin], axis), 0)
    for each in (program, fused.program):
        np.testing.assert_array_equal(run(each, [x])[0], expected)


def test_operands_with_other_readers_are_concatenated() -> None:
    program = trace_model(concatenating(1, shared=True))
    fused = fuse(program, SHARING)
    assert any(isinstance(step.primitive, Concat) for step in fused.program.steps)


def test_concatenation_becomes_one_map() -> None:
    fused = fuse(trace_model(concatenating(2)), SHARING)
    assert [type(step.primitive) for step in fused.program.steps] == [Map]
