"""Compile small kernels and run them on numpy arrays.

Object code is cached on disk by the LLVM IR it comes from: a later run of the tests compiles only changed kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from backends.cpu.tapes import TapeLaunch, build_tape

from weft.backends.cpu.tape import Tape
from weft.backends.host.codegen import LoadedCode, compile_cached, load_code
from weft.backends.host.machine import host
from weft.backends.llvm import compilation
from weft.backends.llvm.emit import llvm_text
from weft.backends.llvm.vector_lanes import VECTOR_LANES
from weft.cache.code import CodeCache
from weft.cache.files import cache_folder
from weft.ir import kernel as ir
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Call, Code, Fetch, Integer, Kernel, Put
from weft.ir.kernel_verify import verify_kernel
from weft.ir.work import Place

Array = np.ndarray[Any, Any]
LANES = 16
GUARD = 64  # bytes beside each written array that must stay as they are


def build(kernels: Sequence[Kernel]) -> LoadedCode:
    for kernel in kernels:
        verify_kernel(kernel)
    texts = [llvm_text(kernels[start : start + 8], VECTOR_LANES) for start in range(0, len(kernels), 8)]
    return load_code([compiled(text) for text in texts], [kernel.name for kernel in kernels])


@lru_cache(maxsize=64)
def compiled(text: str) -> bytes:
    """Compile a module, or take it from the cache; kernels with parameters for sizes are run several times."""
    return compile_cached(text, host(), _code_cache())


@cache
def _code_cache() -> CodeCache:
    """Return the cache of the tests, one for each version of the module that calls LLVM."""
    folder = cache_folder()
    version = sha256(Path(compilation.__file__).read_bytes()).hexdigest()[:16]
    return CodeCache(None if folder is None else folder / "tests" / version)


def tape_of(
    kernel: Kernel, code: LoadedCode, blocks: int, parameters: Mapping[str, int] | None = None, grain: int = 1
) -> Tape:
    """Make a tape of one launch, whose regions are the kernel's buffers in order."""
    numbers = tuple((parameters or {})[name] for name in kernel.parameters)
    shared = [buffer for buffer in kernel.buffers if buffer.local_size is None]
    places = tuple(Place(index) for index in range(len(shared)))
    return build_tape([TapeLaunch(code.addresses[kernel.name], blocks, places, numbers, grain=grain)], code)


def run_kernel(
    kernel: Kernel,
    arrays: Sequence[Array],
    blocks: int,
    parameters: Mapping[str, int] | None = None,
    code: LoadedCode | None = None,
    threads: int = 1,
) -> list[Array]:
    """Run a kernel and return the arrays; read-only arrays and the bytes around each must not change."""
    tape = tape_of(kernel, code or build([kernel]), blocks, parameters)
    shared = [buffer for buffer in kernel.buffers if buffer.local_size is None]
    memories = [guarded(array) for array in arrays]
    tape.run([memory.ctypes.data + GUARD for memory in memories], threads)
    results = []
    for buffer, memory, before in zip(shared, memories, arrays, strict=True):
        assert np.all(memory[:GUARD] == 0xA5), f"{buffer.name} was written before its start"
        assert np.all(memory[GUARD + before.nbytes :] == 0xA5), f"{buffer.name} was written beyond its end"
        after = memory[GUARD : GUARD + before.nbytes].view(before.dtype).reshape(before.shape)
        if not buffer.written:
            assert after.tobytes() == before.tobytes()
        results.append(after)
    return results


def guarded(array: Array) -> Array:
    memory = np.full(array.nbytes + 2 * GUARD, 0xA5, np.uint8)
    memory[GUARD : GUARD + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    return memory


def elementwise(name: str, function: str, kinds: Sequence[DType], result: DType, lanes: int = LANES) -> Kernel:
    """Build z[i] = function(a[i], b[i], ...) for i below n; with one lane, values are uniform."""
    place = ir.block() * lanes + ir.lane(lanes) if lanes > 1 else ir.block()
    mask: Code | None = None
    if lanes > 1:
        mask = Call("less", (Integer(place), Integer(ir.variable("n"))), DType.bool)
    inputs = [Buffer(f"x{number}", kind, False) for number, kind in enumerate(kinds)]
    fetches = tuple(Fetch(buffer.name, place, buffer.dtype, mask=mask) for buffer in inputs)
    put = Put("z", place, Call(function, fetches, result), mask=mask)
    return Kernel(name, (*inputs, Buffer("z", result, True)), ("n",), lanes, (put,))


def run_elementwise(kernel: Kernel, code: LoadedCode, inputs: Sequence[Array]) -> Array:
    count = inputs[0].size
    result = np.zeros(count, kernel.buffers[-1].dtype.numpy)
    blocks = -(-count // kernel.lanes)
    return run_kernel(kernel, [*inputs, result], blocks, {"n": count}, code)[-1]
