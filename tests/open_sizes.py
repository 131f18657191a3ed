"""Models with dynamic sizes or ranks, whose results must equal those of the same models with static shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from frontend.samples import model, node, subgraph, tensor, value
from onnx import TensorProto, helper
from peers import onnxruntime_run

import weft

Array = np.ndarray[Any, Any]
FORMS: dict[str, Callable[[str, Array], Sequence[Any] | None]] = {
    "shapes": lambda _, array: array.shape,
    "names": lambda name, array: [f"{name}_{axis}" for axis in range(array.ndim)],
    "nothing": lambda _, array: [None] * array.ndim,
    "no rank": lambda *_: None,
}
RNG = np.random.default_rng(11)


def random(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def integers(dtype: Any, *shape: int) -> Array:
    return RNG.integers(0, 9, shape).astype(dtype)


@dataclass(frozen=True)
class Case:
    """Nodes from inputs and constants to y."""

    nodes: Sequence[onnx.NodeProto]
    feeds: Mapping[str, Array]
    constants: Mapping[str, Any] = field(default_factory=dict)
    opsets: dict[str, int] = field(default_factory=lambda: {"": 20})
    output: int = TensorProto.FLOAT
    oracle: str = "shapes"  # the form that onnxruntime takes

    def built(self, form: str) -> onnx.ModelProto:
        """Build the model with input shapes declared in one of the forms."""
        inputs = [
            value(name, FORMS[form](name, array), helper.np_dtype_to_tensor_dtype(array.dtype))
            for name, array in self.feeds.items()
        ]
        constants = [tensor(name, content) for name, content in self.constants.items()]
        return model(self.nodes, inputs, [value("y", None, self.output)], constants, opsets=self.opsets)

    def check(self, form: str, device: str, rtol: float = 1e-4) -> None:
        """Compare with onnxruntime on the model with static shapes."""
        (expected,) = onnxruntime_run(self.built(self.oracle), dict(self.feeds))
        y = weft.load(self.built(form), device=device).run(self.feeds)["y"]
        assert (y.dtype, y.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(y, expected, rtol=rtol, atol=1e-5)


MICROSOFT = {"": 20, "com.microsoft": 1}
IMAGE = random(2, 8, 6, 7)

# What constants say of sizes that inputs leave open.
FIXED: dict[str, Case] = {
    "convolution": Case([node("Conv", ["x", "w", "b"], ["y"], pads=[1] * 4)], {"x": IMAGE},
                        {"w": random(4, 8, 3, 3), "b": random(4)}),
    "convolution in groups": Case([node("Conv", ["x", "w"], ["y"], group=2)], {"x": IMAGE}, {"w": random(6, 4, 3, 3)}),
    "depthwise convolution": Case([node("Conv", ["x", "w"], ["y"], group=8)], {"x": IMAGE}, {"w": random(8, 1, 3, 3)}),
    "convolution of half": Case([node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2),
                                 node("Conv", ["a", "w"], ["y"])], {"x": IMAGE}, {"w": random(5, 4, 3, 3)}),
    "convolution after a map": Case([node("Relu", ["x"], ["a"]), node("Conv", ["a", "w"], ["y"])], {"x": IMAGE},
                                    {"w": random(16, 8, 1, 1)}),
    "convolution after a reshape": Case([node("Reshape", ["x", "s"], ["a"]), node("Conv", ["a", "w"], ["y"])],
                                        {"x": random(2, 200), "s": np.array([2, 8, 5, 5])}, {"w": random(4, 8, 3, 3)}),
    "transposed convolution": Case([node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], group=2)], {"x": IMAGE},
                                   {"w": random(8, 3, 3, 3)}),
    "product": Case([node("MatMul", ["x", "w"], ["y"])], {"x": random(2, 3, 8)}, {"w": random(8, 5)}),
    "product from the left": Case([node("MatMul", ["w", "x"], ["y"])], {"x": random(8, 3)}, {"w": random(5, 8)}),
    "gemm": Case([node("Gemm", ["x", "w", "b"], ["y"], transA=1, transB=1)], {"x": random(8, 3)},
                 {"w": random(5, 8), "b": random(5)}),
    "einsum": Case([node("Einsum", ["x", "w"], ["y"], equation="bhij,hjk->bihk")], {"x": random(2, 3, 4, 5)},
                   {"w": random(3, 5, 6)}),
    "normalization": Case([node("BatchNormalization", ["x", "s", "s", "s", "v"], ["a"]),
                           node("Conv", ["a", "w"], ["y"])], {"x": IMAGE},
                          {"s": random(8), "v": np.abs(random(8)), "w": random(4, 8, 3, 3)}),
    "recurrent": Case([node("LSTM", ["x", "w", "r"], ["y"], hidden_size=4)], {"x": random(5, 2, 3)},
                      {"w": random(1, 16, 3), "r": random(1, 16, 4)}),
    "quantized": Case([node("ConvInteger", ["x", "w", "z"], ["y"])], {"x": integers(np.uint8, 1, 4, 5, 5)},
                      {"w": integers(np.int8, 3, 4, 3, 3), "z": np.uint8(2)}, output=TensorProto.INT32),
    "fused": Case([node("FusedConv", ["x", "w"], ["y"], activation="Relu", domain="com.microsoft")], {"x": IMAGE},
                  {"w": random(4, 8, 3, 3)}, MICROSOFT),
    "parts of no size": Case([node("Split", ["x", "s"], ["a", "y", "b"], axis=1)], {"x": random(2, 5)},
                             {"s": np.array([0, 5, 0])}),
    "nothing in parts": Case([node("Split", ["x", "s"], ["y", "a"], axis=1)], {"x": random(2, 0)},
                             {"s": np.array([0, 0])}),
}  # fmt: skip


def transposed(channels: Sequence[int], kernel: Sequence[int], **attributes: Any) -> Case:
    shape = (channels[0] * channels[2], channels[1], *kernel)
    nodes = [node("ConvTranspose", ["x", "w"], ["y"], group=channels[2], **attributes)]
    return Case(nodes, {"x": random(2, shape[0], *(5, 4)[: len(kernel)]), "w": random(*shape)})


# Kernels whose size is known only in a run: (channels, features, groups).
KERNELS: dict[str, Case] = {
    "strides": transposed((1, 1, 1), (3, 3), strides=[2, 2]),
    "strides and kernel_shape": transposed((1, 1, 1), (3,), strides=[2], kernel_shape=[3]),
    "outputs that no tap meets": transposed((3, 4, 1), (1,), strides=[3], output_padding=[1]),
    "dilations": transposed((2, 3, 1), (4,), strides=[3], dilations=[2], pads=[1, 2]),
    "groups": transposed((2, 3, 2), (2,), strides=[2], pads=[1, 0]),
    "depthwise": transposed((1, 1, 4), (3,), strides=[2]),
}


def shape_arithmetic(*nodes: onnx.NodeProto, output: int = TensorProto.INT32, width: int = 7, **more: Any) -> Case:
    feeds = {"x": np.zeros((2, width, 3), np.float32)}
    constants = {name: np.asarray(content) for name, content in more.items()}
    return Case([node("Shape", ["x"], ["s"]), *nodes], feeds, constants, output=output, oracle="names")


TO_INT32 = node("Cast", ["s"], ["c"], to=TensorProto.INT32)
INT32 = np.int32
# Arithmetic on shapes, in the types that exporters choose for it; one size is known, or none is.
ARITHMETIC: dict[str, Case] = {
    "a size that is known": shape_arithmetic(TO_INT32, node("Gather", ["c", "i"], ["y"]), i=np.int64(1)),
    "a part": shape_arithmetic(TO_INT32, node("Slice", ["c", "a", "b"], ["y"]), a=[1], b=[2]),
    "the product": shape_arithmetic(TO_INT32, node("ReduceProd", ["c"], ["y"], keepdims=0)),
    "the largest": shape_arithmetic(TO_INT32, node("ReduceMax", ["c"], ["y"])),
    "a product that overflows": shape_arithmetic(TO_INT32, node("Mul", ["c", "k"], ["y"]),
                                                 k=np.array([2**30, 2**30, 5], INT32)),
    "a sum that overflows": shape_arithmetic(node("Add", ["s", "k"], ["y"]), k=[2**63 - 1], output=TensorProto.INT64),
    "bytes": shape_arithmetic(node("Cast", ["s"], ["y"], to=TensorProto.UINT8), output=TensorProto.UINT8,
                              width=300),
    "signed bytes": shape_arithmetic(node("Cast", ["s"], ["y"], to=TensorProto.INT8), output=TensorProto.INT8,
                                     width=200),
    "truth": shape_arithmetic(node("Cast", ["s"], ["y"], to=TensorProto.BOOL), output=TensorProto.BOOL),
    "quotients of negative numbers": shape_arithmetic(TO_INT32, node("Sub", ["c", "k"], ["d"]),
                                                      node("Div", ["d", "q"], ["y"]), k=np.array([10, 10, 1], INT32),
                                                      q=np.array([4, 4, -2], INT32)),
    "remainders of negative numbers": shape_arithmetic(TO_INT32, node("Sub", ["c", "k"], ["d"]),
                                                       node("Mod", ["d", "q"], ["y"]), k=np.array([10, 10, 1], INT32),
                                                       q=np.array([4, 4, -2], INT32)),
    "extremes": shape_arithmetic(TO_INT32, node("Min", ["c", "k"], ["d"]), node("Max", ["d", "q"], ["y"]),
                                 k=np.array([10, 3, 2], INT32), q=INT32(3)),
    "a choice": shape_arithmetic(TO_INT32, node("Equal", ["c", "k"], ["d"]), node("Where", ["d", "k", "c"], ["y"]),
                                 k=np.array([2, 3, 2], INT32)),
    "a range": shape_arithmetic(TO_INT32, node("Gather", ["c", "i"], ["d"]), node("Range", ["z", "d", "o"], ["y"]),
                                i=np.int64(1), z=INT32(0), o=INT32(2)),
}  # fmt: skip


def _loop() -> Case:
    inputs = [value("i", [], TensorProto.INT64), value("c", [], TensorProto.BOOL), value("v", None)]
    body = subgraph("body", [node("Add", ["v", "v"], ["w"]), node("Identity", ["c"], ["d"])], ["d", "w"], inputs)
    body.output[0].CopyFrom(value("d", [], TensorProto.BOOL))
    return Case([node("Loop", ["n", "go", "x"], ["y"], body=body)],
                {"n": np.array(3), "go": np.array(True), "x": random(2, 3)})  # fmt: skip


def _scan() -> Case:
    body = subgraph("body", [node("Add", ["a", "b"], ["c"]), node("Mul", ["c", "b"], ["d"])], ["c", "d"],
                    [value("a", [3]), value("b", [3])])  # fmt: skip
    return Case([node("Scan", ["s", "x"], ["z", "y"], body=body, num_scan_inputs=1)],
                {"s": random(3), "x": random(4, 3)})  # fmt: skip


def _late_loop() -> Case:
    case = _loop()
    feeds = {**case.feeds, "n": np.array([[3]]), "axes": np.array([0, 1])}
    return Case([node("Squeeze", ["n", "axes"], ["m"]), node("Loop", ["m", "go", "x"], ["y"],
                                                            body=case.nodes[0].attribute[0].g)], feeds)  # fmt: skip


# Ranks that only a run shows, where the trace of control flow needs them.
RANKS: dict[str, Case] = {
    "count of a loop": _loop(),
    "count of a loop, from data": _late_loop(),
    "scan": _scan(),
    "text and back": Case([node("Cast", ["x"], ["a"], to=TensorProto.STRING),
                           node("Cast", ["a"], ["b"], to=TensorProto.FLOAT), node("Relu", ["b"], ["y"])],
                          {"x": random(2, 3)}),
    "convolution": FIXED["convolution"],
}  # fmt: skip
