"""The text of the stubs of `weft.ops`: what an editor completes and mypy checks, from the definitions of the ops."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import Parameter, Signature, signature

from weft.builder import signatures
from weft.builder.control import SPECIAL
from weft.builder.naming import names_of
from weft.builder.signatures import newest, takes_count
from weft.opset.registry import Definition

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

_BRANCHES = {"Tensor | float": "Tensor", "Sequence[TensorLike]": "tuple[Tensor, ...]"}
"""What the functions of a branch return -> what the branch gives."""


def stub(domain: str) -> str:
    """The stub of a domain's module."""
    text = "\n".join(_functions(domain))
    header = _HEADER if domain else _HEADER.replace("from weft.builder.tensor", f"{_FUNCTIONS}from weft.builder.tensor")
    return _without_unused(f"{header}{'' if domain else _DOMAINS}\n{text}\n", text)


def _functions(domain: str) -> Iterator[str]:
    for name, op in sorted(names_of(domain).items()):
        forms = [_definition(name, form) for form in _forms(name, newest(domain, op))]
        for form in forms:
            yield f"@overload\n{form}" if len(forms) > 1 else form


def _forms(name: str, definition: Definition) -> list[Signature]:
    """The signature of a function; several where its result depends on what is asked for."""
    if not definition.domain and name in SPECIAL:
        whole = signature(SPECIAL[name])
        return [whole] if whole.return_annotation != "Any" else [_branch(whole, *each) for each in _BRANCHES.items()]
    if definition.outputs is None or not takes_count(definition):
        return [signatures.signature(definition)]
    least, most = definition.outputs
    return [signatures.signature(definition, count) for count in range(least, most + 1)]


def _branch(whole: Signature, returned: str, result: str) -> Signature:
    parameters = [
        each.replace(annotation=each.annotation.replace("[], TensorLike]", f"[], {returned}]"))
        for each in whole.parameters.values()
    ]
    return Signature(parameters, return_annotation=result)


def _parameters(form: Signature) -> Iterator[str]:
    starred = False
    for parameter in form.parameters.values():
        if parameter.kind is Parameter.VAR_POSITIONAL:
            starred = True
            yield f"*{parameter.name}: {parameter.annotation}"
            continue
        if parameter.kind is Parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        default = "" if parameter.default is Parameter.empty else f" = {_literal(parameter.default)}"
        yield f"{parameter.name}: {parameter.annotation}{default}"


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _definition(name: str, form: Signature) -> str:
    """The lines of a function, broken as ruff does."""
    parameters = list(_parameters(form))
    inside, end = ", ".join(parameters), f") -> {form.return_annotation}: ..."
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
