"""Inputs that come back as outputs become buffers that runs extend in place."""

from __future__ import annotations

import numpy as np
from frontend.samples import model, node, value
from peers import trace_model

from weft.backends.reference.interpret import run_step
from weft.ir.dim_evaluator import DimEvaluator
from weft.ir.program import Scatter, TensorProgram
from weft.ir.verify import verify
from weft.passes.dead_code import with_outputs
from weft.passes.hold_state import HeldState, hold_state


def hold(nodes: list[object], *, axis: int = 0) -> tuple[TensorProgram, HeldState]:
    """Hold the input `past` of a model, whose first output is `present`."""
    inputs = [value("past", ["n", 2]), value("x", ["a", 2]), value("y", ["b", 2])]
    program = trace_model(model(nodes, inputs, [value("present", None), value("z", None)]))  # type: ignore[arg-type]
    state = hold_state(program, [(program.inputs[0], program.outputs[0], axis)])
    return program, state


def count_scatters(program: TensorProgram) -> int:
    return sum(isinstance(step.primitive, Scatter) and step.primitive.in_place for step in program.steps)


def test_new_elements_are_written_behind_the_old_ones() -> None:
    nodes = [node("Concat", ["past", "x", "y"], ["present"], axis=0), node("Neg", ["present"], ["z"])]
    program, state = hold(nodes)
    (held_input,) = state.inputs
    assert (held_input.length, str(held_input.length_after)) == ("n", "a + b + n")
    ((room, _),) = held_input.rooms
    stateful = with_outputs(state.program, (program.outputs[1],))
    verify(stateful)
    assert count_scatters(stateful) == 1
    buffer = np.full((8, 2), 7, np.float32)
    x, y = np.ones((1, 2), np.float32), np.full((2, 2), 2, np.float32)
    sizes = {"n": 3, "a": 1, "b": 2, room: 2}
    values = dict(zip(stateful.inputs, (buffer, x, y)))
    for step in stateful.steps:
        values.update(zip(step.results, run_step(step, [values[operand] for operand in step.operands], sizes)))
    expected = np.concatenate([np.full((3, 2), 7), x, y]).astype(np.float32)
    np.testing.assert_array_equal(buffer[:6], expected)
    np.testing.assert_array_equal(buffer[6:], 7)
    np.testing.assert_array_equal(values[stateful.outputs[0]], -expected)
    assert [DimEvaluator(sizes)(dim) for dim in stateful.inputs[0].shape] == [8, 2]


def test_an_input_with_another_reader_is_not_held() -> None:
    nodes = [node("Concat", ["past", "x"], ["present"], axis=0), node("Neg", ["past"], ["z"])]
    program, state = hold(nodes)
    assert not state.inputs
    assert state.program.inputs == program.inputs


def test_outputs_that_do_not_append_are_not_held() -> None:
    negation = node("Neg", ["x"], ["z"])
    for concat in (
        node("Concat", ["x", "past"], ["present"], axis=0),
        node("Concat", ["past", "past"], ["present"], axis=0),
        node("Neg", ["past"], ["present"]),
    ):
        assert not hold([concat, negation])[1].inputs
    assert not hold([node("Concat", ["past", "x"], ["present"], axis=0), negation], axis=1)[1].inputs


def test_lengths_that_depend_on_data_are_not_held() -> None:
    nodes = [
        node("NonZero", ["x"], ["places"]),
        node("Transpose", ["places"], ["rows"]),
        node("Cast", ["rows"], ["new"], to=1),
        node("Concat", ["past", "new"], ["present"], axis=0),
        node("Neg", ["x"], ["z"]),
    ]
    assert not hold(nodes)[1].inputs
