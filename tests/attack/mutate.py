"""Mutations of a model: each changes one thing that a real model could have otherwise.

All take a case (regions.py) and a generator, edit the case in place, and say whether they found something to change.
What is known of values (`case.draws`) may be stale after the first mutation: then the next one makes a model that
all engines refuse, which is a case as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from attack.attributes import change_attribute
from attack.drawn import Draw, as_initializer, describe_array, draw_of, dtype_of
from attack.edits import FLOATS, Random, forget_outputs, fresh, pick, put_nodes
from attack.flow import branch, into_function, loop, scan
from attack.insertions import insert
from attack.regions import Case, declaration
from onnx import AttributeProto, TensorProto, helper, numpy_helper


def mutated(case: Case, random: Random, count: int) -> list[str]:
    """Mutate a case several times, and return the names of the mutations."""
    names = list(MUTATIONS)
    weights = np.array([MUTATIONS[name][1] for name in names], np.float64)
    done = []
    for _ in range(8 * count):
        name = names[int(random.choice(len(names), p=weights / weights.sum()))]
        if MUTATIONS[name][0](case, random):
            done.append(name)
        if len(done) == count:
            break
    return done


def change_size(case: Case, random: Random) -> bool:
    """One size is another one, at all places or at one."""
    everywhere = random.random() < 0.7
    initializers = {tensor.name: draw_of(tensor) for tensor in case.graph.initializer}
    shaped = {name: drawn for name, drawn in {**case.feeds, **initializers}.items() if drawn["shape"]}
    places = [(name, axis) for name, drawn in shaped.items() for axis in range(len(drawn["shape"]))]
    if not places:
        return False
    name, axis = pick(random, [place for place in places if place[0] in case.feeds] or places)
    old = shaped[name]["shape"][axis]
    new = int(pick(random, (1, old + 1, max(1, old - 1), 2 * old, int(random.integers(1, 20)), 3, 1)))
    if random.random() < 0.1:
        new = 0
    for other, drawn in shaped.items():
        shape = [new if size == old and (everywhere or (other, place) == (name, axis)) else size
                 for place, size in enumerate(drawn["shape"])]  # fmt: skip
        if shape == drawn["shape"]:
            continue
        resized = drawn | {"shape": shape}
        if other in case.feeds:
            case.feeds[other] = resized
            declared = next(entry for entry in case.graph.input if entry.name == other)
            declared.CopyFrom(declaration(other, resized))
        elif everywhere:
            tensor = next(entry for entry in case.graph.initializer if entry.name == other)
            tensor.CopyFrom(_initializer(other, resized))
        case.draws[other] = resized
    forget_outputs(case)
    return True


def _initializer(name: str, drawn: Draw) -> TensorProto:
    if "values" in drawn and int(np.prod(drawn["shape"])) > 4096:
        drawn = {key: value for key, value in drawn.items() if key != "values"} | {"seed": 1, "mean": 0.0, "std": 1.0}
    return as_initializer(name, drawn)


def make_symbolic(case: Case, random: Random) -> bool:
    """Declared sizes become names: one for each size, one for each place, or none at all."""
    how = pick(random, ("by size", "by place", "some", "none", "rank"))
    for entry in case.graph.input:
        drawn = case.feeds[entry.name]
        shape: Any = [
            f"n{size}" if how == "by size" else f"{entry.name}_{axis}" if how in ("by place", "some") else None
            for axis, size in enumerate(drawn["shape"])
        ]
        if how != "none" and len(shape) > 2 and random.random() < 0.6:  # exporters know the channels
            shape[1] = drawn["shape"][1]
        if how == "some":
            shape = [name if random.random() < 0.5 else size for name, size in zip(shape, drawn["shape"])]
        entry.CopyFrom(declaration(entry.name, drawn, None if how == "rank" and random.random() < 0.5 else shape))
    forget_outputs(case)
    return True


def change_type(case: Case, random: Random) -> bool:
    """All floats of another type, or one value only, with casts around it or without one back."""
    if random.random() < 0.35:
        return _retype(case, str(pick(random, ("float16", "float64", "float64", "bfloat16"))))
    floats = [(place, at) for place, node in enumerate(case.graph.node) for at, name in enumerate(node.input)
              if case.draws.get(name, {"dtype": ""})["dtype"] in FLOATS]  # fmt: skip
    if not floats:
        return False
    place, at = pick(random, floats)
    node = case.graph.node[place]
    kind = pick(random, (10, 16, 11, 1, 6, 7, 9, 5, 12, 13))
    there, back = fresh(case), fresh(case)
    source = node.input[at]
    nodes = []
    if kind in (12, 13):  # what a negative number becomes is left open
        nodes.append(helper.make_node("Abs", [source], [fresh(case)]))
    nodes.append(helper.make_node("Cast", [nodes[0].output[0] if nodes else source], [there], to=kind))
    if random.random() < 0.85:
        original = helper.np_dtype_to_tensor_dtype(dtype_of(case.draws[source]["dtype"]))
        nodes.append(helper.make_node("Cast", [there], [back], to=original))
        case.draws[back] = case.draws[source]
        node.input[at] = back
    else:
        case.draws[there] = case.draws[source] | {"dtype": helper.tensor_dtype_to_np_dtype(kind).name}
        node.input[at] = there
    put_nodes(case, place, nodes)
    return True


def _retype(case: Case, dtype: str) -> bool:
    kind = helper.np_dtype_to_tensor_dtype(dtype_of(dtype))

    def changed(drawn: Draw) -> Draw:
        return drawn | {"dtype": dtype} if drawn["dtype"] in FLOATS else drawn

    for tensor in case.graph.initializer:
        drawn = draw_of(tensor)
        if drawn["dtype"] in FLOATS:
            tensor.CopyFrom(as_initializer(tensor.name, changed(drawn)))
    for node in case.graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = kind
            elif attribute.type == AttributeProto.TENSOR and attribute.t.data_type == TensorProto.FLOAT:
                if not attribute.t.doc_string:
                    array = numpy_helper.to_array(attribute.t).astype(dtype_of(dtype))
                    attribute.t.CopyFrom(numpy_helper.from_array(array, attribute.t.name))
                else:
                    attribute.t.CopyFrom(as_initializer(attribute.t.name, changed(draw_of(attribute.t))))
    renamed = {}
    ahead = []
    for entry in case.graph.input:
        drawn = case.feeds[entry.name]
        if drawn["dtype"] in FLOATS and dtype == "bfloat16":  # numpy has none to feed: cast inside
            renamed[entry.name] = fresh(case)
            case.draws[renamed[entry.name]] = changed(drawn)
            ahead.append(helper.make_node("Cast", [entry.name], [renamed[entry.name]], to=kind))
        elif drawn["dtype"] in FLOATS:
            case.feeds[entry.name] = changed(drawn)
            entry.type.tensor_type.elem_type = kind
    for node in case.graph.node:
        for at, name in enumerate(node.input):
            node.input[at] = renamed.get(name, name)
    put_nodes(case, 0, ahead)
    for name, drawn in case.draws.items():
        if name not in renamed:
            case.draws[name] = changed(drawn)
    if dtype == "bfloat16":
        for entry in case.graph.output:
            if case.draws.get(entry.name, {"dtype": ""})["dtype"] == dtype:
                cast_output = fresh(case)
                case.graph.node.append(helper.make_node("Cast", [entry.name], [cast_output], to=TensorProto.FLOAT))
                entry.name = cast_output
    forget_outputs(case)
    return True


def rewire(case: Case, random: Random) -> bool:
    """A node reads another value: of the same shape and type, or of any."""
    places = [(place, at) for place, node in enumerate(case.graph.node) for at, name in enumerate(node.input) if name]
    place, at = pick(random, places)
    node = case.graph.node[place]
    old = case.draws.get(node.input[at])
    earlier = [*case.feeds, *(tensor.name for tensor in case.graph.initializer)]
    earlier += [name for other in case.graph.node[:place] for name in other.output if name]
    if old is not None and random.random() < 0.8:
        earlier = [name for name in earlier if name in case.draws and case.draws[name]["dtype"] == old["dtype"]
                   and case.draws[name]["shape"] == old["shape"]]  # fmt: skip
    earlier = [name for name in earlier if name != node.input[at]]
    if not earlier:
        return False
    node.input[at] = pick(random, earlier)
    forget_outputs(case)
    return True


def remove(case: Case, random: Random) -> bool:
    """A node that keeps its shape is left out."""
    fitting = [
        place
        for place, node in enumerate(case.graph.node)
        if node.input and node.output and len(case.graph.node) > 1 and _shape(case, node.input[0]) is not None
        and _shape(case, node.input[0]) == _shape(case, node.output[0])
    ]  # fmt: skip
    if not fitting:
        return False
    place = pick(random, fitting)
    node = case.graph.node[place]
    node.CopyFrom(helper.make_node("Identity", [node.input[0]], [node.output[0]]))
    return True


def _shape(case: Case, name: str) -> list[int] | None:
    return case.draws[name]["shape"] if name in case.draws else None


def duplicate(case: Case, random: Random) -> bool:
    """A node twice: one reader takes the second, or both are outputs."""
    place = int(random.integers(len(case.graph.node)))
    node = case.graph.node[place]
    twin = onnx.NodeProto.FromString(node.SerializeToString())
    names = {}
    for at, name in enumerate(node.output):
        if name:
            names[name] = fresh(case)
            case.draws[names[name]] = case.draws.get(name, {"dtype": "float32", "shape": []})
            twin.output[at] = names[name]
    for other in case.graph.node[place + 1 :]:
        if random.random() < 0.5:
            for at, name in enumerate(other.input):
                other.input[at] = names.get(name, name)
    put_nodes(case, place + 1, [twin])
    case.graph.output.append(onnx.ValueInfoProto(name=next(iter(names.values()))))
    return True


def drop_input(case: Case, random: Random) -> bool:
    places = [(place, at) for place, node in enumerate(case.graph.node) for at in range(1, len(node.input))
              if node.input[at] and (_optional(case, node, at) or random.random() < 0.03)]  # fmt: skip
    if not places:
        return False
    place, at = pick(random, places)
    node = case.graph.node[place]
    if at == len(node.input) - 1:
        del node.input[at:]
    else:
        node.input[at] = ""
    return True


def _optional(case: Case, node: onnx.NodeProto, at: int) -> bool:
    opset = next((entry.version for entry in case.model.opset_import if entry.domain == node.domain), 1)
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    except onnx.defs.SchemaError:
        return False
    return at >= len(schema.inputs) or schema.inputs[at].option != onnx.defs.OpSchema.FormalParameterOption.Single


def add_output(case: Case, random: Random) -> bool:
    declared = {entry.name for entry in case.graph.output}
    names = [name for node in case.graph.node for name in node.output if name and name not in declared]
    if not names:
        return False
    case.graph.output.append(onnx.ValueInfoProto(name=pick(random, names)))
    return True


def change_opset(case: Case, random: Random) -> bool:
    for entry in case.model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = int(pick(random, (9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23)))
    return True


def change_constant(case: Case, random: Random) -> bool:
    """A small constant is another one, or an input of the model."""
    small = [tensor for tensor in case.graph.initializer if not tensor.doc_string]
    if not small:
        return False
    tensor = pick(random, small)
    array = np.array(numpy_helper.to_array(tensor))
    if array.dtype.kind in "OUS":
        return False
    if random.random() < 0.4:
        name = tensor.name
        case.feeds[name] = case.draws[name] = describe_array(array, 7)
        case.graph.initializer.remove(tensor)
        case.graph.input.append(declaration(name, case.feeds[name]))
        return True
    if array.size:
        at = int(random.integers(array.size))
        flat = array.ravel().copy()
        old = flat[at].item()
        choices = (0, 1, 2, -1, old + 1, old - 1, -old) if array.dtype.kind != "b" else (not old,)
        with np.errstate(all="ignore"):
            flat[at] = np.asarray(pick(random, choices)).astype(flat.dtype)
        tensor.CopyFrom(numpy_helper.from_array(flat.reshape(array.shape), tensor.name))
    forget_outputs(case)
    return True


MUTATIONS: dict[str, tuple[Callable[[Case, Random], bool], float]] = {
    "attribute": (change_attribute, 4),
    "size": (change_size, 3),
    "symbolic": (make_symbolic, 2.5),
    "type": (change_type, 2.5),
    "rewire": (rewire, 2),
    "insert": (insert, 6),
    "remove": (remove, 1),
    "duplicate": (duplicate, 1),
    "drop input": (drop_input, 0.7),
    "output": (add_output, 1),
    "if": (branch, 1),
    "loop": (loop, 1),
    "scan": (scan, 0.7),
    "function": (into_function, 0.7),
    "opset": (change_opset, 0.7),
    "constant": (change_constant, 1.5),
}
