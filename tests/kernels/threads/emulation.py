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
from weft.backends.llvm.thread_lanes import ThreadLanes
from weft.cost.profiles import LARGE_GPU
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.groups import FusedProgram
from weft.ir.kernel_verify import verify_kernel
from weft.ir.layout import Layout, row_major
from weft.ir.packing import load_constant
from weft.ir.program import Value
from weft.ir.target import Float32Products, ThreadTarget, TileProduct
from weft.ir.work import NativeSection, Task
from weft.kernels.lower.barriers import insert_barriers
from weft.kernels.lower.expand_tiles import expand_tiles
from weft.kernels.lower.tensors import StoredTensor, Work
from weft.kernels.sections import build_sections

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
    tile_products: str = "",
) -> list[Array]:
    """Return the results. Kernels are verified before and after tiles are expanded.

    `tile_products`: the instructions with which tiles are multiplied instead.
    """
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
            kernel = launch.kernel if tile_products else expand_tiles(launch.kernel)
            after = run_kernel(kernel, arguments, blocks, numbers, ThreadLanes(tile_products=tile_products))
        for reference, array in zip(launch.references, after, strict=True):
            if reference.kind in ("operand", "constant"):
                assert np.array_equal(array.view(np.uint8), arrays[reference.kind][reference.number].view(np.uint8))
            arrays[reference.kind][reference.number] = array
    return [from_memory(array, result.layout) for array, result in zip(arrays["result"], results)]


def run_fused(
    fused: FusedProgram, target: ThreadTarget, inputs: Mapping[str, Array], sizes: Mapping[str, int] | None = None
) -> list[Array]:
    """Return the outputs of a program whose steps are all on the device, task by task."""
    bound = sizes or {}
    (section,) = build_sections(fused, target)
    assert isinstance(section, NativeSection)
    memory = {value: np.ravel(array) for value, array in fused.program.constants.items()}
    memory |= {value: np.ravel(inputs[value.name]) for value in fused.program.inputs}

    def find(value: Value) -> Value:
        return find(section.aliases[value]) if value in section.aliases else value

    def size(value: Value) -> int:
        return dims.evaluate(dims.product(value.shape), bound)

    for task in section.tasks:
        assert isinstance(task, Task)
        operands = [(memory[find(value)], row_major(1)) for value in task.operands]
        results = [StoredTensor(value.dtype, (size(value),), row_major(1)) for value in task.results]
        memory |= dict(zip(task.results, run_work(task.work, operands, results, bound)))
    outputs = fused.program.outputs
    return [memory[find(v)].reshape([dims.evaluate(extent, bound) for extent in v.shape]) for v in outputs]
