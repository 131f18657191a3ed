"""The quantizers, one for each number format, behind one interface."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

from weft.ir.dtypes import DType
from weft.ir.graph import Graph, OnnxModel
from weft.quantization.calibrate import ReportProgress, observe_ranges, observe_values
from weft.quantization.graph_runs import GraphValues, Sample
from weft.quantization.half import find_half_nodes, find_half_weights, write_half, write_half_weights
from weft.quantization.int4 import BlockForm, shadow_int4, write_int4
from weft.quantization.int8 import plan_int8, shadow_int8, write_int8
from weft.quantization.layers import Layer, find_layers, find_tables
from weft.quantization.options import BF16, FP16, QuantizeOptions
from weft.quantization.prepare import find_constants
from weft.quantization.ranges import QuantizationParameters, make_parameters
from weft.quantization.sensitivity import Shadows

HALF_TYPES = {FP16: DType.float16, BF16: DType.bfloat16}


class Quantizer(Protocol):
    """Quantizes one model to one number format. A layer is identified by the name of its output."""

    values: GraphValues
    """The values of the original model, at least the outputs of layers."""

    @property
    def candidates(self) -> Sequence[str]:
        """The layers that can be quantized."""
        ...

    def graph(self, excluded: Collection[str]) -> Graph:
        """Return the graph with all layers quantized except the excluded ones."""
        ...

    def shadows(self) -> Shadows | None:
        """Return a graph with both forms of each layer; None if layers cannot be measured one by one."""
        ...


class Int8Quantizer:
    """int8: ranges are calibrated once, for every value that may be quantized."""

    def __init__(
        self,
        model: OnnxModel,
        version: int,
        samples: Sequence[Sample],
        options: QuantizeOptions,
        report: ReportProgress,
    ) -> None:
        self._graph = model.graph
        self._version = version
        self._constants = find_constants(model.graph)
        self._layers = find_layers(model.graph, self._constants, ("float32",))
        plan = plan_int8(model.graph, self._layers, self._constants)
        # Also values with the scale of another one: if layers are excluded, they may need their own.
        names = sorted(plan.quantized | plan.layer_inputs)
        observed = [*names, *(layer.output for layer in self._layers)]
        self.values = GraphValues(model, model.graph, observed, samples[0], options.device)
        ranges = observe_ranges(names, self.values, samples, report)
        self._parameters: dict[str, QuantizationParameters] = {
            name: make_parameters(*values.choose(options.calibration), options.activations)
            for name, values in ranges.items()
        }
        overflowing = {name for name, values in ranges.items() if not values.is_finite}
        self._layers = [layer for layer in self._layers if layer.input not in overflowing]

    @property
    def candidates(self) -> Sequence[str]:
        return [layer.output for layer in self._layers]

    def graph(self, excluded: Collection[str]) -> Graph:
        plan = plan_int8(self._graph, _exclude(self._layers, excluded), self._constants)
        return write_int8(self._graph, plan, self._parameters, self._constants, self._version)

    def shadows(self) -> Shadows:
        plan = plan_int8(self._graph, self._layers, self._constants)
        return shadow_int8(self._graph, plan, self._parameters, self._constants, self._version)


class Int4Quantizer:
    """int4: weights only, independent of data."""

    def __init__(self, model: OnnxModel, version: int, samples: Sequence[Sample], options: QuantizeOptions) -> None:
        graph = self._graph = model.graph
        self._version = version
        self._form = BlockForm(options.block, options.written)
        constants = find_constants(graph)
        layers = find_layers(graph, constants, ("float32", "float16"))
        self._layers = [layer for layer in layers if not layer.is_convolution and _has_block(layer, options.block)]
        if options.embeddings:
            self._layers += find_tables(graph, constants, options.block)
        self.values = GraphValues(model, graph, self.candidates, samples[0], options.device)

    @property
    def candidates(self) -> Sequence[str]:
        return [layer.output for layer in self._layers]

    def graph(self, excluded: Collection[str]) -> Graph:
        return write_int4(self._graph, _exclude(self._layers, excluded), self._form, self._version)

    def shadows(self) -> Shadows:
        return shadow_int4(self._graph, self._layers, self._form, self._version)


class HalfQuantizer:
    """float16 or bfloat16 for all nodes whose values fit, which runs on samples show."""

    def __init__(
        self,
        model: OnnxModel,
        version: int,
        samples: Sequence[Sample],
        options: QuantizeOptions,
        report: ReportProgress,
    ) -> None:
        self._graph = model.graph
        self._version = version
        self._dtype = HALF_TYPES[options.to]
        names = [name for node in model.graph.nodes for name in node.outputs if name]
        self.values = GraphValues(model, model.graph, names, samples[0], options.device)
        self._observed = observe_values(model.graph, self.values, samples, report)
        self._nodes = find_half_nodes(model.graph, self._observed, self._dtype)

    @property
    def candidates(self) -> Sequence[str]:
        return [node.outputs[0] for node in self._nodes]

    def graph(self, excluded: Collection[str]) -> Graph:
        chosen = [node for node in self._nodes if node.outputs[0] not in excluded]
        return write_half(self._graph, chosen, self._observed, self._dtype, self._version)

    def shadows(self) -> None:
        return None


class HalfWeightQuantizer:
    """float16 or bfloat16 for weights only."""

    def __init__(self, model: OnnxModel, version: int, samples: Sequence[Sample], options: QuantizeOptions) -> None:
        self._graph = model.graph
        self._version = version
        self._dtype = HALF_TYPES[options.to]
        self._weights = find_half_weights(model.graph, self._dtype)
        self._readers = {
            node.outputs[0]: [name for name in node.inputs if name in self._weights]
            for node in model.graph.nodes
            if any(name in self._weights for name in node.inputs)
        }
        self.values = GraphValues(model, model.graph, self.candidates, samples[0], options.device)

    @property
    def candidates(self) -> Sequence[str]:
        return list(self._readers)

    def graph(self, excluded: Collection[str]) -> Graph:
        weights = {name for reader in excluded for name in self._readers.get(reader, ())}
        return write_half_weights(self._graph, self._dtype, weights, self._version)

    def shadows(self) -> None:
        return None


def _has_block(layer: Layer, block: int) -> bool:
    """Whether rows fill at least one block; shorter ones would not become smaller."""
    return int(layer.weights.shape[layer.depth_axis]) >= block


def _exclude(layers: Sequence[Layer], excluded: Collection[str]) -> list[Layer]:
    return [layer for layer in layers if layer.output not in excluded]


def match_layers(graph: Graph, candidates: Sequence[str], patterns: Sequence[str]) -> dict[str, list[str]]:
    """Map each pattern to the candidates whose node, output or weights have a matching name."""
    names: Mapping[str, tuple[str, ...]] = {
        name: (node.name, *node.outputs, *node.inputs[1:2]) for node in graph.nodes for name in node.outputs
    }
    return {
        pattern: [
            name for name in candidates if any(fnmatchcase(each, pattern) for each in names.get(name, (name,)) if each)
        ]
        for pattern in patterns
    }
