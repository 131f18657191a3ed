"""Smaller models that may show the same fault: fewer outputs, fewer nodes, inner values as inputs, smaller sizes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from attack import rival
from attack.drawn import Draw, as_initializer, described, draw, draw_of, filled, packed, unpacked
from attack.regions import declaration, reads
from attack.verdict import Payload


def smaller_models(payload: Payload) -> Iterator[Payload]:
    model = unpacked(payload["model"])
    runs = payload["runs"]
    if len(runs) > 1:
        for place in range(len(runs)):
            yield payload | {"runs": [run for at, run in enumerate(runs) if at != place]}
    seen = {payload["model"]}
    for candidate in _candidates(model):
        tidied = _tidied(candidate)
        if tidied is None:
            continue
        text = packed(tidied)
        if text not in seen and _cost(tidied) < _cost(model):
            seen.add(text)
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
            made = _copy(model)
            del made.graph.output[:]
            made.graph.output.extend([entry])
            yield made
    for node in graph.node[-2::-1]:  # an inner value is the only output
        for name in node.output:
            if name:
                made = _copy(model)
                del made.graph.output[:]
                made.graph.output.append(onnx.ValueInfoProto(name=name))
                yield made
    for place, node in enumerate(graph.node):  # a node does nothing
        if node.input and node.input[0] and len(node.output) == 1 and node.op_type != "Identity":
            made = _copy(model)
            made.graph.node[place].CopyFrom(onnx.helper.make_node("Identity", [node.input[0]], [node.output[0]]))
            yield made
    for place, node in enumerate(graph.node):  # an identity is left out
        if node.op_type == "Identity" and node.output[0] not in {entry.name for entry in graph.output}:
            made = _copy(model)
            del made.graph.node[place]
            for other in made.graph.node:
                for at, name in enumerate(other.input):
                    if name == node.output[0]:
                        other.input[at] = node.input[0]
            yield made
    for place, node in enumerate(graph.node):  # an attribute at its default
        for at, attribute in enumerate(node.attribute):
            if attribute.type not in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.TENSOR):
                made = _copy(model)
                del made.graph.node[place].attribute[at]
                yield made


def _cuts(payload: Payload, model: onnx.ModelProto) -> Iterator[Payload]:
    """An inner value becomes an input, with the numbers that it has."""
    names = [name for node in model.graph.node for name in node.output if name]
    probe = filled(model)
    del probe.graph.output[:]
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        values = [rival.run(probe, {name: draw(given) for name, given in run.items()}) for run in payload["runs"]]
    except rival.RivalError:
        return
    for number, name in enumerate(names):
        arrays = [value[number] for value in values]
        if not all(isinstance(array, np.ndarray) and array.dtype.kind != "O" for array in arrays):
            continue
        made = _copy(model)
        for node in made.graph.node:
            if name in node.output:
                node.output[list(node.output).index(name)] = f"{name} unused"
        draws = [described(array, number) for array in arrays]
        made.graph.input.append(declaration(name, draws[0], draws[0]["shape"] if len(draws) == 1 else None))
        tidied = _tidied(made)
        if tidied is not None and len(tidied.graph.node) < len(model.graph.node):
            kept = {entry.name for entry in tidied.graph.input}
            runs = [
                {key: value for key, value in (run | {name: given}).items() if key in kept}
                for run, given in zip(payload["runs"], draws, strict=True)
            ]
            yield payload | {"model": packed(tidied), "runs": runs}


def _shrunk(payload: Payload, model: onnx.ModelProto) -> Iterator[Payload]:
    """A size is smaller wherever it stands."""
    held = {tensor.name: draw_of(tensor) for tensor in model.graph.initializer}
    sizes = {size for run in payload["runs"] for given in run.values() for size in given["shape"]}
    sizes |= {size for given in held.values() for size in given["shape"]}
    for old in sorted(sizes, reverse=True):
        for new in sorted({1, 2, old // 2, old - 1}):
            if not 0 < new < old:
                continue

            def changed(given: Draw, old: int = old, new: int = new) -> Draw:
                made = given | {"shape": [new if size == old else size for size in given["shape"]]}
                if "int" in given["dtype"] and "values" in given:
                    made["values"] = [new if value == old else value for value in given["values"]]
                return made

            made = _copy(model)
            for tensor in made.graph.initializer:
                tensor.CopyFrom(as_initializer(tensor.name, changed(held[tensor.name])))
            for entry in made.graph.input:
                for dim in entry.type.tensor_type.shape.dim:
                    if dim.dim_value == old:
                        dim.dim_value = new
            for entry in made.graph.output:
                entry.CopyFrom(onnx.ValueInfoProto(name=entry.name))
            runs = [{name: changed(given) for name, given in run.items()} for run in payload["runs"]]
            yield payload | {"model": packed(made), "runs": runs}


def _tidied(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Without what no output needs."""
    graph = model.graph
    needed = {entry.name for entry in graph.output}
    nodes = []
    for node in reversed(graph.node):
        if needed & set(node.output):
            nodes.append(node)
            needed.update(reads(node))
    made = _copy(model)
    for field in ("node", "initializer", "input", "value_info"):
        del getattr(made.graph, field)[:]
    made.graph.node.extend(reversed(nodes))
    made.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in needed)
    made.graph.input.extend(entry for entry in graph.input if entry.name in needed)
    used = {node.op_type for node in nodes if node.domain == "attacked"}
    if not used and not any(node.domain == "attacked" for function in model.functions for node in function.node):
        del made.functions[:]
    return made if nodes else None


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return made
