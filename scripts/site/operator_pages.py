"""Generate the page of all operators from their definitions."""

from __future__ import annotations

from collections.abc import Iterator

from weft.compat.op_coverage import Coverage, list_coverage
from weft.opset.registry import definitions

OWN = "ai.onnx"


def pages() -> Iterator[tuple[str, str, str]]:
    """Yield the path, title and text of the page."""
    rows = list_coverage(definitions())
    domains: dict[str, list[Coverage]] = {}
    for row in rows:
        domains.setdefault(row.domain or OWN, []).append(row)
    introduction = " ".join(
        (
            "All operators of weft, by domain. `weft ops NAME` describes one, and `weft ops --missing MODEL`",
            "lists those that a model needs and weft lacks; you can [write them](../guides/writing-an-op.md).",
        )
    )
    parts = ["# Operators", introduction]
    for domain in sorted(domains, key=lambda name: (name != OWN, name)):
        operators = domains[domain]
        lines = [f"| `{row.name}` | {_versions(row)} | {_note(row)} |" for row in operators]
        head = [
            f"## {domain}",
            "",
            f"{len(operators)} operators.",
            "",
            "| operator | versions | |",
            "| --- | --- | --- |",
        ]
        parts.append("\n".join([*head, *lines]))
    yield "reference/operators.md", "Operators", "\n\n".join(parts) + "\n"


def _versions(row: Coverage) -> str:
    return ", ".join(map(str, row.listed or row.defined))


def _note(row: Coverage) -> str:
    notes = {
        "defined": "",
        "extension": "",
        "missing": "not in weft",
        "partial": f"from opset {min(row.defined, default=1)} on",
    }
    deprecated = "deprecated" if row.deprecated else ""
    return ", ".join(filter(None, (notes.get(row.status, row.status), deprecated)))
