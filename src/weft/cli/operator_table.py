"""One operator on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from weft.cli import output
from weft.cli.fitted_tables import FittedTable
from weft.compat.op_facts import OpFacts, OpPart

STYLES = {"defined": "green", "extension": "green", "inlined": "cyan", "partial": "yellow", "missing": "red"}
MEANINGS = {
    "defined": "weft has it",
    "extension": "weft has it, onnx does not",
    "inlined": "weft runs it as the function that onnx gives of it",
    "partial": "weft has its later versions",
    "missing": "weft lacks it",
}


def print_facts(facts: OpFacts, console: Console) -> None:
    """Its name and what it does, then a table for each kind of its parts."""
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
        rows.append(("read on", facts.page))
    console.print(output.facts(rows))
    for title, parts in (("inputs", facts.inputs), ("outputs", facts.outputs), ("attributes", facts.attributes)):
        if parts:
            console.print()
            console.print(_table(title, parts))


def _table(title: str, parts: Sequence[OpPart]) -> FittedTable:
    columns = ["name", "type", "", "what"]
    rows = [(each.name, each.type, each.note, each.text.partition(". ")[0].partition("; ")[0]) for each in parts]
    used = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    cells = [[row[place] for place in used] for row in rows]
    return output.table(title, [columns[place] for place in used], cells, below="what" if 3 in used else None)
