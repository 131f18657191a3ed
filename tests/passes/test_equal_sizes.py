"""Sizes that guards declare equal are written in one form."""

from __future__ import annotations

import numpy as np
from frontend.samples import model, node, value
from passes.test_passes import check, random

from weft.ir.program import Reshape, TensorProgram


def shapes(program: TensorProgram) -> set[str]:
    return {str(dim) for step in program.steps for result in step.results for dim in result.shape}


def test_a_mask_of_all_keys_has_the_size_of_past_and_new_ones() -> None:
    nodes = [
        node("Concat", ["past", "new"], ["keys"], axis=1),
        node("Add", ["keys", "mask"], ["scores"]),
        node("Softmax", ["scores"], ["y"], axis=-1),
    ]
    inputs = [value("past", ["batch", "past_length"]), value("new", ["batch", "length"])]
    built = model(nodes, [*inputs, value("mask", ["batch", "total"])], [value("y", None)])
    program = check(built, past=random(2, 3), new=random(2, 1), mask=random(2, 4))
    assert "total" not in shapes(program)
    reshapes = [step for step in program.steps if isinstance(step.primitive, Reshape)]
    assert [step.operands[0].name for step in reshapes] == ["mask"]
    assert [str(guard) for guard in program.guards] == ["total == length + past_length"]


def test_sizes_that_equal_one_other_size_stay() -> None:
    nodes = [node("Add", ["a", "b"], ["x"]), node("Neg", ["x"], ["y"])]
    inputs = [value("a", ["n"]), value("b", ["m"])]
    program = check(model(nodes, inputs, [value("y", None)]), a=random(5), b=random(5))
    assert len(shapes(program)) == 1
    assert not any(isinstance(step.primitive, Reshape) for step in program.steps)


def test_sizes_that_depend_on_data_stay() -> None:
    nodes = [node("NonZero", ["a"], ["places"]), node("Add", ["places", "b"], ["y"])]
    inputs = [value("a", ["n"]), value("b", [1, "m"], 7)]
    built = model(nodes, inputs, [value("y", None, 7)])
    program = check(built, a=np.array([0.0, 2.0, 3.0], np.float32), b=np.array([[1, 2]], np.int64))
    assert len(program.steps) >= 2
