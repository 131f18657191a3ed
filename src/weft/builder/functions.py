"""Make Python functions of op definitions, with the op's signature, help and errors.

Inputs are positional, attributes are keywords. The opset of the graph decides which version of the op a call adds, so
one function serves all versions; its signature is that of the newest version that a new graph has.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from weft.builder.arguments import as_attribute, as_inputs
from weft.builder.bodies import FunctionAttribute
from weft.builder.draft import Draft, current_draft
from weft.builder.handle import Handle
from weft.builder.naming import python_name
from weft.builder.signatures import bind_arguments, describe_op, make_signature, newest_definition
from weft.errors import GraphError, WeftError, short_repr
from weft.ir.graph import Attribute
from weft.opset.registry import Definition
from weft.records import dataclass

Params = ParamSpec("Params")
Result = TypeVar("Result")
OpFunction = Callable[..., Any]

_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"


@dataclass(frozen=True, slots=True)
class NodeCall:
    """The arguments of a call, bound to the definition for the opset of its graph."""

    definition: Definition
    inputs: tuple[Any, ...]
    attributes: Mapping[str, Attribute]
    outputs: int | None
    name: str | None


def make_function(domain: str, op: str) -> OpFunction:
    """Make the function that adds a node of an op to the graph of its inputs."""

    @report_at_caller
    def add_node(*arguments: Any, **keywords: Any) -> Any:
        draft = find_draft((*arguments, *keywords.values()))
        call = _bind_call(draft.definition(domain, op), arguments, keywords)
        results = add(draft, call)
        return results[0] if len(results) == 1 and call.definition.outputs is not None else tuple(results)

    definition = newest_definition(domain, op)
    add_node.__name__ = add_node.__qualname__ = python_name(op)
    add_node.__module__ = "weft.ops"
    add_node.__signature__ = make_signature(definition)  # type: ignore[attr-defined]
    add_node.__doc__ = describe_op(definition)
    return add_node


def add(draft: Draft, call: NodeCall) -> list[Handle]:
    """Add the node of a call."""
    definition = call.definition
    with draft.transaction():
        inputs = as_inputs(draft, definition, call.inputs)
        name = _take_node_name(draft, call)
        attributes = {
            key: FunctionAttribute(draft, f"{name}_{key}", value) if callable(value) else value
            for key, value in call.attributes.items()
        }
        try:
            return draft.add(definition, inputs, attributes, call.outputs, name)
        except WeftError as error:
            if error.file is None:  # otherwise a call in the body of this node raised it, and it names that line
                error.problem = f"{definition.name}({_describe_inputs(definition, inputs)}): {error.problem}"
            raise error.at(node=call.name) from error.__cause__


def _take_node_name(draft: Draft, call: NodeCall) -> str:
    if call.name is None:
        return draft.fresh_name(python_name(call.definition.name).strip("_"))
    draft.user_names.add(draft.take_name(call.name))
    return call.name


def report_at_caller(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Decorate a function so that its errors name the line of the caller, where their traceback ends."""

    @wraps(function)
    def call(*arguments: Params.args, **keywords: Params.kwargs) -> Result:
        try:
            return function(*arguments, **keywords)
        except WeftError as error:
            if error.file is not None:
                raise
            raise error.at(file=_caller_line()).with_traceback(None) from None

    return call


def _caller_line() -> str:
    """Return `FILE:LINE` of the innermost frame outside of this package."""
    frame = sys._getframe()  # unlike `inspect.currentframe`, never None
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def find_draft(values: Sequence[Any]) -> Draft:
    """Return the draft of the first tensor among values, or that of the enclosing `with` statement."""
    drafts = (value.draft for value in _flatten(values) if isinstance(value, Handle))
    draft = next(drafts, None) or current_draft.get()
    if draft is None:
        raise GraphError(
            "no input is a tensor, so it is not clear which graph this node belongs to",
            hint="call it inside of `with graph:`, or make a tensor with graph.constant(...)",
        )
    return draft


def _bind_call(definition: Definition, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> NodeCall:
    """Sort the arguments of a call into inputs, attributes, the number of outputs and the name."""
    values = bind_arguments(python_name(definition.name), make_signature(definition), arguments, keywords)
    name, outputs = values.pop("name", None), _check_output_count(definition, values.pop("outputs", None))
    attributes: dict[str, Attribute] = {}
    for parameter in definition.attributes:
        value = values.pop(parameter.name, None)
        if value is not None:
            attributes[parameter.name] = as_attribute(definition, parameter, value)
    inputs = [values.pop(parameter.name, None) for parameter in definition.inputs]
    for variadic in values.values():
        inputs.extend(variadic)
    if definition.variadic and len(inputs) == 1 and isinstance(inputs[0], (list, tuple)):
        inputs = list(inputs[0])  # a list of tensors, as for numpy.concatenate
    while inputs and inputs[-1] is None:
        inputs.pop()
    return NodeCall(definition, tuple(inputs), attributes, outputs, name)


def _check_output_count(definition: Definition, count: Any) -> int | None:
    """Return the number of outputs of a call; None: all outputs."""
    least, most = definition.outputs or (1, None)
    if count is None:
        return None if definition.outputs is None else least
    if not isinstance(count, int) or count < least or (most is not None and count > most):
        limits = f"{least} to {most}" if most is not None else f"at least {least}"
        raise GraphError(f"{definition.name} has {limits} outputs, not {short_repr(count)}")
    return count


def _describe_inputs(definition: Definition, inputs: Sequence[Handle | None]) -> str:
    names = [parameter.name for parameter in definition.inputs]
    descriptions = []
    for number, handle in enumerate(inputs):
        name = f"{names[number]}: " if number < len(names) else ""
        descriptions.append(f"{name}{None if handle is None else handle.type}")
    return ", ".join(descriptions)


def _flatten(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flatten(value)
        else:
            yield value
