"""What the function of an op looks like: the signature of its definition in public terms, and its help.

Stubs are written from the same signatures, so that what an editor shows is what a call takes.
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
def newest(domain: str, op: str) -> Definition:
    """The definition that a new graph takes, whatever the installed onnx package knows."""
    versions = {**newest_opsets(), "": LATEST_SHARED}
    known = [each for each in registry.definitions() if (each.domain, each.name) == (domain, op)]
    usable = [each for each in known if each.since <= versions.get(domain, each.since)]
    return (usable or known)[-1]


def signature(definition: Definition, outputs: int | None = None) -> inspect.Signature:
    """The signature of an op's function: that of its definition in public terms, and what all functions take.

    `outputs`: that of a call which asks for so many.
    """
    inputs = {parameter.name: parameter for parameter in definition.inputs}
    attributes = {parameter.name: parameter for parameter in definition.attributes}
    kept: list[inspect.Parameter] = []
    for parameter in inspect.signature(definition.function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            kept.append(parameter.replace(annotation="TensorLike"))
        elif parameter.name in inputs:
            optional = inputs[parameter.name].optional
            kept.append(parameter.replace(annotation="TensorLike | None" if optional else "TensorLike"))
        elif parameter.name in attributes:
            kept.append(_attribute(parameter, attributes[parameter.name].annotation))
    if takes_count(definition):
        kept.append(_count(definition, outputs))
    kept.append(inspect.Parameter("name", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None"))
    least = None if definition.outputs is None else definition.outputs[0]
    return inspect.Signature(kept, return_annotation=_returned(outputs or least))


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
"""How definitions call the types of attributes -> what callers give."""


def _attribute(parameter: inspect.Parameter, annotation: str) -> inspect.Parameter:
    public = _ATTRIBUTES.get(annotation, "Type" if parameter.name == "type" else "Callable[..., Any]")
    if parameter.default is registry.REQUIRED:
        return parameter.replace(annotation=public, default=inspect.Parameter.empty)
    return parameter.replace(annotation=f"{public} | None" if parameter.default is None else public)


def _count(definition: Definition, outputs: int | None) -> inspect.Parameter:
    """The parameter that says how many outputs are wanted."""
    least = inspect.Parameter.empty if definition.outputs is None else definition.outputs[0]
    default = least if outputs in (None, least) else inspect.Parameter.empty
    annotation = "int" if outputs is None else f"Literal[{outputs}]"
    return inspect.Parameter("outputs", inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _returned(outputs: int | None) -> str:
    if outputs is None:
        return "tuple[Tensor, ...]"
    return "Tensor" if outputs == 1 else f"tuple[{', '.join(['Tensor'] * outputs)}]"


def takes_count(definition: Definition) -> bool:
    """Whether a call may say how many outputs it wants."""
    if definition.outputs is None:
        return definition.counts_outputs
    return definition.outputs[0] < definition.outputs[1]


def description(definition: Definition) -> str:
    """The help of an op's function."""
    said = f"{definition.name} of {definition.domain or 'ai.onnx'}, as from opset {definition.since} on."
    theirs = documentation(
        definition.domain, definition.name, max(definition.since, newest_opsets().get(definition.domain, 1))
    )
    return "\n\n".join(filter(None, (said, inspect.getdoc(definition.function), theirs)))


def bound(
    name: str, signature: inspect.Signature, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a call by the names of the parameters; a GraphError that tells them where they do not fit."""
    try:
        return dict(signature.bind(*arguments, **keywords).arguments)
    except TypeError as error:
        bare = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
        hint = f"at the opset of this graph it is {name}{inspect.Signature(bare)}"
        raise GraphError(f"{name}: {error}", hint=hint) from None
