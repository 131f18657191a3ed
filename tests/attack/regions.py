"""Small graphs cut out of real models: connected nodes, with the shapes and distributions of values in a run.

`anatomy` runs a model once with onnxruntime and notes what each of its values is; `cut` takes a few nodes of it. What
they read from outside becomes an input, drawn like the true value, or a constant; large weights become draws.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from attack.drawn import SMALL, Draw, as_initializer, describe_array, draw_of, dtype_of, packed, tensors, unpacked
from models.catalog import CatalogModel, dim_groups, load_catalog, random_inputs
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]
CORPUS = Path(__file__).with_name("regions.jsonl")
AT_ONCE, LARGE = 60, 1 << 26
"""Values that one run hands out, so that not all are in memory at the same time; but large files are read once."""
BUDGET = 150_000
"""Elements of all values and weights of a region together."""
MOST_BYTES = 8_000


@dataclass(slots=True)
class Anatomy:
    """A model, with a description of each of its values."""

    name: str
    model: onnx.ModelProto
    draws: dict[str, Draw]
    weights: dict[str, Draw] = field(default_factory=dict)


@dataclass(slots=True)
class Case:
    """A mutable model, with descriptions of its inputs and values."""

    name: str
    model: onnx.ModelProto
    feeds: dict[str, Draw]
    draws: dict[str, Draw]

    @property
    def graph(self) -> onnx.GraphProto:
        return self.model.graph


def anatomy(name: str, path: Path, feeds: Mapping[str, Array]) -> Anatomy:
    model = onnx.load(path)
    known_values = {entry.name for entry in model.graph.initializer} | set(feeds)
    names = [output for node in model.graph.node for output in node.output if output]
    declared = {entry.name for entry in model.graph.output}
    draws = {name: describe_array(array, seed) for seed, (name, array) in enumerate(feeds.items())}
    at_once = AT_ONCE if path.stat().st_size < LARGE else len(names)
    for start in range(0, len(names), at_once):
        batch = names[start : start + at_once]
        probe = onnx.ModelProto()
        probe.CopyFrom(model)
        probe.graph.output.extend(onnx.ValueInfoProto(name=entry) for entry in batch if entry not in declared)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(probe.SerializeToString(), options, ["CPUExecutionProvider"])
        for seed, (entry, array) in enumerate(zip(batch, session.run(batch, dict(feeds)), strict=True)):
            if isinstance(array, np.ndarray) and entry not in known_values:
                draws[entry] = describe_array(array, start + seed)
    weights = {
        tensor.name: describe_array(numpy_helper.to_array(tensor), seed)
        for seed, tensor in enumerate(model.graph.initializer)
    }
    for seed, tensor in enumerate(tensors(model.graph)):
        if tensor.data_type != onnx.TensorProto.STRING and np.prod(tensor.dims) > SMALL:
            tensor.CopyFrom(as_initializer(tensor.name, describe_array(numpy_helper.to_array(tensor), seed)))
    return Anatomy(name, model, draws, weights)


def cut(whole: Anatomy, random: np.random.Generator, count: int) -> Case | None:
    """Cut connected nodes into a separate model; None if they read a non-tensor."""
    graph = whole.model.graph
    chosen = _connected(graph, random, count)
    nodes = [graph.node[number] for number in sorted(chosen)]
    results = {output for node in nodes for output in node.output if output}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    read = dict.fromkeys(name for node in nodes for name in reads(node) if name not in results)
    used_elsewhere = {
        name for number, node in enumerate(graph.node) if number not in chosen for name in reads(node)
    } | {entry.name for entry in graph.output}
    inputs: dict[str, Draw] = {}
    initializers = []
    for name in read:
        if name in constants:
            initializers.append(constants[name])
        elif name not in whole.draws:
            return None
        elif "values" in whole.draws[name] and whole.draws[name]["dtype"] == "int64" and random.random() < 0.5:
            initializers.append(as_initializer(name, whole.draws[name]))
        else:
            inputs[name] = whole.draws[name]
    inner = {name for node in nodes for name in reads(node)}
    outputs = [name for node in nodes for name in node.output
               if name in whole.draws and (name in used_elsewhere or name not in inner)]  # fmt: skip
    if not outputs or not inputs:
        return None
    model = onnx.ModelProto(ir_version=min(whole.model.ir_version, 10))
    model.opset_import.extend(whole.model.opset_import)
    model.functions.extend(whole.model.functions)
    model.graph.name = "region"
    model.graph.node.extend(nodes)
    for node in model.graph.node:
        del node.metadata_props[:]
    model.graph.initializer.extend(initializers)
    model.graph.input.extend(declaration(name, drawn) for name, drawn in inputs.items())
    model.graph.output.extend(declaration(name, whole.draws[name]) for name in outputs)
    draws = {name: whole.draws[name] for node in nodes for name in node.output if name in whole.draws}
    draws |= {
        tensor.name: whole.weights.get(tensor.name) or whole.draws[tensor.name] for tensor in initializers
    } | inputs
    return rename_values(Case(f"{whole.name}:{nodes[0].op_type}+{len(nodes) - 1}", model, dict(inputs), draws))


def rename_values(case: Case) -> Case:
    """Give values short names, and remove those of nodes."""
    names = {"": ""}

    def short(name: str) -> str:
        return names.setdefault(name, f"x{len(names)}")

    def rename(graph: onnx.GraphProto) -> None:
        for entry in (*graph.input, *graph.output, *graph.initializer):
            entry.name = short(entry.name)
        for node in graph.node:
            node.name = node.doc_string = ""
            node.input[:] = [short(name) for name in node.input]
            node.output[:] = [short(name) for name in node.output]
            for attribute in node.attribute:
                attribute.doc_string = ""
                if attribute.type == onnx.AttributeProto.GRAPH:
                    rename(attribute.g)
                    del attribute.g.value_info[:]

    rename(case.graph)
    feeds, draws = ({short(name): drawn for name, drawn in old.items()} for old in (case.feeds, case.draws))
    return Case(case.name, case.model, feeds, draws)


def declaration(name: str, drawn: Draw, shape: Any = ...) -> onnx.ValueInfoProto:
    kind = onnx.TensorProto.STRING
    if drawn["dtype"] != "str":
        kind = helper.np_dtype_to_tensor_dtype(dtype_of(drawn["dtype"]))
    return helper.make_tensor_value_info(name, kind, drawn["shape"] if shape is ... else shape)


def smaller_sizes(case: Case, budget: int) -> Case | None:
    """The same nodes on fewer elements: all large even sizes halved until they fit; None where that does not help."""
    for _ in range(6):
        if _elements(case) <= budget:
            return case
        case = halved(case)
    return None


def halved(case: Case) -> Case:
    """Every size beyond 16 that is even, halved, wherever it stands: shapes, weights, constant shapes, groups."""

    def half(size: int) -> int:
        return size // 2 if size > 16 and size % 2 == 0 else size

    def shrunk(drawn: Draw) -> Draw:
        smaller = drawn | {"shape": [half(size) for size in drawn["shape"]]}
        if drawn["dtype"] in ("int64", "int32") and "values" in drawn:
            smaller["values"] = [half(value) for value in drawn["values"]]
        return smaller

    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(as_initializer(tensor.name, shrunk(case.draws[tensor.name])))
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name in ("group", "hidden_size"):
                attribute.i = half(attribute.i)
            elif attribute.name in ("split", "shape"):
                attribute.ints[:] = [half(size) for size in attribute.ints]
            elif attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == onnx.TensorProto.INT64:
                values = numpy_helper.to_array(attribute.t) if np.prod(attribute.t.dims) <= SMALL else None
                if values is not None:
                    small = np.array([half(int(value)) for value in values.ravel()], np.int64).reshape(values.shape)
                    attribute.t.CopyFrom(numpy_helper.from_array(small, attribute.t.name))
    draws = {name: shrunk(drawn) for name, drawn in case.draws.items()}
    feeds = {name: shrunk(drawn) for name, drawn in case.feeds.items()}
    for declared in (*model.graph.input, *model.graph.output):
        declared.CopyFrom(declaration(declared.name, draws[declared.name]))
    return Case(case.name, model, feeds, draws)


def _elements(case: Case) -> int:
    return sum(int(np.prod(drawn["shape"])) for drawn in case.draws.values())


def reads(node: onnx.NodeProto) -> list[str]:
    """Return the values that a node reads, including its subgraphs."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            inside = {output for inner in attribute.g.node for output in inner.output}
            inside |= {entry.name for entry in (*attribute.g.input, *attribute.g.initializer)}
            names += [name for inner in attribute.g.node for name in reads(inner) if name not in inside]
            names += [entry.name for entry in attribute.g.output if entry.name not in inside]
    return names


