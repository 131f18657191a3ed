"""Measure the error of each quantized layer, and find layers that should not be quantized.

One graph holds both forms of every layer on the same data, and only the errors are its outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from weft.ir.dtypes import DType
from weft.ir.graph import GraphValue, OnnxModel
from weft.ir.types import TensorType
from weft.optimization.graph_edit import GraphEdit
from weft.quantization.graph_runs import GraphRunner, Sample
from weft.report.deviation import difference

OUTLIER = 4.0  # times the median error of layers
HARMLESS = 0.1  # an error below which a layer is never an outlier


@dataclass(frozen=True, slots=True)
class LayerError:
    """The error of one quantized layer on the original inputs, without the errors of layers before it.

    `noise` is the root mean square of differences, relative to that of the layer; `error` is the largest difference,
    relative to the layer's largest magnitude, as in `weft compare`.
    """

    noise: float
    error: float


@dataclass(frozen=True, slots=True)
class Shadows:
    """A graph with a quantized copy of each layer; `pairs` maps the output of a layer to that of its copy."""

    edit: GraphEdit
    pairs: Mapping[str, str]


def measure_layers(model: OnnxModel, shadows: Shadows, samples: Sequence[Sample], device: str) -> dict[str, LayerError]:
    """Measure the error of each layer, by its output; infinite if the output has NaN or infinities."""
    if not shadows.pairs:
        return {}
    measures = {name: _add_measures(shadows.edit, name, copy) for name, copy in shadows.pairs.items()}
    outputs = tuple(GraphValue(name, None) for names in measures.values() for name in names)
    graph = shadows.edit.finish(graph=replace(model.graph, outputs=outputs))
    runner = GraphRunner(model, graph, device)
    totals = {name: np.zeros(4) for name in measures}
    for sample in samples:
        results = runner.run(sample)
        for name, names in measures.items():
            difference, size, largest, scale = (float(results[each]) for each in names)
            total = totals[name]
            totals[name] = np.array(
                [total[0] + difference, total[1] + size, max(total[2], largest), max(total[3], scale)]
            )
    return {name: LayerError(_ratio(*np.sqrt(total[:2])), _ratio(*total[2:])) for name, total in totals.items()}


def _ratio(error: float, scale: float) -> float:
    if not math.isfinite(error) or not math.isfinite(scale):
        return math.inf
    return float(error / scale) if scale else float(error > 0)


def _add_measures(edit: GraphEdit, name: str, copy: str) -> tuple[str, str, str, str]:
    """Add the sums of squares and the largest magnitudes of the difference and of the original, in this order."""
    to_float32 = {"to": DType.float32.number}
    original = edit.add("Cast", [name], f"{name}_exact", to_float32)
    quantized = edit.add("Cast", [copy], f"{name}_narrow", to_float32)
    difference = edit.add("Sub", [quantized, original], f"{name}_difference")
    measures = []
    for op in ("ReduceSumSquare", "ReduceMax"):
        for value in (difference, original):
            content = value if op == "ReduceSumSquare" else edit.add("Abs", [value], f"{value}_size")
            measures.append(edit.add(op, [content], f"{value}_{op}", {"keepdims": 0}))
    return measures[0], measures[1], measures[2], measures[3]


def measure_effects(model: OnnxModel, shadows: Shadows, samples: Sequence[Sample], device: str) -> dict[str, float]:
    """Measure the largest error of the model's outputs when only one layer is quantized, by the layer's output.

    One graph has both forms of every layer, and for each an input that selects one of them.
    """
    edit = shadows.edit
    switches = {name: edit.fresh(f"{name}_is_narrow") for name in shadows.pairs}
    originals = {name: edit.fresh(f"{name}_whole") for name in shadows.pairs}
    for name, copy in shadows.pairs.items():
        edit.add_named("Where", [switches[name], copy, originals[name]], name)
    nodes = [
        replace(node, outputs=tuple(originals.get(name, name) for name in node.outputs)) for node in model.graph.nodes
    ]
    flags = tuple(GraphValue(name, TensorType(DType.bool, ())) for name in switches.values())
    graph = edit.finish(nodes, replace(model.graph, inputs=(*model.graph.inputs, *flags)))
    runner = GraphRunner(model, graph, device)
    off = {name: np.array(False) for name in switches.values()}
    effects = dict.fromkeys(switches, 0.0)
    for sample in samples:
        expected = runner.run({**sample, **off})
        for name, switch in switches.items():
            results = runner.run({**sample, **off, switch: np.array(True)})
            error = max((difference(expected[output], results[output]).error for output in expected), default=0.0)
            effects[name] = max(effects[name], error)
    return effects


def find_outliers(errors: Mapping[str, LayerError]) -> list[str]:
    """Return the layers whose error is far above the median."""
    if not errors:
        return []
    limit = max(HARMLESS, OUTLIER * median(each.noise for each in errors.values()))
    return [name for name, each in errors.items() if each.noise > limit]
