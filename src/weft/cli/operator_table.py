"""Print the facts about one operator."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from weft.cli import output
from weft.cli.fitted_tables import FittedTable
from weft.compat.op_facts import OpFacts, OpPart

STYLES = {"defined": "green", "extension": "green", "inlined": "cyan", "partial": "yellow", "missing": "red"}
MEANINGS = {
    "defined": "supported",
    "extension": "supported, not part of onnx",
    "inlined": "supported through its function body in onnx",
    "partial": "supported in later versions",
    "missing": "not supported",
}


def print_facts(facts: OpFacts, console: Console) -> None:
    """Print name and description, then tables of inputs, outputs and attributes."""
    console.print(Text(f"{facts.name} of {facts.domain or 'ai.onnx'}", "bold"))
    if facts.text:
        console.print(Text(output.escape_unprintable(facts.text)))
    console.print()
    rows: list[tuple[str, object]] = [("status", Text(MEANINGS[facts.status], STYLES[facts.status]))]
    if facts.listed:
        rows.append(("onnx versions", ", ".join(map(str, facts.listed))))
    rows += [(f"from opset {since}", f"defined in {place}") for since, place in facts.places.items()]
    rows += [(f"type {name}", ", ".join(members)) for name, members in facts.types.items()]
    if facts.page:
        rows.append(("documentation", facts.page))
    console.print(output.facts(rows))
    for title, parts in (("inputs", facts.inputs), ("outputs", facts.outputs), ("attributes", facts.attributes)):
        if parts:
            console.print()
            console.print(_table(title, parts))


def _table(title: str, parts: Sequence[OpPart]) -> FittedTable:
    columns = ["name", "type", "", "description"]
    rows = [(each.name, each.type, each.note, each.text.partition(". ")[0].partition("; ")[0]) for each in parts]
    used = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    cells = [[row[place] for place in used] for row in rows]
    return output.table(title, [columns[place] for place in used], cells, below="description" if 3 in used else None)
