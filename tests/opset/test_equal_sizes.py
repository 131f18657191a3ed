"""Sizes of inputs that guards make equal become one expression."""

from __future__ import annotations

from runtime.recurrent_models import matting

from weft.backends.reference.interpret import Interpreter
from weft.frontend.read import read_model
from weft.frontend.source import open_model
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.program import Guard, TensorProgram, Value
from weft.ir.types import TensorType
from weft.opset.equal_sizes import find_equal_sizes
from weft.opset.lower import lower

A, B, C, N = (dims.symbol(name) for name in "abcn")


def equal_sizes(*guards: Guard) -> dict[str, str]:
    inputs = (Value(0, TensorType(DType.float32, (A, B)), "x"), Value(1, TensorType(DType.float32, (C,)), "y"))
    program = TensorProgram(inputs, (), (), guards=guards)
    return {name: str(dim) for name, dim in find_equal_sizes(program).items()}


def test_the_size_of_the_later_input_is_replaced() -> None:
    assert equal_sizes(Guard(A, C, "")) == {"c": "a"}
    assert equal_sizes(Guard(C, A, "")) == {"c": "a"}
    assert equal_sizes(Guard(C, 8, "")) == {"c": "8"}
    assert equal_sizes(Guard(A + B, C, "")) == {"c": "a + b"}


def test_replacements_hold_no_replaced_sizes() -> None:
    assert equal_sizes(Guard(C, 2 * B, ""), Guard(B, A, "")) == {"c": "2*a", "b": "a"}
    assert equal_sizes(Guard(C, B, ""), Guard(B, A, ""), Guard(A, C, "")) == {"c": "a", "b": "a"}
    assert equal_sizes(Guard(C, B + 1, ""), Guard(C, 4, "")) == {"c": "b + 1"}


def test_sizes_that_a_run_computes_replace_nothing() -> None:
    assert equal_sizes(Guard(C, N, "")) == {}
    assert equal_sizes(Guard(C, A, "", at_least=True)) == {}
    assert equal_sizes(Guard(C, C * A, "")) == {}


def test_steps_have_one_expression_for_equal_sizes() -> None:
    graph = read_model(open_model(matting(False))).graph
    traced = lower(graph, Interpreter())
    equal = find_equal_sizes(traced)
    assert {name: str(dim) for name, dim in equal.items()} == {
        "b1": "batch_size", "c1": "4", "h1": "(height + 1) // 2", "w1": "(width + 1) // 2",
        "b2": "batch_size", "c2": "6", "h2": "((height + 1) // 2 + 1) // 2", "w2": "((width + 1) // 2 + 1) // 2",
    }  # fmt: skip
    program = lower(graph, Interpreter(), equal_sizes=equal)
    results = {name for step in program.steps for value in step.results for name in names(value)}
    assert results == {"batch_size", "height", "width"}
    assert {str(guard.left) for guard in program.guards} == set(equal)
    assert len(program.guards) == len(equal) < len(traced.guards)


def names(value: Value) -> set[str]:
    return {name for dim in value.type.shape or () for name in dims.symbol_names(dim)}
