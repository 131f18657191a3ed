"""Run the works of kernel builders on Mesa's llvmpipe, or on CPU vectors beside inaccessible memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from kernels.vector.works import from_memory, in_memory
from kernels.vector.works import run_work as run_on_cpu

from weft.backends.resident.device import BufferSlice
from weft.backends.webgpu.emit import emit
from weft.backends.webgpu.gpu import Gpu, open_gpu
from weft.backends.webgpu.launches import PlanRecorder
from weft.backends.webgpu.targets import build_target
from weft.cost.profiles import LARGE_GPU
from weft.ir import dims
from weft.ir.kernel_verify import verify_kernel
from weft.ir.layout import Layout
from weft.ir.packing import load_constant
from weft.ir.target import ThreadTarget
from weft.kernels.lower.barriers import insert_barriers
from weft.kernels.lower.tensors import StoredTensor, Work
from weft.plan.numbers import NumberTable
from weft.plan.plan import FIRST_FREE, BlockStack, SymbolicLaunch, SymbolicPlace, SymbolicPlan
from weft.plan.plan_numbers import PlanNumbers

Array = np.ndarray[Any, Any]
GUARD = 256  # bytes on either side of an array that must stay as they are
POISON = 0xA5


def software() -> Gpu:
    return open_gpu("llvmpipe")


def targets() -> dict[str, ThreadTarget]:
    """Return targets of a software adapter, of a GPU with shared memory, and of few threads run as CPU vectors."""
    gpu = software()
    own = build_target(gpu.limits, gpu.abilities)
    return {
        "software": own,
        "sharing": replace(own, rates=LARGE_GPU, block_threads=128, shared_bytes=16384, sharing_pays=True),
        "vectors": replace(own, block_threads=8),
    }


def run_work(
    work: Work,
    operands: Sequence[tuple[Array, Layout]],
    results: Sequence[StoredTensor],
    sizes: Mapping[str, int] | None = None,
) -> tuple[list[Array], int]:
    """Return the results, and the error flag of the kernels."""
    bound = sizes or {}
    gpu = software()
    shapes = [[dims.evaluate(result.shape[axis], bound) for axis in result.layout.order] for result in results]
    arrays: dict[str, list[Array]] = {
        "operand": [in_memory(array, layout) for array, layout in operands],
        "result": [np.full(shape, 77).astype(r.dtype.numpy) for shape, r in zip(shapes, results)],
        "workspace": [np.full(dims.evaluate(w.size, bound), 55).astype(w.dtype.numpy) for w in work.workspaces],
        "constant": [load_constant(constant) for constant in work.constants],
        "errors": [np.zeros(1, np.int32)],
    }
    regions: dict[tuple[str, int], int] = {}
    memory: list[Any] = []
    for kind, listed in arrays.items():
        for number, array in enumerate(listed):
            regions[kind, number] = FIRST_FREE + len(memory)
            padded = -(-array.nbytes // 4) * 4
            content = np.full(padded + 2 * GUARD, POISON, np.uint8)
            content[GUARD : GUARD + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
            memory.append((gpu.buffer(content.nbytes), content))
            gpu.write(memory[-1][0], 0, content)
    launches, shaders = [], {}
    for index, launch in enumerate(work.launches):
        kernel = replace(insert_barriers(launch.kernel), name=f"{launch.kernel.name}{index}")
        verify_kernel(kernel)
        shaders[kernel.name] = emit(kernel, gpu.abilities)
        places = tuple(
            SymbolicPlace(regions[reference.kind, reference.number], GUARD) for reference in launch.references
        )
        numbers = tuple(dims.evaluate(value, bound) for value in launch.values)
        blocks = dims.evaluate(launch.blocks, bound)
        written = tuple(memory[place.region - FIRST_FREE][1].nbytes - 2 * GUARD for place in places)
        launches.append(SymbolicLaunch(kernel, blocks, places, numbers, "", 0, 0, 0, written))
    plan = SymbolicPlan(tuple(launches), (BlockStack((), 0, ()),), (), (), (), (), (), (), (), (), (), GUARD)
    slots = PlanNumbers(plan, (), NumberTable.compute)
    sized = slots.evaluate({})
    assert sized is not None
    recording = PlanRecorder(gpu, shaders, slots).record(
        sized, lambda place, size: BufferSlice(memory[place.region - FIRST_FREE][0], place.offset, max(size, 4))
    )
    reads = [(buffer, 0, content.nbytes) for buffer, content in memory]
    contents = gpu.run(recording, reads)
    for (kind, number), region in regions.items():
        before, after = memory[region - FIRST_FREE][1], contents[region - FIRST_FREE]
        end = GUARD + arrays[kind][number].nbytes
        if kind in ("operand", "constant"):
            assert np.array_equal(after, before), f"{kind} {number} was changed"
        assert np.all(after[:GUARD] == POISON), f"before {kind} {number}"
        assert np.all(after[end:] == before[end:]), f"after {kind} {number}"
    outputs = []
    for number, (result, shape) in enumerate(zip(results, shapes)):
        raw = contents[regions["result", number] - FIRST_FREE][GUARD : GUARD + arrays["result"][number].nbytes]
        outputs.append(from_memory(raw.view(result.dtype.numpy).reshape(shape), result.layout).copy())
    return outputs, int(contents[regions["errors", 0] - FIRST_FREE][GUARD : GUARD + 4].view(np.int32)[0])


__all__ = ["run_on_cpu", "run_work", "software", "targets"]
