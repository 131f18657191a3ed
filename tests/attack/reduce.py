"""Smaller models that may show the same fault: fewer outputs, fewer nodes, inner values as inputs, smaller sizes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from attack import rival
from attack.drawn import Draw, as_initializer, describe_array, draw, draw_of, filled, packed, unpacked
from attack.regions import declaration, reads
from attack.verdict import Payload


def smaller_models(payload: Payload) -> Iterator[Payload]:
    model = unpacked(payload["model"])
    runs = payload["runs"]
    if len(runs) > 1:
        for place in range(len(runs)):
            yield payload | {"runs": [run for at, run in enumerate(runs) if at != place]}
    tried = {payload["model"]}
    for candidate in _candidates(model):
        tidied = _tidied(candidate)
        if tidied is None:
            continue
        text = packed(tidied)
        if text not in tried and _cost(tidied) < _cost(model):
            tried.add(text)
            names = {entry.name for entry in tidied.graph.input}
            yield payload | {"model": text, "runs": [{k: v for k, v in run.items() if k in names} for run in runs]}
    yield from _cuts(payload, model)
    yield from _shrunk(payload, model)


def _cost(model: onnx.ModelProto) -> int:
    return model.ByteSize()


def _candidates(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    graph = model.graph
    if len(graph.output) > 1:
        for entry in graph.output:
            candidate = _copy(model)
            del candidate.graph.output[:]
            candidate.graph.output.extend([entry])
            yield candidate
    for node in graph.node[-2::-1]:  # an inner value is the only output
        for name in node.output:
            if name:
                candidate = _copy(model)
                del candidate.graph.output[:]
                candidate.graph.output.append(onnx.ValueInfoProto(name=name))
                yield candidate
    for place, node in enumerate(graph.node):  # a node does nothing
        if node.input and node.input[0] and len(node.output) == 1 and node.op_type != "Identity":
            candidate = _copy(model)
            candidate.graph.node[place].CopyFrom(onnx.helper.make_node("Identity", [node.input[0]], [node.output[0]]))
            yield candidate
    for place, node in enumerate(graph.node):  # an identity is left out
        if node.op_type == "Identity" and node.output[0] not in {entry.name for entry in graph.output}:
            candidate = _copy(model)
            del candidate.graph.node[place]
            for other in candidate.graph.node:
                for at, name in enumerate(other.input):
                    if name == node.output[0]:
                        other.input[at] = node.input[0]
            yield candidate
    for place, node in enumerate(graph.node):  # an attribute at its default
        for at, attribute in enumerate(node.attribute):
            if attribute.type not in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.TENSOR):
                candidate = _copy(model)
                del candidate.graph.node[place].attribute[at]
                yield candidate


def _cuts(payload: Payload, model: onnx.ModelProto) -> Iterator[Payload]:
    """Turn an inner value into an input with its values."""
    names = [name for node in model.graph.node for name in node.output if name]
    probe = filled(model)
    del probe.graph.output[:]
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        values = [rival.run(probe, {name: draw(drawn) for name, drawn in run.items()}) for run in payload["runs"]]
    except rival.RivalError:
        return
    for number, name in enumerate(names):
        arrays = [value[number] for value in values]
        if not all(isinstance(array, np.ndarray) and array.dtype.kind != "O" for array in arrays):
            continue
        candidate = _copy(model)
        for node in candidate.graph.node:
            if name in node.output:
                node.output[list(node.output).index(name)] = f"{name} unused"
        draws = [describe_array(array, number) for array in arrays]
        candidate.graph.input.append(declaration(name, draws[0], draws[0]["shape"] if len(draws) == 1 else None))
        tidied = _tidied(candidate)
        if tidied is not None and len(tidied.graph.node) < len(model.graph.node):
            input_names = {entry.name for entry in tidied.graph.input}
            runs = [
                {key: value for key, value in (run | {name: drawn}).items() if key in input_names}
                for run, drawn in zip(payload["runs"], draws, strict=True)
            ]
            yield payload | {"model": packed(tidied), "runs": runs}


def _shrunk(payload: Payload, model: onnx.ModelProto) -> Iterator[Payload]:
    """Reduce a size everywhere."""
    initializers = {tensor.name: draw_of(tensor) for tensor in model.graph.initializer}
    sizes = {size for run in payload["runs"] for drawn in run.values() for size in drawn["shape"]}
    sizes |= {size for drawn in initializers.values() for size in drawn["shape"]}
    for old in sorted(sizes, reverse=True):
        for new in sorted({1, 2, old // 2, old - 1}):
            if not 0 < new < old:
                continue

            def changed(drawn: Draw, old: int = old, new: int = new) -> Draw:
                shrunk = drawn | {"shape": [new if size == old else size for size in drawn["shape"]]}
                if "int" in drawn["dtype"] and "values" in drawn:
                    shrunk["values"] = [new if value == old else value for value in drawn["values"]]
                return shrunk

            shrunk = _copy(model)
            for tensor in shrunk.graph.initializer:
                tensor.CopyFrom(as_initializer(tensor.name, changed(initializers[tensor.name])))
            for entry in shrunk.graph.input:
                for dim in entry.type.tensor_type.shape.dim:
                    if dim.dim_value == old:
                        dim.dim_value = new
            for entry in shrunk.graph.output:
                entry.CopyFrom(onnx.ValueInfoProto(name=entry.name))
            runs = [{name: changed(drawn) for name, drawn in run.items()} for run in payload["runs"]]
            yield payload | {"model": packed(shrunk), "runs": runs}


def _tidied(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Remove nodes that no output needs."""
    graph = model.graph
    needed = {entry.name for entry in graph.output}
    nodes = []
    for node in reversed(graph.node):
        if needed & set(node.output):
            nodes.append(node)
            needed.update(reads(node))
    candidate = _copy(model)
    for field in ("node", "initializer", "input", "value_info"):
        del getattr(candidate.graph, field)[:]
    candidate.graph.node.extend(reversed(nodes))
    candidate.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in needed)
    candidate.graph.input.extend(entry for entry in graph.input if entry.name in needed)
    used = {node.op_type for node in nodes if node.domain == "attacked"}
    if not used and not any(node.domain == "attacked" for function in model.functions for node in function.node):
        del candidate.functions[:]
    return candidate if nodes else None


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy
