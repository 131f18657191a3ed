"""Write the sample files that the blocks of pages use; README.md lists them."""

from __future__ import annotations

import shutil
import wave
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from weft.generation.generator import DEMO_MODEL

LABELS = ("cat", "dog", "horse", "ship", "lorry")
SIDE = WIDTH = 32
CLASSIFIERS = ("model.onnx", "your.onnx", "in.onnx", "resnet50.onnx", "mobilenet_v3_large.onnx")
"""One small model under the names that pages use."""


def prepare(folder: Path) -> None:
    """Write all sample files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(16)
    for name in CLASSIFIERS:
        onnx.save(classifier(), folder / name)
    onnx.save(classifier(other_bias=True), folder / "other.onnx")
    onnx.save(recurrent(), folder / "recurrent.onnx")
    onnx.save(speech(), folder / "speech.onnx")
    onnx.save(tokens(), folder / "tokens.onnx")
    (folder / "labels.txt").write_text("\n".join(LABELS) + "\n", encoding="utf-8")
    x = random.normal(size=(2, 3, SIDE, SIDE)).astype(np.float32)
    np.save(folder / "x.npy", x)
    np.savez(folder / "inputs.npz", x=x)
    samples = folder / "samples"
    samples.mkdir(exist_ok=True)
    for number in range(8):
        np.savez(samples / f"{number}.npz", x=random.normal(size=(1, 3, SIDE, SIDE)).astype(np.float32))
    _write_photo(folder / "photo.jpg")
    _write_photo(folder / "photo.png")
    images = folder / "pictures"
    images.mkdir(exist_ok=True)
    for number in range(3):
        _write_photo(images / f"{number}.jpg", color_shift=number)
    _write_tone(folder / "speech.wav")
    shutil.copytree(DEMO_MODEL, folder / "folder", dirs_exist_ok=True)
    (folder / "prompt.txt").write_text("A function:", encoding="utf-8")
    (folder / "schema.json").write_text('{"type": "integer", "minimum": 0, "maximum": 99}', encoding="utf-8")


def classifier(other_bias: bool = False) -> onnx.ModelProto:
    """Return a model of x: float32[batch, 3, 32, 32] to y: float32[batch, 5]: convolutions, a residual, a product."""
    random = np.random.default_rng(1)
    weights = {
        "conv1.weight": random.normal(size=(WIDTH, 3, 3, 3)) / 5,
        "conv1.bias": np.zeros(WIDTH),
        "conv2.weight": random.normal(size=(WIDTH, WIDTH, 3, 3)) / 16,
        "conv2.bias": np.full(WIDTH, 0.5 if other_bias else 0.0),
        "fc.weight": random.normal(size=(WIDTH, len(LABELS))),
        "fc.bias": random.normal(size=len(LABELS)),
    }
    nodes = [
        helper.make_node("Conv", ["x", "conv1.weight", "conv1.bias"], ["a"], "conv1", pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"], "relu1"),
        helper.make_node("Conv", ["b", "conv2.weight", "conv2.bias"], ["c"], "conv2", pads=[1] * 4),
        helper.make_node("Add", ["b", "c"], ["/layer3/Add_output_0"], "/layer3/Add"),
        helper.make_node("Relu", ["/layer3/Add_output_0"], ["d"], "relu2"),
        helper.make_node("GlobalAveragePool", ["d"], ["e"], "pool"),
        helper.make_node("Flatten", ["e"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "fc.weight", "fc.bias"], ["y"], "fc"),
    ]
    return _model("classifier", nodes, [_value("x", ["batch", 3, SIDE, SIDE])], [_value("y", ["batch", 5])], weights)


def recurrent() -> onnx.ModelProto:
    """Return one recurrent step: x: float32[batch, 4], state: float32[batch, 8] to y: float32[batch, 3], next_state."""
    random = np.random.default_rng(2)
    weights = {
        "input.weight": random.normal(size=(4, 8)) / 2,
        "state.weight": random.normal(size=(8, 8)) / 4,
        "output.weight": random.normal(size=(8, 3)),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "input.weight"], ["a"], "from_input"),
        helper.make_node("MatMul", ["state", "state.weight"], ["b"], "from_state"),
        helper.make_node("Add", ["a", "b"], ["c"], "sum"),
        helper.make_node("Tanh", ["c"], ["next_state"], "tanh"),
        helper.make_node("MatMul", ["next_state", "output.weight"], ["y"], "to_output"),
    ]
    inputs = [_value("x", ["batch", 4]), _value("state", ["batch", 8])]
    return _model("recurrent", nodes, inputs, [_value("y", ["batch", 3]), _value("next_state", ["batch", 8])], weights)


def speech() -> onnx.ModelProto:
    """Return a model of audio: float32[batch, samples] and sr: int64 to loudness: float32[batch, 1]."""
    nodes = [
        helper.make_node("Mul", ["audio", "audio"], ["square"], "square"),
        helper.make_node("ReduceMean", ["square", "axis"], ["mean"], "mean"),
        helper.make_node("Cast", ["sr"], ["rate"], "rate", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["mean", "rate"], ["loudness"], "scale"),
    ]
    inputs = [_value("audio", ["batch", "samples"]), _value("sr", [], TensorProto.INT64)]
    return _model("speech", nodes, inputs, [_value("loudness", ["batch", 1])], {"axis": np.array([1])})


def tokens() -> onnx.ModelProto:
    """Return a model of input_ids and attention_mask: int64[batch, sequence] to embedding: float32[batch, 8]."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"], "look_up"),
        helper.make_node("Cast", ["attention_mask"], ["mask"], "mask", to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["wide"], "widen"),
        helper.make_node("Mul", ["rows", "wide"], ["seen"], "hide"),
        helper.make_node("ReduceSum", ["seen", "middle"], ["total"], "total", keepdims=0),
        helper.make_node("ReduceSum", ["wide", "middle"], ["count"], "count", keepdims=0),
        helper.make_node("Div", ["total", "count"], ["embedding"], "mean"),
    ]
    inputs = [_value(name, ["batch", "sequence"], TensorProto.INT64) for name in ("input_ids", "attention_mask")]
    table = np.random.default_rng(3).normal(size=(100, 8))
    constants = {"table": table, "last": np.array([-1]), "middle": np.array([1])}
    return _model("tokens", nodes, inputs, [_value("embedding", ["batch", 8])], constants)


def _model(
    name: str,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: dict[str, np.ndarray],
) -> onnx.ModelProto:
    arrays = {key: array.astype(np.float32) if array.dtype.kind == "f" else array for key, array in constants.items()}
    initializers = [numpy_helper.from_array(array, key) for key, array in arrays.items()]
    graph = helper.make_graph(nodes, name, inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model


def _value(name: str, shape: list[str | int], dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def _write_photo(path: Path, color_shift: int = 0) -> None:
    from PIL import Image

    across, down = np.meshgrid(np.linspace(0, 255, 96), np.linspace(0, 255, 64))
    pixels = np.stack([across, down, 255 - across], axis=-1).astype(np.uint8)
    Image.fromarray(np.roll(pixels, color_shift, axis=-1)).save(path)


def _write_tone(path: Path) -> None:
    rate = 16000
    samples = (np.sin(2 * np.pi * 440 * np.arange(rate) / rate) * 12000).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
