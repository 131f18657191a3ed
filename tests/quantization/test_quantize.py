"""Test `weft.quantize`: results match onnxruntime's on the same file, and errors are as reported."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from frontend.samples import branching, model, node, tensor, value
from onnx import TensorProto, numpy_helper

import weft
from weft.errors import InputError, UnsupportedModelError
from weft.ir.arrays import Array
from weft.quantization.quantize import QuantizationReport, quantize

QUICK = {"measure": False, "leave": False}
SEED = 14
RANDOM = np.random.default_rng(SEED)


@pytest.fixture(autouse=True)
def _reset_random(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test the same random numbers."""
    monkeypatch.setitem(globals(), "RANDOM", np.random.default_rng(SEED))


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def network(opset: int = 17, **options: Any) -> onnx.ModelProto:
    """Two convolutions around a residual sum, pooling, and a product: with batch normalisation, Relu and Clip."""
    weights = {
        "w0": normal(8, 3, 3, 3) / 5,
        "w1": normal(8, 1, 3, 3) / 3,
        "w2": normal(8, 8, 1, 1) / 3,
        "b2": normal(8),
        "gain": np.abs(normal(8)) + 0.5,
        "offset": normal(8),
        "mean": normal(8),
        "variance": np.abs(normal(8)) + 0.5,
        "w3": normal(8, 5),
        "b3": normal(5),
    }
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], name="first", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c0", "gain", "offset", "mean", "variance"], ["n0"]),
        node("Relu", ["n0"], ["r0"]),
        node("Conv", ["r0", "w1"], ["c1"], name="depthwise", group=8, pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2", "b2"], ["c2"], name="pointwise"),
        node("Add", ["c2", "r0"], ["s"]),
        node("Relu", ["s"], ["r2"]),
        node("MaxPool", ["r2"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["m"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "w3", "b3"], ["l"], name="last"),
        node("Softmax", ["l"], ["y"]),
    ]
    proto = model(
        nodes,
        [value("x", ("batch", 3, 12, 12))],
        [value("y", ("batch", 5))],
        [tensor(name, array.astype(np.float32)) for name, array in weights.items()],
        opsets={"": opset},
        **options,
    )
    proto.metadata_props.add(key="author", value="me")
    return proto


def projections(depth: int = 64, dtype: type = np.float32) -> onnx.ModelProto:
    """A MatMul and a Gemm that share weights, one through a Transpose, and a third product of odd sizes."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    weights = {"w": normal(depth, 48) / 8, "b": normal(48), "v": normal(48, depth) / 8, "u": normal(depth, 7)}
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="up"),
        node("Tanh", ["h"], ["a"]),
        node("MatMul", ["a", "v"], ["d"], name="down"),
        node("Add", ["x", "d"], ["s"]),
        node("Transpose", ["w"], ["t"], perm=[1, 0]),
        node("Gemm", ["s", "t", "b"], ["again"], name="again", transB=1),
        node("MatMul", ["s", "u"], ["z"], name="out"),
    ]
    return model(
        nodes,
        [value("x", ("rows", depth), kind)],
        [value("again", ("rows", 48), kind), value("z", ("rows", 7), kind)],
        [tensor(name, array.astype(dtype)) for name, array in weights.items()],
    )


def samples(proto: onnx.ModelProto, count: int = 3, **sizes: int) -> list[dict[str, Array]]:
    data = []
    for _ in range(count):
        sample = {}
        for each in proto.graph.input:
            kind = each.type.tensor_type
            shape = [dim.dim_value or sizes.get(dim.dim_param, 2) for dim in kind.shape.dim]
            sample[each.name] = normal(*shape).astype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
        data.append(sample)
    return data


def quantize_and_check(
    proto: onnx.ModelProto, path: Path, **options: Any
) -> tuple[QuantizationReport, onnx.ModelProto]:
    """Quantize a model; the file must be valid, and onnxruntime's results the same as weft's."""
    data = options.pop("data", None) or samples(proto)
    tolerance = options.pop("tolerance", 1e-6)
    report = quantize(proto, path, data=data, **{"device": "cpu", **options})
    onnx.checker.check_model(str(path), full_check=True)
    written = onnx.load(path)
    assert [each.name for each in written.graph.output] == [each.name for each in proto.graph.output]
    for before, after in zip((*proto.graph.input, *proto.graph.output), (*written.graph.input, *written.graph.output)):
        assert before.type.tensor_type.elem_type == after.type.tensor_type.elem_type
    for before, after in zip(proto.graph.input, written.graph.input):
        assert before == after
    choices = onnxruntime.SessionOptions()  # otherwise it rounds the inputs of int4 products to eight bits
    choices.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(str(path), choices, providers=["CPUExecutionProvider"])
    expected_outputs = session.run(None, data[0])
    results = weft.load(path, device="cpu", cache=False).run(data[0])
    for expected, result in zip(expected_outputs, results.values()):
        np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max()))
    return report, written


def ops(proto: onnx.ModelProto) -> list[str]:
    return [each.op_type for each in proto.graph.node]


def stored_types(proto: onnx.ModelProto) -> dict[str, int]:
    return {each.name: each.data_type for each in proto.graph.initializer}


# -- samples -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "flaw"), [(np.nan, "NaN"), (np.inf, "an infinity"), (-np.inf, "an infinity")])
@pytest.mark.parametrize("to", ["int8", "int4", "fp16"])
def test_samples_that_are_not_finite_are_named(tmp_path: Path, number: float, flaw: str, to: Any) -> None:
    proto = projections()
    data = samples(proto)
    data[2]["x"][0, 0] = number
    with pytest.raises(InputError, match=f"sample 2 of the data: {flaw} in input 'x'"):
        quantize(proto, tmp_path / "q.onnx", data=data, to=to, device="reference")
    for number_of_sample, sample in enumerate(data):
        np.save(tmp_path / f"{number_of_sample}.npy", sample["x"])
    with pytest.raises(InputError, match=rf"2\.npy: {flaw} in input 'x'"):
        quantize(proto, tmp_path / "q.onnx", data=tmp_path, to=to, device="reference")


def test_samples_with_nan_that_argmax_hides_are_named(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("ArgMax", ["m"], ["y"], axis=1)]
    proto = model(nodes, [value("x", ("n", 8))], [value("y", None, TensorProto.INT64)], [tensor("w", normal(8, 8))])
    data = [{"x": np.full((2, 8), np.nan, np.float32)}]
    with pytest.raises(InputError, match="sample 0 of the data: NaN in input 'x'"):
        quantize(proto, tmp_path / "q.onnx", data=data, to="int8", device="reference")


def test_models_may_expect_infinite_masks_and_nan(tmp_path: Path) -> None:
    nodes = [
        node("IsNaN", ["x"], ["n"]),
        node("Where", ["n", "zero", "x"], ["k"]),
        node("MatMul", ["k", "w"], ["m"]),
        node("Add", ["m", "mask"], ["s"]),
        node("Softmax", ["s"], ["y"], axis=-1),
    ]
    inputs = [value("x", ("n", 8)), value("mask", (8,))]
    proto = model(nodes, inputs, [value("y", ("n", 8))], [tensor("w", normal(8, 8)), tensor("zero", np.float32(0))])
    data = samples(proto)
    data[0]["x"][0, 0] = np.nan
    data[0]["mask"][:3] = -np.inf
    assert quantize(proto, tmp_path / "q.onnx", data=data, to="int8", device="reference").error < 0.1


# -- int8 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_int8(tmp_path: Path, activations: str) -> None:
    report, written = quantize_and_check(
        network(), tmp_path / "q.onnx", to="int8", activations=activations, tolerance=1e-5
    )
    assert [layer.node for layer in report.layers] == ["first", "depthwise", "pointwise", "last"]
    assert all(layer.narrowed and layer.alone is not None and layer.alone.noise < 0.05 for layer in report.layers)
    assert report.error < 0.1
    assert not report.made_up
    assert "BatchNormalization" not in ops(written), "it is folded into the convolution"
    assert {entry.key: entry.value for entry in written.metadata_props} == {"author": "me"}
    kinds = stored_types(written)
    weights = [name for name, kind in kinds.items() if kind == TensorProto.INT8 and name.endswith("_quantized")]
    assert len(weights) == 4
    assert list(kinds.values()).count(TensorProto.INT32) == 6, "three biases and their zero points"


def test_scales_are_per_channel_for_weights_and_biases(tmp_path: Path) -> None:
    _, written = quantize_and_check(network(), tmp_path / "q.onnx", to="int8", tolerance=1e-5, **QUICK)
    weights = {each.name: numpy_helper.to_array(each) for each in written.graph.initializer}
    scales = weights["w2_scale"]
    assert scales.shape == (8,)
    assert np.abs(weights["w2_quantized"]).max(axis=(1, 2, 3)).tolist() == [127] * 8
    producer = {each.output[0]: each for each in written.graph.node}
    convolution = next(each for each in written.graph.node if each.name == "pointwise")
    source, _, bias = (producer[name] for name in convolution.input)
    np.testing.assert_allclose(weights[bias.input[1]], scales * weights[source.input[1]], rtol=1e-6)


def test_a_residual_sum_stays_quantized(tmp_path: Path) -> None:
    _, written = quantize_and_check(network(), tmp_path / "q.onnx", to="int8", tolerance=1e-5, **QUICK)
    producer = {name: each.op_type for each in written.graph.node for name in each.output}
    for op in ("Add", "MaxPool", "GlobalAveragePool", "Flatten"):
        reader = next(each for each in written.graph.node if each.op_type == op)
        assert {producer[name] for name in reader.input} == {"DequantizeLinear"}, op


@pytest.mark.parametrize("opset", [9, 11, 12])
def test_int8_upgrades_old_opsets(tmp_path: Path, opset: int) -> None:
    report, _ = quantize_and_check(network(opset), tmp_path / "q.onnx", to="int8", tolerance=1e-5)
    assert report.opset == 13
    assert report.error < 0.1


@pytest.mark.parametrize("scales", [(0.6, 0.6), (0.5, 1.6), (2.0, 2.0)])
def test_int8_of_an_old_resize(tmp_path: Path, scales: tuple[float, float]) -> None:
    """Mode nearest of opset 10 rounds up where it shrinks; newer opsets state the rounding."""
    nodes = [
        node("Conv", ["x", "w0"], ["c"], pads=[1, 1, 1, 1]),
        node("Resize", ["c", "s"], ["r"]),
        node("Conv", ["r", "w1"], ["y"]),
    ]
    constants = {"w0": normal(4, 3, 3, 3), "w1": normal(2, 4, 1, 1), "s": np.array([1, 1, *scales], np.float32)}
    initializers = [tensor(name, array) for name, array in constants.items()]
    outputs = [value("y", (1, 2, *(int(10 * scale) for scale in scales)))]
    proto = model(nodes, [value("x", (1, 3, 10, 10))], outputs, initializers, opsets={"": 10}, ir_version=4)
    path, data = tmp_path / "q.onnx", samples(proto)
    report, _ = quantize_and_check(proto, path, to="int8", tolerance=1e-5, data=data)
    assert (report.opset, report.error < 0.05) == (13, True)
    sessions = [
        onnxruntime.InferenceSession(each, providers=["CPUExecutionProvider"])
        for each in (proto.SerializeToString(), str(path))
    ]
    before, after = (session.run(None, data[0])[0] for session in sessions)
    assert np.abs(before - after).max() < 0.05 * np.abs(before).max()


@pytest.mark.parametrize("ir_version", [3, 6])
def test_weights_that_are_inputs(tmp_path: Path, ir_version: int) -> None:
    """Old files need them, and exporters wrote them for a long time."""
    proto = network(9, ir_version=ir_version)
    data = samples(proto)
    for each in proto.graph.initializer:
        proto.graph.input.append(value(each.name, each.dims))
    path = tmp_path / "q.onnx"
    report = quantize(proto, path, data=data, to="int8", device="cpu", **QUICK)
    assert len(report.layers) == 4
    onnx.checker.check_model(str(path), full_check=True)
    assert [each.name for each in onnx.load(path).graph.input] == ["x"]


def test_opsets_that_cannot_be_upgraded_use_nodes_of_microsoft(tmp_path: Path) -> None:
    body = onnx.helper.make_graph(
        [node("Add", ["state", "row"], ["next"]), node("Identity", ["next"], ["out"])],
        "body",
        [value("state", (4,)), value("row", (4,))],
        [value("next", (4,)), value("out", (4,))],
    )
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="product"),
        node("Scan", ["", "start", "h"], ["last", "y"], body=body, num_scan_inputs=1),
    ]
    inputs = [value("x", (1, 6, 16))]
    initializers = [tensor("w", normal(16, 4)), tensor("start", np.zeros((1, 4), np.float32))]
    outputs = [value("last", (1, 4)), value("y", (1, 6, 4))]
    proto = model(nodes, inputs, outputs, initializers, opsets={"": 8}, ir_version=4)
    _, written = quantize_and_check(proto, tmp_path / "q.onnx", to="int8", tolerance=1e-5, **QUICK)
    assert {each.domain for each in written.graph.node if "Linear" in each.op_type} == {"com.microsoft"}


@pytest.mark.parametrize("calibration", ["minmax", "percentile", "entropy", "mse"])
def test_calibration_methods(tmp_path: Path, calibration: str) -> None:
    report, _ = quantize_and_check(network(), tmp_path / "q.onnx", to="int8", calibration=calibration, tolerance=1e-5)
    assert report.error < 0.1


# -- choice of layers ------------------------------------------------------------------------------------------------


def test_excluded_layers(tmp_path: Path) -> None:
    report, written = quantize_and_check(
        network(), tmp_path / "q.onnx", to="int8", keep=("fir*", "w3"), tolerance=1e-5, **QUICK
    )
    assert {layer.node: layer.reason for layer in report.layers if not layer.narrowed} == {
        "first": "kept by fir*",
        "last": "kept by w3",
    }
    first = next(each for each in written.graph.node if each.name == "first")
    assert first.input[0] == "x"
    with pytest.raises(InputError, match="--keep nothing"):
        quantize(network(), tmp_path / "q.onnx", to="int8", keep=("nothing",), device="cpu", measure=False)


def test_a_layer_with_an_outlying_error_is_skipped(tmp_path: Path) -> None:
    """An input element far larger than the others leaves one level for them."""
    depth = 64
    weights = {f"w{number}": normal(depth, depth) / 8 for number in range(6)}
    steep = np.ones(depth, np.float32)
    steep[0] = 3000
    nodes = []
    for number in range(6):
        source = f"h{number}" if number else "x"
        nodes.append(node("MatMul", [source, f"w{number}"], [f"p{number}"], name=f"layer{number}"))
        nodes.append(node("Tanh", [f"p{number}"], [f"t{number}"]))
        nodes.append(node("Mul", [f"t{number}", "steep" if number == 2 else "flat"], [f"h{number + 1}"]))
    constants = {**weights, "steep": steep, "flat": np.ones(depth, np.float32)}
    weights["w3"][0] = 0
    initializers = [tensor(name, array) for name, array in constants.items()]
    proto = model(nodes, [value("x", (4, depth))], [value("h6", (4, depth))], initializers)
    options = {"to": "int8", "calibration": "minmax"}
    report, _ = quantize_and_check(proto, tmp_path / "q.onnx", **options, tolerance=1e-4)
    assert [layer.node for layer in report.layers if not layer.narrowed] == ["layer3"]
    everything, _ = quantize_and_check(proto, tmp_path / "all.onnx", **options, leave=False, tolerance=1e-4)
    assert all(layer.narrowed for layer in everything.layers)
    assert everything.error > 3 * report.error


def test_a_budget(tmp_path: Path) -> None:
    data = samples(projections())
    free, _ = quantize_and_check(projections(), tmp_path / "free.onnx", to="int4", data=data)
    limited, _ = quantize_and_check(projections(), tmp_path / "bound.onnx", to="int4", data=data, budget=free.error / 2)
    assert limited.error <= free.error / 2
    reasons = {layer.reason for layer in limited.layers if not layer.narrowed}
    assert reasons == {"excluded to meet the budget"}


def test_a_budget_excludes_layers_by_their_effect(tmp_path: Path) -> None:
    """Two layers with similar errors, one of which hardly affects the output."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="matters"),
        node("MatMul", ["x", "v"], ["b"], name="hardly"),
        node("Mul", ["b", "little"], ["c"]),
        node("Add", ["a", "c"], ["y"]),
    ]
    constants = {"w": normal(64, 32), "v": normal(64, 32), "little": np.float32(1e-3)}
    initializers = [tensor(name, array) for name, array in constants.items()]
    proto = model(nodes, [value("x", (4, 64))], [value("y", (4, 32))], initializers)
    report, _ = quantize_and_check(proto, tmp_path / "q.onnx", to="int4", budget=1e-2, tolerance=1e-5)
    assert [(layer.node, layer.narrowed) for layer in report.layers] == [("matters", False), ("hardly", True)]
    assert report.error < 1e-2


