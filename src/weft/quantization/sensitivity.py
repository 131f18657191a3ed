"""What narrower numbers do to each layer: the layer as it is and the narrowed one on the same data, side by side in one
graph of which only the errors come out; and which layers are better left as they are.
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
from weft.quantization.running import GraphRunner, Sample
from weft.report.deviation import difference

OUT_OF_LINE = 4.0  # times the error of the layer in the middle
HARMLESS = 0.1  # an error that no layer is left alone for


@dataclass(frozen=True, slots=True)
class LayerError:
    """A narrowed layer on the data of the model as it was, without the errors of layers before it.

    `noise` is the root of the mean squared error, relative to that of the layer; `error` the largest difference,
    relative to the layer's largest magnitude, as `weft compare` has it.
    """

    noise: float
    error: float


@dataclass(frozen=True, slots=True)
class Shadows:
    """A graph that also has narrowed layers: the name that each gives beside the value that it should be."""

    edit: GraphEdit
    pairs: Mapping[str, str]


def layer_errors(model: OnnxModel, shadows: Shadows, samples: Sequence[Sample], device: str) -> dict[str, LayerError]:
    """The errors of layers by what they give; infinite where a layer gives something else than numbers."""
    if not shadows.pairs:
        return {}
    measured = {name: _measured(shadows.edit, name, other) for name, other in shadows.pairs.items()}
    outputs = tuple(GraphValue(part, None) for parts in measured.values() for part in parts)
    graph = shadows.edit.finish(graph=replace(model.graph, outputs=outputs))
    runner = GraphRunner(model, graph, device)
    sums = {name: np.zeros(4) for name in measured}
    for sample in samples:
        found = runner.run(sample)
        for name, parts in measured.items():
            difference, size, largest, scale = (float(found[part]) for part in parts)
            total = sums[name]
            sums[name] = np.array(
                [total[0] + difference, total[1] + size, max(total[2], largest), max(total[3], scale)]
            )
    return {name: LayerError(_ratio(*np.sqrt(total[:2])), _ratio(*total[2:])) for name, total in sums.items()}


def _ratio(error: float, scale: float) -> float:
    if not math.isfinite(error) or not math.isfinite(scale):
        return math.inf
    return float(error / scale) if scale else float(error > 0)


def _measured(edit: GraphEdit, name: str, other: str) -> tuple[str, str, str, str]:
    """Nodes that give the sum of squares and the largest magnitude of a difference, and of what it is relative to."""
    wide = {"to": DType.float32.number}
    whole = edit.add("Cast", [name], f"{name}_exact", wide)
    narrow = edit.add("Cast", [other], f"{name}_narrow", wide)
    difference = edit.add("Sub", [narrow, whole], f"{name}_difference")
    found = []
    for op in ("ReduceSumSquare", "ReduceMax"):
        for value in (difference, whole):
            content = value if op == "ReduceSumSquare" else edit.add("Abs", [value], f"{value}_size")
            found.append(edit.add(op, [content], f"{value}_{op}", {"keepdims": 0}))
    return found[0], found[1], found[2], found[3]


def output_effects(model: OnnxModel, shadows: Shadows, samples: Sequence[Sample], device: str) -> dict[str, float]:
    """How far each layer alone moves the outputs, by what it gives: the largest error when no other is narrowed.

    One graph has both forms of every layer, and for each an input that says which of them counts.
    """
    edit = shadows.edit
    switches = {name: edit.fresh(f"{name}_is_narrow") for name in shadows.pairs}
    whole = {name: edit.fresh(f"{name}_whole") for name in shadows.pairs}
    for name, other in shadows.pairs.items():
        edit.add_named("Where", [switches[name], other, whole[name]], name)
    nodes = [replace(node, outputs=tuple(whole.get(name, name) for name in node.outputs)) for node in model.graph.nodes]
    flags = tuple(GraphValue(name, TensorType(DType.bool, ())) for name in switches.values())
    graph = edit.finish(nodes, replace(model.graph, inputs=(*model.graph.inputs, *flags)))
    runner = GraphRunner(model, graph, device)
    off = {name: np.array(False) for name in switches.values()}
    effects = dict.fromkeys(switches, 0.0)
    for sample in samples:
        expected = runner.run({**sample, **off})
        for name, switch in switches.items():
            found = runner.run({**sample, **off, switch: np.array(True)})
            moved = max((difference(expected[one], found[one]).error for one in expected), default=0.0)
            effects[name] = max(effects[name], moved)
    return effects


def out_of_line(errors: Mapping[str, LayerError]) -> list[str]:
    """The layers whose error is far above that of most."""
    if not errors:
        return []
    limit = max(HARMLESS, OUT_OF_LINE * median(each.noise for each in errors.values()))
    return [name for name, each in errors.items() if each.noise > limit]
