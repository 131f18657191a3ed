"""Facts about a model that need no run: types of values, and the kernels that nodes become.

For a model that cannot be compiled, these are the facts up to the problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from weft.backends.device import CompilingDriver
from weft.backends.naming import with_unique_names
from weft.backends.reference.interpret import Interpreter
from weft.errors import WeftError
from weft.ir.graph import Graph, needed_names, with_outputs
from weft.ir.types import AnyType, Type
from weft.ir.work import KernelCounts, count_kernels
from weft.loading import open_pipeline
from weft.opset import registry
from weft.opset.lower import lower
from weft.opset.tensor import OnlyAtRunError
from weft.plan.usual_sizes import likely_sizes
from weft.records import dataclass
from weft.report.fusion import FusedNodes, list_fused_nodes
from weft.runtime.options import LoadOptions

MOST_ATTEMPTS = 8  # to trace a graph without the nodes that fail


@dataclass(frozen=True, slots=True)
class CompiledFacts:
    """`works` are in execution order; `problem` says why facts are missing."""

    device: str = ""
    types: Mapping[str, Type] = field(default_factory=dict)
    works: tuple[FusedNodes, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    problem: str | None = None
    external_bytes: int = 0  # of the files with external data
    counts: KernelCounts | None = None


def collect_facts(source: Any, options: LoadOptions, sizes: Mapping[str, int]) -> CompiledFacts:
    """Compile a model for a device as far as possible; `sizes` are those of dynamic dims, by name."""
    pipeline = open_pipeline(source, options)
    device = pipeline.driver.name
    try:
        model = pipeline.read()
    except Exception as error:  # any kind: the page shows the graph together with the problem
        return CompiledFacts(device, problem=_error_text(error))
    external_bytes = sum(map(len, model.external.values()))
    types, problem = _trace_types(model.graph)
    try:
        program = pipeline.program()
        all_sizes = likely_sizes(program.inputs, program.guards, sizes)
        if not isinstance(pipeline.driver, CompilingDriver):
            return CompiledFacts(device, types, (), all_sizes, external_bytes=external_bytes)
        sections = pipeline.build(pipeline.fuse(program))
        works = tuple(list_fused_nodes(sections, all_sizes, device))
        counts = count_kernels(with_unique_names(sections))
        return CompiledFacts(device, types, works, all_sizes, None, external_bytes, counts)
    except Exception as error:
        return CompiledFacts(device, types, (), sizes, _error_text(error) or problem, external_bytes)


def _error_text(error: Exception) -> str:
    if isinstance(error, WeftError):
        return str(error)
    return f"unexpected {type(error).__name__}: {error}; please report it"


def _trace_types(graph: Graph) -> tuple[dict[str, Type], str | None]:
    """Return the types of all values that do not depend on a node that cannot be traced, and the first problem."""
    unknown = {node.name for node in graph.nodes if registry.find(node.domain, node.op, node.version) is None}
    problem = None
    for _ in range(MOST_ATTEMPTS):
        names = _independent_values(graph, unknown)
        try:
            program = lower(with_outputs(graph, names), Interpreter())
        except OnlyAtRunError as error:
            return {}, str(error)
        except WeftError as error:
            problem = problem or str(error)
            if error.node is None or error.node in unknown:
                return {}, problem
            unknown.add(error.node)
            continue
        except (ArithmeticError, ValueError) as error:
            return {}, _error_text(error)
        types = {name: value.type for name, value in zip(names, program.outputs, strict=True)}
        return {name: type for name, type in types.items() if not isinstance(type, AnyType)}, problem
    return {}, problem


def _independent_values(graph: Graph, unknown: set[str]) -> list[str]:
    """Return the values that do not depend on the unknown nodes."""
    dependent: set[str] = set()
    independent: list[str] = []
    for node in graph.nodes:
        outputs = [name for name in node.outputs if name]
        if node.name in unknown or not dependent.isdisjoint(needed_names(node)):
            dependent.update(outputs)
        else:
            independent += outputs
    return independent
