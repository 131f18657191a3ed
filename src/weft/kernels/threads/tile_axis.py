"""Rows or columns of a product, in tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Statement
from weft.kernels.build.loop_axes import LoopAxis, unravel_index
from weft.kernels.lower.kernel_builder import KernelBuilder


class TileAxis:
    """`count` rows or columns along some loop axes, in tiles of `extent`; the block's tile begins with number `first`.

    Kernels always test for the last row and column, so that one kernel serves all sizes. With `literal`, constant
    divisors are literals, not parameters: for kernels that divide often.
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
            dims.maximum(loop_axis.size, 1)
            if literal and isinstance(loop_axis.size, int)
            else builder.parameter(f"{name}s{n}", dims.maximum(loop_axis.size, 1))
            for n, loop_axis in enumerate(loop_axes)
        ]
        self.first: Dim = 0
        self.within = within  # from the number of a lane's row or column to its position in the tile

    def places(self, within: Dim, run: int = 1) -> list[Dim]:
        """Return the positions along each loop axis of a row or column of the tile, clamped to the last one.

        `within` is the first of a run; runs are never cut.
        """
        if not self.sizes:
            return []
        last = self.builder.parameter(f"last_{self.name}{run}", dims.maximum(dims.ceildiv(self.count, run) - 1, 0))
        index = run * dims.minimum(dims.floordiv(self.first + within, run), last)
        return unravel_index(index, self.sizes)

    def tests(self, first: Dim, length: int, run: int, statements: list[Statement]) -> list[Code]:
        """Test which of a lane's rows or columns from number `first` on exist; the first of a run decides for all."""
        count = Integer(self.builder.parameter(f"{self.name}s", self.count))
        tests: list[Code] = []
        for number in range(0, length, run):
            test = Call("less", (Integer(self.first + self.within(first + number)), count), DType.bool)
            definition, exists = self.builder.keep(f"in_{self.name}", test, varying=True)
            statements.append(definition)
            tests += [exists] * run
        return tests[:length]
