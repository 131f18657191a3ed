"""One ONNX model whose outputs are computed by kernels of many kinds."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from export.networks import FLOAT, INT64, _numbers, node
from onnx import TensorProto, helper, numpy_helper

from weft.ir.arrays import Array

MICROSOFT = "com.microsoft"
ROWS, WIDE, COLUMNS = 13, 64, 37


def build_model() -> bytes:
    """All outputs depend on the inputs: x[n, 64], an image[1, 8, 12, 10] and integers[n]."""
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, Array] = {}
    outputs: dict[str, int] = {}
    random = np.random.default_rng(5)

    def add(op: str, inputs: str, output: str, dtype: int = FLOAT, **attributes: object) -> None:
        nodes.append(node(op, inputs, output, **attributes))
        outputs[output.split(" ")[0]] = dtype

    # products of floats
    weights |= {"w": _numbers(1, WIDE, COLUMNS), "bias": _numbers(2, COLUMNS), "w16": _numbers(3, WIDE, 24)}
    weights["w16"] = weights["w16"].astype(np.float16)
    add("Gemm", "x w bias", "product")
    nodes.append(node("Cast", "w16", "w32", to=FLOAT))
    add("MatMul", "x w32", "half_weights")
    add("Einsum", "x x", "gram", equation="ik,jk->ij")
    weights |= {"w_few": _numbers(11, WIDE, 900), "start": np.array([0]), "end": np.array([2])}
    nodes.append(node("Slice", "x start end start", "few"))
    add("MatMul", "few w_few", "few_rows")

    # convolutions
    weights |= {"c1": _numbers(4, 16, 8, 3, 3), "c2": _numbers(5, 8, 1, 5, 5), "c3": _numbers(6, 12, 8, 1, 1)}
    add("Conv", "image c1", "conv3x3", pads=[1, 1, 1, 1])
    add("Conv", "image c1", "strided", strides=[2, 2])
    add("Conv", "image c2", "depthwise", group=8, pads=[2, 2, 2, 2])
    add("Conv", "image c3", "pointwise")
    add("MaxPool", "image", "maxima", kernel_shape=[3, 3])

    # products and convolutions of int8, with activations of both signs
    weights |= {
        "scale": np.float32(0.03),
        "zero_u": np.uint8(119),
        "zero_s": np.int8(-3),
        "weight_scale": np.linspace(0.01, 0.02, COLUMNS, dtype=np.float32),
        "wq": _with_limits(random.integers(-128, 128, (WIDE, COLUMNS)).astype(np.int8)),
        "cq": random.integers(-127, 128, (16, 8, 3, 3)).astype(np.int8),
        "c_scale": np.linspace(0.01, 0.02, 16, dtype=np.float32),
    }
    nodes.append(node("DequantizeLinear", "wq weight_scale", "wd", axis=1))
    nodes.append(node("DequantizeLinear", "cq c_scale", "cd", axis=0))
    for sign in "us":
        for name, value, weight in (("product", "x", "wd"), ("conv", "image", "cd")):
            part = f"{name}_{sign}8"
            nodes.append(node("QuantizeLinear", f"{value} scale zero_{sign}", f"{part}_q"))
            nodes.append(node("DequantizeLinear", f"{part}_q scale zero_{sign}", f"{part}_d"))
            attributes = {"pads": [1, 1, 1, 1]} if name == "conv" else {}
            add("MatMul" if name == "product" else "Conv", f"{part}_d {weight}", part, **attributes)
    add("MatMulInteger", "product_u8_q wq zero_u", "integer_product", TensorProto.INT32)

    # weights of four bits
    blocks = WIDE // 32
    weights |= {
        "w4": random.integers(0, 256, (COLUMNS, blocks, 16)).astype(np.uint8),
        "s4": random.uniform(0.01, 0.03, COLUMNS * blocks).astype(np.float32),
    }
    for level in (0, 4):
        attributes = {"K": WIDE, "N": COLUMNS, "bits": 4, "block_size": 32, "accuracy_level": level}
        add("MatMulNBits", "x w4 s4", f"four_bits_{level}", domain=MICROSOFT, **attributes)

    # rows, attention and a recurrent layer
    weights |= {"gain": _numbers(7, WIDE), "heads": np.array([1, -1, 4, 16]), "k": np.array([5])}
    add("Softmax", "x", "softmax")
    add("LayerNormalization", "x gain", "normalized")
    add("ReduceLogSumExp", "x", "log_sum", axes=[1])
    nodes.append(node("Reshape", "x heads", "split"))
    nodes.append(node("Transpose", "split", "q", perm=[0, 2, 1, 3]))
    nodes.append(node("Transpose", "split", "kt", perm=[0, 2, 3, 1]))
    nodes.append(node("MatMul", "q kt", "scores"))
    nodes.append(node("Softmax", "scores", "chances"))
    add("MatMul", "chances q", "attention")
    weights |= {"lw": _numbers(8, 1, 48, WIDE), "lr": _numbers(9, 1, 48, 12), "lb": _numbers(10, 1, 96)}
    weights["one"] = np.array([1])
    nodes.append(node("Unsqueeze", "x one", "series"))
    add("LSTM", "series lw lr lb", "recurrent", hidden_size=12)

    # narrow floats
    for kind, dtype in (("bfloat16", TensorProto.BFLOAT16), ("float16", TensorProto.FLOAT16)):
        nodes.append(node("Cast", "x", f"to_{kind}", to=dtype))
        add("Cast", f"to_{kind}", kind, to=FLOAT)

    # order, sums along an axis, elementary functions, integers
    nodes.append(node("TopK", "x k", "largest places"))
    outputs |= {"largest": FLOAT, "places": INT64}
    add("CumSum", "x one", "running")
    for op in ("Erf", "Tanh", "Exp", "Sin", "Sigmoid", "Round"):
        add(op, "x", op.lower())
    add("Mod", "numbers seven", "rest", INT64)
    add("ScatterElements", "numbers places_1 numbers_1", "scattered", INT64)
    weights |= {"seven": np.array(-7), "places_1": np.array([2, 0]), "numbers_1": np.array([-5, 2**40])}

    graph = helper.make_graph(
        nodes,
        "kernels",
        [
            helper.make_tensor_value_info("x", FLOAT, [ROWS, WIDE]),
            helper.make_tensor_value_info("image", FLOAT, [1, 8, 12, 10]),
            helper.make_tensor_value_info("numbers", INT64, [ROWS]),
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    for value in graph.output:
        value.CopyFrom(helper.make_tensor_value_info(value.name, outputs[value.name], None))
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString()


def _with_limits(array: Array, limit: int = 128) -> Array:
    """Set the first columns to the lowest and highest numbers that saturate."""
    array[:, 0], array[:, 1] = -limit, limit - (array.dtype == np.int8)
    return array


def build_inputs(seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {
        "x": _with_limits(random.normal(0, 1, (ROWS, WIDE)).astype(np.float32).T, 6).T,
        "image": random.normal(0, 1, (1, 8, 12, 10)).astype(np.float32),
        "numbers": random.integers(-(2**40), 2**40, ROWS),
    }


def compute_expected(model: bytes, inputs: dict[str, Array]) -> dict[str, Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))
