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


def test_halves_of_a_rotary_embedding_are_one_map() -> None:
    nodes = [
        node("Split", ["x"], ["a", "b"], axis=2, num_outputs=2),
        *(node("Mul", [side, angle], [f"{side}_{angle}"]) for side in "ab" for angle in ("cos", "sin")),
        node("Sub", ["a_cos", "b_sin"], ["low"]),
        node("Add", ["b_cos", "a_sin"], ["high"]),
        node("Concat", ["low", "high"], ["y"], axis=2),
    ]
    inputs = [value("x", ["b", "n", 8]), value("cos", ["n", 4]), value("sin", ["n", 4])]
    program = trace_model(model(nodes, inputs, [value("y", None)], opsets={"": 18}))
    fused = fuse(program, SHARING)
    assert [type(step.primitive) for step in fused.program.steps] == [Map]
    rng = np.random.default_rng(2)
    x, cos, sin = (rng.standard_normal(size).astype(np.float32) for size in ((2, 3, 8), (3, 4), (3, 4)))
    a, b = x[..., :4], x[..., 4:]
    expected = np.concatenate([a * cos - b * sin, b * cos + a * sin], 2)
    np.testing.assert_array_equal(run(fused.program, [x, cos, sin])[0], expected)


def test_operands_with_other_readers_are_concatenated() -> None:
    program = trace_model(concatenating(1, shared=True))
    fused = fuse(program, SHARING)
    assert any(isinstance(step.primitive, Concat) for step in fused.program.steps)


def test_concatenation_becomes_one_map() -> None:
    fused = fuse(trace_model(concatenating(2)), SHARING)
    assert [type(step.primitive) for step in fused.program.steps] == [Map]
