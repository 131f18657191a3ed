"""Run the works of kernel builders on numpy arrays, each of which ends at a page without access."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from backends.cpu.native import build
from backends.cpu.tapes import TapeLaunch, build_tape

from weft.backends.host.machine import host
from weft.ir import dims
from weft.ir.dtypes import DType, from_numpy
from weft.ir.layout import Layout, row_major
from weft.ir.packing import load_constant
from weft.ir.work import Place
from weft.kernels.lower.tensors import StoredTensor, Work

Array = np.ndarray[Any, Any]
TARGET = host().target
PAGE = mmap.PAGESIZE

_protect = ctypes.CDLL(None, use_errno=True).mprotect
_protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Guarded:
    """A copy of an array between two pages without access; it ends at the second one, or starts after the first."""

    def __init__(self, array: Array, at_start: bool = False) -> None:
        pages = -(-max(array.nbytes, 1) // PAGE)
        self.memory = mmap.mmap(-1, (pages + 2) * PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        start = PAGE if at_start else (pages + 1) * PAGE - array.nbytes
        self.address = base + start
        view = np.frombuffer(self.memory, np.uint8)[start : start + array.nbytes]
        view[:] = np.frombuffer(array.tobytes(), np.uint8)
        self.array = view.view(array.dtype).reshape(array.shape)
        for page in (base, base + (pages + 1) * PAGE):
            assert _protect(page, PAGE, 0) == 0


def tensor_of(array: Array, layout: Layout | None = None, shape: Sequence[Any] | None = None) -> StoredTensor:
    """Describe an array for a builder; sizes of `shape` may be symbolic."""
    sizes = array.shape if shape is None else tuple(shape)
    return StoredTensor(from_numpy(array.dtype), sizes, layout or row_major(array.ndim))


def in_memory(array: Array, layout: Layout) -> Array:
    return np.ascontiguousarray(array.transpose(layout.order))


def from_memory(array: Array, layout: Layout) -> Array:
    """Return an array with its logical axes, from one in memory order."""
    return array.transpose(np.argsort(layout.order)) if array.ndim else array


def run_work(
    work: Work,
    operands: Sequence[tuple[Array, Layout]],
    results: Sequence[StoredTensor],
    sizes: Mapping[str, int] | None = None,
    *,
    threads: int = 1,
    at_start: bool = False,
) -> tuple[list[Array], int]:
    """Return the results, and the error flag of the kernels."""
    bound = sizes or {}
    inputs = [Guarded(in_memory(array, layout), at_start) for array, layout in operands]
    outputs = []
    for result in results:
        shape = [dims.evaluate(result.shape[axis], bound) for axis in result.layout.order]
        outputs.append(Guarded(np.full(shape, 77).astype(result.dtype.numpy), at_start))
    spaces = [Guarded(np.full(dims.evaluate(w.size, bound), 55).astype(w.dtype.numpy)) for w in work.workspaces]
    constants = [Guarded(load_constant(constant)) for constant in work.constants]
    errors = [Guarded(np.zeros(1, np.int32))]
    memory = {"operand": inputs, "result": outputs, "workspace": spaces, "constant": constants, "errors": errors}
    regions: list[int] = []
    launches, codes = [], []
    for launch in work.launches:
        kernel, references = launch.kernel, launch.references
        shared = [buffer for buffer in kernel.buffers if buffer.local_size is None]
        for buffer, reference in zip(shared, references, strict=True):
            dtype = from_numpy(memory[reference.kind][reference.number].array.dtype)
            wide = buffer.dtype in (DType.int64, DType.int32, DType.int16)
            words = wide and dtype.numpy.itemsize <= 2  # several narrow numbers in each
            assert buffer.dtype is dtype or words, f"{buffer.name} is {buffer.dtype}, given {dtype}"
            assert not buffer.written or reference.kind not in ("operand", "constant")
        places = tuple(Place(len(regions) + number) for number in range(len(references)))
        regions += [memory[reference.kind][reference.number].address for reference in references]
        code = build([kernel])
        blocks = dims.evaluate(launch.blocks, bound)
        numbers = tuple(dims.evaluate(value, bound) for value in launch.values)
        launches.append(TapeLaunch(code.addresses[kernel.name], blocks, places, numbers, parallel=threads > 1))
        codes.append(code)
    build_tape(launches, codes).run(regions, threads)
    arrays = [from_memory(output.array, result.layout).copy() for output, result in zip(outputs, results, strict=True)]
    return arrays, int(errors[0].array[0])
