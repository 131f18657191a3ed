"""The signature and the help of an op's function.

Stubs are generated from the same signatures, so an editor shows what a call accepts.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from weft.errors import GraphError
from weft.frontend.schemas import LATEST_SHARED, documentation, newest_opsets
from weft.opset import registry
from weft.opset.registry import Definition


@cache
def newest_definition(domain: str, op: str) -> Definition:
    """Return the definition that a new graph uses; it does not depend on the version of the onnx package."""
    versions = {**newest_opsets(), "": LATEST_SHARED}
    definitions = [each for each in registry.definitions() if (each.domain, each.name) == (domain, op)]
    usable = [each for each in definitions if each.since <= versions.get(domain, each.since)]
    return (usable or definitions)[-1]


def make_signature(definition: Definition, outputs: int | None = None) -> inspect.Signature:
    """Make the signature of an op's function, with public types and the parameters that all functions have.

    `outputs`: the number of outputs of the call; None: any.
    """
    inputs = {parameter.name: parameter for parameter in definition.inputs}
    attributes = {parameter.name: parameter for parameter in definition.attributes}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(definition.function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            parameters.append(parameter.replace(annotation="TensorLike"))
        elif parameter.name in inputs:
            optional = inputs[parameter.name].optional
            parameters.append(parameter.replace(annotation="TensorLike | None" if optional else "TensorLike"))
        elif parameter.name in attributes:
            parameters.append(_attribute_parameter(parameter, attributes[parameter.name].annotation))
    if has_optional_outputs(definition):
        parameters.append(_count_parameter(definition, outputs))
    parameters.append(inspect.Parameter("name", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None"))
    least = None if definition.outputs is None else definition.outputs[0]
    return inspect.Signature(parameters, return_annotation=_return_annotation(outputs or least))


_ATTRIBUTES = {
    "int": "int",
    "ElementType": "DTypeLike",
    "float": "float",
    "str": "str",
    "tuple[int, ...]": "Sequence[int]",
    "tuple[float, ...]": "Sequence[float]",
    "tuple[str, ...]": "Sequence[str]",
    "np.ndarray[Any, Any]": "ArrayLike",
    "Array": "ArrayLike",
}
"""The annotations of attributes in definitions, and those in public signatures."""


def _attribute_parameter(parameter: inspect.Parameter, annotation: str) -> inspect.Parameter:
    public = _ATTRIBUTES.get(annotation, "Type" if parameter.name == "type" else "Callable[..., Any]")
    if parameter.default is registry.REQUIRED:
        return parameter.replace(annotation=public, default=inspect.Parameter.empty)
    return parameter.replace(annotation=f"{public} | None" if parameter.default is None else public)


def _count_parameter(definition: Definition, outputs: int | None) -> inspect.Parameter:
    """Make the parameter `outputs`, the number of outputs."""
    least = inspect.Parameter.empty if definition.outputs is None else definition.outputs[0]
    default = least if outputs in (None, least) else inspect.Parameter.empty
    annotation = "int" if outputs is None else f"Literal[{outputs}]"
    return inspect.Parameter("outputs", inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _return_annotation(outputs: int | None) -> str:
    if outputs is None:
        return "tuple[Tensor, ...]"
    return "Tensor" if outputs == 1 else f"tuple[{', '.join(['Tensor'] * outputs)}]"


def has_optional_outputs(definition: Definition) -> bool:
    """Whether a call may choose the number of outputs."""
    if definition.outputs is None:
        return definition.counts_outputs
    return definition.outputs[0] < definition.outputs[1]


def describe_op(definition: Definition) -> str:
    """Return the help of an op's function."""
    title = f"{definition.name} of {definition.domain or 'ai.onnx'}, since opset {definition.since}."
    schema_text = documentation(
        definition.domain, definition.name, max(definition.since, newest_opsets().get(definition.domain, 1))
    )
    return "\n\n".join(filter(None, (title, inspect.getdoc(definition.function), schema_text)))


def bind_arguments(
    name: str, signature: inspect.Signature, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> dict[str, Any]:
    """Map the names of parameters to the arguments of a call; raise GraphError if they do not fit."""
    try:
        return dict(signature.bind(*arguments, **keywords).arguments)
    except TypeError as error:
        bare = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
        hint = f"in the opset of this graph, its signature is {name}{inspect.Signature(bare)}"
        raise GraphError(f"{name}: {error}", hint=hint) from None
