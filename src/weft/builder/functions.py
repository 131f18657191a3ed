"""Ops as Python functions: a definition in, a function out whose signature, help and errors are those of the op.

Inputs are positional, attributes keywords. What a call means is decided by the opset of its graph, so that one function
serves all versions of an op; its signature is that of the newest one that a new graph has.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from weft.builder.arguments import as_attribute, as_inputs
from weft.builder.bodies import WrittenBody
from weft.builder.draft import Draft, current_draft
from weft.builder.handle import Handle
from weft.builder.naming import python_name
from weft.builder.signatures import bound, description, newest, signature
from weft.errors import GraphError, WeftError, short_repr
from weft.ir.graph import Attribute
from weft.opset.registry import Definition
from weft.records import dataclass

Given = ParamSpec("Given")
Result = TypeVar("Result")
OpFunction = Callable[..., Any]

_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"


@dataclass(frozen=True, slots=True)
class NodeCall:
    """What a call asks for, bound to the definition in force."""

    definition: Definition
    inputs: tuple[Any, ...]
    attributes: Mapping[str, Attribute]
    outputs: int | None
    name: str | None


def function(domain: str, op: str) -> OpFunction:
    """The function that adds a node of an op to the graph of its inputs."""

    @blaming_the_caller
    def add_node(*arguments: Any, **keywords: Any) -> Any:
        draft = draft_of((*arguments, *keywords.values()))
        call = bind(draft.definition(domain, op), arguments, keywords)
        results = add(draft, call)
        return results[0] if len(results) == 1 and call.definition.outputs is not None else tuple(results)

    definition = newest(domain, op)
    add_node.__name__ = add_node.__qualname__ = python_name(op)
    add_node.__module__ = "weft.ops"
    add_node.__signature__ = signature(definition)  # type: ignore[attr-defined]
    add_node.__doc__ = description(definition)
    return add_node


def add(draft: Draft, call: NodeCall) -> list[Handle]:
    """Add the node that a call asks for."""
    definition = call.definition
    with draft.attempt():
        inputs = as_inputs(draft, definition, call.inputs)
        name = _name(draft, call)
        attributes = {
            key: WrittenBody(draft, f"{name}_{key}", value) if callable(value) else value
            for key, value in call.attributes.items()
        }
        try:
            return draft.add(definition, inputs, attributes, call.outputs, name)
        except WeftError as error:
            if error.file is None:  # else it comes from the body of this node, and tells enough
                error.problem = f"{definition.name}({_told(definition, inputs)}): {error.problem}"
            raise error.at(node=call.name) from error.__cause__


def _name(draft: Draft, call: NodeCall) -> str:
    if call.name is None:
        return draft.fresh_name(python_name(call.definition.name).strip("_"))
    draft.user_named.add(draft.take_name(call.name))
    return call.name


def blaming_the_caller(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """The function with errors that name the line that called it, and whose traceback ends there."""

    @wraps(function)
    def call(*arguments: Given.args, **keywords: Given.kwargs) -> Result:
        try:
            return function(*arguments, **keywords)
        except WeftError as error:
            if error.file is not None:
                raise
            raise error.at(file=_users_line()).with_traceback(None) from None

    return call


def _users_line() -> str:
    frame = sys._getframe()  # unlike `inspect.currentframe`, never None
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def draft_of(values: Sequence[Any]) -> Draft:
    """The graph in the making that one of these belongs to, or the one that a `with` statement names."""
    handles = (value.draft for value in _flattened(values) if isinstance(value, Handle))
    found = next(handles, None) or current_draft.get()
    if found is None:
        raise GraphError(
            "no input is a tensor, so it is not clear which graph this is for",
            hint="use `with graph:` around it, or make a tensor with graph.constant(...)",
        )
    return found


def bind(definition: Definition, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> NodeCall:
    """The arguments of a call in the terms of the definition."""
    given = bound(python_name(definition.name), signature(definition), arguments, keywords)
    name, outputs = given.pop("name", None), _output_count(definition, given.pop("outputs", None))
    attributes: dict[str, Attribute] = {}
    for parameter in definition.attributes:
        value = given.pop(parameter.name, None)
        if value is not None:
            attributes[parameter.name] = as_attribute(definition, parameter, value)
    inputs = [given.pop(parameter.name, None) for parameter in definition.inputs]
    for rest in given.values():
        inputs.extend(rest)
    if definition.variadic and len(inputs) == 1 and isinstance(inputs[0], (list, tuple)):
        inputs = list(inputs[0])  # which is how numpy wants them
    while inputs and inputs[-1] is None:
        inputs.pop()
    return NodeCall(definition, tuple(inputs), attributes, outputs, name)


def _output_count(definition: Definition, given: Any) -> int | None:
    """How many outputs a call asks for; None: as many as there are."""
    least, most = definition.outputs or (1, None)
    if given is None:
        return None if definition.outputs is None else least
    if not isinstance(given, int) or given < least or (most is not None and given > most):
        raise GraphError(f"{definition.name} has {least} to {most or 'many'} outputs, not {short_repr(given)}")
    return given


def _told(definition: Definition, inputs: Sequence[Handle | None]) -> str:
    names = [parameter.name for parameter in definition.inputs]
    told = []
    for number, handle in enumerate(inputs):
        name = f"{names[number]}: " if number < len(names) else ""
        told.append(f"{name}{None if handle is None else handle.type}")
    return ", ".join(told)


def _flattened(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flattened(value)
        else:
            yield value
