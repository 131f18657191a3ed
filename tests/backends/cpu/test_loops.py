"""Loops of real models: growing tensors, sizes that change per iteration, sequences, early exits, dynamic ranks.

All runs are repeated, since what the first ones learn makes later ones quick; each is compared with onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser
from peers import onnxruntime_run

import weft
from weft.backends import jit
from weft.backends.cpu import section

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(14)

GREEDY = """
agraph (int64[1] start, float[16, 8] emb, float[8, 8] wk, float[8, 16] wo, int64 n)
    => (int64[T, 1] tokens, float[m, 8] last) {
  none = ConstantOfShape<value = float[1] {0.0}>(shape)
  token, last, tokens = Loop <body = step (int64 i, bool c, int64[1] token, float[k, 8] keys)
      => (bool again, int64[1] next, float[k1, 8] more, int64[1] out) {
    x = Gather(emb, token)
    key = MatMul(x, wk)
    more = Concat<axis = 0>(keys, key)
    turned = Transpose(more)
    scores = MatMul(x, turned)
    weights = Softmax<axis = -1>(scores)
    mixed = MatMul(weights, more)
    logits = MatMul(mixed, wo)
    next = ArgMax<axis = 1, keepdims = 0>(logits)
    end = Constant<value_ints = [15]>()
    ended = Equal(next, end)
    flag = Squeeze(ended)
    again = Not(flag)
    out = Identity(next)
  }> (n, , start, none)
}
"""

WINDOWS = """
agraph (float[R, 8] table, int64 n) => (float[R, 8] filled, int64[1] place) {
  zero = Constant<value_ints = [0]>()
  filled, place = Loop <body = step (int64 i, bool c, float[R, 8] rows, int64[1] at)
      => (bool again, float[R, 8] next, int64[1] to) {
    one = Constant<value_ints = [1]>()
    first = Constant<value_ints = [0]>()
    to = Add(at, one)
    row = Slice(rows, at, to, first)
    twice = Add(row, row)
    shape = Shape(row)
    start = Squeeze(at)
    end = Squeeze(to)
    step = Squeeze(one)
    places = Range(start, end, step)
    column = Unsqueeze(places, one)
    index = Expand(column, shape)
    next = ScatterElements<axis = 0>(rows, index, twice)
    again = Identity(c)
  }> (n, , table, zero)
}
"""

PARTS = """
agraph (float[K] x, int64 n) => (float[m] y) {
  none = SequenceEmpty<dtype = 1>()
  last, parts = Loop <body = step (int64 i, bool c, float[K] x0, seq(float[k]) before)
      => (bool again, float[K] x1, seq(float[k1]) after) {
    one = Constant<value_int = 1>()
    zero = Constant<value_ints = [0]>()
    count = Add(i, one)
    end = Unsqueeze(count, zero)
    x1 = Add(x0, x0)
    part = Slice(x1, zero, end, zero)
    after = SequenceInsert(before, part)
    again = Identity(c)
  }> (n, , x, none)
  y = ConcatFromSequence<axis = 0>(parts)
}
"""

PICKS = """
agraph (float[n, 4] boxes, float[n] scores) => (int64[k, 1] kept) {
  going = Constant<value = bool {1}>()
  left, kept = Loop <body = step (int64 i, bool c, float[n] s) => (bool again, float[n] rest, int64[1] best) {
    best = ArgMax<axis = 0, keepdims = 1>(s)
    box = Gather(boxes, best)
    apart = Sub(boxes, box)
    squares = Mul(apart, apart)
    one = Constant<value_ints = [1]>()
    far = ReduceSum<keepdims = 0>(squares, one)
    limit = Constant<value_float = 0.5>()
    near = Less(far, limit)
    gone = Constant<value_float = -1.0>()
    rest = Where(near, gone, s)
    top = ReduceMax<keepdims = 0>(rest)
    nothing = Constant<value_float = 0.0>()
    again = Greater(top, nothing)
  }> (, going, scores)
}
"""

OPEN_RANK = """
agraph (float[1, 8, 16] x, float[16, 16] w, int64 n) => (float y) {
  total = ReduceSum<keepdims = 0>(x)
  zero = Constant<value_float = 0.0>()
  flag = Greater(total, zero)
  u = If (flag) <then_branch = yes () => (float a) {
    first = Constant<value_ints = [0]>()
    a = Squeeze(x, first)
  }, else_branch = no () => (float b) { b = Identity(x) }>
  v = Loop <body = step (int64 i, bool c, float s) => (bool again, float next) {
    m = MatMul(s, w)
    next = Tanh(m)
    again = Identity(c)
  }> (n, , u)
  t = MatMul(v, w)
  y = Relu(t)
}
"""

NESTED = """
agraph (float[1, 4] x, int64 n) => (float[m, 4] y) {
  y = Loop <body = outer (int64 i, bool c, float[k, 4] rows) => (bool again, float[k1, 4] more) {
    inner = Loop <body = add (int64 j, bool d, float[1, 4] row) => (bool on, float[1, 4] next) {
      next = Add(row, x)
      sum = ReduceSum<keepdims = 0>(next)
      limit = Constant<value_float = 9.0>()
      on = Less(sum, limit)
    }> (n, , x)
    even = Constant<value_int = 2>()
    rest = Mod(i, even)
    zero = Constant<value_int = 0>()
    flag = Equal(rest, zero)
    part = If (flag) <then_branch = yes () => (float[p, 4] a) { a = Concat<axis = 0>(inner, inner) },
                      else_branch = no () => (float[q, 4] b) { b = Identity(inner) }>
    more = Concat<axis = 0>(rows, part)
    again = Identity(c)
  }> (n, , x)
}
"""


def build(text: str, constants: dict[str, Array] | None = None, opens: tuple[str, ...] = ()) -> onnx.ModelProto:
    """Build a model from text: some inputs become constants, and some values have no rank."""
    graph = parser.parse_graph(text)
    inner = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    for value in [value for one in (graph, *inner) for value in (*one.input, *one.output) if value.name in opens]:
        value.type.tensor_type.ClearField("shape")
    for name, array in (constants or {}).items():
        for value in [value for value in graph.input if value.name == name]:
            graph.input.remove(value)
        graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)


def random(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


WEIGHTS = {"emb": random(16, 8), "wk": random(8, 8), "wo": random(8, 16), "shape": np.array([0, 8])}
CASES: dict[str, tuple[onnx.ModelProto, Callable[[], dict[str, Array]]]] = {
    "greedy": (build(GREEDY, WEIGHTS), lambda: {"start": RNG.integers(0, 16, 1), "n": np.array(30)}),
    "windows": (build(WINDOWS), lambda: {"table": random(20, 8), "n": np.array(20)}),
    "parts": (build(PARTS), lambda: {"x": random(16), "n": np.array(RNG.integers(1, 12))}),
    "picks": (build(PICKS), lambda: {"boxes": random(12, 4), "scores": abs(random(12))}),
    "open rank": (
        build(OPEN_RANK, {"w": random(16, 16) / 4}, ("a", "b", "s", "next", "y")),
        lambda: {"x": random(1, 8, 16), "n": np.array(7)},
    ),
    "nested": (build(NESTED), lambda: {"x": abs(random(1, 4)), "n": np.array(RNG.integers(1, 9))}),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_iterations_agree_with_onnxruntime(name: str, threads: int) -> None:
    model, inputs = CASES[name]
    loaded = weft.load(model, device="cpu", threads=threads)
    for _ in range(12):
        feeds = inputs()
        for expected, actual in zip(onnxruntime_run(model, feeds), loaded.run(feeds).values(), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5, err_msg=str(feeds))


@pytest.mark.parametrize("name", ["greedy", "windows", "parts"])
def test_few_iterations_are_planned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = CASES[name]
    feeds = {**inputs(), "n": np.array(11 if name == "parts" else 20)}
    loaded = weft.load(model, device="cpu", threads=1)
    planned = []
    plan = section.CpuSection._plan_section
    monkeypatch.setattr(
        section.CpuSection, "_plan_section", lambda self, sizes: (planned.append(sizes), plan(self, sizes))[1]
    )
    for _ in range(3):
        loaded.run(feeds)
    assert len(planned) <= 4


def test_dynamic_ranks_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = CASES["open rank"]
    loaded = weft.load(model, device="cpu")
    for _ in range(8):  # both ranks, each twice at least
        loaded.run(inputs())
    monkeypatch.setattr(jit.LateSteps, "_run_eagerly", lambda *_: pytest.fail("computed node by node"))
    for sign in (1, -1):
        feeds = inputs()
        feeds["x"] = sign * abs(feeds["x"])
        for _ in range(2):
            (actual,) = loaded.run(feeds).values()
        np.testing.assert_allclose(actual, onnxruntime_run(model, feeds)[0], rtol=1e-5, atol=1e-5)


def test_results_of_loops_belong_to_the_caller() -> None:
    model, inputs = CASES["nested"]
    loaded = weft.load(model, device="cpu")
    feeds = {**inputs(), "n": np.array(0)}
    for _ in range(4):
        (actual,) = loaded.run(feeds).values()
        assert not np.shares_memory(actual, feeds["x"])
        np.testing.assert_array_equal(actual, feeds["x"])
        actual[:] = 7


@pytest.mark.parametrize("name", CASES)
def test_every_run_has_the_same_bits(name: str) -> None:
    """Independent of earlier runs and of background compilation."""
    model, inputs = CASES[name]
    first, second = inputs(), inputs()
    expected = list(weft.load(model, device="cpu", threads=1).run(first).values())
    loaded = weft.load(model, device="cpu", threads=2)
    for feeds in (second, first, second, first, *[inputs() for _ in range(6)], first):
        actual = loaded.run(feeds).values()
        if feeds is first:
            for array, first_result in zip(actual, expected, strict=True):
                np.testing.assert_array_equal(array, first_result, strict=True)
