"""Trace Python functions as the bodies of control flow: each becomes a graph at a level of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.builder.arguments import as_array
from weft.builder.draft import Draft, GraphLevel
from weft.builder.handle import Handle
from weft.builder.naming import function_names
from weft.builder.sizes import as_tensor, has_sizes
from weft.errors import GraphError
from weft.ir.graph import Graph, GraphValue
from weft.ir.types import Type
from weft.opset.lower import Subgraph
from weft.opset.tensor import Tensor
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Body:
    """A traced function: its graph, the types of its results, and whether that is a single tensor, not a list."""

    graph: Graph
    types: tuple[Type, ...]
    single: bool


def write_body(draft: Draft, name: str, inputs: Sequence[tuple[str, Type]], function: Callable[..., Any]) -> Body:
    """Call `function` with new tensors of these names and types, and return the nodes that it adds as a graph."""
    with draft.body(name) as level, draft.current():
        handles = [draft.input(draft.fresh_name(f"{name}_{part}"), type) for part, type in inputs]
        returned = function(*handles)
        single = not isinstance(returned, (list, tuple))
        outputs: list[Handle] = []
        for result in [returned] if single else returned:
            outputs.append(_convert_result(draft, level, result, outputs))
        graph = level.graph([GraphValue(handle.name, handle.type) for handle in outputs], {})
    return Body(graph, tuple(handle.type for handle in outputs), single)


class FunctionAttribute:
    """A Python function as a graph attribute, traced when the definition of its op calls it."""

    def __init__(self, draft: Draft, name: str, function: Callable[..., Any]) -> None:
        self._draft = draft
        self._name = name
        self._function = function
        self._graph: Graph | None = None

    @property
    def graph(self) -> Graph:
        if self._graph is None:
            raise GraphError(f"the arguments of the function {self._name!r} are known only at run time")
        return self._graph

    def captured(self) -> dict[str, Tensor]:
        """Return the values of enclosing graphs that the function may use."""
        return Subgraph(self.graph, self._draft.level.values).captured()

    def __call__(self, *arguments: Tensor) -> list[Tensor]:
        types = [(str(number), argument.type) for number, argument in enumerate(arguments)]
        self._graph = write_body(self._draft, self._name, types, self._function).graph
        return Subgraph(self.graph, self._draft.level.values)(*arguments)


def _convert_result(draft: Draft, level: GraphLevel, result: Any, others: Sequence[Handle]) -> Handle:
    """Convert a result of a body to a tensor that a node of the body computes and that is not among `others`."""
    if result is None:
        raise GraphError(f"the body {level.name!r} returns None", hint="return a tensor, or a tuple of tensors")
    if isinstance(result, Handle):
        handle = draft.check(result)
    elif has_sizes(result):
        handle = as_tensor(draft, result)
    else:
        array = as_array(result, f"a result of {level.name!r}")
        handle = draft.initializer(draft.fresh_name("constant"), array)
    computed = {name for node in level.nodes for name in node.outputs}
    if handle.name in computed and all(handle.name != other.name for other in others):
        return handle
    definition = draft.definition("", function_names("")["identity"])
    return draft.add(definition, [handle], {}, 1, draft.fresh_name("identity"))[0]
