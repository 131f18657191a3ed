"""A value of a graph under construction: its name and its symbolic tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.ir.types import Type
from weft.opset.tensor import Tensor

if TYPE_CHECKING:
    from weft.builder.draft import Draft, GraphLevel


class Handle:
    """One value. `traced` is its symbolic tensor in the trace of `level`, `type` its type, as far as it is known."""

    __slots__ = ("draft", "level", "name", "traced", "type")

    def __init__(self, draft: Draft, level: GraphLevel, name: str, traced: Tensor, type: Type | None = None) -> None:
        self.draft: Draft = draft
        self.level: GraphLevel = level
        self.name: str = name
        self.traced: Tensor = traced
        self.type: Type = traced.type if type is None else type
