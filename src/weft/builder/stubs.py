"""The text of the stubs of `weft.ops`: what an editor completes and mypy checks, from the definitions of the ops."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import Parameter

from weft.builder.control import SPECIAL
from weft.builder.functions import newest, signature, takes_count
from weft.builder.naming import names_of
from weft.opset.registry import REQUIRED, Definition

WIDEST = 120

_HEADER = '''"""Made from the definitions of the ops: see tests/builder/test_stubs.py"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

from weft.builder.tensor import ArrayLike, DTypeLike, Tensor, TensorLike
from weft.ir.types import Type
'''

_FUNCTIONS = "from weft.builder.namespaces import Functions\n"
_DOMAINS = """from weft.ops import microsoft as microsoft
from weft.ops import ml as ml
from weft.ops import preview as preview
from weft.ops import preview_training as preview_training

domain = Functions
"""

_NAME = "name: str | None = None"
_SPECIAL = {
    "if_": (
        (
            "condition: TensorLike",
            "then: Callable[[], Tensor | float]",
            "otherwise: Callable[[], Tensor | float]",
            "Tensor",
        ),
        (
            "condition: TensorLike",
            "then: Callable[[], Sequence[TensorLike]]",
            "otherwise: Callable[[], Sequence[TensorLike]]",
            "tuple[Tensor, ...]",
        ),
    ),
    "loop": (
        (
            "trip_count: TensorLike | None",
            "condition: TensorLike | None",
            "states: Sequence[TensorLike]",
            "body: Callable[..., Sequence[TensorLike | None]]",
            "tuple[Tensor, ...]",
        ),
    ),
    "scan": (
        (
            "states: Sequence[TensorLike]",
            "sequences: Sequence[TensorLike]",
            "body: Callable[..., TensorLike]",
            "*",
            "axes: Sequence[int] | None = None",
            "reverse: Sequence[bool] | None = None",
            "tuple[Tensor, ...]",
        ),
    ),
    "sequence_map": (
        ("sequence: Tensor", "*others: TensorLike", "body: Callable[..., TensorLike]", "tuple[Tensor, ...]"),
    ),
    "split": (
        (
            "x: TensorLike",
            "split: TensorLike | None = None",
            "*",
            "axis: int = 0",
            "num_outputs: int | None = None",
            "tuple[Tensor, ...]",
        ),
    ),
}
"""The parameters of each form of a function that is not made from its definition alone, and what it returns."""

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


def stub(domain: str) -> str:
    """The stub of a domain's module."""
    functions = "\n".join(_functions(domain))
    header = _HEADER if domain else _HEADER.replace("from weft.builder.tensor", f"{_FUNCTIONS}from weft.builder.tensor")
    return _without_unused(f"{header}{'' if domain else _DOMAINS}\n{functions}\n", functions)


def _functions(domain: str) -> Iterator[str]:
    for name, op in sorted(names_of(domain).items()):
        if not domain and name in SPECIAL:
            forms = [_special(name, form) for form in _SPECIAL[name]]
        else:
            forms = _forms(name, newest(domain, op))
        for form in forms:
            yield f"@overload\n{form}" if len(forms) > 1 else form


def _special(name: str, form: tuple[str, ...]) -> str:
    *parameters, result = form
    keyword_only = any(parameter.startswith("*") for parameter in parameters)
    return _definition(name, [*parameters, *([] if keyword_only else ["*"]), _NAME], result)


def _forms(name: str, definition: Definition) -> list[str]:
    """A function, as several forms where its result depends on how many outputs are asked for."""
    if definition.outputs is None or not takes_count(definition):
        return [_definition(name, list(_parameters(definition, None)), _result(definition.outputs))]
    least, most = definition.outputs
    return [
        _definition(name, list(_parameters(definition, count)), _result((count, count)))
        for count in range(least, most + 1)
    ]


def _parameters(definition: Definition, count: int | None) -> Iterator[str]:
    attributes = {parameter.name: parameter for parameter in definition.attributes}
    inputs = {parameter.name: parameter for parameter in definition.inputs}
    starred = False
    for parameter in signature(definition).parameters.values():
        if parameter.kind is Parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        if parameter.kind is Parameter.VAR_POSITIONAL:
            starred = True
            yield f"*{parameter.name}: TensorLike"
        elif parameter.name in inputs:
            optional = " | None" if inputs[parameter.name].optional else ""
            default = "" if parameter.default is Parameter.empty else " = None"
            yield f"{parameter.name}: TensorLike{optional}{default}"
        elif parameter.name in attributes:
            yield _attribute(parameter, attributes[parameter.name].annotation)
        elif parameter.name == "outputs" and definition.outputs is not None:
            yield f"outputs: Literal[{count}]{f' = {count}' if count == definition.outputs[0] else ''}"
        elif parameter.name == "outputs":
            yield "outputs: int"
        else:
            yield _NAME


def _attribute(parameter: Parameter, annotation: str) -> str:
    type = _ATTRIBUTES.get(annotation, "Type" if parameter.name == "type" else "Callable[..., Any]")
    if parameter.default is REQUIRED or parameter.default is Parameter.empty:
        return f"{parameter.name}: {type}"
    return f"{parameter.name}: {type}{' | None' if parameter.default is None else ''} = {_literal(parameter.default)}"


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _result(outputs: tuple[int, int] | None) -> str:
    if outputs is None:
        return "tuple[Tensor, ...]"
    return "Tensor" if outputs[1] == 1 else f"tuple[{', '.join(['Tensor'] * outputs[1])}]"


def _definition(name: str, parameters: list[str], result: str) -> str:
    """The lines of a function, broken as ruff does."""
    inside, end = ", ".join(parameters), f") -> {result}: ..."
    if len(f"def {name}({inside}{end}") <= WIDEST:
        return f"def {name}({inside}{end}"
    if len(inside) <= WIDEST - 4:
        return f"def {name}(\n    {inside}\n{end}"
    lines = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"def {name}(\n{lines}{end}"


def _without_unused(text: str, used: str) -> str:
    """Without the imports that a module does not need."""
    for module, names in (
        ("collections.abc", ("Callable", "Sequence")),
        ("typing", ("Any", "Literal", "overload")),
        ("weft.builder.tensor", ("ArrayLike", "DTypeLike", "Tensor", "TensorLike")),
        ("weft.ir.types", ("Type",)),
    ):
        needed = [name for name in names if _mentions(used, name)]
        line = f"from {module} import {', '.join(names)}\n"
        text = text.replace(line, f"from {module} import {', '.join(needed)}\n" if needed else "")
    return text


def _mentions(text: str, name: str) -> bool:
    words = text.replace("[", " ").replace("]", " ").replace(",", " ").replace(":", " ").replace("@", " ").split()
    return name in words
