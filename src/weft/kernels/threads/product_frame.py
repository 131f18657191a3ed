"""The frame that all product kernels share: which tile a block computes, and how its results are written.

With several `splits` each block adds up one range of the reduction (split-K) and writes plain sums,
[splits, grid, rows, columns], which another kernel adds (see split_k.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Code, Statement, block
from weft.kernels.build.loop_axes import unravel_index
from weft.kernels.lower.kernel_builder import KernelBuilder, put, put_run
from weft.kernels.lower.tensors import RESULT
from weft.kernels.threads.depth import Depth
from weft.kernels.threads.epilogue import RunEpilogueWriter
from weft.kernels.threads.product import Product
from weft.kernels.threads.product_operands import RUN
from weft.kernels.threads.tile_axis import TileAxis


class BlockTile(Protocol):
    """The tile that a block computes."""

    @property
    def height(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def depth(self) -> int: ...


class ProductFrame:
    """Operands must be declared on the builder before: they are the kernel's first buffers.

    `row_within` and `column_within` map the number of a lane's row or column to its position in the tile. With
    `literal`, constant sizes that positions are divided by are literals, not parameters.
    """

    def __init__(
        self,
        builder: KernelBuilder,
        product: Product,
        tile: BlockTile,
        splits: int,
        dtype: DType,
        row_within: Callable[[Dim], Dim],
        column_within: Callable[[Dim], Dim],
        *,
        literal: bool = False,
    ) -> None:
        self.builder, self.product, self.splits, self.type = builder, product, splits, dtype
        if splits == 1:
            self.epilogue_writer = RunEpilogueWriter(product.result, product.epilogue, builder, 2)
        else:
            self.out = builder.output("out", dtype, RESULT)
        self.depth = Depth(product.sums, builder, tile.depth, literal=literal)
        self.rows = TileAxis("row", product.rows, builder, tile.height, row_within, literal=literal)
        self.columns = TileAxis("column", product.columns, builder, tile.width, column_within, literal=literal)
        self.grid_size = product.extents()[0]
        self.grid_index: Dim = 0
        self.grid_positions: list[Dim] = []
        self.split: Dim = 0

    @property
    def blocks(self) -> Dim:
        return self.columns.tiles * self.rows.tiles * self.splits * self.grid_size

    def let(self, statements: list[Statement], hint: str, value: Dim) -> Dim:
        """Append the definition of a variable, and return the variable."""
        definition, variable = self.builder.let(hint, value)
        statements.append(definition)
        return variable

    def locate_in_grid(self, statements: list[Statement]) -> None:
        """Append the statements that compute the block's split and its position along each grid axis."""
        parameter, tiles = self.builder.parameter, self.columns.tiles * self.rows.tiles
        remaining: Dim = 0
        if self.splits > 1 or self.product.grid:
            remaining = self.let(statements, "rest", dims.floordiv(block(), parameter("tiles", dims.maximum(tiles, 1))))
        if self.splits > 1:
            self.split = self.let(statements, "part", dims.mod(remaining, parameter("parts", self.splits)))
            remaining = dims.floordiv(remaining, parameter("parts", self.splits))
        self.grid_index = remaining if self.product.grid else 0
        sizes = [
            parameter(f"grid{n}", dims.maximum(loop_axis.size, 1)) for n, loop_axis in enumerate(self.product.grid)
        ]
        self.grid_positions = [
            self.let(statements, f"g{number}", position)
            for number, position in enumerate(unravel_index(self.grid_index, sizes))
        ]

    def depth_range(self, end: Dim) -> tuple[Dim, Dim]:
        """Return the first depth tile of this block's split, and the end; `end` is the number of all depth tiles."""
        if self.splits == 1:
            return 0, end
        per_split = self.builder.parameter("pieces_part", dims.ceildiv(self.depth.tiles, self.splits))
        first = self.split * per_split
        return first, dims.minimum(first + per_split, end)

    # -- results -----------------------------------------------------------------------------------------------------

    def begin_results(self) -> int:
        """Declare the parameters that writing takes, and return how many neighbours are written at once."""
        parameter, product = self.builder.parameter, self.product
        if self.splits == 1:
            self.result_start = {axis: parameter(f"start{axis}", start) for axis, start in product.result_start}
            return RUN if self.epilogue_writer.has_runs(product.columns, dict(product.result_start)) else 1
        run = RUN if dims.mod(self.columns.count, RUN) == 0 else 1
        self.pitch = run * parameter(f"pitch{run}", dims.floordiv(self.columns.count, run))
        self.plane = (self.split * parameter("places", self.grid_size) + self.grid_index) * parameter(
            "height", self.rows.count
        )
        return run

    def result_axes(self, rows: Sequence[Dim], columns: Sequence[Dim]) -> dict[int, Dim]:
        """Return the positions along the result's axes, from those along the loop axes of rows and columns."""
        product, axes = self.product, dict(self.result_start)
        loop_axes = [*zip(product.grid, self.grid_positions), *zip(product.rows, rows), *zip(product.columns, columns)]
        for loop_axis, position in loop_axes:
            if loop_axis.axis is not None:
                axes[loop_axis.axis] = axes.get(loop_axis.axis, 0) + self.builder.size(loop_axis.factor) * position
        return axes

    def write_results(
        self, values: Sequence[Code], rows: Sequence[Dim], columns: Sequence[Dim], mask: Code | None
    ) -> list[Statement]:
        """Apply the epilogue to a run of sums, and write the results."""
        axes = self.result_axes(rows, columns)
        if len(values) == 1:
            return self.epilogue_writer.write_one(values[0], axes, mask)
        axis = self.product.columns[-1].axis
        assert axis is not None
        return self.epilogue_writer.write_four(values, axes, axis, mask)

    def write_sums(self, values: Sequence[Code], row: Dim, column: Dim, mask: Code | None) -> Statement:
        """Write a run of plain sums of this block's split, by the position of its first one in the tile."""
        place = (self.plane + self.rows.first + row) * self.pitch + self.columns.first + column
        if len(values) == 1:
            return put(self.out, place, values[0], mask=mask)
        return put_run(self.out, place, values, mask)
