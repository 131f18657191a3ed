"""Mutations that put control flow around a node, or nodes into a function."""

from __future__ import annotations

import numpy as np
import onnx
from attack.drawn import Draw, dtype_of
from attack.edits import FLOATS, NodeList, Random, before, constant, emit, fresh, pick, put_nodes
from attack.insertions import UNARY
from attack.regions import Case, declaration, reads
from onnx import TensorProto, helper, numpy_helper


def branch(case: Case, random: Random) -> bool:
    """Put an If around a node; its other branch computes a value of the same type."""
    places = _single_output_positions(case)
    if not places:
        return False
    place = pick(random, places)
    node = case.graph.node[place]
    output = node.output[0]
    drawn = case.draws[output]
    inner, other = fresh(case), fresh(case)
    body = onnx.NodeProto.FromString(node.SerializeToString())
    body.output[0] = inner
    same_type = [name for name in before(case, place) if case.draws.get(name, {}).get("dtype") == drawn["dtype"]
             and case.draws[name]["shape"] == drawn["shape"]]  # fmt: skip
    if same_type and random.random() < 0.6:
        otherwise = [helper.make_node(pick(random, ("Identity", "Neg", "Abs")), [pick(random, same_type)], [other])]
        extra = []
    else:
        zeros = fresh(case)
        extra = [numpy_helper.from_array(np.int64(drawn["shape"]), zeros)]
        filling = numpy_helper.from_array(
            np.ones(1, dtype_of(drawn["dtype"])) if drawn["dtype"] != "str" else np.array(["a"], object)
        )
        otherwise = [helper.make_node("ConstantOfShape", [zeros], [other], value=filling)]
    then = helper.make_graph([body], "then", [], [_declare_type(inner, drawn)])
    orelse = helper.make_graph(otherwise, "else", [], [_declare_type(other, drawn)], extra)
    if random.random() < 0.5:
        then, orelse = orelse, then
    condition, condition_nodes = _condition(case, random, place)
    put_nodes(case, place, condition_nodes)
    case.graph.node[place + len(condition_nodes)].CopyFrom(
        helper.make_node("If", [condition], [output], then_branch=then, else_branch=orelse)
    )
    return True


def _condition(case: Case, random: Random, place: int) -> tuple[str, list[onnx.NodeProto]]:
    """Return a condition and the nodes that compute it: a constant, an input, or a comparison."""
    match int(random.integers(3)):
        case 0:
            return constant(case, np.array(random.random() < 0.5)), []
        case 1:
            name = fresh(case)
            drawn = {"dtype": "bool", "shape": [], "values": [bool(random.random() < 0.5)]}
            case.draws[name] = case.feeds[name] = drawn
            case.graph.input.append(declaration(name, drawn))
            return name, []
    floats = [name for name in before(case, place) if case.draws.get(name, {}).get("dtype") == "float32"]
    if not floats:
        return constant(case, np.array(True)), []
    nodes: NodeList = []
    total = emit(case, nodes, "ReduceMax", [pick(random, floats)], keepdims=0)
    return emit(case, nodes, "Greater", [total, constant(case, np.float32(random.normal()))]), nodes


def loop(case: Case, random: Random) -> bool:
    """Put a Loop around a node; carry its result if an input has the same type, and scan it."""
    places = _single_output_positions(case)
    if not places:
        return False
    place = pick(random, places)
    node = case.graph.node[place]
    output, drawn = node.output[0], case.draws[node.output[0]]
    carriable = [at for at, name in enumerate(node.input) if case.draws.get(name) is not None and
               case.draws[name]["dtype"] == drawn["dtype"] and case.draws[name]["shape"] == drawn["shape"]]  # fmt: skip
    body = onnx.NodeProto.FromString(node.SerializeToString())
    number, condition, carried, result, next_condition, collected = (fresh(case) for _ in range(6))
    body.output[0] = result
    trips = int(pick(random, (1, 2, 3, 3)))
    inputs = [
        helper.make_tensor_value_info(number, TensorProto.INT64, []),
        helper.make_tensor_value_info(condition, TensorProto.BOOL, []),
    ]
    nodes = [body, helper.make_node("Identity", [condition], [next_condition])]
    outputs = [helper.make_tensor_value_info(next_condition, TensorProto.BOOL, [])]
    count = constant(case, np.int64(trips))
    if random.random() < 0.3:
        name = fresh(case)
        case.draws[name] = case.feeds[name] = {"dtype": "int64", "shape": [], "values": [trips]}
        case.graph.input.append(declaration(name, case.feeds[name]))
        count = name
    collects = random.random() < 0.4
    if carriable:
        at = pick(random, carriable)
        start = node.input[at]
        body.input[at] = carried
        inputs.append(_declare_type(carried, drawn))
        outputs.append(_declare_type(result, drawn))
        if collects:
            nodes.append(helper.make_node("Identity", [result], [collected]))
            outputs.append(_declare_type(collected, drawn))
        graph = helper.make_graph(nodes, "body", inputs, outputs)
        stack = [fresh(case)] if collects else []
        loop_nodes = [helper.make_node("Loop", [count, "", start], [output, *stack], body=graph)]
        for name in stack:
            case.graph.output.append(onnx.ValueInfoProto(name=name))
    else:
        outputs.append(_declare_type(result, drawn))
        graph = helper.make_graph(nodes, "body", inputs, outputs)
        stacked = fresh(case)
        loop_nodes = [helper.make_node("Loop", [count, ""], [stacked], body=graph)]
        last = constant(case, np.int64(-1))
        loop_nodes.append(helper.make_node("Gather", [stacked, last], [output], axis=0))
    later_nodes = [onnx.NodeProto.FromString(other.SerializeToString()) for other in case.graph.node[place + 1 :]]
    del case.graph.node[place:]
    case.graph.node.extend([*loop_nodes, *later_nodes])
    return True


