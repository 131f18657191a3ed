"""Run the works of kernel builders with tile products, expanded to plain statements, on emulated thread lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
from backends.llvm.emulated import run_kernel
from kernels.vector.works import from_memory, in_memory

from weft.backends.llvm.assembly import SharedMemory
from weft.cost.profiles import LARGE_GPU
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.kernel_verify import verify_kernel
from weft.ir.layout import Layout
from weft.ir.packing import load_constant
from weft.ir.target import Float32Products, ThreadTarget, TileProduct
from weft.kernels.lower.barriers import insert_barriers
from weft.kernels.lower.expand_tiles import expand_tiles
from weft.kernels.lower.tensors import StoredTensor, Work

Array = np.ndarray[Any, Any]

_TYPES = (DType.float16, DType.bfloat16, DType.float32)
SHARING = ThreadTarget(
    rates=LARGE_GPU,
    fused_multiply_add=True,
    alignment=256,
    block_threads=128,
    most_block_threads=1024,
    shared_bytes=227 * 1024,
    sharing_pays=True,
    tile_products=tuple(TileProduct(dtype, dtype, DType.float32, 7e12, 64, 128) for dtype in _TYPES),
)


def with_products(products: Float32Products) -> ThreadTarget:
    return replace(SHARING, float32_products=products)


def run_work(
    work: Work,
    operands: Sequence[tuple[Array, Layout]],
    results: Sequence[StoredTensor],
    sizes: Mapping[str, int] | None = None,
) -> list[Array]:
    """Return the results. Kernels are verified before and after tiles are expanded."""
    bound = sizes or {}
    shapes = [[dims.evaluate(result.shape[axis], bound) for axis in result.layout.order] for result in results]
    arrays: dict[str, list[Array]] = {
        "operand": [in_memory(array, layout) for array, layout in operands],
        "result": [np.full(shape, 77).astype(r.dtype.numpy) for shape, r in zip(shapes, results)],
        "workspace": [np.full(dims.evaluate(w.size, bound), 55).astype(w.dtype.numpy) for w in work.workspaces],
        "constant": [load_constant(constant) for constant in work.constants],
        "errors": [np.zeros(1, np.int32)],
    }
    for launch in work.launches:
        verify_kernel(insert_barriers(launch.kernel))
        blocks = dims.evaluate(launch.blocks, bound)
        if blocks == 0:
            continue
        arguments = [arrays[reference.kind][reference.number] for reference in launch.references]
        numbers = {name: dims.evaluate(value, bound) for name, value in launch.parameters}
        with patch.object(SharedMemory, "MOST_STATIC", 1 << 20):  # emulated launches have no dynamic memory
            after = run_kernel(expand_tiles(launch.kernel), arguments, blocks, numbers)
        for reference, array in zip(launch.references, after, strict=True):
            if reference.kind in ("operand", "constant"):
                assert np.array_equal(array.view(np.uint8), arrays[reference.kind][reference.number].view(np.uint8))
            arrays[reference.kind][reference.number] = array
    return [from_memory(array, result.layout) for array, result in zip(arrays["result"], results)]
