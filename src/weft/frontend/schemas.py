"""What onnx's own schemas say about the inputs of an op: which must be of one type, and which types may be.

Ops of other domains have no schema there; nothing is known of them.
"""

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
"""The newest opset of ai.onnx that an onnxruntime reads wherever weft runs: 1.23 is the last for Python 3.10."""

_BY_NAME = {f"tensor({onnx.helper.tensor_dtype_to_string(number).split('.')[-1].lower()})": dtype
            for number, dtype in ELEMENT_TYPES.items()}  # fmt: skip


@dataclass(frozen=True, slots=True)
class InputRule:
    """Inputs with the same `variable` have the same type; `dtypes` are those it may be."""

    variable: str
    dtypes: frozenset[DType]


@cache
def input_rules(domain: str, op: str, version: int) -> tuple[InputRule, ...]:
    """The rules for the inputs of an op, in order; of a variadic op the last one holds for all that follow."""
    if not onnx.defs.has(op, version, domain):
        return ()
    schema = onnx.defs.get_schema(op, version, domain)
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    return tuple(
        InputRule(each.type_str if each.is_homogeneous else "", _dtypes(allowed.get(each.type_str, [each.type_str])))
        for each in schema.inputs
    )


@cache
def least_inputs(domain: str, op: str, version: int) -> int:
    """How many inputs a node of an op names at least, left out or not: a Loop has two."""
    return int(onnx.defs.get_schema(op, version, domain).min_input) if onnx.defs.has(op, version, domain) else 0


def output_dtypes(
    domain: str, op: str, version: int, inputs: tuple[DType | None, ...], said: DType | None
) -> dict[int, DType]:
    """The element types of an op's outputs, by position, where the schema tells them from those of its inputs.

    `said` is a type that an attribute names: that of outputs which have none of an input's.
    """
    if not onnx.defs.has(op, version, domain):
        return {}
    schema = onnx.defs.get_schema(op, version, domain)
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    bound = {each.type_str: dtype for each, dtype in zip(schema.inputs, inputs) if dtype is not None}
    taken = {each.type_str for each in schema.inputs}
    found: dict[int, DType] = {}
    for number, each in enumerate(schema.outputs):
        names = allowed.get(each.type_str, [each.type_str])
        dtypes = _dtypes(names)
        if not all(name in _BY_NAME for name in names):
            continue  # it may be no tensor
        if each.type_str in bound:
            found[number] = bound[each.type_str]
        elif said is not None and each.type_str not in taken:
            found[number] = said
        elif len(dtypes) == 1:
            found[number] = next(iter(dtypes))
    return found


def documentation(domain: str, op: str, version: int) -> str:
    """What the installed onnx package says about an op."""
    return cleandoc(onnx.defs.get_schema(op, version, domain).doc or "") if onnx.defs.has(op, version, domain) else ""


@cache
def gone_since(domain: str, op: str, version: int) -> int | None:
    """The opset from which on a model may not have an op any more, if this one is such."""
    if not onnx.defs.has(op, version, domain):
        return None
    schema = onnx.defs.get_schema(op, version, domain)
    return int(schema.since_version) if schema.deprecated else None


def newest_opsets() -> dict[str, int]:
    """The versions that a new model imports."""
    known = newest_known()
    return {"": min(known[""], LATEST_SHARED), "ai.onnx.ml": known["ai.onnx.ml"], **IMPLIED}


def newest_known() -> dict[str, int]:
    """The newest versions that the installed onnx package knows."""
    newest = onnx.defs.onnx_opset_version()
    return {"": newest, "ai.onnx": newest, "ai.onnx.ml": onnx.defs.onnx_ml_opset_version()}


def _dtypes(names: Sequence[str]) -> frozenset[DType]:
    return frozenset(_BY_NAME[name] for name in names if name in _BY_NAME)
