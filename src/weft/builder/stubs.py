"""Generate the stubs of `weft.ops` from the definitions of the ops, for editors and type checkers."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import Parameter, Signature, signature

from weft.builder.control import SPECIAL
from weft.builder.naming import function_names
from weft.builder.signatures import has_optional_outputs, make_signature, newest_definition
from weft.opset.registry import Definition

WIDEST = 120

_HEADER = '''"""Generated from the definitions of the ops: see tests/builder/test_stubs.py"""

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
"""The return type of the functions of a branch, and the result of the branch."""


def generate_stub(domain: str) -> str:
    """Return the text of the stub of a domain's module."""
    text = "\n".join(_functions(domain))
    header = _HEADER if domain else _HEADER.replace("from weft.builder.tensor", f"{_FUNCTIONS}from weft.builder.tensor")
    return _drop_unused_imports(f"{header}{'' if domain else _DOMAINS}\n{text}\n", text)


def _functions(domain: str) -> Iterator[str]:
    for name, op in sorted(function_names(domain).items()):
        forms = [_definition(name, form) for form in _forms(name, newest_definition(domain, op))]
        for form in forms:
            yield f"@overload\n{form}" if len(forms) > 1 else form


def _forms(name: str, definition: Definition) -> list[Signature]:
    """Return the signatures of a function: several if its result depends on the arguments."""
    if not definition.domain and name in SPECIAL:
        form = signature(SPECIAL[name])
        return [form] if form.return_annotation != "Any" else [_branch(form, *each) for each in _BRANCHES.items()]
    if definition.outputs is None or not has_optional_outputs(definition):
        return [make_signature(definition)]
    least, most = definition.outputs
    return [make_signature(definition, count) for count in range(least, most + 1)]


def _branch(form: Signature, returned: str, result: str) -> Signature:
    parameters = [
        each.replace(annotation=each.annotation.replace("[], TensorLike]", f"[], {returned}]"))
        for each in form.parameters.values()
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
    """Return the lines of a function, formatted as ruff does."""
    parameters = list(_parameters(form))
    inside, end = ", ".join(parameters), f") -> {form.return_annotation}: ..."
    if len(f"def {name}({inside}{end}") <= WIDEST:
        return f"def {name}({inside}{end}"
    if len(inside) <= WIDEST - 4:
        return f"def {name}(\n    {inside}\n{end}"
    lines = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"def {name}(\n{lines}{end}"


def _drop_unused_imports(text: str, used: str) -> str:
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