def _connected(graph: onnx.GraphProto, random: np.random.Generator, count: int) -> set[int]:
    maker = {output: number for number, node in enumerate(graph.node) for output in node.output if output}
    users: defaultdict[str, list[int]] = defaultdict(list)
    for number, node in enumerate(graph.node):
        for name in reads(node):
            users[name].append(number)
    rarity = Counter(node.op_type for node in graph.node)
    weights = np.array([1 / rarity[node.op_type] ** 0.5 for node in graph.node])
    chosen = {int(random.choice(len(graph.node), p=weights / weights.sum()))}
    border: list[int] = []

    def look(number: int) -> None:
        node = graph.node[number]
        border.extend(maker[name] for name in reads(node) if name in maker)
        border.extend(user for name in node.output for user in users[name])

    look(next(iter(chosen)))
    while border and len(chosen) < count:
        # the newest neighbours first, mostly: long chains are where fusion happens
        place = (
            len(border) - 1 - int(random.integers(min(3, len(border))))
            if random.random() < 0.7
            else int(random.integers(len(border)))
        )
        number = border.pop(place)
        if number not in chosen:
            chosen.add(number)
            look(number)
    for number in sorted(chosen):  # constants come along
        for name in reads(graph.node[number]):
            if name in maker and graph.node[maker[name]].op_type == "Constant":
                chosen.add(maker[name])
    return chosen