# -- int4 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [64, 80])
@pytest.mark.parametrize("block", [16, 32])
def test_int4_as_one_node(tmp_path: Path, depth: int, block: int) -> None:
    report, written = quantize_and_check(
        projections(depth), tmp_path / "q.onnx", to="int4", block=block, tolerance=1e-5
    )
    assert len(report.layers) == 4
    assert ops(written).count("MatMulNBits") == 4
    assert {each.domain: each.version for each in written.opset_import}["com.microsoft"] == 1
    assert report.error < 0.2
    assert report.sizes is not None
    assert report.sizes.after < report.sizes.before / 3


@pytest.mark.parametrize("depth", [64, 80])
def test_int4_as_standard_nodes(tmp_path: Path, depth: int) -> None:
    data = samples(projections(depth))
    report, written = quantize_and_check(
        projections(depth), tmp_path / "q.onnx", to="int4", form="standard", data=data, tolerance=1e-5
    )
    assert report.opset == 21
    assert {each.domain for each in written.opset_import} == {""}
    assert TensorProto.INT4 in stored_types(written).values()
    assert report.error < 0.2


def test_int4_of_float16(tmp_path: Path) -> None:
    proto = projections(dtype=np.float16)
    report, written = quantize_and_check(proto, tmp_path / "q.onnx", to="int4", tolerance=2e-3, **QUICK)
    assert all(layer.narrowed for layer in report.layers)
    assert stored_types(written)["v_scales"] == TensorProto.FLOAT16


