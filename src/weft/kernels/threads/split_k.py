"""The end of a product whose sums were added up in parts: the parts are added in order, and the epilogue applied."""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.kernel import Buffer, Call, Code, Define, Fetch, FetchRun, Kernel, Register, Statement
from weft.ir.target import ThreadTarget
from weft.kernels.build.loop_axes import split_index
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.parameters import Parameters
from weft.kernels.lower.tensors import Launch
from weft.kernels.threads.epilogue import RunEpilogueWriter
from weft.kernels.threads.points import points
from weft.kernels.threads.product import Product, merged
from weft.kernels.threads.product_operands import RUN

_LANES = 64


@memoized
def adding_launch(name: str, product: Product, parts: int, target: ThreadTarget) -> Launch:
    """Buffers: the sums [parts, grid, rows, columns], those of the epilogue, and the result."""
    parameters = Parameters()
    epilogue_writer = RunEpilogueWriter(product.result, product.epilogue, parameters)
    product = merged(product, epilogue_writer)
    grid, rows, columns, _ = product.extents()
    run = RUN if epilogue_writer.has_runs(product.columns, dict(product.result_start)) else 1
    lanes = min(_LANES, target.block_threads)
    here = points((grid, rows, dims.floordiv(columns, run)), parameters, lanes)
    place, row, column = here.places
    pitch = run * parameters.named(f"pitch{run}", dims.floordiv(columns, run))
    height = parameters.named("height", rows)
    plane = parameters.named("places", grid) * height
    axes = {axis: parameters.named(f"start{axis}", start) for axis, start in product.result_start}
    for walks, index, kind in (
        (product.grid, place, "grid"),
        (product.rows, row, "row"),
        (product.columns, column * run, "column"),
    ):
        sizes = [parameters.named(f"{kind}{n}", dims.maximum(walk.size, 1)) for n, walk in enumerate(walks)]
        for walk, at in zip(walks, split_index(index, sizes)):
            if walk.axis is not None:
                axes[walk.axis] = axes.get(walk.axis, 0) + parameters.size(walk.factor) * at
    statements: list[Statement] = []
    values: list[Code] = []
    for part in range(parts):
        names = tuple(f"part{part}_{number}" for number in range(run))
        offset: Dim = ((part * plane) + place * height + row) * pitch + column * run
        if run == 1:
            statements.append(Define(names[0], Fetch("sums", offset, product.type), True))
        else:
            statements.append(FetchRun(names, "sums", offset, product.type))
        found: list[Code] = [Register(register, product.type, True) for register in names]
        values = [Call("add", pair, product.type) for pair in zip(values, found)] if values else found
    if run == 1:
        statements += epilogue_writer.write_one(values[0], axes, here.mask, "t")
    else:
        axis = product.columns[-1].axis
        assert axis is not None
        statements += epilogue_writer.write_four(values, axes, axis, here.mask, "t")
    buffers = (Buffer("sums", product.type, False), *epilogue_writer.buffers)
    kernel = Kernel(f"{name}_parts", buffers, tuple(parameters.values), lanes, tuple(statements))
    return Launch(kernel, here.blocks, tuple(parameters.values.values()))
