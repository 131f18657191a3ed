"""Helpers of mutations: add names, constants and nodes to a case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from attack.drawn import Draw, as_initializer, describe_array
from attack.regions import Case
from onnx import helper

Random = np.random.Generator


NodeList = list[onnx.NodeProto]


FLOATS = ("float32", "float16", "float64", "bfloat16")


def pick(random: Random, items: Sequence[Any]) -> Any:
    return items[int(random.integers(len(items)))]


def fresh(case: Case) -> str:
    """Return an unused name."""
    case.draws[f"m{len(case.draws)}"] = {"dtype": "float32", "shape": []}
    return list(case.draws)[-1]


def constant(case: Case, array: Any) -> str:
    name = fresh(case)
    case.draws[name] = describe_array(np.asarray(array), len(case.draws))
    case.graph.initializer.append(as_initializer(name, case.draws[name]))
    return name


def emit(
    case: Case, nodes: NodeList, op: str, inputs: Sequence[str], drawn: Draw | None = None, **attributes: Any
) -> str:
    name = fresh(case)
    if drawn is not None:
        case.draws[name] = drawn
    nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
    return name


def put_nodes(case: Case, place: int, nodes: Sequence[onnx.NodeProto]) -> None:
    """Insert nodes before the one at `place`."""
    rest = [onnx.NodeProto.FromString(node.SerializeToString()) for node in case.graph.node[place:]]
    del case.graph.node[place:]
    case.graph.node.extend([*nodes, *rest])


def forget_outputs(case: Case) -> None:
    """Declare outputs by name alone."""
    for entry in case.graph.output:
        entry.CopyFrom(onnx.ValueInfoProto(name=entry.name))


def exists(case: Case, node: onnx.NodeProto) -> bool:
    """Whether a node is valid in the model's opset."""
    opset = next((entry.version for entry in case.model.opset_import if entry.domain in ("", "ai.onnx")), 1)
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return False
    attributes = {attribute.name for attribute in node.attribute}
    required = {name for name, entry in schema.attributes.items() if entry.required}
    return schema.min_input <= len(node.input) <= schema.max_input and required <= attributes <= set(schema.attributes)


def before(case: Case, place: int) -> list[str]:
    return [*case.feeds, *(name for node in case.graph.node[:place] for name in node.output if name)]
