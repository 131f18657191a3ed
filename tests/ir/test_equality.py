"""Bitwise equality of ir values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.equality import is_identical
from weft.ir.program import Map, Step, TensorProgram, Value
from weft.ir.scalar import Apply, Literal
from weft.ir.types import TensorType


@dataclass(frozen=True)
class Noted:
    content: Any
    note: str = field(default="", compare=False)


def program(number: float) -> TensorProgram:
    kind = TensorType(DType.float32, (dims.symbol("n"), 3))
    result = Value(1, kind)
    expression = Apply("add", (Literal(number, DType.float32), Literal(2.0, DType.float32)), DType.float32)
    return TensorProgram((Value(0, kind, "x"),), (result,), (Step(Map(expression), (), (result,), "node"),))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (1, True),
        (1, 1.0),
        ((1,), [1]),
        ("1", b"1"),
        (np.float32([0.0]), np.float32([-0.0])),
        (np.zeros(4, np.int32), np.zeros(4, np.float32)),
        (np.zeros((2, 2)), np.zeros(4)),
        (frozenset({1}), frozenset({True})),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": [1, 2]}, {"a": [1, 3]}),
        (Noted(1), Noted(2)),
        (object(), object()),
        (program(0.0), program(-0.0)),
    ],
    ids=lambda content: type(content).__name__,
)
def test_similar_values_are_not_identical(one: Any, other: Any) -> None:
    assert not is_identical(one, other)
    assert not is_identical([one], [other])
    assert not is_identical({"key": one}, {"key": other})


@pytest.mark.parametrize(
    "make",
    [
        lambda: float("nan"),
        lambda: np.array([np.nan, -0.0]),
        lambda: [(1, 2.5, None, "text", b"bytes", DType.int8, dims.symbol("n") * 2 + 1)],
        lambda: {"a": frozenset({3, 4}), "b": np.arange(5)},
        lambda: np.array(["one", "two"], object),
        lambda: program(0.5),
    ],
)
def test_equal_values_are_identical(make: Any) -> None:
    assert is_identical(make(), make())
    assert is_identical(Noted(make(), "this"), Noted(make(), "that"))


def test_temporary_objects_are_not_confused() -> None:
    """Lists of keys are temporary: the next one may have the address of the last one."""
    for size in range(2, 40):
        one = [{(number, part): part for part in range(3)} for number in range(size)]
        other = [{(number, part): part for part in range(3)} for number in range(size)]
        assert is_identical(one, other)
        for number in range(size):
            changed = [dict(each) for each in other]
            changed[number] = {(number, part + 1): part for part in range(3)}
            assert not is_identical(one, changed)
