"""Dims named by an expression, as decoder exports have them: chosen sizes satisfy it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.cli import main
from weft.plan.usual_sizes import derive_sizes

HEADS, WIDTH = 2, 4
SUMS = ["past_sequence_length + sequence_length", "past_sequence_length+sequence_length", "sequence_length + past"]


def decoder(total: str, past: str = "past_sequence_length") -> onnx.ModelProto:
    """Build one head of attention with a cache: the mask's size is that of past keys and new ones together."""
    rng = np.random.default_rng(3)
    weights = [
        numpy_helper.from_array(rng.standard_normal((WIDTH, WIDTH), np.float32), name) for name in ("query", "key")
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "query"], ["q"]),
        helper.make_node("MatMul", ["x", "key"], ["k"]),
        helper.make_node("Concat", ["past_key", "k"], ["present_key"], axis=1),
        helper.make_node("Transpose", ["present_key"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"]),
        helper.make_node("Unsqueeze", ["attention_mask", "one"], ["mask"]),
        helper.make_node("Add", ["scores", "mask"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "present_key"], ["y"]),
    ]

    def tensor(name: str, *shape: str | int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        nodes,
        "decoder",
        [
            tensor("x", "batch", "sequence_length", WIDTH),
            tensor("attention_mask", "batch", total),
            tensor("past_key", "batch", past, WIDTH),
        ],
        [tensor("y", "batch", "sequence_length", WIDTH), tensor("present_key", "batch", total, WIDTH)],
        [*weights, numpy_helper.from_array(np.array([1], np.int64), "one")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def past_name(total: str) -> str:
    return "past" if total.endswith("past") else "past_sequence_length"


@pytest.mark.parametrize("total", SUMS)
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_random_inputs_fit_together(total: str, device: str) -> None:
    model = decoder(total, past_name(total))
    loaded = weft.load(model, device=device)
    assert loaded.inputs["attention_mask"].shape == ("batch", total)
    inputs = weft.random_inputs(loaded, shapes={"sequence_length": 3})
    past = inputs["past_key"].shape[1]
    assert inputs["attention_mask"].shape == (1, past + 3)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    for result, array in zip(loaded.run(inputs).values(), expected, strict=True):
        np.testing.assert_allclose(result, array, rtol=1e-4, atol=1e-5)


def test_memory_and_profile_use_consistent_sizes() -> None:
    loaded = weft.load(decoder(SUMS[0]), device="cpu")
    plan, sizes = loaded.plan({"sequence_length": 1, "past_sequence_length": 7})
    assert sizes == {"batch": 1, "sequence_length": 1, "past_sequence_length": 7, SUMS[0]: 8}
    assert plan.inputs == 4 * (WIDTH + 8 + 7 * WIDTH)
    assert loaded.profile(repeat=1).kernels
    assert loaded.bench(seconds=0.01).median > 0


def test_user_sizes_may_contradict_the_expression() -> None:
    """Names of dims are not checked: the caller's sizes run, and fail only where the graph does."""
    loaded = weft.load(decoder(SUMS[0]), device="cpu")
    inputs = weft.random_inputs(loaded, shapes={"past_sequence_length": 2, "sequence_length": 3, SUMS[0]: 9})
    assert inputs["attention_mask"].shape == (1, 9)
    with pytest.raises(weft.InputError, match="do not fit together"):
        loaded.run(inputs)


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "decoder.onnx"
    onnx.save(decoder(SUMS[0]), path)
    assert main(["info", str(path), "--json"]) == 0
    capsys.readouterr()
    assert main(["plan", str(path), "--shape", "sequence_length=1", "--json"]) == 0
    capsys.readouterr()
    assert main(["compare", str(path), "--devices", "onnxruntime,cpu", "--shape", "sequence_length=1", "--json"]) == 0
    sizes = json.loads(capsys.readouterr().out)["sizes"]
    assert sizes[SUMS[0]] == sizes["past_sequence_length"] + 1
    weft.quantize(path, tmp_path / "small.onnx", to="int8")
    assert main(["quantize", str(path), str(tmp_path / "static.onnx"), "--to", "int8"]) == 0


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("a + b", 8),
        ("a*b", 15),
        ("a - 1", 2),
        ("2 * (a + b) - 1", 15),
        ("a - b", 1),  # negative
        ("a + c", 1),  # of a dim that there is none of
        ("a / b", 1),
        ("a + 1.5", 1),
        ("a +", 1),
        ("f(a)", 1),
        ("a.b", 1),
        ("(" * 150 + "a" + ")" * 150, 1),
    ],
)
def test_expressions(name: str, size: int) -> None:
    assert derive_sizes({"a": 3, "b": 5, name: 1}, {})[name] == size
    assert derive_sizes({"a": 3, "b": 5, name: 1}, {name: 1})[name] == 1
