"""Rows or columns of a product as the lanes of a tile meet them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Statement
from weft.kernels.build.loop_axes import LoopAxis, split_index
from weft.kernels.lower.kernel_builder import KernelBuilder


class TileAxis:
    """`count` rows or columns along some loop axes, in tiles of `extent`; the block's tile begins with number `first`.

    Whether tiles fill the rows and columns is not looked at: one kernel does for both. Sizes that positions are divided
    by are parameters, or `literal`, where they are divided by too often.
    """

    def __init__(
        self,
        name: str,
        loop_axes: Sequence[LoopAxis],
        builder: KernelBuilder,
        extent: int,
        within: Callable[[Dim], Dim],
        *,
        literal: bool = False,
    ) -> None:
        self.name, self.loop_axes, self.extent, self.builder = name, loop_axes, extent, builder
        self.count = dims.product(loop_axis.size for loop_axis in loop_axes)
        self.tiles = dims.ceildiv(self.count, extent)
        self.sizes = [
            dims.maximum(w.size, 1)
            if literal and isinstance(w.size, int)
            else builder.named(f"{name}s{n}", dims.maximum(w.size, 1))
            for n, w in enumerate(loop_axes)
        ]
        self.first: Dim = 0
        self.within = within  # where a lane's rows or columns, by their number, are in the tile

    def places(self, within: Dim, run: int = 1) -> list[Dim]:
        """Where one of the tile lies along each loop axis; one that is not there, where the last does.

        Of a run, the first is asked for, and all of it is there or nothing.
        """
        if not self.sizes:
            return []
        last = self.builder.named(f"last_{self.name}{run}", dims.maximum(dims.ceildiv(self.count, run) - 1, 0))
        index = run * dims.minimum(dims.floordiv(self.first + within, run), last)
        return split_index(index, self.sizes)

    def tests(self, first: Dim, each: int, run: int, statements: list[Statement]) -> list[Code]:
        """Which of a lane's, from number `first` on, are there; for runs, their first ones speak for all."""
        count = Integer(self.builder.named(f"{self.name}s", self.count))
        found: list[Code] = []
        for number in range(0, each, run):
            test = Call("less", (Integer(self.first + self.within(first + number)), count), DType.bool)
            defined, there = self.builder.keep(f"in_{self.name}", test, varying=True)
            statements.append(defined)
            found += [there] * run
        return found[:each]
