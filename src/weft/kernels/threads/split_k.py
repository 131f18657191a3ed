"""The second kernel of a split-K product: adds up the splits in order, and applies the epilogue."""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.kernel import Call, Code, Statement
from weft.ir.target import ThreadTarget
from weft.kernels.build.loop_axes import unravel_index
from weft.kernels.lower.kernel_builder import KernelBuilder, define, fetch, fetch_run
from weft.kernels.lower.memoize import memoize
from weft.kernels.lower.tensors import Launch, Reference
from weft.kernels.threads.epilogue import RunEpilogueWriter
from weft.kernels.threads.points import points
from weft.kernels.threads.product import Product, merge_product_axes
from weft.kernels.threads.product_operands import RUN

_LANES = 64


@memoize
def build_split_sum_launch(name: str, product: Product, splits: int, target: ThreadTarget) -> Launch:
    """Operands are the sums, [splits, grid, rows, columns], and from number 2 on the epilogue's."""
    builder = KernelBuilder(f"{name}_parts")
    sums = builder.input("sums", product.type, Reference("operand", 0))
    epilogue_writer = RunEpilogueWriter(product.result, product.epilogue, builder, 2)
    product = merge_product_axes(product)
    grid, rows, columns, _ = product.extents()
    run = RUN if epilogue_writer.has_runs(product.columns, dict(product.result_start)) else 1
    lanes = min(_LANES, target.block_threads)
    here = points((grid, rows, dims.floordiv(columns, run)), builder, lanes)
    grid_index, row, column = here.places
    pitch = run * builder.parameter(f"pitch{run}", dims.floordiv(columns, run))
    height = builder.parameter("height", rows)
    plane = builder.parameter("places", grid) * height
    axes = {axis: builder.parameter(f"start{axis}", start) for axis, start in product.result_start}
    for loop_axes, index, kind in (
        (product.grid, grid_index, "grid"),
        (product.rows, row, "row"),
        (product.columns, column * run, "column"),
    ):
        sizes = [
            builder.parameter(f"{kind}{n}", dims.maximum(loop_axis.size, 1)) for n, loop_axis in enumerate(loop_axes)
        ]
        for loop_axis, position in zip(loop_axes, unravel_index(index, sizes)):
            if loop_axis.axis is not None:
                axes[loop_axis.axis] = axes.get(loop_axis.axis, 0) + builder.size(loop_axis.factor) * position
    statements: list[Statement] = []
    values: list[Code] = []
    for split in range(splits):
        registers = builder.registers(f"part{split}_", run, product.type)
        offset: Dim = ((split * plane) + grid_index * height + row) * pitch + column * run
        if run == 1:
            statements.append(define(registers[0], fetch(sums, offset)))
        else:
            statements.append(fetch_run(registers, sums, offset))
        values = [Call("add", pair, product.type) for pair in zip(values, registers)] if values else [*registers]
    if run == 1:
        statements += epilogue_writer.write_one(values[0], axes, here.mask)
    else:
        axis = product.columns[-1].axis
        assert axis is not None
        statements += epilogue_writer.write_four(values, axes, axis, here.mask)
    return builder.launch(lanes, statements, here.blocks)