def test_int4_of_embeddings(tmp_path: Path) -> None:
    """Two lookups share a table, whose transpose is the weights of a product."""
    nodes = [
        node("Gather", ["table", "i"], ["a"], name="one"),
        node("Gather", ["table", "j"], ["b"], name="two", axis=0),
        node("Add", ["a", "b"], ["s"]),
        node("Transpose", ["table"], ["t"], perm=[1, 0]),
        node("MatMul", ["s", "t"], ["y"], name="product"),
    ]
    inputs = [value(name, (2, 3), TensorProto.INT64) for name in "ij"]
    proto = model(nodes, inputs, [value("y", (2, 3, 50))], [tensor("table", normal(50, 64))])
    data = [{name: RANDOM.integers(0, 50, (2, 3)) for name in "ij"} for _ in range(3)]
    report, written = quantize_and_check(
        proto, tmp_path / "q.onnx", to="int4", embeddings=True, data=data, tolerance=1e-5
    )
    assert [layer.node for layer in report.layers if layer.narrowed] == ["product", "one", "two"]
    assert ops(written).count("GatherBlockQuantized") == 2
    assert TensorProto.FLOAT not in {each.data_type for each in written.graph.initializer if "scales" not in each.name}
    assert report.error < 0.2
    with pytest.raises(InputError, match="embeddings"):
        quantize(proto, tmp_path / "q.onnx", to="int8", embeddings=True)