def as_json(case: Case) -> dict[str, Any]:
    """Of inner values the type and shape; what weights are, the model says."""
    initializers = {tensor.name for tensor in case.graph.initializer}
    inner = {
        name: [drawn["dtype"], drawn["shape"]]
        for name, drawn in case.draws.items()
        if name not in initializers and name not in case.feeds
    }
    return {"name": case.name, "model": packed(case.model), "feeds": case.feeds, "inner": inner}


def from_json(fields: Mapping[str, Any]) -> Case:
    model = unpacked(fields["model"])
    draws = {name: {"dtype": dtype, "shape": shape} for name, (dtype, shape) in fields["inner"].items()}
    draws |= {tensor.name: draw_of(tensor) for tensor in model.graph.initializer} | fields["feeds"]
    return Case(fields["name"], model, dict(fields["feeds"]), draws)


def corpus() -> list[dict[str, Any]]:
    with CORPUS.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def cut_corpus(seed: int, each: int) -> None:
    """Cut `each` regions out of every model of the catalog that is here, no two of the same ops."""
    random = np.random.default_rng(seed)
    op_lists = set()
    with CORPUS.open("w", encoding="utf-8") as lines:
        for model in load_catalog():
            if model.path is None:
                continue
            whole = _anatomy(model)
            count = 0
            for _ in range(4 * each):
                case = cut(whole, random, int(random.integers(3, 25)))
                case = smaller_sizes(case, BUDGET) if case is not None else None
                if case is None or count == each:
                    continue
                line = json.dumps(as_json(case))
                ops = tuple(sorted(node.op_type for node in case.graph.node))
                if len(line) <= MOST_BYTES and ops not in op_lists:
                    op_lists.add(ops)
                    lines.write(line + "\n")
                    count += 1
            print(f"{model.name}: {count}", flush=True)


def _anatomy(model: CatalogModel) -> Anatomy:
    """At half the size where the model allows it."""
    assert model.path is not None
    half = {group.name: group.size // 2 for group in dim_groups(model) if group.size > 63}
    try:
        return anatomy(model.name, model.path, random_inputs(model, half))
    except Exception:
        return anatomy(model.name, model.path, random_inputs(model))


if __name__ == "__main__":
    cut_corpus(0, 12)
