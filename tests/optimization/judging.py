"""A model and its optimised form before onnxruntime and onnx's checker: the same results, nothing left to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime

import weft
from weft.optimization.optimize import OptimizationReport, optimize

Array = np.ndarray[Any, Any]
CLOSE = 2e-6  # of the largest magnitude, where arithmetic was put in another order


def judged(
    model: onnx.ModelProto, *feeds: Mapping[str, Any], tolerance: float = 0.0, check: bool = True, **options: Any
) -> OptimizationReport:
    """Optimise a model; what comes out is valid, gives the same in both engines, and cannot be optimised again."""
    report = optimize(model, **options)
    if check:
        onnx.checker.check_model(report.model, full_check=True)
    again = optimize(report.model, **{key: content for key, content in options.items() if key != "sizes"})
    assert again.done == {}
    assert [value.name for value in report.model.graph.input] == _input_names(model, report)
    assert [value.name for value in report.model.graph.output] == [value.name for value in model.graph.output]
    before, after = as_written(model), as_written(report.model)
    for feed in feeds:
        expected = before.run(None, dict(feed))
        compare(expected, after.run(None, dict(feed)), tolerance)
        ours = weft.load(report.model, device="reference").run(dict(feed))
        compare(expected, [ours[value.name] for value in model.graph.output], max(tolerance, 1e-5))
    return report


def _input_names(model: onnx.ModelProto, report: OptimizationReport) -> list[str]:
    kept = {value.name for value in report.model.graph.input}
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name not in weights or value.name in kept]


def as_written(model: onnx.ModelProto | str) -> onnxruntime.InferenceSession:
    """A session that computes what the file says, node by node."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    content = model if isinstance(model, str) else model.SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def compare(expected: Any, found: Any, tolerance: float) -> None:
    """Results are of the same types and shapes, and equal up to a part of the largest magnitude."""
    for one, other in zip(expected, found, strict=True):
        if isinstance(one, list):
            compare(one, other, tolerance)
            continue
        if not isinstance(one, np.ndarray):
            assert one == other
            continue
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        if one.dtype.kind not in "fc" or tolerance == 0.0:
            np.testing.assert_array_equal(one, other)
            continue
        magnitude = np.abs(one[np.isfinite(one)]).max(initial=0.0)
        np.testing.assert_allclose(other, one, rtol=0, atol=tolerance * float(magnitude) + 1e-30)


def ops(report: OptimizationReport) -> Counter[str]:
    """The nodes that are left, by op, those in bodies included."""
    return Counter(node.op_type for node in _nodes(report.model.graph))


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)
