"""Compare weft's op definitions with the operator schemas of the installed onnx package."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx.defs

from weft.opset.registry import Definition
from weft.records import dataclass

OLDEST_OPSET = {"": 7}


@dataclass(frozen=True, slots=True)
class Coverage:
    """One op: the versions that weft defines, and those that onnx lists.

    Status: `defined` by weft; `partial` (defined, but not for the oldest listed version); `inlined` (a function of
    other ops in onnx); `missing`; `extension` (defined by weft, unknown to onnx).
    """

    domain: str
    name: str
    defined: tuple[int, ...]
    listed: tuple[int, ...]
    status: str
    deprecated: bool


def list_coverage(definitions: Iterable[Definition]) -> list[Coverage]:
    """Return the coverage of every op of weft and onnx, by domain and name."""
    defined: dict[tuple[str, str], list[int]] = {}
    for definition in definitions:
        defined.setdefault((definition.domain, definition.name), []).append(definition.since)
    schemas: dict[tuple[str, str], list[Any]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        schemas.setdefault((schema.domain, schema.name), []).append(schema)
    rows = []
    for domain, name in sorted(defined.keys() | schemas.keys()):
        ours = tuple(sorted(defined.get((domain, name), ())))
        theirs = sorted(schemas.get((domain, name), ()), key=lambda schema: schema.since_version)
        listed = _supported_versions([schema.since_version for schema in theirs], OLDEST_OPSET.get(domain, 1))
        deprecated = bool(theirs) and theirs[-1].deprecated
        rows.append(Coverage(domain, name, ours, listed, _status(ours, listed, theirs), deprecated))
    return rows


def _supported_versions(versions: list[int], oldest: int) -> tuple[int, ...]:
    """Return the versions of an op that models of opset `oldest` or later use."""
    before = [version for version in versions if version <= oldest]
    return tuple(before[-1:] + [version for version in versions if version > oldest])


def _status(defined: tuple[int, ...], listed: tuple[int, ...], schemas: list[Any]) -> str:
    if defined and not listed:
        return "extension"
    if defined:
        return "defined" if defined[0] <= listed[0] else "partial"
    latest = schemas[-1]
    return "inlined" if latest.has_function or latest.has_context_dependent_function else "missing"
