"""One-node models, run by weft (with given sizes, and with every size symbolic) and compared with an oracle.

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
    """weft's outputs for the inputs that the model asks for."""
    given = {f"x{number}": value for number, value in enumerate(inputs) if value is not None}
    wanted = {value.name for value in model.graph.input}
    loaded = weft.load(model)
    return list(loaded.run({name: value for name, value in given.items() if name in wanted}).values())


def run_onnxruntime(model: onnx.ModelProto, inputs: Sequence[Array | None]) -> list[Array]:
    """onnxruntime's outputs, without its graph optimizations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    wanted = {value.name for value in model.graph.input}
    given = {f"x{number}": value for number, value in enumerate(inputs) if value is not None}
    return list(session.run(None, {name: value for name, value in given.items() if name in wanted}))


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
    """Compare weft, with given and with symbolic sizes, to `expected`, or to onnxruntime where that is None.

    A None among the expected outputs leaves that output unchecked.
    """
    if expected is None:
        expected = run_onnxruntime(node_model(op, inputs, opset=opset, outputs=outputs, **options), inputs)
    for symbolic in (False, True):
        model = node_model(op, inputs, opset=opset, outputs=outputs, symbolic=symbolic, **options)
        found = run_weft(model, inputs)
        for number, (actual, wanted) in enumerate(zip(found, expected, strict=True)):
            if wanted is not None:
                compare(actual, wanted, rtol, atol, f"output {number} of {op}, symbolic={symbolic}")


def compare(actual: Array, wanted: Array, rtol: float, atol: float, what: str) -> None:
    """Same dtype, same shape, close enough."""
    actual, wanted = np.asarray(actual), np.asarray(wanted)
    assert actual.shape == wanted.shape, f"{what}: shape {actual.shape}, not {wanted.shape}"
    assert actual.dtype == wanted.dtype or object in (actual.dtype, wanted.dtype), f"{what}: {actual.dtype}"
    if wanted.dtype.kind in "OUS":
        assert actual.tolist() == wanted.tolist(), what
        return
    if wanted.dtype.kind == "V":
        actual, wanted = actual.astype(np.float32), wanted.astype(np.float32)
    if wanted.dtype.kind in "iu" and wanted.dtype.itemsize < 8:  # differences of unsigned numbers would wrap around
        actual, wanted = actual.astype(np.int64), wanted.astype(np.int64)
    np.testing.assert_allclose(actual, wanted, rtol=rtol, atol=atol, err_msg=what)


def random_array(seed: int, shape: Sequence[int], dtype: Any = np.float32, low: float = -3, high: float = 3) -> Array:
    """Numbers between low and high, in any dtype; the seed is the test's, so a failure can be repeated."""
    generator = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return np.asarray(generator.random(tuple(shape)) < 0.5)
    if dtype.kind in "iu" or dtype in (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2):
        return np.asarray(generator.integers(int(low), int(high) + 1, tuple(shape))).astype(dtype)
    return np.asarray(generator.uniform(low, high, tuple(shape))).astype(dtype)
