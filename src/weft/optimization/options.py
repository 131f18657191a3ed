"""What `weft.optimize` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from weft.errors import InputError
from weft.records import dataclass

GROWTH = 1 << 20


@dataclass(frozen=True, slots=True)
class OptimizeOptions:
    """sizes: dynamic dims of the inputs that get a fixed size, by name.

    growth: how many bytes a folded value may be larger than the constants that it was computed from; what would grow
        more (a ConstantOfShape, an Expand, a Tile, a table that a model computes) stays a node. None: no limit.
    opset: write the model in this opset, if it is newer; None keeps that of the model.
    keep_inputs: whether weights that are inputs, too, stay so, and are not folded. By default they do, unless all
        weights are: old exporters wrote files in that way, and nobody means to override them.
    exact: leave alone what changes results in the last digits: nothing is moved into weights, sums and products keep
        their order.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    growth: int | None = GROWTH
    opset: int | None = None
    keep_inputs: bool = False
    exact: bool = False

    def __post_init__(self) -> None:
        for name, size in self.sizes.items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise InputError(f"sizes: {name} must be a whole number, not {_shown(size)}")
        if self.growth is not None and (not isinstance(self.growth, int) or self.growth < 0):
            raise InputError(f"growth must be a number of bytes or None, not {_shown(self.growth)}")
        if self.opset is not None and (not isinstance(self.opset, int) or self.opset < 1):
            raise InputError(f"opset must be a version of ai.onnx, not {_shown(self.opset)}")


def _shown(content: Any) -> str:
    return repr(content)[:60]
