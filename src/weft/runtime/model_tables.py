"""What a model says of itself at a glance: its file, its device, what it takes and gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from weft.ir.specs import TensorSpec, spec_row
from weft.quantities import MORE, few, shortened
from weft.tables import LONGEST_CELL, ShownTable

if TYPE_CHECKING:
    from weft.runtime.model import Model

MOST_SPECS = 20  # of inputs, and of outputs
INTERNAL = frozenset({"deployment", "move_to", "session"})
"""Attributes of a model that other rooms use, and people do not."""


def model_line(model: Model) -> str:
    """The model on one line."""
    takes, gives = few(map(str, model.inputs)), few(map(str, model.outputs))
    return f"<weft.Model {shortened(model.file, LONGEST_CELL)} on {model.device}: ({takes}) -> ({gives})>"


def model_tables(model: Model) -> Iterator[ShownTable]:
    """Inputs and outputs, the first of many."""
    rows = [*_rows("input", model.inputs), *_rows("optional", model.defaults), *_rows("output", model.outputs)]
    title = f"{shortened(model.file, LONGEST_CELL)} on {model.device}"
    yield ShownTable(rows, ("", "name", "type", "shape"), title=title, most=len(rows))


def _rows(role: str, specs: Sequence[TensorSpec]) -> Iterator[tuple[str, str, str, str]]:
    shown = specs if len(specs) <= MOST_SPECS + 1 else specs[:MOST_SPECS]
    for spec in shown:
        yield role, *spec_row(spec)
    if len(shown) < len(specs):
        yield role, f"{MORE} {len(specs) - len(shown):,} more", "", ""
