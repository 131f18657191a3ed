"""The WGSL text of terms: parentheses, literals and names."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest

from weft.backends.numerics.terms import choose, let
from weft.backends.webgpu.terms import Term, define_function

CASES: dict[str, Callable[[Term], Term]] = {
    "x - (x - 1.0)": lambda x: x - (x - 1.0),
    "x - 1.0 - x": lambda x: x - 1.0 - x,
    "(x + 1.0) / (x * 2.0)": lambda x: (x + 1.0) / (x * 2.0),
    "-(x + 1.0)": lambda x: -(x + 1.0),
    "bitcast<f32>((bitcast<u32>(x) & 3u) << 4u)": lambda x: ((x.as_integer() & 3) << 4).as_float(),
    "bitcast<f32>(bitcast<u32>(x) ^ 0x80000000u)": lambda x: (x.as_integer() ^ 1 << 31).as_float(),
    "select(x, 0.0, (x < 1.0) | (x >= x + 2.0))": lambda x: choose((x < 1.0) | (x >= x + 2.0), 0.0, x),
    "weft_make_f32(0xff800000u)": lambda x: x.constant(-inf),
}


@pytest.mark.parametrize("text", CASES)
def test_expressions_have_the_parentheses_they_need(text: str) -> None:
    function = define_function("f", {"x": "f32"}, "f32", CASES[text])
    assert function == f"\nfn weft_f(x: f32) -> f32 {{\n    return {text};\n}}\n"


def test_names_are_unique_in_a_function() -> None:
    function = define_function("f", {"x": "f32"}, "f32", lambda x: let("x", let("y", x * x) + let("y", x + x)))
    declared = [line.split()[1] for line in function.splitlines() if "let" in line]
    assert declared == ["y", "y_", "x_"]
