"""A model whose shapes need several programs: its recurrent states start as one number and then have full size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
CHANNELS = (4, 6)


def build(
    nodes: Sequence[Any], inputs: dict[str, list[int | str]], outputs: Sequence[str], constants: dict[str, Array]
) -> onnx.ModelProto:
    """Build a model of float32 inputs with these shapes."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def matting(same_names: bool) -> onnx.ModelProto:
    """Build recurrent video matting in small: gated convolutions at two scales, whose states expand to their scale.

    With `same_names`, the dims of states have the names of the image's dims, as its exporter writes them.
    """
    random = np.random.default_rng(3)
    nodes: list[Any] = []
    constants: dict[str, Array] = {"one": np.array(1, np.float32), "start": np.array([2]), "end": np.array([4])}
    inputs: dict[str, list[int | str]] = {"src": ["batch_size", 3, "height", "width"]}

    def add(op: str, operands: str, result: str, **attributes: Any) -> None:
        nodes.append(helper.make_node(op, operands.split(), [*result.split()], **attributes))

    def convolve(x: str, result: str, sizes: tuple[int, int], **attributes: Any) -> None:
        constants[f"{result}.w"] = (random.standard_normal((*sizes, 3, 3)) * 0.3).astype(np.float32)
        add("Conv", f"{x} {result}.w", result, pads=[1, 1, 1, 1], **attributes)

    below, channels_below = "src", 3
    for number, channels in enumerate(CHANNELS, 1):
        names = [f"{dim}{number}" for dim in "bchw"]
        inputs[f"r{number}i"] = ["batch_size", "channels", "height", "width"] if same_names else [*names]
        x, h, z, r, c = (f"{name}{number}" for name in "xhzrc")
        convolve(below, f"{x}.0", (channels, channels_below), strides=[2, 2])
        add("Relu", f"{x}.0", x)
        add("Shape", x, f"{x}.shape")
        add("Expand", f"r{number}i {x}.shape", h)
        add("Concat", f"{x} {h}", f"{x}.both", axis=1)
        convolve(f"{x}.both", f"{x}.gates", (2 * channels, 2 * channels))
        add("Sigmoid", f"{x}.gates", f"{x}.open")
        add("Split", f"{x}.open", f"{r} {z}", axis=1, num_outputs=2)
        add("Mul", f"{r} {h}", f"{r}.h")
        add("Concat", f"{x} {r}.h", f"{r}.both", axis=1)
        convolve(f"{r}.both", f"{c}.0", (channels, 2 * channels))
        add("Tanh", f"{c}.0", c)
        add("Sub", f"one {z}", f"{z}.rest")
        add("Mul", f"{z}.rest {h}", f"{h}.old")
        add("Mul", f"{z} {c}", f"{c}.new")
        add("Add", f"{h}.old {c}.new", f"r{number}o")
        below, channels_below = f"r{number}o", channels
    convolve(below, "small", (1, channels_below))
    add("Shape", "src", "src.shape")
    add("Slice", "src.shape start end", "sizes")
    add("Shape", "small", "small.shape", end=2)
    add("Concat", "small.shape sizes", "target", axis=0)
    nodes.append(helper.make_node("Resize", ["small", "", "", "target"], ["pha"], mode="linear"))
    return build(nodes, inputs, ["pha", *(f"r{number}o" for number, _ in enumerate(CHANNELS, 1))], constants)


def frames(batch: int, height: int, width: int, seed: int = 5) -> list[Array]:
    """Return three frames of a video."""
    random = np.random.default_rng(seed)
    return [random.standard_normal((batch, 3, height, width)).astype(np.float32) for _ in range(3)]


def play(run: Any, video: Sequence[Array], states: Sequence[Array] | None = None) -> list[list[Array]]:
    """Run a model, as a function from inputs to outputs in order, on frames; its states start at [1, 1, 1, 1]."""
    states = states or [np.zeros((1, 1, 1, 1), np.float32) for _ in CHANNELS]
    results = []
    for frame in video:
        outputs = run({"src": frame, **{f"r{number}i": state for number, state in enumerate(states, 1)}})
        results.append(outputs)
        states = outputs[1:]
    return results
