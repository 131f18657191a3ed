"""The data of a model's page: graphs with their scopes, nodes, values, weights and works."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict
from math import prod
from typing import Any

from weft.errors import WeftError
from weft.frontend.outline import Outline, OutlineGraph, OutlineNode, StoredTensor
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.types import TensorType, Type
from weft.records import dataclass
from weft.report.compiled_facts import CompiledFacts
from weft.report.fusion import evaluate_dim
from weft.report.measured import MeasuredRun
from weft.report.scopes import ScopeTree, build_scope_tree
from weft.report.tensor_statistics import compute_statistics

Scope = MutableMapping[str, int]
NO_VALUE = -1


@dataclass(slots=True)
class _Tables:
    """Rows of all graphs of a model, which refer to each other by number."""

    facts: CompiledFacts
    works_of: Mapping[str, list[int]]  # by the name of a node
    graphs: list[dict[str, Any]]
    nodes: list[list[Any]]
    values: list[list[Any]]
    weights: list[dict[str, Any]]
    changed_weights: Mapping[str, Any]


def map_model(
    outline: Outline, facts: CompiledFacts, measured: MeasuredRun | None, changed_weights: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the data of the page; `changed_weights` are those that were set after loading, by name."""
    works = _describe_works(facts, measured)
    works_of: dict[str, list[int]] = {}
    for number, work in enumerate(works):
        for name in dict.fromkeys(work["nodes"]):
            works_of.setdefault(name, []).append(number)
    tables = _Tables(facts, works_of, [], [], [], [], changed_weights)
    _add_graph(tables, outline.graph, {}, facts.types)
    numbers = {node[3]: number for number, node in enumerate(tables.nodes)}
    for work in works:
        work["nodes"] = [numbers.get(name, name) for name in work["nodes"]]
    return {
        "graphs": tables.graphs,
        "nodes": tables.nodes,
        "values": tables.values,
        "weights": tables.weights,
        "works": works,
        "kernels": None if facts.counts is None else str(facts.counts),
        "sizes": dict(facts.sizes),
        "device": facts.device if measured is None else measured.device,
        "problem": facts.problem,
        "run": None if measured is None else _describe_run(measured),
        "about": _describe_file(outline),
        "properties": list(outline.properties.items()),
    }


def _describe_file(outline: Outline) -> list[tuple[str, str]]:
    opsets = ", ".join(f"{domain} {version}" for domain, version in outline.opsets.items())
    rows = [
        ("Producer", outline.producer),
        ("Opsets", opsets),
        ("IR version", str(outline.ir_version) if outline.ir_version else ""),
        ("Graph", outline.graph.name),
        ("Description", outline.description),
    ]
    return [(name, text) for name, text in rows if text]


def _describe_run(measured: MeasuredRun) -> dict[str, Any]:
    return {
        "seconds": measured.seconds,
        "runs": measured.runs,
        "threads": measured.threads,
        "arena": measured.arena_bytes,
    }


def _describe_works(facts: CompiledFacts, measured: MeasuredRun | None) -> list[dict[str, Any]]:
    """Return the works as measured, with the template that was chosen for the same nodes; without a run, as built."""
    if measured is None:
        return [asdict(work) for work in facts.works]
    built = {work.nodes: work for work in facts.works}
    works = []
    for work in measured.works:
        same = built.get(work.nodes)
        template, reason = ("", "") if same is None else (same.template, same.reason)
        works.append({"template": template, "reason": reason, **asdict(work)})
    return works


# -- graphs ----------------------------------------------------------------------------------------------------------