# -- fp16 and bf16 ---------------------------------------------------------------------------------------------------


def test_fp16(tmp_path: Path) -> None:
    report, written = quantize_and_check(network(), tmp_path / "q.onnx", to="fp16", tolerance=5e-3)
    assert report.error < 5e-3
    kinds = stored_types(written)
    assert all(kind != TensorProto.FLOAT for name, kind in kinds.items() if name.startswith("w"))
    softmax = next(each for each in written.graph.node if each.op_type == "Softmax")
    assert softmax.input[0].endswith("_float32")


@pytest.mark.parametrize("to", ["fp16", "bf16"])
def test_weights_only(tmp_path: Path, to: str) -> None:
    report, written = quantize_and_check(network(), tmp_path / "q.onnx", to=to, form="weights", tolerance=1e-5)
    kind = TensorProto.FLOAT16 if to == "fp16" else TensorProto.BFLOAT16
    assert kind in stored_types(written).values()
    assert report.error < (1e-3 if to == "fp16" else 2e-2)


def test_bf16_in_full(tmp_path: Path) -> None:
    """onnxruntime has no CPU kernels for it."""
    path = tmp_path / "q.onnx"
    report = quantize(network(), path, data=samples(network()), to="bf16", form="full", device="cpu")
    onnx.checker.check_model(str(path), full_check=True)
    assert report.opset == 22
    assert 1e-4 < report.error < 3e-2


