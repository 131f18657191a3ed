"""Maps on quantized values: exact quotients without divisions, and byte storage between products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.fuse.quantized import find_stored_bytes
from weft.ir.scalar import Apply, walk
from weft.loading import open_pipeline
from weft.runtime.options import LoadOptions

Array = np.ndarray[Any, Any]


def sum_model(scales: list[np.float32], zeros: list[int]) -> bytes:
    """Build the sum of two byte tensors, dequantized, added and quantized."""
    constants = [numpy_helper.from_array(np.asarray(scale), f"s{n}") for n, scale in enumerate(scales)]
    constants += [numpy_helper.from_array(np.asarray(zero, np.uint8), f"z{n}") for n, zero in enumerate(zeros)]
    nodes = [
        helper.make_node("DequantizeLinear", ["a", "s0", "z0"], ["ar"]),
        helper.make_node("DequantizeLinear", ["b", "s1", "z1"], ["br"]),
        helper.make_node("Add", ["ar", "br"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "s2", "z2"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.UINT8, [256, 256]) for name in "ab"]
    outputs = [helper.make_tensor_value_info("y", TensorProto.UINT8, [256, 256])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def expected(a: Array, b: Array, scales: list[np.float32], zeros: list[int]) -> Array:
    """Each step in float32."""
    real = [(x.astype(np.int32) - z).astype(np.float32) * s for x, z, s in zip((a, b), zeros, scales)]
    quotient = (real[0] + real[1]) / scales[2]
    assert quotient.dtype == np.float32
    return np.clip(np.rint(quotient) + zeros[2], 0, 255).astype(np.uint8)


@pytest.mark.parametrize("seed", range(8))
def test_quotients_are_exact(seed: int) -> None:
    """All pairs of bytes, with scales that make ties likely and others."""
    random = np.random.default_rng(seed)
    scales = [np.float32(x) for x in random.uniform(0.001, 0.1, 3)]
    if seed % 4 == 1:
        scales[1], scales[2] = scales[0], np.float32(scales[0] * 2)
    if seed % 4 == 2:
        scales[2] = np.float32(1.9999999)  # the mantissa for which a reciprocal is not enough
    if seed % 4 == 3:
        scales = [np.float32(x) for x in (0.3, 0.1, 0.2)]
    zeros = [int(x) for x in random.integers(0, 256, 3)]
    a, b = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    model = weft.load(sum_model(scales, zeros), device="cpu", cache=False)
    (actual,) = model.run({"a": a, "b": b}).values()
    np.testing.assert_array_equal(actual, expected(a, b, scales, zeros))


def residual_model() -> bytes:
    """Build the sum of two byte convolutions."""
    random = np.random.default_rng(3)
    constants = [
        numpy_helper.from_array(random.integers(-127, 128, (32, 16, 1, 1)).astype(np.int8), f"w{n}") for n in range(2)
    ]
    constants.append(numpy_helper.from_array(np.float32(0.02), "s"))
    constants.append(numpy_helper.from_array(np.uint8(120), "z"))
    constants.append(numpy_helper.from_array(np.int8(0), "zero"))
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xr"]),
    ]
    for n in range(2):
        nodes += [
            helper.make_node("DequantizeLinear", [f"w{n}", "s", "zero"], [f"w{n}r"]),
            helper.make_node("Conv", ["xr", f"w{n}r"], [f"c{n}"]),
            helper.make_node("QuantizeLinear", [f"c{n}", "s", "z"], [f"c{n}q"]),
            helper.make_node("DequantizeLinear", [f"c{n}q", "s", "z"], [f"c{n}r"]),
        ]
    nodes += [
        helper.make_node("Add", ["c0r", "c1r"], ["y0"]),
        helper.make_node("QuantizeLinear", ["y0", "s", "z"], ["y1"]),
        helper.make_node("DequantizeLinear", ["y1", "s", "z"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 16, 9, 9])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 32, 9, 9])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def test_first_of_two_products_is_stored_as_bytes() -> None:
    pipeline = open_pipeline(residual_model(), LoadOptions(device="cpu", cache=False))
    program = pipeline.optimise(pipeline.trace())
    (stored,) = find_stored_bytes(program)
    groups = pipeline.fuse(program).groups
    assert any(stored in group.results for group in groups)
    expressions = [
        step.primitive.expression for g in groups for step in g.steps if hasattr(step.primitive, "expression")
    ]
    divisions = [node for e in expressions for node in walk(e) if isinstance(node, Apply) and node.function == "divide"]
    assert len(divisions) == 1  # that of the input
    x = np.random.default_rng(1).normal(0, 0.5, (2, 16, 9, 9)).astype(np.float32)
    outcomes = [
        next(iter(weft.load(residual_model(), device=device, cache=False).run({"x": x}).values()))
        for device in ("reference", "cpu")
    ]
    np.testing.assert_array_equal(*outcomes)
