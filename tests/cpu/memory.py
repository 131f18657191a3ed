"""Run a `Work` on numpy arrays: each kernel compiled once, all blocks in order."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from weft.backends.cpu.codegen import LoadedCode, compile_module, load_code
from weft.backends.cpu.machine import host
from weft.backends.cpu.modules import modules_of
from weft.ir import dims
from weft.ir.kernel import Kernel, verify_kernel
from weft.kernels.launch import Reference, Work

Array = np.ndarray[Any, Any]
PAGE = 4096


@cache
def _loaded(kernel: Kernel) -> tuple[Any, LoadedCode]:
    verify_kernel(kernel)
    (text,) = modules_of([replace(kernel, name="kernel")])
    code = load_code([compile_module(text, host())], ["kernel"])
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
    return kind(code.addresses["kernel"]), code


def compiled() -> int:
    """How many kernels have been compiled."""
    return _loaded.cache_info().currsize


class Bound:
    """A work with its memory: call it to run it."""

    def __init__(self, work: Work, operands: Sequence[Array], result: Array, sizes: Mapping[str, int]) -> None:
        spaces = [guarded_array((dims.evaluate(s.size, sizes),), s.dtype.numpy) for s in work.workspaces]
        constants = [guarded_copy(constant) for constant in work.constants]
        memory = {"operand": list(operands), "result": [result], "workspace": spaces, "constant": constants}
        self.calls: list[tuple[Any, ...]] = []
        self.keep = memory

        def address(reference: Reference) -> int:
            return int(memory[reference.kind][reference.number].ctypes.data)

        for launch, references in work.launches:
            function, code = _loaded(launch.kernel)
            buffers = (ctypes.c_void_p * (len(references) + 1))(*map(address, references))
            numbers = [dims.evaluate(value, sizes) for value in launch.parameters]
            parameters = (ctypes.c_int64 * (len(numbers) + 1))(*numbers)
            self.calls.append((function, dims.evaluate(launch.blocks, sizes), buffers, parameters, code))

    def __call__(self) -> None:
        for function, blocks, buffers, parameters, _ in self.calls:
            function(0, blocks, ctypes.addressof(buffers), ctypes.addressof(parameters))


def run_work(work: Work, operands: Sequence[Array], result: Array, sizes: Mapping[str, int] | None = None) -> Array:
    """Fill `result`, whose memory order is that of its layout; nothing may be touched outside of the arrays."""
    inputs = [guarded_copy(operand) for operand in operands]
    output = guarded_array(result.shape, result.dtype)
    output.view(np.uint8)[...] = 0xEE
    Bound(work, inputs, output, sizes or {})()
    result[...] = output
    return result


# -- memory that ends where a page ends that cannot be touched -----------------------------------------------------------

_system = ctypes.CDLL(None, use_errno=True)
_system.mmap.restype = ctypes.c_void_p
_system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
_system.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class _Pages:
    """Memory between two pages that cannot be touched."""

    def __init__(self, size: int) -> None:
        self.size = -(-max(size, 1) // PAGE) * PAGE
        self.start = _system.mmap(None, self.size + 2 * PAGE, 3, 0x22, -1, 0)
        assert self.start not in (None, ctypes.c_void_p(-1).value)
        for guard in (self.start, self.start + PAGE + self.size):
            assert _system.mprotect(guard, PAGE, 0) == 0

    def __del__(self) -> None:
        _system.munmap(self.start, self.size + 2 * PAGE)


class _Guarded(np.ndarray):  # type: ignore[type-arg]
    """An array that keeps its pages."""

    pages: _Pages


def guarded_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Zeros that end at a page that cannot be touched."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    pages = _Pages(size)
    place = pages.start + PAGE + pages.size - size
    memory = (ctypes.c_uint8 * max(size, 1)).from_address(place if size else pages.start + PAGE)
    flat: Any = np.frombuffer(memory, np.uint8, size).view(dtype).reshape(shape).view(_Guarded)
    flat.pages = pages
    return flat  # type: ignore[no-any-return]


def guarded_copy(array: Array) -> Array:
    copy = guarded_array(array.shape, array.dtype)
    copy[...] = array
    return copy