def _add_graph(tables: _Tables, graph: OutlineGraph, outer: Scope, types: Mapping[str, Type]) -> int:
    """Add a graph with its nodes and values, and return its number."""
    number = len(tables.graphs)
    tables.graphs.append({})
    local: dict[str, int] = {}
    scope: Scope = ChainMap(local, outer)
    all_types = ChainMap(dict(types), dict(graph.types))

    def define(name: str, stored: StoredTensor | None = None) -> int:
        if name not in local:
            local[name] = _add_value(tables, name, all_types.get(name), stored)
        return local[name]

    inputs = [define(name) for name in graph.inputs]
    for name, stored in graph.weights.items():
        define(name, stored)
    for node in graph.nodes:
        constant = node.tensors[0][1] if node.is_constant and len(node.tensors) == 1 else None
        for name in filter(None, node.outputs):
            define(name, constant)
    for alias, name in graph.aliases.items():
        if name in scope:
            local[alias] = scope[name]

    def find(name: str) -> int:
        if not name:
            return NO_VALUE
        return scope[name] if name in scope else define(name)  # undefined, in an invalid model

    rows = [_add_node(tables, node, scope, find) for node in graph.nodes]
    outputs = [find(name) for name in graph.outputs]
    tree = build_scope_tree(graph)
    tables.graphs[number] = {
        "name": graph.name,
        "inputs": inputs,
        "outputs": outputs,
        "outputNames": list(graph.outputs),
        "tree": _nest_rows(tree, rows),
        "constants": [row for row, node in zip(rows, graph.nodes, strict=True) if node.is_constant],
    }
    return number


def _nest_rows(tree: ScopeTree, rows: Sequence[int]) -> list[Any]:
    return [
        rows[member] if isinstance(member, int) else [member.label, _nest_rows(member, rows)] for member in tree.members
    ]


def _add_node(tables: _Tables, node: OutlineNode, scope: Scope, find: Any) -> int:
    number = len(tables.nodes)
    row: list[Any] = []
    tables.nodes.append(row)
    row += [
        node.op,
        node.domain,
        node.version,
        node.name,
        [find(name) for name in node.inputs],
        [find(name) for name in node.outputs],
        [*_list_attributes(node)],
        [[attribute, _add_graph(tables, body, scope, {})] for attribute, body in node.bodies],
        tables.works_of.get(node.name, []),
        int(node.is_constant),
        [*([("description", node.description)] if node.description else []), *node.notes.items()],
    ]
    return number


def _list_attributes(node: OutlineNode) -> Iterator[tuple[str, str]]:
    bodies = {attribute for attribute, _ in node.bodies}
    yield from ((name, text) for name, text in node.attributes if name not in bodies)


def _add_value(tables: _Tables, name: str, type: Type | None, stored: StoredTensor | None) -> int:
    number = len(tables.values)
    weight = NO_VALUE
    type_text = "" if type is None else str(type)
    size = None if type is None else type_bytes(type, tables.facts.sizes)
    if stored is not None:
        weight = len(tables.weights)
        type_text = f"{stored.dtype}[{', '.join(map(str, stored.shape))}]"
        tables.weights.append(_describe_weight(number, name, stored, tables.changed_weights))
        size = tables.weights[weight]["bytes"]
    sizes = "" if stored or type is None else evaluate_shape(type, tables.facts.sizes)
    tables.values.append([name, type_text, size, weight, sizes])
    return number


def _describe_weight(value: int, name: str, stored: StoredTensor, changed: Mapping[str, Any]) -> dict[str, Any]:
    elements = prod(stored.shape)
    has_size = stored.dtype in DType.__members__ and stored.dtype != DType.string
    row: dict[str, Any] = {
        "value": value,
        "dtype": stored.dtype,
        "shape": list(stored.shape),
        "elements": elements,
        "bytes": -(-elements * DType(stored.dtype).bits // 8) if has_size else None,
    }
    try:
        array = changed[name] if name in changed else stored.read()
        row["statistics"] = asdict(compute_statistics(array))
    except WeftError as error:
        row["error"] = error.problem
    except (ValueError, TypeError, ArithmeticError, MemoryError) as error:
        row["error"] = f"{type(error).__name__}: {error}"
    return row


def evaluate_shape(type: Type, sizes: Mapping[str, int]) -> str:
    """Format a dynamic shape with these sizes; "" for fixed shapes and unknown sizes."""
    if not isinstance(type, TensorType) or all(isinstance(dim, int) for dim in type.shape or ()):
        return ""
    shape = [evaluate_dim(dim, sizes) for dim in type.shape or ()]
    return "" if None in shape else "×".join(map(str, shape))


def type_bytes(type: Type, sizes: Mapping[str, int]) -> int | None:
    """Return the bytes of a tensor for these sizes; None if unknown."""
    if type.shape is None or not type.dtype.bits:
        return None
    elements = evaluate_dim(dims.product(type.shape), sizes)
    return None if elements is None else -(-elements * type.dtype.bits // 8)
