"""Statements of kernels about products whose sums are registers of lanes: each warp of 32 lanes has 16 rows."""

from __future__ import annotations

from typing import Union

from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class MultiplyRows:
    """Add the product of 16 rows of each warp of 32 lanes and a tile, [columns, depth] transposed, to registers.

    Lane 4 * g + q of warp w has, for columns 8 * n to 8 * n + 7, four of the float32 registers `sums`: row 16 * w + g,
    columns 8 * n + 2 * q and 8 * n + 2 * q + 1; row 16 * w + g + 8, the same columns. `left` is a tile that has the
    rows of all warps; or registers like `sums`, with the summed depth as their columns, which are rounded to the type
    of the right tile. Elements are floats of 16 bits.
    """

    sums: tuple[str, ...]
    left: str | tuple[str, ...]
    right: str

    @property
    def tiles(self) -> tuple[str, ...]:
        return (self.left, self.right) if isinstance(self.left, str) else (self.right,)

    def __str__(self) -> str:
        left = self.left if isinstance(self.left, str) else ", ".join(self.left)
        return f"{', '.join(self.sums)} += {left} @ {self.right} by rows"


@dataclass(frozen=True, slots=True)
class ReduceRows:
    """Reduce registers over the four lanes that share rows in `MultiplyRows`: each gets the sum or the maximum."""

    registers: tuple[str, ...]
    kind: str

    def __str__(self) -> str:
        return f"{', '.join(self.registers)} = {self.kind} by rows"


RowStatement = Union[MultiplyRows, ReduceRows]
