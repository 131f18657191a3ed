"""Random inputs, and runs on them: `weft.random_inputs`, `model.profile()` and `model.bench()`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import model, node, tensor, value
from models import catalog
from onnx import TensorProto, helper

import weft
from weft.runtime.generated_inputs import USUAL_RATE

SMALL = ("silero-vad__silero_vad", "openwakeword__melspectrogram", "reachy-mini__fknetwork.dynamic")


def affine(batch: int | str = "batch") -> weft.Model:
    built = model(
        [node("MatMul", ["x", "w"], ["y"])],
        [value("x", [batch, "length", 4])],
        [value("y", [batch, "length", 2])],
        [tensor("w", np.ones((4, 2), np.float32))],
    )
    return weft.load(built, device="cpu", threads=1)


def shapes_of(inputs: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(content) for name, content in inputs.items()}


def test_sizes_are_defaults_or_the_callers() -> None:
    loaded = affine()
    assert shapes_of(weft.random_inputs(loaded)) == {"x": (1, 128, 4)}
    assert shapes_of(weft.random_inputs(loaded, batch=8)) == {"x": (8, 128, 4)}
    assert shapes_of(weft.random_inputs(loaded, batch=8, shapes={"length": 3})) == {"x": (8, 3, 4)}
    assert shapes_of(weft.random_inputs(loaded, shapes={"x": (2, 5, 4)})) == {"x": (2, 5, 4)}
    assert shapes_of(weft.random_inputs(affine(3), batch=3)) == {"x": (3, 128, 4)}


def test_seed_determines_the_data() -> None:
    loaded = affine()
    one, same, other = (weft.random_inputs(loaded, seed=seed)["x"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 0}, "batch must be a positive number"),
        ({"batch": "many"}, "batch must be a positive number"),
        ({"shapes": {"width": 3}}, "no dynamic dim 'width'"),
        ({"shapes": {"x": (1, 2, 5)}}, "does not fit"),
        ({"shapes": 3}, "shapes must be a dict"),
        ({"seed": -1}, "seed must be a whole number"),
    ],
)
def test_invalid_sizes_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(weft.InputError, match=message):
        weft.random_inputs(affine(), **arguments)


def test_fixed_batch_is_explained() -> None:
    with pytest.raises(weft.InputError, match="the batch cannot be 8: the first dim of the inputs is 3 in the file"):
        weft.random_inputs(affine(3), batch=8)


@pytest.mark.parametrize("argument", ["model.onnx", None, b"", 3])
def test_non_models_are_refused(argument: Any) -> None:
    with pytest.raises(weft.InputError, match="takes a loaded model"):
        weft.random_inputs(argument)


def test_sizes_of_given_inputs_are_refused() -> None:
    loaded = affine()
    with pytest.raises(weft.InputError, match="batch and shapes apply only to random inputs"):
        loaded.profile({"x": np.ones((1, 1, 4), np.float32)}, batch=8)


def test_every_kind_of_input() -> None:
    """Strings, integers, sequences; optional inputs are left out."""
    inputs = [
        value("words", ["n"], TensorProto.STRING),
        value("codes", ["n"], TensorProto.INT8),
        value("flags", ["n"], TensorProto.BOOL),
        value("sr", [], TensorProto.INT64),
        helper.make_tensor_sequence_value_info("list", TensorProto.FLOAT, ["n", 2]),
        onnx.ValueInfoProto(
            name="maybe",
            type=helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [1])),
        ),
    ]
    outputs = [value("size", [], TensorProto.INT64), value("same", ["n"], TensorProto.STRING)]
    nodes = [node("SequenceLength", ["list"], ["size"]), node("Identity", ["words"], ["same"])]
    loaded = weft.load(model(nodes, inputs, outputs), device="cpu")
    feeds = weft.random_inputs(loaded, shapes={"n": 5})
    assert list(feeds) == ["words", "codes", "flags", "sr", "list"]
    assert feeds["sr"] == USUAL_RATE
    assert set(feeds["words"]) <= {"a", "b", "c"}
    assert [array.shape for array in feeds["list"]] == [(5, 2)]
    assert loaded.run(feeds)["size"] == 1


def test_sizes_are_searched_until_the_model_runs() -> None:
    """The window is wider than the first candidate, and the state's batch has no name in the file."""
    built = model(
        [
            node("Conv", ["x", "w"], ["windows"], strides=[1]),
            node("ReduceMax", ["windows"], ["loudest"], axes=[2], keepdims=0),
            node("Concat", ["loudest", "state"], ["y"], axis=0),
        ],
        [value("x", [1, 1, "samples"]), value("state", ["steps", "width"])],
        [value("y", ["rows", "width"])],
        [tensor("w", np.ones((1, 1, 200), np.float32))],
        opsets={"": 13},
    )
    loaded = weft.load(built, device="cpu")
    inputs = weft.random_inputs(loaded)
    assert inputs["x"].shape[2] >= 200
    assert inputs["state"].shape[1] == 1
    loaded.run(inputs)


