"""What a model says of itself at a glance: its file, its device, what it takes and gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.ir.specs import spec_row
from weft.quantities import few, shortened
from weft.tables import LONGEST_CELL, ShownTable

if TYPE_CHECKING:
    from weft.runtime.model import Model

INTERNAL = frozenset({"deployment", "move_to", "session"})
"""Attributes of a model that other rooms use, and people do not."""


def model_line(model: Model) -> str:
    """The model on one line."""
    takes, gives = few(map(str, model.inputs)), few(map(str, model.outputs))
    return f"<weft.Model {shortened(model.file, LONGEST_CELL)} on {model.device}: ({takes}) -> ({gives})>"


def model_tables(model: Model) -> Iterator[ShownTable]:
    """Every input and output."""
    rows = [("input", *spec_row(spec)) for spec in model.inputs]
    rows += [("input, optional", *spec_row(spec)) for spec in model.defaults]
    rows += [("output", *spec_row(spec)) for spec in model.outputs]
    title = f"{shortened(model.file, LONGEST_CELL)} on {model.device}"
    yield ShownTable(rows, ("", "name", "type", "shape"), title=title)
