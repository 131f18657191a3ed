"""Describe one operator: its versions, inputs, attributes, types, definitions and documentation page."""

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
    """An input, an output or an attribute; `note` is "optional", its default, …"""

    name: str
    type: str
    note: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class OpFacts:
    """One operator. `types` are the types of each type parameter, `places` the file and line of weft's definition for
    each version, `page` is the address of onnx's documentation.
    """

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


def describe_op(row: Coverage, definitions: Sequence[Definition]) -> OpFacts:
    """Describe an op by onnx's newest schema, or by weft's definition if onnx does not have the op."""
    versions = [each for each in definitions if (each.domain, each.name) == (row.domain, row.name)]
    places = {each.since: _source_location(each) for each in versions}
    if row.listed:
        schema = onnx.defs.get_schema(row.name, max_inclusive_version=row.listed[-1], domain=row.domain)
        return _describe_schema(row, schema, places)
    newest = versions[-1]
    text = inspect.getdoc(newest.function) or ""
    inputs = [OpPart(each.name, "", "optional" if each.optional else "") for each in newest.inputs]
    attributes = [
        OpPart(each.name, each.annotation, "required" if each.default is REQUIRED else f"default {each.default}")
        for each in newest.attributes
    ]
    return OpFacts(
        row.domain, row.name, row.status, (), text, tuple(inputs), (), tuple(attributes), {}, places, page=""
    )


def _describe_schema(row: Coverage, schema: Any, places: dict[int, str]) -> OpFacts:
    page = f"https://onnx.ai/onnx/operators/onnx_{_PAGES[row.domain]}_{row.name}.html" if row.domain in _PAGES else ""
    return OpFacts(
        row.domain,
        row.name,
        row.status,
        row.listed,
        _first_paragraph(schema.doc),
        tuple(_describe_parameter(each) for each in schema.inputs),
        tuple(_describe_parameter(each) for each in schema.outputs),
        tuple(_describe_attribute(each) for each in schema.attributes.values()),
        {
            each.type_param_str: tuple(_strip_tensor(name) for name in each.allowed_type_strs)
            for each in schema.type_constraints
        },
        places,
        page,
    )


def _describe_parameter(parameter: Any) -> OpPart:
    kinds = onnx.defs.OpSchema.FormalParameterOption
    note = {kinds.Optional: "optional", kinds.Variadic: "any number"}.get(parameter.option, "")
    return OpPart(parameter.name, _strip_tensor(parameter.type_str), note, _join_lines(parameter.description))


def _describe_attribute(attribute: Any) -> OpPart:
    default = attribute.default_value
    note = "required" if attribute.required else ""
    if default.type != onnx.AttributeProto.UNDEFINED:
        value = onnx.helper.get_attribute_value(default)
        note = f"default {value.decode() if isinstance(value, bytes) else value}"
        if isinstance(value, float):
            note = f"default {value:g}"
    return OpPart(attribute.name, attribute.type.name.lower(), note, _join_lines(attribute.description))


def _source_location(definition: Definition) -> str:
    """Return the file and line of a definition, relative to the folder of the package."""
    code = inspect.unwrap(definition.function).__code__
    parts = PurePath(code.co_filename).parts
    start = len(parts) - 1 - parts[::-1].index(_PACKAGE) if _PACKAGE in parts else len(parts) - 1
    return f"{'/'.join(parts[start:])}:{code.co_firstlineno}"


def _strip_tensor(type_name: str) -> str:
    """Return "float" for "tensor(float)"; other types are unchanged."""
    return type_name[len("tensor(") : -1] if type_name.startswith("tensor(") else type_name


def _first_paragraph(text: str) -> str:
    return _join_lines((text or "").strip().partition("\n\n")[0])


def _join_lines(text: str) -> str:
    return " ".join((text or "").split())
