"""Bodies of control flow that do not fit the shapes of a run: an error where they run, and no obstacle elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import weft

DEVICES = ["cpu", "reference", "webgpu:0"]
X = np.arange(4, dtype=np.float32)
THREE = "c = Constant<value = float[3] {1, 2, 3}>()"
FLAT = "m = Constant<value_ints = [-1]>() u = Reshape(w, m)"

MISFITS = {
    "broadcast": f"{THREE} u = Add(x, c)",
    "reshape": f"s = Constant<value_ints = [3, 2]>() w = Reshape(x, s) {FLAT}",
    "concat": f"c = Constant<value = float[1, 3] {{1, 2, 3}}>() w = Concat<axis = 0>(x, c) {FLAT}",
    "constant index": f"{THREE} i = Constant<value_ints = [7]>() w = Gather(c, i) u = Add(w, x)",
    "axis": f"i = Constant<value_ints = [3]>() w = Unsqueeze(x, i) {FLAT}",
    "product": f"c = Constant<value = float[3, 2] {{1, 2, 3, 4, 5, 6}}>() w = MatMul(x, c) {FLAT}",
    "rank": f"w = Transpose<perm = [1, 0]>(x) {FLAT}",
    "nested": f"""u = If (b) <then_branch = inner () => (float[A] u2) {{ {THREE} u2 = Add(x, c) }},
        else_branch = other () => (float[A] v2) {{ {THREE} v2 = Mul(x, c) }}>""",
}  # of tensors of 4 elements


def read(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')


def agree(model: onnx.ModelProto, device: str, inputs: dict[str, Any], oracle: onnx.ModelProto | None = None) -> None:
    """Compare with onnxruntime, bit by bit; `oracle` is a model of the same meaning that it loads."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    content = (oracle or model).SerializeToString()
    expected = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"]).run(None, inputs)
    results = weft.load(model, device=device).run(inputs)
    for result, reference in zip(results.values(), expected, strict=True):
        assert result.dtype == reference.dtype
        np.testing.assert_array_equal(result, reference)


def refused(model: onnx.ModelProto, device: str, inputs: dict[str, Any], node: str) -> None:
    """The run must fail and name the node that does not fit."""
    with pytest.raises((weft.ExecutionError, weft.InputError)) as caught:
        weft.load(model, device=device).run(inputs)
    assert node in str(caught.value)


BRANCH = """
agraph (bool b, float[SIZE] x) => (float[A] y) {
  z = If (b) <then_branch = one () => (float[A] u) { THEN }, else_branch = other () => (float[A] v) { v = Mul(x, x) }>
  y = Neg(z)
}
"""