def scan(case: Case, random: Random) -> bool:
    """Insert a Scan over an axis of a value: a cumulative sum, and a unary op on each of its slices."""
    edges = [(place, at) for place, node in enumerate(case.graph.node) for at, name in enumerate(node.input)
             if name in case.draws and case.draws[name]["dtype"] in FLOATS and case.draws[name]["shape"]]  # fmt: skip
    if not edges:
        return False
    place, at = pick(random, edges)
    node = case.graph.node[place]
    x = node.input[at]
    drawn = case.draws[x]
    axis = int(random.integers(len(drawn["shape"])))
    slice_draw = drawn | {"shape": [*drawn["shape"][:axis], *drawn["shape"][axis + 1 :]]}
    state, piece, total, changed = (fresh(case) for _ in range(4))
    start, final, stacked = constant(case, np.zeros([1], dtype_of(drawn["dtype"]))), fresh(case), fresh(case)
    nodes: NodeList = []
    initial = emit(case, nodes, "Expand", [start, constant(case, np.int64(slice_draw["shape"]))])
    body = helper.make_graph(
        [helper.make_node("Add", [state, piece], [total]), helper.make_node(pick(random, UNARY), [total], [changed])],
        "body", [_declare_type(state, slice_draw), _declare_type(piece, slice_draw)],
        [_declare_type(total, slice_draw), _declare_type(changed, slice_draw)],
    )  # fmt: skip
    nodes.append(
        helper.make_node(
            "Scan",
            [initial, x],
            [final, stacked],
            body=body,
            num_scan_inputs=1,
            scan_input_axes=[axis],
            scan_output_axes=[axis],
            scan_input_directions=[int(random.integers(2))],
        )
    )
    case.draws[stacked] = drawn
    node.input[at] = stacked
    put_nodes(case, place, nodes)
    case.graph.output.append(onnx.ValueInfoProto(name=final))
    return True


def into_function(case: Case, random: Random) -> bool:
    """Move a few consecutive nodes into a function of the model."""
    start = int(random.integers(len(case.graph.node)))
    nodes = [
        onnx.NodeProto.FromString(node.SerializeToString())
        for node in case.graph.node[start : start + int(random.integers(1, 5))]
    ]
    results = [name for node in nodes for name in node.output if name]
    inputs = list(dict.fromkeys(name for node in nodes for name in reads(node) if name not in results))
    later = {name for node in case.graph.node[start + len(nodes) :] for name in reads(node)}
    later |= {entry.name for entry in case.graph.output}
    outputs = [name for name in results if name in later]
    if not outputs or not inputs or any(node.domain == "attacked" for node in nodes):
        return False
    name = f"F{len(case.model.functions)}"
    opsets = [entry for entry in case.model.opset_import if entry.domain != "attacked"]
    case.model.functions.append(helper.make_function("attacked", name, inputs, outputs, nodes, opsets))
    if all(entry.domain != "attacked" for entry in case.model.opset_import):
        case.model.opset_import.append(helper.make_opsetid("attacked", 1))
    later_nodes = [
        onnx.NodeProto.FromString(node.SerializeToString()) for node in case.graph.node[start + len(nodes) :]
    ]
    del case.graph.node[start:]
    case.graph.node.extend([helper.make_node(name, inputs, outputs, domain="attacked"), *later_nodes])
    return True


def _single_output_positions(case: Case) -> list[int]:
    """List the positions of nodes with one tensor as their output."""
    return [
        place
        for place, node in enumerate(case.graph.node)
        if len(node.output) == 1 and node.output[0] in case.draws and node.input
        and node.op_type not in ("If", "Loop", "Scan") and case.draws[node.output[0]]["dtype"] != "str"
    ]  # fmt: skip


def _declare_type(name: str, drawn: Draw) -> onnx.ValueInfoProto:
    """Declare the type of a value without its shape."""
    return declaration(name, drawn, None)
