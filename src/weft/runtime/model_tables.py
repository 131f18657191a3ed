"""A model as text: its file, device, inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from weft.ir.specs import TensorSpec, spec_row
from weft.quantities import ELLIPSIS, join_few, shorten
from weft.tables import MAX_CELL, Table

if TYPE_CHECKING:
    from weft.runtime.model import Model

MOST_SPECS = 20  # inputs, and outputs, that are listed
INTERNAL = frozenset({"move_to", "pool", "session"})
"""Attributes of a model that other packages of weft use, and users do not."""


def model_line(model: Model) -> str:
    """Describe the model on one line."""
    takes, gives = join_few(map(str, model.inputs)), join_few(map(str, model.outputs))
    return f"<weft.Model {shorten(model.file, MAX_CELL)} on {model.device}: ({takes}) -> ({gives})>"


def model_tables(model: Model) -> Iterator[Table]:
    """Make a table of inputs and outputs, at most MOST_SPECS of each."""
    rows = [*_rows("input", model.inputs), *_rows("optional", model.defaults), *_rows("output", model.outputs)]
    title = f"{shorten(model.file, MAX_CELL)} on {model.device}"
    yield Table(rows, ("", "name", "type", "shape"), title=title, most=len(rows))


def _rows(role: str, specs: Sequence[TensorSpec]) -> Iterator[tuple[str, str, str, str]]:
    shown = specs if len(specs) <= MOST_SPECS + 1 else specs[:MOST_SPECS]
    for spec in shown:
        yield role, *spec_row(spec)
    if len(shown) < len(specs):
        yield role, f"{ELLIPSIS} {len(specs) - len(shown):,} more", "", ""