@pytest.mark.parametrize("size", ["4", "K"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("misfit", MISFITS)
def test_a_branch_that_does_not_fit(misfit: str, device: str, size: str) -> None:
    text = BRANCH.replace("SIZE", size)
    model, twin = read(text.replace("THEN", MISFITS[misfit])), read(text.replace("THEN", "u = Identity(x)"))
    agree(model, device, {"b": np.array(False), "x": X}, twin)
    refused(model, device, {"b": np.array(True), "x": X}, "node")


@pytest.mark.parametrize("device", DEVICES)
def test_a_model_that_is_traced_again_for_its_shapes(device: str) -> None:
    """The guard of the first Reshape fails, and the sizes of the second trace are numbers."""
    text = f"""
    agraph (bool b, float[K] x) => (float[A] y) {{
      s = Constant<value_ints = [2, -1]>()
      w = Reshape(x, s)
      z = If (b) <then_branch = one () => (float[A] u) {{ {THREE} u = Add(x, c) }},
          else_branch = other () => (float[A] v) {{ {FLAT.replace("u =", "v =")} }}>
      y = Neg(z)
    }}"""
    agree(read(text), device, {"b": np.array(False), "x": X})
    agree(read(text), device, {"b": np.array(False), "x": np.zeros(0, np.float32)})
    refused(read(text), device, {"b": np.array(True), "x": X}, "Add_u")


def test_sizes_that_only_the_valid_branch_knows() -> None:
    text = f"""
    agraph (bool b, float[SIZE] x) => (float[A] y) {{
      z = If (b) <then_branch = one () => (float[A] u) {{ {THREE} u = Add(x, c) }},
          else_branch = other () => (float[A] v) {{ n = NonZero(x) i = Squeeze(n) v = Gather(x, i) }}>
      y = Add(z, z)
    }}"""
    model, twin = read(text.replace("SIZE", "4")), read(text.replace("SIZE", "K"))
    agree(model, "cpu", {"b": np.array(False), "x": X}, twin)


def test_two_branches_that_do_not_fit_are_refused_at_load() -> None:
    text = (
        BRANCH.replace("SIZE", "4")
        .replace("THEN", MISFITS["broadcast"])
        .replace("Mul(x, x)", "Transpose<perm = [1, 0]>(x)")
    )
    with pytest.raises(weft.InvalidModelError, match="Add_u"):
        weft.load(read(text))


@pytest.mark.parametrize(
    "nodes", ["u = Add<axis = 3>(x, x)", "u = Add(x)", "u = Add(x, b)", "u = Add(x, nowhere)", "u = Nothing(x)"]
)
def test_what_no_shape_could_mend_is_refused_at_load(nodes: str) -> None:
    with pytest.raises(weft.ModelError):
        weft.load(read(BRANCH.replace("SIZE", "K").replace("THEN", nodes)))


LOOP = """
agraph (int64 n, float[SIZE] x) => (float[A] y, float[T, B] z) {
  yes = Constant<value = bool {1}>()
  y, z = Loop <body = step (int64 i, bool c, float[A] s) => (bool again, float[A] next, float[ROW] row) {
    again = Identity(c)
    k = Constant<value = float[3] {1, 2, 3}>()
    next = Add(s, k)
    row = Mul(s, k)
  }> (n, yes, x)
}
"""


@pytest.mark.parametrize("row", ["3", "B"])
@pytest.mark.parametrize("size", ["4", "K"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_loop_without_iterations(device: str, size: str, row: str) -> None:
    model = read(LOOP.replace("SIZE", size).replace("ROW", row))
    agree(model, device, {"n": np.array(0), "x": X})
    refused(model, device, {"n": np.array(1), "x": X}, "Add_next")


@pytest.mark.parametrize("trips", [0, 1])
def test_a_loop_whose_iterations_are_known(trips: int) -> None:
    """One that runs for sure is refused at load."""
    text = (
        LOOP.replace("SIZE", "4")
        .replace("int64 n, ", "")
        .replace("yes =", f"n = Constant<value_int = {trips}>() yes =")
    )
    if not trips:
        agree(read(text), "cpu", {"x": X})
        return
    with pytest.raises(weft.InvalidModelError, match="Add_next"):
        weft.load(read(text))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", ["4", "K"])
@pytest.mark.parametrize("trips", [0, 2])
def test_a_branch_in_a_loop(trips: int, size: str, device: str) -> None:
    text = f"""
    agraph (int64 n, float[{size}] x) => (float[A] y) {{
      yes = Constant<value = bool {{1}}>()
      y = Loop <body = step (int64 i, bool c, float[A] s) => (bool again, float[A] next) {{
        again = Identity(c)
        five = Constant<value_int = 5>()
        b = Greater(i, five)
        next = If (b) <then_branch = one () => (float[A] u) {{ {THREE} u = Add(s, c) }},
            else_branch = other () => (float[A] v) {{ v = Mul(s, s) }}>
      }}> (n, yes, x)
    }}""".replace("bool c,", "bool going,").replace("Identity(c)", "Identity(going)")
    agree(read(text), device, {"n": np.array(trips), "x": X})


def test_a_scan_and_a_sequence_map_of_nothing() -> None:
    """onnxruntime runs no scans of length 0."""
    scan = """
    agraph (float[2] x, float[0, 4] rows) => (float[2] y, float[T, B] z) {
      y, z = Scan <num_scan_inputs = 1, body = step (float[2] s, float[4] r) => (float[2] next, float[3] row) {
        k = Constant<value = float[3] {1, 2, 3}>()
        next = Identity(s)
        row = Mul(r, k)
      }> (x, rows)
    }"""
    last, rows = weft.load(read(scan)).run({"x": X[:2], "rows": np.empty((0, 4), np.float32)}).values()
    np.testing.assert_array_equal(last, X[:2])
    assert rows.shape == (0, 3)
    sequence_map = """
    agraph (seq(float[4]) s) => (seq(float[D]) y) {
      y = SequenceMap <body = step (float[4] r) => (float[B] row) {
        k = Constant<value = float[3] {1, 2, 3}>()
        row = Mul(r, k)
      }> (s)
    }"""
    model = weft.load(read(sequence_map))
    assert model.run({"s": []})["y"] == []
    with pytest.raises((weft.ExecutionError, weft.InputError), match="Mul_row"):
        model.run({"s": [X]})


SINGLE = """
agraph (int64[1] n, bool[1] yes, float[K] x) => (float[A] last, int64[T, B] numbers, bool[T2, C] conditions) {
  last, numbers, conditions = Loop <body = step (int64[1] i, bool[1] c, float[K] s)
      => (bool[1] again, float[K] next, int64[B] number, bool[C] condition) {
    again = Identity(c)
    next = Add(s, x)
    number = Concat<axis = 0>(i, i)
    condition = Not(c)
  }> (n, CONDITION, x)
}
"""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("condition", ["yes", ""])
@pytest.mark.parametrize("trips", [0, 3])
def test_iteration_and_condition_of_one_element(trips: int, condition: str, device: str) -> None:
    inputs = {"n": np.array([trips]), "yes": np.array([True]), "x": X}
    agree(read(SINGLE.replace("CONDITION", condition)), device, inputs)


@pytest.mark.parametrize("device", DEVICES)
def test_nested_loops_of_one_element(device: str) -> None:
    text = """
    agraph (int64[1] n, float[K] x) => (float[A] y) {
      yes = Constant<value = bool[1] {1}>()
      y = Loop <body = outer (int64[1] i, bool[1] c, float[K] s) => (bool[1] again, float[K] next) {
        again = Identity(c)
        next = Loop <body = inner (int64[1] j, bool[1] d, float[K] t) => (bool[1] further, float[K] u) {
          f = Cast<to = 1>(j)
          g = Cast<to = 1>(i)
          h = Add(f, g)
          u = Add(t, h)
          limit = Constant<value = float[1] {1.5}>()
          further = Less(h, limit)
        }> (n, c, s)
      }> (n, yes, x)
    }"""
    agree(read(text), device, {"n": np.array([3]), "x": X})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_conditions_of_one_element(rank: int, value: bool, device: str) -> None:
    shape = f"[{', '.join('1' * rank)}]" if rank else ""
    model = read(BRANCH.replace("bool b", f"bool{shape} b").replace("SIZE", "K").replace("THEN", "u = Add(x, x)"))
    agree(model, device, {"b": np.full((1,) * rank, value), "x": X})
