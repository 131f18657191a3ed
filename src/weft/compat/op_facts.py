"""What is known of one operator: its versions, inputs, attributes, types, who defines it, where one can read on."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import onnx
import onnx.defs
import onnx.helper

from weft.compat.op_coverage import Coverage
from weft.opset.registry import REQUIRED, Definition
from weft.records import dataclass

_PAGES = {"": "", "ai.onnx.ml": "aionnxml", "ai.onnx.preview.training": "aionnxpreviewtraining"}
_PACKAGE = "weft"


@dataclass(frozen=True, slots=True)
class OpPart:
    """An input, an output or an attribute; `note` says what else holds: optional, its default, …"""

    name: str
    type: str
    note: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class OpFacts:
    """One operator. `places` are weft's definitions by the version that they hold from, `types` what type names are."""

    domain: str
    name: str
    status: str
    listed: tuple[int, ...]
    text: str
    inputs: tuple[OpPart, ...]
    outputs: tuple[OpPart, ...]
    attributes: tuple[OpPart, ...]
    types: dict[str, tuple[str, ...]]
    places: dict[int, str]
    page: str


def op_facts(row: Coverage, definitions: Sequence[Definition]) -> OpFacts:
    """What onnx's newest schema says, or where it has none weft's own definition."""
    own = [each for each in definitions if (each.domain, each.name) == (row.domain, row.name)]
    places = {each.since: _place(each) for each in own}
    if row.listed:
        schema = onnx.defs.get_schema(row.name, max_inclusive_version=row.listed[-1], domain=row.domain)
        return _of_schema(row, schema, places)
    newest = own[-1]
    text = inspect.getdoc(newest.function) or ""
    inputs = [OpPart(each.name, "", "optional" if each.optional else "") for each in newest.inputs]
    attributes = [
        OpPart(each.name, each.annotation, "required" if each.default is REQUIRED else f"default {each.default}")
        for each in newest.attributes
    ]
    return OpFacts(
        row.domain, row.name, row.status, (), text, tuple(inputs), (), tuple(attributes), {}, places, page=""
    )


def _of_schema(row: Coverage, schema: Any, places: dict[int, str]) -> OpFacts:
    page = f"https://onnx.ai/onnx/operators/onnx_{_PAGES[row.domain]}_{row.name}.html" if row.domain in _PAGES else ""
    return OpFacts(
        row.domain,
        row.name,
        row.status,
        row.listed,
        _first_paragraph(schema.doc),
        tuple(_part(each) for each in schema.inputs),
        tuple(_part(each) for each in schema.outputs),
        tuple(_attribute(each) for each in schema.attributes.values()),
        {
            each.type_param_str: tuple(_plain(name) for name in each.allowed_type_strs)
            for each in schema.type_constraints
        },
        places,
        page,
    )


def _part(formal: Any) -> OpPart:
    kinds = onnx.defs.OpSchema.FormalParameterOption
    notes = {kinds.Optional: "optional", kinds.Variadic: "any number"}
    return OpPart(formal.name, _plain(formal.type_str), notes.get(formal.option, ""), _line(formal.description))


def _attribute(attribute: Any) -> OpPart:
    given = attribute.default_value
    note = "required" if attribute.required else ""
    if given.type != onnx.AttributeProto.UNDEFINED:
        value = onnx.helper.get_attribute_value(given)
        note = f"default {value.decode() if isinstance(value, bytes) else value}"
        if isinstance(value, float):
            note = f"default {value:g}"
    return OpPart(attribute.name, attribute.type.name.lower(), note, _line(attribute.description))


def _place(definition: Definition) -> str:
    """The module and line of a definition, from the package on."""
    code = inspect.unwrap(definition.function).__code__
    parts = PurePath(code.co_filename).parts
    start = len(parts) - 1 - parts[::-1].index(_PACKAGE) if _PACKAGE in parts else len(parts) - 1
    return f"{'/'.join(parts[start:])}:{code.co_firstlineno}"


def _plain(type_name: str) -> str:
    return type_name[len("tensor(") : -1] if type_name.startswith("tensor(") else type_name


def _first_paragraph(text: str) -> str:
    return _line((text or "").strip().partition("\n\n")[0])


def _line(text: str) -> str:
    return " ".join((text or "").split())