def test_shapes_for_inputs_without_rank() -> None:
    loaded = weft.load(model([node("Relu", ["x"], ["y"])], [value("x", None)], [value("y", None)]), device="cpu")
    with pytest.raises(weft.InputError, match="no fixed rank"):
        weft.random_inputs(loaded)
    assert shapes_of(weft.random_inputs(loaded, shapes={"x": (2, 3)})) == {"x": (2, 3)}


def test_program_compiled_for_fixed_sizes_gets_those(tmp_path: Path) -> None:
    weft.compile(affine(), tmp_path / "ahead.weft", sizes={"batch": 4, "length": 6}, graph=False)
    loaded = weft.load(tmp_path / "ahead.weft")
    assert shapes_of(weft.random_inputs(loaded)) == shapes_of(weft.random_inputs(loaded, batch=4)) == {"x": (4, 6, 4)}
    assert loaded.profile(repeat=1).ops == {}


@pytest.mark.models
@pytest.mark.parametrize("name", SMALL)
def test_real_models_accept_them(name: str) -> None:
    path = catalog.FETCHED / f"{name}.onnx"
    if not path.is_file():
        pytest.skip("scripts/fetch-models gets it")
    loaded = weft.load(path, device="cpu")
    assert list(loaded.run(weft.random_inputs(loaded))) == [spec.name for spec in loaded.outputs]


# -- what runs on them -----------------------------------------------------------------------------------------------


def test_a_profile_needs_no_inputs(tmp_path: Path) -> None:
    loaded = affine()
    profile = loaded.profile(batch=2, repeat=1)
    assert set(profile.ops.values()) == {"MatMul"}
    for ending in ("html", "json", "trace"):
        profile.save(tmp_path / "made" / f"profile.{ending}")
    page, data, trace = ((tmp_path / "made" / f"profile.{ending}").read_text() for ending in ("html", "json", "trace"))
    assert page.startswith("<!doctype html>")
    assert json.loads(data)["kernels"][0]["nodes"] == list(profile.kernels[0].nodes)
    assert {event["ph"] for event in json.loads(trace)["traceEvents"]} == {"M", "X", "C"}


@pytest.mark.parametrize("name", ["profile.txt", "profile", "html"])
def test_profile_format_follows_the_file_suffix(name: str, tmp_path: Path) -> None:
    with pytest.raises(weft.InputError, match=r"\.html for a page, \.json for data, or \.trace"):
        affine().profile(repeat=1).save(tmp_path / name)
    assert not (tmp_path / name).exists()


def test_unwritable_profile_is_reported(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    profile = affine().profile(repeat=1)
    with pytest.raises(weft.InputError, match="cannot be written"):
        profile.save(tmp_path / "taken" / "profile.json")
    with pytest.raises(weft.InputError, match="a path to save to"):
        profile.save(3)  # type: ignore[arg-type]


def test_runs_are_timed() -> None:
    bench = affine().bench(batch=4, shapes={"length": 2}, seconds=0.02)
    assert bench.inputs == {"x": "float32[4, 2, 4]"}
    assert 0 < bench.lower <= bench.median <= bench.upper
    assert bench.runs > 0
    assert bench.per_second == pytest.approx(1 / bench.median)
    assert "runs" in repr(bench)


def test_engines_are_interleaved() -> None:
    pytest.importorskip("onnxruntime")
    bench = affine().bench({"x": np.ones((1, 1, 4), np.float32)}, seconds=0.02, against="onnxruntime")
    assert list(bench.against) == ["onnxruntime"]
    assert bench.against["onnxruntime"].runs > 0
    assert "onnxruntime" in str(bench)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"against": "unknown"}, "there is no engine 'unknown'"),
        ({"seconds": 0}, "seconds must be a positive number"),
        ({"seconds": "long"}, "seconds must be a positive number"),
    ],
)
def test_invalid_bench_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(weft.InputError, match=message):
        affine().bench(**arguments)
