"""Products in pairs of bfloat16 with precision="fast": exact for representable operands, close to float32 otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.backends.host import machine
from weft.kernels.vector.pair_products import pack_pairs, round_to_bfloat16

Array = np.ndarray[Any, Any]
SEED = 20261117


def change_target(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Change properties of the host's target."""
    host = machine.host()
    other = replace(host, target=replace(host.target, **changes))
    monkeypatch.setattr(machine, "host", lambda: other)


@pytest.fixture(autouse=True)
def quick_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    change_target(monkeypatch, dot_16_rate=2.0)


@pytest.fixture(params=["instruction", "widened"])
def product_code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, quick_pairs: None) -> None:
    """Use the instruction, if this machine has it, and the code that replaces it."""
    if request.param == "widened":
        change_target(monkeypatch, dot_product_16=False)


@pytest.mark.parametrize(("rows", "narrowed"), [(1, 1), (8, 1), (64, 0)])
def test_slow_pairs_are_used_only_to_save_memory_traffic(
    rows: int, narrowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_target(monkeypatch, dot_16_rate=1.0)
    random = np.random.default_rng(SEED)
    x, w = representable(random, rows, 256), representable(random, 256, 256)
    actual, expected, count = run_both(model("MatMul", {"x": x}, {"w": w}), {"x": x})
    np.testing.assert_array_equal(actual, expected)
    assert count == narrowed


def representable(random: np.random.Generator, *shape: int) -> Array:
    """Draw numbers that are exact in bfloat16, and whose products and short sums are exact in float32."""
    return random.integers(-8, 9, shape).astype(np.float32) / 8


def model(op: str, inputs: dict[str, Array], weights: dict[str, Array], **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node(op, [*inputs, *weights], ["y"], **attributes)
    graph = helper.make_graph(
        [node],
        "pairs",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def run_both(source: onnx.ModelProto, inputs: dict[str, Array]) -> tuple[Array, Array, int]:
    """Return the results of "fast" and of numpy, and the number of narrowed products."""
    fast = weft.load(source, device="cpu", precision="fast", cache=False, threads=1)
    exact = weft.load(source, device="reference").run(inputs)["y"]
    return fast.run(inputs)["y"], exact, len(fast.narrowed())


@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(1, 512, 300), (3, 256, 256), (7, 130, 95), (64, 64, 64), (130, 96, 48)]
)
@pytest.mark.usefixtures("product_code")
def test_matrices(rows: int, depth: int, columns: int) -> None:
    random = np.random.default_rng(SEED)
    x, w = representable(random, rows, depth), representable(random, depth, columns)
    actual, expected, narrowed = run_both(model("MatMul", {"x": x}, {"w": w}), {"x": x})
    np.testing.assert_array_equal(actual, expected)
    assert narrowed == 1


@pytest.mark.parametrize("turned", [0, 1])
def test_gemm_with_either_weights(turned: int) -> None:
    random = np.random.default_rng(SEED)
    x, w, b = representable(random, 40, 128), representable(random, 128, 70), representable(random, 70)
    w = np.ascontiguousarray(w.T) if turned else w
    actual, expected, narrowed = run_both(model("Gemm", {"x": x}, {"w": w, "b": b}, transB=turned), {"x": x})
    np.testing.assert_array_equal(actual, expected)
    assert narrowed == 1


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1x1": ((1, 64, 14, 14), (48, 64, 1, 1), {}),
    "strided": ((2, 32, 15, 13), (40, 32, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "5x5": ((1, 16, 12, 12), (32, 16, 5, 5), {"pads": [2, 2, 2, 2]}),
    "dilated": ((1, 16, 16, 16), (32, 16, 3, 3), {"dilations": [2, 2]}),
    "grouped": ((1, 64, 10, 10), (64, 16, 3, 3), {"group": 4, "strides": [2, 2]}),
    "1-D": ((1, 32, 60), (32, 32, 3), {"pads": [1, 1], "strides": [2]}),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.usefixtures("product_code")
def test_convolutions(case: str) -> None:
    shape, weights, attributes = CONVOLUTIONS[case]
    random = np.random.default_rng(SEED)
    x, w = representable(random, *shape), representable(random, *weights)
    actual, expected, narrowed = run_both(model("Conv", {"x": x}, {"w": w}, **attributes), {"x": x})
    np.testing.assert_array_equal(actual, expected)
    assert narrowed == 1


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions(groups: int) -> None:
    random = np.random.default_rng(SEED)
    x, w = representable(random, 1, 32, 9, 9), representable(random, 32, 32 // groups, 4, 4)
    source = model("ConvTranspose", {"x": x}, {"w": w}, strides=[2, 2], pads=[1, 1, 1, 1], group=groups)
    actual, expected, narrowed = run_both(source, {"x": x})
    np.testing.assert_array_equal(actual, expected)
    assert narrowed == 1


@pytest.mark.parametrize(("depth", "columns"), [(65, 64), (64, 4), (8, 64)], ids=["odd", "few columns", "few sums"])
def test_products_that_gain_nothing_are_not_narrowed(depth: int, columns: int) -> None:
    random = np.random.default_rng(SEED)
    x, w = (random.standard_normal(shape, np.float32) for shape in ((200, depth), (depth, columns)))
    actual, expected, narrowed = run_both(model("MatMul", {"x": x}, {"w": w}), {"x": x})
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    assert narrowed == 0


def test_images_and_operands_of_logarithms_are_not_narrowed() -> None:
    random = np.random.default_rng(SEED)
    x, w = random.standard_normal((1, 3, 32, 32), np.float32), random.standard_normal((32, 3, 7, 7), np.float32)
    assert run_both(model("Conv", {"x": x}, {"w": w}), {"x": x})[2] == 0
    x, w = random.random((64, 128), np.float32), random.random((128, 128), np.float32)
    source = model("MatMul", {"x": x}, {"w": w})
    source.graph.node[0].output[0] = "p"
    source.graph.node.append(helper.make_node("Log", ["p"], ["y"]))
    actual, expected, narrowed = run_both(source, {"x": x})
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    assert narrowed == 0
    source.graph.node[-1].CopyFrom(helper.make_node("LogSoftmax", ["p"], ["y"]))
    assert run_both(source, {"x": x})[2] == 1  # of a sum of exponentials


@pytest.mark.parametrize("keys", [5, 64, 301])
def test_attention(keys: int) -> None:
    random = np.random.default_rng(SEED)
    inputs = {name: random.standard_normal((1, 3, keys, 32), np.float32) for name in "qkv"}
    inputs["q"][0, 0, -1] = 0  # weighs all keys alike
    source = helper.make_model(
        helper.make_graph(
            [helper.make_node("Attention", ["q", "k", "v"], ["y"])],
            "attention",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in inputs.items()],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        ),
        opset_imports=[helper.make_opsetid("", 23)],
        ir_version=10,
    )
    actual, expected, narrowed = run_both(source, inputs)
    assert np.abs(actual - expected).max() <= 2e-2 * np.abs(expected).max()
    np.testing.assert_allclose(actual[0, 0, -1], inputs["v"][0, 0].mean(0), atol=4e-3)
    assert narrowed == int(machine.host().target.dot_product_16)


def test_bits_are_the_same_for_any_number_of_threads() -> None:
    random = np.random.default_rng(SEED)
    x, w = random.standard_normal((200, 256), np.float32), random.standard_normal((256, 512), np.float32)
    source = model("MatMul", {"x": x}, {"w": w})
    actual = [
        weft.load(source, device="cpu", precision="fast", threads=threads, cache=False).run({"x": x})["y"]
        for threads in (1, 2, 3)
    ]
    assert len({result.tobytes() for result in actual}) == 1


def test_weights_take_half_the_memory_and_the_prediction_says_so() -> None:
    random = np.random.default_rng(SEED)
    x, w = random.standard_normal((4, 512), np.float32), random.standard_normal((512, 1024), np.float32)
    source = model("MatMul", {"x": x}, {"w": w})
    wide, narrow = (
        weft.load(source, device="cpu", precision=precision, cache=False).memory().weights
        for precision in ("float32", "fast")
    )
    assert narrow == wide // 2


def test_deviation() -> None:
    random = np.random.default_rng(SEED)
    x, w = random.standard_normal((64, 256), np.float32), random.standard_normal((256, 128), np.float32)
    loaded = weft.load(model("MatMul", {"x": x}, {"w": w}), device="cpu", precision="fast", cache=False)
    reported = loaded.deviation({"x": x})["y"]
    expected = x.astype(np.float64) @ w.astype(np.float64)
    assert reported == pytest.approx(
        np.abs(loaded.run({"x": x})["y"] - expected).max() / np.abs(expected).max(), rel=1e-2
    )
    assert 1e-5 < reported < 2e-2
    assert loaded.deviation()["y"] < 2e-2


def test_rounding_is_that_of_bfloat16() -> None:
    random = np.random.default_rng(SEED)
    bits = random.integers(0, 2**32, 10_000, np.uint32)
    numbers = np.concatenate([bits.view(np.float32), np.float32([0, -0.0, np.inf, -np.inf, 3.4e38, 1e-40])])
    with np.errstate(invalid="ignore"):
        expected = numbers.astype(ml_dtypes.bfloat16)
    largest = ml_dtypes.finfo(ml_dtypes.bfloat16).max
    expected = np.where(np.isfinite(numbers) & np.isinf(expected), np.copysign(largest, expected), expected)
    actual = round_to_bfloat16(numbers).view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(actual[is_number], expected[is_number])
    words = pack_pairs(numbers[:10_000].reshape(10, 1000), 1)
    assert words.shape == (10, 500)
    np.testing.assert_array_equal(
        words.view(np.uint16).reshape(10, 1000), round_to_bfloat16(numbers[:10_000]).reshape(10, 1000)
    )


def test_nan_and_infinities_are_kept() -> None:
    random = np.random.default_rng(SEED)
    x, w = random.standard_normal((6, 64), np.float32), random.standard_normal((64, 2048), np.float32)
    x[1, 3], x[2, 5], x[4, 0] = np.nan, np.inf, 3e38
    actual, expected, narrowed = run_both(model("MatMul", {"x": x}, {"w": w}), {"x": x})
    np.testing.assert_array_equal(np.isfinite(actual[:4]), np.isfinite(expected[:4]))
    np.testing.assert_array_equal(np.isnan(actual[1]), np.isnan(expected[1]))
    assert narrowed == 1


LARGEST = np.finfo(np.float32).max


@pytest.mark.usefixtures("product_code")
@pytest.mark.parametrize("op", ["MatMul", "Conv"])
@pytest.mark.parametrize("where", ["operand", "weights", "mask"])
def test_finite_operands_stay_finite(op: str, where: str) -> None:
    """The largest float32, which attention masks contain, is rounded to the largest bfloat16."""
    random = np.random.default_rng(SEED)
    x, w = random.standard_normal((6, 64), np.float32), random.standard_normal((64, 256), np.float32)
    mask = np.zeros_like(x)
    large, small = (w, x) if where == "weights" else (mask if where == "mask" else x, w)
    large[random.random(large.shape) < 0.2] = LARGEST
    large[random.random(large.shape) < 0.2] = -LARGEST
    large[3, 5], large[2, 7] = 3.3961776e38, -3.3961775e38  # on both sides of what rounds to infinity
    small *= np.float32(1e-3)
    x, w, mask = (x.T[None], w.T[:, :, None], mask.T[None]) if op == "Conv" else (x, w, mask)
    source = model(op, {"x": x}, {"w": w})
    source.graph.node[0].input[0] = "sum"
    source.graph.node.insert(0, helper.make_node("Add", ["x", "mask"], ["sum"]))
    source.graph.initializer.append(numpy_helper.from_array(mask, "mask"))
    fast = weft.load(source, device="cpu", precision="fast", cache=False, threads=1)
    assert len(fast.narrowed()) == 1
    summed = (x + mask).astype(np.float64)
    equation = "bct,ocz->bot" if op == "Conv" else "mk,kn->mn"
    expected = np.einsum(equation, summed, w.astype(np.float64))
    magnitude = np.einsum(equation, np.abs(summed), np.abs(w).astype(np.float64))
    representable = magnitude < LARGEST
    assert representable.mean() > 0.5
    assert (np.abs(fast.run({"x": x})["y"] - expected) <= 2.0**-7 * magnitude)[representable].all()


@pytest.mark.usefixtures("product_code")
def test_attention_over_the_largest_numbers() -> None:
    random = np.random.default_rng(SEED)
    q, k, v = (random.standard_normal((1, 2, 96, 64), np.float32) for _ in range(3))
    k[..., 90:, 3] = q[..., 5] = 0
    k[..., 90:, 5] = LARGEST  # which the queries multiply by 0
    v[..., 80:, :] = -LARGEST  # which the mask hides
    mask = np.where(np.arange(96) < 80, 0, -LARGEST).astype(np.float32)
    source = model("Attention", {"q": q, "k": k, "v": v, "mask": np.tile(mask, (96, 1))}, {})
    source.opset_import[0].version = 23
    inputs = {"q": q, "k": k, "v": v, "mask": np.tile(mask, (96, 1))}
    scores = np.einsum("bhqd,bhkd->bhqk", q.astype(np.float64), k.astype(np.float64)) / 8 + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v.astype(np.float64)
    actual = weft.load(source, device="cpu", precision="fast", cache=False).run(inputs)["y"]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2.0**-7 * np.abs(v[..., :80, :]).max())
