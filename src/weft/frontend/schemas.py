"""Query onnx's op schemas: input and output types, documentation, versions. Ops of other domains have no schema."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from inspect import cleandoc

import onnx
import onnx.defs

from weft.frontend.opsets import IMPLIED
from weft.frontend.tensors import ELEMENT_TYPES
from weft.ir.dtypes import DType
from weft.records import dataclass

LATEST_SHARED = 23
"""The newest opset of ai.onnx in the last onnxruntime for Python 3.10, the oldest Python that weft supports: 1.23."""

_BY_NAME = {f"tensor({onnx.helper.tensor_dtype_to_string(number).split('.')[-1].lower()})": dtype
            for number, dtype in ELEMENT_TYPES.items()}  # fmt: skip


@dataclass(frozen=True, slots=True)
class InputRule:
    """Inputs with the same `variable` have the same type, one of `dtypes`."""

    variable: str
    dtypes: frozenset[DType]


@cache
def input_rules(domain: str, op: str, version: int) -> tuple[InputRule, ...]:
    """Return the rules for the inputs of an op, in order; the last rule of a variadic op applies to all that follow."""
    if not onnx.defs.has(op, version, domain):
        return ()
    schema = onnx.defs.get_schema(op, version, domain)
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    return tuple(
        InputRule(
            each.type_str if each.is_homogeneous else "", _parse_dtypes(allowed.get(each.type_str, [each.type_str]))
        )
        for each in schema.inputs
    )


@cache
def min_inputs(domain: str, op: str, version: int) -> int:
    """Return the least number of inputs, including omitted optional ones, that a node of an op must list."""
    return int(onnx.defs.get_schema(op, version, domain).min_input) if onnx.defs.has(op, version, domain) else 0


def output_dtypes(
    domain: str, op: str, version: int, inputs: tuple[DType | None, ...], attribute_dtype: DType | None
) -> dict[int, DType]:
    """Return the element types of an op's outputs, by position, as far as the schema derives them from the inputs.

    `attribute_dtype` is a type that an attribute names; outputs that share no type with an input have it.
    """
    if not onnx.defs.has(op, version, domain):
        return {}
    schema = onnx.defs.get_schema(op, version, domain)
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    bound = {each.type_str: dtype for each, dtype in zip(schema.inputs, inputs) if dtype is not None}
    input_variables = {each.type_str for each in schema.inputs}
    result: dict[int, DType] = {}
    for number, each in enumerate(schema.outputs):
        names = allowed.get(each.type_str, [each.type_str])
        dtypes = _parse_dtypes(names)
        if not all(name in _BY_NAME for name in names):
            continue  # it may be a sequence, an optional or a map
        if each.type_str in bound:
            result[number] = bound[each.type_str]
        elif attribute_dtype is not None and each.type_str not in input_variables:
            result[number] = attribute_dtype
        elif len(dtypes) == 1:
            result[number] = next(iter(dtypes))
    return result


def documentation(domain: str, op: str, version: int) -> str:
    """Return the documentation of an op in the installed onnx package."""
    return cleandoc(onnx.defs.get_schema(op, version, domain).doc or "") if onnx.defs.has(op, version, domain) else ""


@cache
def removed_in_opset(domain: str, op: str, version: int) -> int | None:
    """Return the opset that removed an op, or None if this version has it."""
    if not onnx.defs.has(op, version, domain):
        return None
    schema = onnx.defs.get_schema(op, version, domain)
    return int(schema.since_version) if schema.deprecated else None


def newest_opsets() -> dict[str, int]:
    """Return the versions that a new model imports."""
    newest = newest_installed_opsets()
    return {"": min(newest[""], LATEST_SHARED), "ai.onnx.ml": newest["ai.onnx.ml"], **IMPLIED}


def newest_installed_opsets() -> dict[str, int]:
    """Return the newest versions in the installed onnx package."""
    newest = onnx.defs.onnx_opset_version()
    return {"": newest, "ai.onnx": newest, "ai.onnx.ml": onnx.defs.onnx_ml_opset_version()}


def _parse_dtypes(names: Sequence[str]) -> frozenset[DType]:
    return frozenset(_BY_NAME[name] for name in names if name in _BY_NAME)
