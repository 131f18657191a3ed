"""Python functions as graphs: what a function does to tensors of given types is written at a level of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.builder.arguments import as_array
from weft.builder.draft import Draft, GraphLevel
from weft.builder.handle import Handle
from weft.builder.naming import names_of
from weft.builder.sizes import as_tensor, has_sizes
from weft.errors import GraphError
from weft.ir.graph import Graph, GraphValue
from weft.ir.types import Type
from weft.opset.lower import Subgraph
from weft.opset.tensor import Tensor
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Body:
    """What a function wrote, the types of its results, and whether it gave one that is not in a list."""

    graph: Graph
    types: tuple[Type, ...]
    single: bool


def write_body(draft: Draft, name: str, inputs: Sequence[tuple[str, Type]], function: Callable[..., Any]) -> Body:
    """Call `function` with new tensors of these names and types, and keep the nodes that it adds."""
    with draft.body(name) as level, draft.current():
        handles = [draft.input(draft.fresh_name(f"{name}_{part}"), type) for part, type in inputs]
        given = function(*handles)
        single = not isinstance(given, (list, tuple))
        results = [given] if isinstance(given, Handle) or single else list(given)
        outputs: list[Handle] = []
        for each in results:
            outputs.append(_result(draft, level, each, outputs))
        graph = level.graph([GraphValue(handle.name, handle.type) for handle in outputs], {})
    return Body(graph, tuple(handle.type for handle in outputs), single)


class WrittenBody:
    """A Python function as a graph attribute, for ops that tell its arguments only when they call it."""

    def __init__(self, draft: Draft, name: str, function: Callable[..., Any]) -> None:
        self._draft = draft
        self._name = name
        self._function = function
        self._graph: Graph | None = None

    @property
    def graph(self) -> Graph:
        if self._graph is None:
            raise GraphError(f"nothing is known before the run of the tensors that {self._name!r} is called with")
        return self._graph

    def captured(self) -> dict[str, Tensor]:
        """The values of the graphs around it that it may use."""
        return Subgraph(self.graph, self._draft.level.values).captured()

    def __call__(self, *arguments: Tensor) -> list[Tensor]:
        types = [(str(number), argument.type) for number, argument in enumerate(arguments)]
        self._graph = write_body(self._draft, self._name, types, self._function).graph
        return Subgraph(self.graph, self._draft.level.values)(*arguments)


def _result(draft: Draft, level: GraphLevel, given: Any, others: Sequence[Handle]) -> Handle:
    """A result of a body, which must be made by a node of its own."""
    if given is None:
        raise GraphError(f"the body {level.name!r} returns None", hint="return a tensor, or a tuple of tensors")
    if isinstance(given, Handle):
        handle = draft.check(given)
    elif has_sizes(given):
        handle = as_tensor(draft, given)
    else:
        array = as_array(given, f"a result of {level.name!r}")
        handle = draft.initializer(draft.fresh_name("constant"), array)
    made = {name for node in level.nodes for name in node.outputs}
    if handle.name in made and all(handle.name != other.name for other in others):
        return handle
    definition = draft.definition("", names_of("")["identity"])
    return draft.add(definition, [handle], {}, 1, draft.fresh_name("identity"))[0]
