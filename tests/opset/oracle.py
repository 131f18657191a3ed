"""One-node models, run by weft (with static and with symbolic sizes) and compared with an oracle.

The oracle is onnxruntime, or an expected result that the test computes with numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import helper

import weft

Array = np.ndarray[Any, Any]


def node_model(
    op: str,
    inputs: Sequence[Array | None],
    *,
    opset: int,
    domain: str = "",
    outputs: int = 1,
    symbolic: bool = False,
    constants: Sequence[int] = (),
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node. None leaves an input out; `constants` are the positions of inputs to store in the model."""
    names = ["" if value is None else f"x{number}" for number, value in enumerate(inputs)]
    results = [f"y{number}" for number in range(outputs)]
    node = helper.make_node(op, names, results, domain=domain, **attributes)
    fed = [(name, value) for number, (name, value) in enumerate(zip(names, inputs)) if name and number not in constants]
    declared = [_declare(name, value, symbolic) for name, value in fed]
    stored = [onnx.numpy_helper.from_array(inputs[number], names[number]) for number in constants]
    graph = helper.make_graph(
        [node], op, declared, [onnx.ValueInfoProto(name=name) for name in results], initializer=stored
    )
    imports = [helper.make_opsetid("", opset if not domain else 21)]
    if domain:
        imports.append(helper.make_opsetid(domain, opset))
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _declare(name: str, value: Array, symbolic: bool) -> onnx.ValueInfoProto:
    kind = onnx.TensorProto.STRING if value.dtype == object else helper.np_dtype_to_tensor_dtype(value.dtype)
    shape = [f"{name}_{axis}" for axis in range(value.ndim)] if symbolic else value.shape
    return helper.make_tensor_value_info(name, kind, shape)


def run_weft(model: onnx.ModelProto, inputs: Sequence[Array | None]) -> list[Array]:
    """Run weft with the inputs that the model has."""
    arguments = {f"x{number}": value for number, value in enumerate(inputs) if value is not None}
    names = {value.name for value in model.graph.input}
    loaded = weft.load(model)
    return list(loaded.run({name: value for name, value in arguments.items() if name in names}).values())


def run_onnxruntime(model: onnx.ModelProto, inputs: Sequence[Array | None]) -> list[Array]:
    """onnxruntime's outputs, without its graph optimizations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    names = {value.name for value in model.graph.input}
    arguments = {f"x{number}": value for number, value in enumerate(inputs) if value is not None}
    return list(session.run(None, {name: value for name, value in arguments.items() if name in names}))


def check(
    op: str,
    inputs: Sequence[Array | None],
    *,
    opset: int,
    expected: Sequence[Array | None] | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    outputs: int = 1,
    **options: Any,
) -> None:
    """Compare weft, with static and with symbolic sizes, to `expected`, or to onnxruntime where that is None.

    A None among the expected outputs leaves that output unchecked.
    """
    if expected is None:
        expected = run_onnxruntime(node_model(op, inputs, opset=opset, outputs=outputs, **options), inputs)
    for symbolic in (False, True):
        model = node_model(op, inputs, opset=opset, outputs=outputs, symbolic=symbolic, **options)
        results = run_weft(model, inputs)
        for number, (actual, reference) in enumerate(zip(results, expected, strict=True)):
            if reference is not None:
                compare(actual, reference, rtol, atol, f"output {number} of {op}, symbolic={symbolic}")


def compare(actual: Array, reference: Array, rtol: float, atol: float, what: str) -> None:
    """Assert the same dtype and shape, and close values."""
    actual, reference = np.asarray(actual), np.asarray(reference)
    assert actual.shape == reference.shape, f"{what}: shape {actual.shape}, not {reference.shape}"
    assert actual.dtype == reference.dtype or object in (actual.dtype, reference.dtype), f"{what}: {actual.dtype}"
    if reference.dtype.kind in "OUS":
        assert actual.tolist() == reference.tolist(), what
        return
    if reference.dtype.kind == "V":
        actual, reference = actual.astype(np.float32), reference.astype(np.float32)
    if reference.dtype.kind in "iu" and reference.dtype.itemsize < 8:  # unsigned differences would wrap around
        actual, reference = actual.astype(np.int64), reference.astype(np.int64)
    np.testing.assert_allclose(actual, reference, rtol=rtol, atol=atol, err_msg=what)


def random_array(seed: int, shape: Sequence[int], dtype: Any = np.float32, low: float = -3, high: float = 3) -> Array:
    """Draw numbers between low and high, in any dtype."""
    generator = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return np.asarray(generator.random(tuple(shape)) < 0.5)
    if dtype.kind in "iu" or dtype in (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2):
        return np.asarray(generator.integers(int(low), int(high) + 1, tuple(shape))).astype(dtype)
    return np.asarray(generator.uniform(low, high, tuple(shape))).astype(dtype)