def test_values_beyond_the_range_of_float16_stay_float32(tmp_path: Path) -> None:
    nodes = [
        node("Mul", ["x", "large"], ["m"], name="steep"),
        node("Add", ["m", "bias"], ["a"], name="far"),
        node("Mul", ["a", "small"], ["y"], name="back"),
        node("Where", ["chosen", "y", "lowest"], ["masked"], name="mask"),
    ]
    constants = {
        "large": np.full(4, 1e6, np.float32),
        "bias": normal(4),
        "small": np.full(4, 1e-6, np.float32),
        "lowest": np.float32(-3e38),
        "chosen": np.array([True, False, True, True]),
    }
    constants["w"] = normal(4, 4)
    initializers = [tensor(name, array) for name, array in constants.items()]
    nodes.append(node("MatMul", ["x", "w"], ["r"], name="plain"))
    outputs = [value("masked", (3, 4)), value("r", (3, 4))]
    proto = model(nodes, [value("x", (3, 4))], outputs, initializers)
    report, _ = quantize_and_check(proto, tmp_path / "q.onnx", to="fp16", tolerance=1e-3, **QUICK)
    assert [layer.node for layer in report.layers] == ["plain"]


def test_constants_that_underflow_in_float16_stay_float32(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["p"], name="product"),
        node("Relu", ["p"], ["r"], name="plain"),
        node("Max", ["r", "least"], ["m"], name="bounded"),
        node("Log", ["m"], ["y"]),
        node("Mul", ["r", "tiny"], ["t"], name="vanishing"),
        node("Mul", ["t", "huge"], ["z"], name="back"),
    ]
    tiny, huge = np.full(4, 1e-4, np.float32), np.full(4, 1e4, np.float32)
    constants = {"w": normal(4, 4), "least": np.float32(1e-10), "tiny": tiny, "huge": huge}
    initializers = [tensor(name, array) for name, array in constants.items()]
    proto = model(nodes, [value("x", (3, 4))], [value("y", (3, 4)), value("z", (3, 4))], initializers)
    report, _ = quantize_and_check(proto, tmp_path / "q.onnx", to="fp16", tolerance=1e-3, **QUICK)
    assert [layer.node for layer in report.layers] == ["product", "plain"]


