"""The end of a product whose sums were added up in parts: the parts are added in order, and the epilogue applied."""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.kernel import Call, Code, Statement
from weft.ir.target import ThreadTarget
from weft.kernels.build.loop_axes import split_index
from weft.kernels.lower.kernel_builder import KernelBuilder, define, fetch, fetch_run
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.tensors import Launch, Reference
from weft.kernels.threads.epilogue import RunEpilogueWriter
from weft.kernels.threads.points import points
from weft.kernels.threads.product import Product, merged
from weft.kernels.threads.product_operands import RUN

_LANES = 64


@memoized
def adding_launch(name: str, product: Product, parts: int, target: ThreadTarget) -> Launch:
    """Operands are the sums, [parts, grid, rows, columns], and from number 2 on the epilogue's."""
    builder = KernelBuilder(f"{name}_parts")
    sums = builder.input("sums", product.type, Reference("operand", 0))
    epilogue_writer = RunEpilogueWriter(product.result, product.epilogue, builder, 2)
    product = merged(product)
    grid, rows, columns, _ = product.extents()
    run = RUN if epilogue_writer.has_runs(product.columns, dict(product.result_start)) else 1
    lanes = min(_LANES, target.block_threads)
    here = points((grid, rows, dims.floordiv(columns, run)), builder, lanes)
    place, row, column = here.places
    pitch = run * builder.named(f"pitch{run}", dims.floordiv(columns, run))
    height = builder.named("height", rows)
    plane = builder.named("places", grid) * height
    axes = {axis: builder.named(f"start{axis}", start) for axis, start in product.result_start}
    for loop_axes, index, kind in (
        (product.grid, place, "grid"),
        (product.rows, row, "row"),
        (product.columns, column * run, "column"),
    ):
        sizes = [builder.named(f"{kind}{n}", dims.maximum(loop_axis.size, 1)) for n, loop_axis in enumerate(loop_axes)]
        for loop_axis, at in zip(loop_axes, split_index(index, sizes)):
            if loop_axis.axis is not None:
                axes[loop_axis.axis] = axes.get(loop_axis.axis, 0) + builder.size(loop_axis.factor) * at
    statements: list[Statement] = []
    values: list[Code] = []
    for part in range(parts):
        found = builder.registers(f"part{part}_", run, product.type)
        offset: Dim = ((part * plane) + place * height + row) * pitch + column * run
        if run == 1:
            statements.append(define(found[0], fetch(sums, offset)))
        else:
            statements.append(fetch_run(found, sums, offset))
        values = [Call("add", pair, product.type) for pair in zip(values, found)] if values else [*found]
    if run == 1:
        statements += epilogue_writer.write_one(values[0], axes, here.mask)
    else:
        axis = product.columns[-1].axis
        assert axis is not None
        statements += epilogue_writer.write_four(values, axes, axis, here.mask)
    return builder.launch(lanes, statements, here.blocks)
