"""Control flow on the CPU: bodies are native code, and counted loops are scans."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import weft
from weft.ir.program import Loop, Scan, TensorProgram

Array = np.ndarray[Any, Any]


def parsed(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')


def run_both(built: onnx.ModelProto, **inputs: Any) -> list[Any]:
    """Return the outputs on the CPU, which must equal those of the reference."""
    results = list(weft.load(built, device="cpu", threads=2).run(inputs).values())
    expected = list(weft.load(built, device="reference").run(inputs).values())
    for a, b in zip(results, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return results


def kinds(program: TensorProgram) -> set[type]:
    return {type(step.primitive) for step in program.steps}


COUNTING = """
agraph (float[N, K] x) => (float[K] last, float[T, K] all, int64 counted) {
  zero = Constant<value_int = START>()
  shape = Shape(x)
  first = Constant<value_int = 0>()
  n = Gather(shape, first)
  start = ConstantOfShape<value = float[1] {1.0}>(width)
  most = Constant<value_int = 1000000>()
  INITIAL
  counted, last, all = Loop <body = step (int64 i, bool c, int64 k, float[K] state)
                                         => (bool again, int64 next, float[K] new, float[K] row) {
    one = Constant<value_int = STEP>()
    next = Add(k, one)
    CONDITION
    index = Mod(k, n)
    slice = Gather(x, index)
    new = Add(state, slice)
    row = Mul(new, slice)
  }>(most, going, zero, start)
}
"""


def counting(initial: str, condition: str, start: int = 0, step: int = 1) -> onnx.ModelProto:
    text = COUNTING.replace("INITIAL", initial).replace("CONDITION", f"again = {condition}")
    text = text.replace("START", str(start)).replace("STEP", str(step))
    text = text.replace("shape = Shape(x)", "shape = Shape(x)\n  width = Shape<start = 1>(x)")
    return parsed(text)


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 8, 30])
@pytest.mark.parametrize(
    ("initial", "condition", "start", "step", "count"),
    [
        ("going = Less(zero, n)", "Less(next, n)", 0, 1, lambda n: n),
        ("going = Greater(n, zero)", "Greater(n, next)", 0, 2, lambda n: -(-n // 2)),
        ("going = LessOrEqual(zero, n)", "LessOrEqual(next, n)", 0, 1, lambda n: n + 1),
        ("going = Less(zero, n)", "Less(next, n)", 3, 1, lambda n: max(n - 3, 0)),
        ("yes = Constant<value_int = 1>()\n  going = Cast<to = 9>(yes)", "Less(next, n)", 0, 1, lambda n: max(n, 1)),
    ],
)
def test_counted_loops_are_scans(initial: str, condition: str, start: int, step: int, count: Any, rows: int) -> None:
    built = counting(initial, condition, start, step)
    assert Loop not in kinds(weft.load(built, device="reference").program)
    x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
    last, every, counted = run_both(built, x=x)
    trips = count(rows)
    assert every.shape == (trips, 3)
    assert counted == start + step * trips
    state = np.ones(3, np.float32)
    for k in range(trips):
        state = state + x[(start + step * k) % rows]
    np.testing.assert_allclose(last, state, rtol=1e-5, atol=1e-5)


def test_loop_with_a_data_dependent_end_stays_a_loop() -> None:
    built = parsed("""
    agraph (int64 n, float[K] x) => (float[K] last, float[T, K] all) {
      yes = Constant<value_int = 1>()
      going = Cast<to = 9>(yes)
      last, all = Loop <body = step (int64 i, bool c, float[K] state) => (bool again, float[K] next, float[K] row) {
        next = Add(state, x)
        row = Mul(next, state)
        total = ReduceSum<keepdims = 0>(next)
        limit = Constant<value_float = 40.0>()
        again = Less(total, limit)
      }>(n, going, x)
    }
    """)
    loaded = weft.load(built, device="cpu")
    assert Loop in kinds(loaded.program)
    assert {step.step for step in loaded.explain()} == {"loop"}
    for trips in (0, 1, 3, 100):
        run_both(built, n=np.int64(trips), x=np.arange(4, dtype=np.float32))


def test_nested_branches_run_natively() -> None:
    built = parsed("""
    agraph (bool a, bool b, float[N, 4] x) => (float[N, M] y) {
      y = If (a) <
        then_branch = outer () => (float[N, M] t) {
          t = If (b) <
            then_branch = both () => (float[N, M] p) { e = Exp(x)  p = Mul(e, x) },
            else_branch = one () => (float[N, M] q) { q = Tanh(x) }
          >
        },
        else_branch = other () => (float[N, M] f) { w = Transpose(x)  m = MatMul(x, w)  f = Softmax(m) }
      >
    }
    """)
    loaded = weft.load(built, device="cpu")
    assert all(step.by_nature and step.step == "branch" for step in loaded.explain())
    for a in (True, False):
        for b in (True, False):
            for rows in (1, 3, 8):
                x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
                run_both(built, a=np.bool_(a), b=np.bool_(b), x=x)


def test_nested_scans() -> None:
    built = parsed("""
    agraph (float[A, B, K] x) => (float[K] last, float[A, B, K] all) {
      width = Shape<start = 2>(x)
      start = ConstantOfShape(width)
      last, all = Scan <num_scan_inputs = 1,
                        body = outer (float[K] s, float[B, K] rows) => (float[K] t, float[B, K] o) {
        t, o = Scan <num_scan_inputs = 1, body = inner (float[K] u, float[K] row) => (float[K] v, float[K] w) {
          v = Add(u, row)
          w = Tanh(v)
        }>(s, rows)
      }>(start, x)
    }
    """)
    loaded = weft.load(built, device="cpu")
    assert Scan in kinds(loaded.program)
    assert loaded.explain() == ()
    for shape in ((1, 1, 3), (2, 9, 5), (9, 2, 5), (8, 11, 17)):
        run_both(built, x=np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def test_scan_that_returns_a_value_twice() -> None:
    built = parsed("""
    agraph (float[K] start, float[N, K] x) => (float[K] last, float[N, K] a, float[N, K] b) {
      last, a, b = Scan <num_scan_inputs = 1,
                         body = step (float[K] s, float[K] row) => (float[K] t, float[K] u, float[K] v) {
        t = Add(s, row)
        u = Identity(t)
        v = Identity(t)
      }>(start, x)
    }
    """)
    for rows in (1, 4, 20):
        last, a, b = run_both(built, start=np.ones(5, np.float32), x=np.ones((rows, 5), np.float32))
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(last, a[-1])


def test_scan_without_iterations() -> None:
    built = parsed("""
    agraph (float[K] start, float[N, K] x) => (float[K] last, float[N, K] a) {
      last, a = Scan <num_scan_inputs = 1, body = step (float[K] s, float[K] row) => (float[K] t, float[K] u) {
        t = Add(s, row)
        u = Mul(t, row)
      }>(start, x)
    }
    """)
    last, a = run_both(built, start=np.ones(5, np.float32), x=np.ones((0, 5), np.float32))
    np.testing.assert_array_equal(last, np.ones(5))
    assert a.shape == (0, 5)