def test_squares_before_a_logarithm_stay_float32(tmp_path: Path) -> None:
    """Other data may be much louder or quieter than the samples, and squares double the range."""
    nodes = [
        node("MatMul", ["x", "w"], ["p"], name="product"),
        node("Mul", ["p", "p"], ["s"], name="square"),
        node("MatMul", ["s", "w2"], ["bands"], name="bands"),
        node("Add", ["bands", "least"], ["a"], name="bounded"),
        node("Log", ["a"], ["l"]),
        node("MatMul", ["l", "w"], ["q"], name="last"),
        node("Mul", ["q", "q"], ["y"], name="no power"),
    ]
    constants = {"w": normal(4, 4), "w2": np.abs(normal(4, 4)), "least": np.float32(1e-3)}
    initializers = [tensor(name, array) for name, array in constants.items()]
    proto = model(nodes, [value("x", (3, 4))], [value("y", (3, 4))], initializers)
    report, written = quantize_and_check(proto, tmp_path / "q.onnx", to="fp16", tolerance=5e-3, **QUICK)
    assert [layer.node for layer in report.layers] == ["product", "last", "no power"]
    loud = {"x": 1000 * normal(3, 4)}
    expected = weft.load(proto, device="cpu").run(loud)["y"]
    result = weft.load(written, device="cpu").run(loud)["y"]
    np.testing.assert_allclose(result, expected, atol=5e-3 * float(np.abs(expected).max()))


def test_nodes_far_from_products_stay_float32(tmp_path: Path) -> None:
    nodes = [
        node("Neg", ["x"], ["n"], name="far"),
        node("Exp", ["n"], ["e"]),
        node("MatMul", ["e", "w"], ["h"], name="product"),
        node("Shape", ["h"], ["s"]),
        node("Relu", ["h"], ["y"], name="near"),
    ]
    outputs = [value("y", (3, 4)), value("s", (2,), TensorProto.INT64)]
    proto = model(nodes, [value("x", (3, 4))], outputs, [tensor("w", normal(4, 4))])
    report, written = quantize_and_check(proto, tmp_path / "q.onnx", to="fp16", tolerance=2e-3, **QUICK)
    assert [layer.node for layer in report.layers] == ["product", "near"]
    assert ops(written).count("Cast") == 2


