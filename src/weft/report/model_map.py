"""A model as the data of its page: graphs in their scopes, nodes, values, weights, and the work that nodes become."""

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
from weft.report.kernels import known_number
from weft.report.measured import MeasuredRun
from weft.report.scopes import ScopeTree, scope_tree
from weft.report.tensor_statistics import tensor_statistics

Scope = MutableMapping[str, int]
NO_VALUE = -1


@dataclass(slots=True)
class _Tables:
    """What all graphs of a model share; rows are meant by their numbers."""

    facts: CompiledFacts
    works_of: Mapping[str, list[int]]  # by the name of a node
    graphs: list[dict[str, Any]]
    nodes: list[list[Any]]
    values: list[list[Any]]
    weights: list[dict[str, Any]]
    changed: Mapping[str, Any]


def model_map(
    outline: Outline, facts: CompiledFacts, measured: MeasuredRun | None, changed: Mapping[str, Any]
) -> dict[str, Any]:
    """All that the page shows of a model; `changed` are weights that were set, by name."""
    works = _works(facts, measured)
    works_of: dict[str, list[int]] = {}
    for number, work in enumerate(works):
        for name in dict.fromkeys(work["nodes"]):
            works_of.setdefault(name, []).append(number)
    tables = _Tables(facts, works_of, [], [], [], [], changed)
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
        "sizes": dict(facts.sizes),
        "device": facts.device if measured is None else measured.device,
        "problem": facts.problem,
        "run": None if measured is None else _run(measured),
        "about": _about(outline),
        "properties": list(outline.properties.items()),
    }


def _about(outline: Outline) -> list[tuple[str, str]]:
    opsets = ", ".join(f"{domain} {version}" for domain, version in outline.opsets.items())
    found = [
        ("Producer", outline.producer),
        ("Opsets", opsets),
        ("IR version", str(outline.ir_version) if outline.ir_version else ""),
        ("Graph", outline.graph.name),
        ("Description", outline.description),
    ]
    return [(name, text) for name, text in found if text]


def _run(measured: MeasuredRun) -> dict[str, Any]:
    return {
        "seconds": measured.seconds,
        "runs": measured.runs,
        "threads": measured.threads,
        "arena": measured.arena_bytes,
    }


def _works(facts: CompiledFacts, measured: MeasuredRun | None) -> list[dict[str, Any]]:
    """Pieces of work as they were built, or as they were measured, with what building told of the same nodes."""
    if measured is None:
        return [asdict(work) for work in facts.works]
    built = {work.nodes: work for work in facts.works}
    found = []
    for work in measured.works:
        known = built.get(work.nodes)
        told = {} if known is None else {"template": known.template, "reason": known.reason}
        found.append({"template": "", "reason": "", **told, **asdict(work)})
    return found


# -- graphs ----------------------------------------------------------------------------------------------------------


def _add_graph(tables: _Tables, graph: OutlineGraph, outer: Scope, types: Mapping[str, Type]) -> int:
    """The number of a graph, after adding all that is in it."""
    number = len(tables.graphs)
    tables.graphs.append({})
    own: dict[str, int] = {}
    scope: Scope = ChainMap(own, outer)
    known = ChainMap(dict(types), dict(graph.types))

    def define(name: str, stored: StoredTensor | None = None) -> int:
        if name not in own:
            own[name] = _add_value(tables, name, known.get(name), stored)
        return own[name]

    inputs = [define(name) for name in graph.inputs]
    for name, stored in graph.weights.items():
        define(name, stored)
    for node in graph.nodes:
        held = node.tensors[0][1] if node.is_constant and len(node.tensors) == 1 else None
        for name in filter(None, node.outputs):
            define(name, held)
    for alias, name in graph.aliases.items():
        if name in scope:
            own[alias] = scope[name]

    def find(name: str) -> int:
        if not name:
            return NO_VALUE
        return scope[name] if name in scope else define(name)  # of an invalid model: nobody gives it

    rows = [_add_node(tables, node, scope, find) for node in graph.nodes]
    outputs = [find(name) for name in graph.outputs]
    tree = scope_tree(graph)
    tables.graphs[number] = {
        "name": graph.name,
        "inputs": inputs,
        "outputs": outputs,
        "outputNames": list(graph.outputs),
        "tree": _members(tree, rows),
        "constants": [row for row, node in zip(rows, graph.nodes, strict=True) if node.is_constant],
    }
    return number


def _members(tree: ScopeTree, rows: Sequence[int]) -> list[Any]:
    return [
        rows[member] if isinstance(member, int) else [member.label, _members(member, rows)] for member in tree.members
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
        [*_shown_attributes(node)],
        [[attribute, _add_graph(tables, body, scope, {})] for attribute, body in node.bodies],
        tables.works_of.get(node.name, []),
        int(node.is_constant),
        [*([("description", node.description)] if node.description else []), *node.notes.items()],
    ]
    return number


def _shown_attributes(node: OutlineNode) -> Iterator[tuple[str, str]]:
    bodies = {attribute for attribute, _ in node.bodies}
    yield from ((name, text) for name, text in node.attributes if name not in bodies)


def _add_value(tables: _Tables, name: str, type: Type | None, stored: StoredTensor | None) -> int:
    number = len(tables.values)
    weight = NO_VALUE
    text = "" if type is None else str(type)
    size = None if type is None else type_bytes(type, tables.facts.sizes)
    if stored is not None:
        weight = len(tables.weights)
        text = f"{stored.dtype}[{', '.join(map(str, stored.shape))}]"
        tables.weights.append(_weight(number, name, stored, tables.changed))
        size = tables.weights[weight]["bytes"]
    tables.values.append([name, text, size, weight, "" if stored or type is None else sized(type, tables.facts.sizes)])
    return number


def _weight(value: int, name: str, stored: StoredTensor, changed: Mapping[str, Any]) -> dict[str, Any]:
    elements = prod(stored.shape)
    known = stored.dtype in DType.__members__
    row: dict[str, Any] = {
        "value": value,
        "dtype": stored.dtype,
        "shape": list(stored.shape),
        "elements": elements,
        "bytes": -(-elements * DType(stored.dtype).bits // 8) if known and stored.dtype != DType.string else None,
    }
    try:
        array = changed[name] if name in changed else stored.read()
        row["statistics"] = asdict(tensor_statistics(array))
    except WeftError as error:
        row["error"] = error.problem
    except (ValueError, TypeError, ArithmeticError, MemoryError) as error:
        row["error"] = f"{type(error).__name__}: {error}"
    return row


def sized(type: Type, sizes: Mapping[str, int]) -> str:
    """A shape that has names in it, with these sizes instead; nothing where it has none, or nobody knows them."""
    if not isinstance(type, TensorType) or all(isinstance(dim, int) for dim in type.shape or ()):
        return ""
    found = [known_number(dim, sizes) for dim in type.shape or ()]
    return "" if None in found else "×".join(map(str, found))


def type_bytes(type: Type, sizes: Mapping[str, int]) -> int | None:
    """What a tensor of this type takes for these sizes; None where nobody knows."""
    if not isinstance(type, TensorType) or type.shape is None or not type.dtype.bits:
        return None
    elements = known_number(dims.product(type.shape), sizes)
    return None if elements is None else -(-elements * type.dtype.bits // 8)
