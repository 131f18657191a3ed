"""The kinds of narrower numbers behind one interface: which layers there are, the graph with all but some of them
narrowed, and a graph that has them beside the layers as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

from weft.ir.dtypes import DType
from weft.ir.graph import Graph, OnnxModel
from weft.quantization.blocks import BlockForm, in_blocks, shadow_blocks
from weft.quantization.calibrate import observed_ranges, seen_values
from weft.quantization.halves import half_weights, in_halves, narrow_nodes, with_half_weights
from weft.quantization.integers import in_integers, plan_integers, shadow_integers
from weft.quantization.layers import NarrowedLayer, find_layers, find_tables
from weft.quantization.options import BF16, FP16, QuantizeOptions
from weft.quantization.preparing import constants
from weft.quantization.ranges import CodeScale, code_scale
from weft.quantization.running import GraphValues, Sample
from weft.quantization.sensitivity import Shadows

HALF_TYPES = {FP16: DType.float16, BF16: DType.bfloat16}
Tell = Callable[[str, float], None]


class Narrowing(Protocol):
    """One kind of narrower numbers for one model."""

    values: GraphValues
    """Of the model as it is: at least what layers give."""

    @property
    def candidates(self) -> Sequence[str]:
        """What the layers that may be narrowed give."""
        ...

    def graph(self, kept: Collection[str]) -> Graph:
        """The graph with all layers narrowed but those that give these values."""
        ...

    def shadows(self) -> Shadows | None:
        """Each layer beside the narrowed one, where layers can be told apart."""
        ...


class Integers:
    """int8: ranges are calibrated once, for every value that may become codes."""

    def __init__(
        self, model: OnnxModel, version: int, samples: Sequence[Sample], options: QuantizeOptions, tell: Tell
    ) -> None:
        self._graph = model.graph
        self._version = version
        self._known = constants(model.graph)
        self._layers = find_layers(model.graph, self._known, ("float32",))
        plan = plan_integers(model.graph, self._layers, self._known)
        names = sorted(plan.rounded | plan.read)  # where layers are kept, values lose what they were alike
        wanted = [*names, *(layer.output for layer in self._layers)]
        self.values = GraphValues(model, model.graph, wanted, samples[0], options.device)
        ranges = observed_ranges(names, self.values, samples, tell)
        self._scales: dict[str, CodeScale] = {
            name: code_scale(*values.chosen(options.calibration), options.activations)
            for name, values in ranges.items()
        }
        overflowing = {name for name, values in ranges.items() if not values.is_finite}
        self._layers = [layer for layer in self._layers if layer.input not in overflowing]

    @property
    def candidates(self) -> Sequence[str]:
        return [layer.output for layer in self._layers]

    def graph(self, kept: Collection[str]) -> Graph:
        plan = plan_integers(self._graph, _all_but(self._layers, kept), self._known)
        return in_integers(self._graph, plan, self._scales, self._known, self._version)

    def shadows(self) -> Shadows:
        plan = plan_integers(self._graph, self._layers, self._known)
        return shadow_integers(self._graph, plan, self._scales, self._known, self._version)


class Blocks:
    """int4: nothing depends on data."""

    def __init__(self, model: OnnxModel, version: int, samples: Sequence[Sample], options: QuantizeOptions) -> None:
        graph = self._graph = model.graph
        self._version = version
        self._form = BlockForm(options.block, options.written)
        known = constants(graph)
        found = find_layers(graph, known, ("float32", "float16"))
        self._layers = [layer for layer in found if not layer.is_convolution and _fills(layer, options.block)]
        if options.embeddings:
            self._layers += find_tables(graph, known, options.block)
        self.values = GraphValues(model, graph, self.candidates, samples[0], options.device)

    @property
    def candidates(self) -> Sequence[str]:
        return [layer.output for layer in self._layers]

    def graph(self, kept: Collection[str]) -> Graph:
        return in_blocks(self._graph, _all_but(self._layers, kept), self._form, self._version)

    def shadows(self) -> Shadows:
        return shadow_blocks(self._graph, self._layers, self._form, self._version)


class Halves:
    """float16 or bfloat16 for all that stands it: what the nodes are is seen in runs."""

    def __init__(
        self, model: OnnxModel, version: int, samples: Sequence[Sample], options: QuantizeOptions, tell: Tell
    ) -> None:
        self._graph = model.graph
        self._version = version
        self._dtype = HALF_TYPES[options.to]
        names = [name for node in model.graph.nodes for name in node.outputs if name]
        self.values = GraphValues(model, model.graph, names, samples[0], options.device)
        self._seen = seen_values(model.graph, self.values, samples, tell)
        self._nodes = narrow_nodes(model.graph, self._seen, self._dtype)

    @property
    def candidates(self) -> Sequence[str]:
        return [node.outputs[0] for node in self._nodes]

    def graph(self, kept: Collection[str]) -> Graph:
        chosen = [node for node in self._nodes if node.outputs[0] not in kept]
        return in_halves(self._graph, chosen, self._seen, self._dtype, self._version)

    def shadows(self) -> None:
        return None


class HalfWeights:
    """float16 or bfloat16 for weights alone."""

    def __init__(self, model: OnnxModel, version: int, samples: Sequence[Sample], options: QuantizeOptions) -> None:
        self._graph = model.graph
        self._version = version
        self._dtype = HALF_TYPES[options.to]
        self._weights = half_weights(model.graph, self._dtype)
        self._readers = {
            node.outputs[0]: [name for name in node.inputs if name in self._weights]
            for node in model.graph.nodes
            if any(name in self._weights for name in node.inputs)
        }
        self.values = GraphValues(model, model.graph, self.candidates, samples[0], options.device)

    @property
    def candidates(self) -> Sequence[str]:
        return list(self._readers)

    def graph(self, kept: Collection[str]) -> Graph:
        wide = {name for reader in kept for name in self._readers.get(reader, ())}
        return with_half_weights(self._graph, self._dtype, wide, self._version)

    def shadows(self) -> None:
        return None


def _fills(layer: NarrowedLayer, block: int) -> bool:
    """Whether rows are long enough that blocks make them smaller."""
    return int(layer.weights.shape[layer.depth_axis]) >= block


def _all_but(layers: Sequence[NarrowedLayer], kept: Collection[str]) -> list[NarrowedLayer]:
    return [layer for layer in layers if layer.output not in kept]


def matching(graph: Graph, candidates: Sequence[str], patterns: Sequence[str]) -> dict[str, list[str]]:
    """The candidates whose node or value has a name that fits a pattern, by pattern."""
    names: Mapping[str, tuple[str, ...]] = {
        name: (node.name, *node.outputs, *node.inputs[1:2]) for node in graph.nodes for name in node.outputs
    }
    return {
        pattern: [
            name for name in candidates if any(fnmatchcase(each, pattern) for each in names.get(name, (name,)) if each)
        ]
        for pattern in patterns
    }