# -- errors, subgraphs and files -------------------------------------------------------------------------------------


def test_quantized_models_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    quantize(network(), path, data=samples(network()), to="int8", device="cpu", **QUICK)
    for to in ("int8", "int4", "fp16"):
        with pytest.raises(UnsupportedModelError, match="already quantized") as raised:
            quantize(path, tmp_path / "again.onnx", to=to, device="cpu")
        assert raised.value.node
        assert "float32" in str(raised.value.hint)


def test_models_without_weights_are_refused(tmp_path: Path) -> None:
    proto = model([node("MatMul", ["x", "x"], ["y"])], [value("x", (2, 2))], [value("y", (2, 2))])
    for to in ("int8", "int4"):
        with pytest.raises(UnsupportedModelError, match=f"no layer of this model can be quantized to {to}"):
            quantize(proto, tmp_path / "q.onnx", to=to, device="cpu")


def test_subgraphs_read_original_values(tmp_path: Path) -> None:
    """Branches read a quantized value and weights."""
    then = onnx.helper.make_graph([node("Mul", ["h", "w"], ["t"])], "then", [], [value("t", (8, 8))])
    other = onnx.helper.make_graph([node("Neg", ["h"], ["e"])], "else", [], [value("e", (8, 8))])
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="one"),
        node("MatMul", ["h", "w"], ["g"], name="two"),
        node("If", ["c"], ["i"], then_branch=then, else_branch=other),
        node("Add", ["g", "i"], ["y"]),
    ]
    inputs = [value("x", (8, 8)), value("c", (), TensorProto.BOOL)]
    proto = model(nodes, inputs, [value("y", (8, 8))], [tensor("w", normal(8, 8))])
    data = [{"x": normal(8, 8), "c": np.array(chosen)} for chosen in (True, False)]
    for options in ({"to": "int8"}, {"to": "fp16"}, {"to": "bf16"}):
        report, _ = quantize_and_check(proto, tmp_path / "q.onnx", data=data, tolerance=5e-3, **options)
        assert report.error < 0.1


def test_branches_without_layers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="no layer of this model"):
        quantize(branching(), tmp_path / "q.onnx", to="int8", device="cpu")


def test_outputs_through_an_identity(tmp_path: Path) -> None:
    """An Identity at an output, which the frontend removes, is written again."""
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Identity", ["h"], ["y"]), node("Relu", ["h"], ["z"])]
    proto = model(nodes, [value("x", (4, 32))], [value("y", (4, 6)), value("z", (4, 6))], [tensor("w", normal(32, 6))])
    for options in ({"to": "int8"}, {"to": "int4"}, {"to": "fp16"}, {"to": "bf16"}):
        quantize_and_check(proto, tmp_path / "q.onnx", tolerance=5e-3, **options, **QUICK)


def test_streams_and_folders(tmp_path: Path) -> None:
    content = io.BytesIO(projections().SerializeToString())
    report = quantize(content, tmp_path / "q.onnx", to="int4", device="cpu")
    assert report.made_up
    with pytest.raises(InputError, match="no such folder"):
        quantize(projections(), tmp_path / "missing" / "q.onnx", to="int4")


def test_wrong_options() -> None:
    for wrong in (
        {"to": "int3"},
        {"to": "int8", "form": "standard"},
        {"to": "int4", "block": 33},
        {"to": "int8", "calibration": "best"},
        {"to": "int8", "budget": 0},
        {"to": "int8", "samples": 0},
        {"to": "int8", "keep": "layer"},
    ):
        with pytest.raises(InputError):
            quantize(network(), "unwritten.onnx", **wrong)


def test_large_models_have_external_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.frontend.save.MAX_MESSAGE_BYTES", 1 << 12)
    report, written = quantize_and_check(projections(), tmp_path / "q.onnx", to="int4", tolerance=1e-5, **QUICK)
    assert len(list(tmp_path.iterdir())) == 2
    assert report.sizes is not None
    assert report.sizes.after == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert ops(written).count("MatMulNBits") == 4
