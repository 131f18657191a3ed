"""What weft makes of a model, without running it: types of values, and the work that nodes become.

A model that cannot be compiled has what could be found out, and the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from weft.backends.device import CompilingDriver
from weft.backends.reference.interpret import Interpreter
from weft.errors import WeftError
from weft.ir.graph import Graph, needed_names, with_outputs
from weft.ir.types import AnyType, Type
from weft.loading import open_pipeline
from weft.opset import registry
from weft.opset.lower import lower
from weft.opset.tensor import OnlyAtRunError
from weft.plan.usual_sizes import likely_sizes
from weft.records import dataclass
from weft.report.fusion import FusedNodes, fused_nodes
from weft.runtime.options import LoadOptions

if TYPE_CHECKING:
    from weft.compiler import Pipeline

MOST_ATTEMPTS = 8  # to trace what is left of a graph in which some nodes cannot be


@dataclass(frozen=True, slots=True)
class CompiledFacts:
    """`works` are in the order in which they are done; `problem` says why there is less than all."""

    device: str = ""
    types: Mapping[str, Type] = field(default_factory=dict)
    works: tuple[FusedNodes, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    problem: str | None = None


def compiled_facts(source: Any, options: LoadOptions, sizes: Mapping[str, int]) -> CompiledFacts:
    """All that can be found out of a source for a device; `sizes` are those of dynamic dims, by name."""
    pipeline = open_pipeline(source, options)
    device = pipeline.driver.name
    try:
        graph = pipeline.read().graph
    except Exception as error:  # of whatever kind: the page shows the graph, and says what is wrong with the model
        return CompiledFacts(device, problem=_reason(error))
    types, problem = _types(graph)
    try:
        works, given = _works(pipeline, sizes)
        return CompiledFacts(device, types, works, given)
    except Exception as error:
        return CompiledFacts(device, types, (), sizes, _reason(error) or problem)


def _works(pipeline: Pipeline, sizes: Mapping[str, int]) -> tuple[tuple[FusedNodes, ...], Mapping[str, int]]:
    program = pipeline.program()
    given = likely_sizes(program.inputs, program.guards, sizes)
    if not isinstance(pipeline.driver, CompilingDriver):
        return (), given
    sections = pipeline.build(pipeline.fuse(program))
    return tuple(fused_nodes(sections, given, pipeline.driver.name)), given


def _reason(error: Exception) -> str:
    if isinstance(error, WeftError):
        return str(error)
    return f"unexpected {type(error).__name__}: {error}; please report it"


def _types(graph: Graph) -> tuple[dict[str, Type], str | None]:
    """The types of the values that tracing reaches; where a node cannot be traced, of those that do not need it."""
    unknown = {node.name for node in graph.nodes if registry.find(node.domain, node.op, node.version) is None}
    problem = None
    for _ in range(MOST_ATTEMPTS):
        names = _reachable(graph, unknown)
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
            return {}, _reason(error)
        found = {name: value.type for name, value in zip(names, program.outputs, strict=True)}
        return {name: type for name, type in found.items() if not isinstance(type, AnyType)}, problem
    return {}, problem


def _reachable(graph: Graph, unknown: set[str]) -> list[str]:
    """The values that need none of some nodes."""
    lost: set[str] = set()
    found: list[str] = []
    for node in graph.nodes:
        own = [name for name in node.outputs if name]
        if node.name in unknown or not lost.isdisjoint(needed_names(node)):
            lost.update(own)
        else:
            found += own
    return found
