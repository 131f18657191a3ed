"""Kernels -> code for a GPU: PTX by LLVM, assembled by the driver, each under a name of its own.

An object is a `KernelCode` as bytes, with the kernel itself: programs that were kept have but the names of theirs, and
a launch may need other code of one. Kernels are compiled side by side, and what the cache has is neither written nor
assembled. Code depends on the driver, which assembles it, so its version is part of the name.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from ctypes import addressof, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p, create_string_buffer, string_at
from dataclasses import field

import llvmlite

from weft.backends.cuda.gpu import CudaGpu
from weft.backends.cuda.library import DriverError
from weft.backends.cuda.processors import processor_of, thread_lanes
from weft.backends.cuda.runs import runs_of
from weft.backends.llvm import assembly
from weft.backends.llvm.compilation import assembly_text
from weft.backends.llvm.emit import emit
from weft.backends.llvm.nvptx import NvidiaProcessor
from weft.backends.llvm.pipeline import PIPELINE
from weft.backends.llvm.thread_lanes import ThreadLanes, launched_shared_bytes
from weft.backends.naming import named_kernels, named_sections
from weft.cache.code import CodeCache, shared_cache
from weft.cache.digests import key_of
from weft.cache.serialization import kernel_bytes, kernel_of
from weft.cache.sources import package_digest
from weft.errors import KernelError
from weft.ir.compiled import CompiledProgram, compiled
from weft.ir.kernel import Kernel
from weft.ir.program import TensorProgram
from weft.ir.work import Section
from weft.records import dataclass
from weft.threads import Team, usable_cores

Progress = Callable[[float], None]
_PTX_INPUT = 1  # CU_JIT_INPUT_PTX
_ERROR_LOG, _ERROR_LOG_SIZE = 5, 6  # options of the assembler
_HEAD = struct.Struct("<III")


@dataclass(frozen=True, slots=True)
class KernelCode:
    """A kernel assembled for one GPU, and the bytes of shared memory that its launches bring."""

    shared_bytes: int
    code: bytes
    runs: Mapping[str, int] = field(default_factory=dict)  # see `runs_of`
    packed: bytes = b""  # the kernel, to be compiled otherwise

    @property
    def kernel(self) -> Kernel:
        return kernel_of(zlib.decompress(self.packed))

    def encode(self) -> bytes:
        runs = json.dumps(dict(self.runs)).encode()
        return _HEAD.pack(self.shared_bytes, len(runs), len(self.packed)) + runs + self.packed + self.code

    @classmethod
    def decode(cls, content: bytes) -> KernelCode:
        shared, runs, packed = _HEAD.unpack_from(content)
        start = _HEAD.size + runs
        known = json.loads(content[_HEAD.size : start])
        return cls(shared, content[start + packed :], known, content[start : start + packed])


def compile_program(
    program: TensorProgram,
    sections: Sequence[Section],
    gpu: CudaGpu,
    cache: bool = True,
    progress: Progress | None = None,
) -> CompiledProgram:
    """The program with the code of all its kernels."""
    kernels = named_kernels(sections)
    distinct = {kernel.name: kernel for kernel in kernels.values()}
    lanes = thread_lanes(processor_of(gpu.described))
    found = compile_kernels([(kernel, lanes) for kernel in distinct.values()], gpu, cache, progress)
    return compiled(program, named_sections(sections, kernels), tuple(code.encode() for code in found))


def compile_kernels(
    kernels: Sequence[tuple[Kernel, ThreadLanes]], gpu: CudaGpu, cache: bool = True, progress: Progress | None = None
) -> list[KernelCode]:
    """The code of named kernels, each with how its lanes are written."""
    kept: CodeCache | None = shared_cache() if cache else None
    emitter = package_digest("backends", "ir")
    common = code_identity(gpu)
    keys = [key_of(kernel.name, repr(lanes), common, emitter or "") for kernel, lanes in kernels]
    found = [kept.get(key) if kept is not None and emitter is not None else None for key in keys]
    missing = [number for number, code in enumerate(found) if code is None]
    done = 0

    def build(number: int) -> bytes:
        nonlocal done
        code = compile_kernel(*kernels[number], gpu).encode()
        if kept is not None and emitter is not None:
            kept.put(keys[number], code)
        done += 1
        if progress is not None:
            progress(done / len(missing))
        return code

    if missing:
        with Team(min(usable_cores(), len(missing))) as workers:
            made = dict(zip(missing, workers.map(build, missing)))
        found = [made.get(number, code) for number, code in enumerate(found)]
    return [KernelCode.decode(code) for code in found if code is not None]


def compile_kernel(kernel: Kernel, lanes: ThreadLanes, gpu: CudaGpu) -> KernelCode:
    """One kernel, from its form to what the GPU runs."""
    text, shared_bytes = ptx_of(kernel, lanes, processor_of(gpu.described))
    packed = zlib.compress(kernel_bytes(kernel), 1)
    return KernelCode(shared_bytes, assembled(kernel.name, text, gpu), runs_of(kernel), packed)


def ptx_of(kernel: Kernel, lanes: ThreadLanes, processor: NvidiaProcessor) -> tuple[str, int]:
    """A kernel's PTX, and the bytes of shared memory that its launches bring."""
    module = assembly.Module("weft")
    emit(kernel, module, lanes)
    return assembly_text(str(module), processor), launched_shared_bytes(kernel, module)


def assembled(name: str, ptx: str, gpu: CudaGpu) -> bytes:
    """What the driver makes of PTX; KernelError with its words where it refuses it."""
    log = create_string_buffer(8192)
    options = (c_int * 2)(_ERROR_LOG, _ERROR_LOG_SIZE)
    values = (c_void_p * 2)(addressof(log), len(log))
    state, image, size = c_void_p(), c_void_p(), c_size_t()
    text = ptx.encode() + b"\0"
    with gpu.at_work(f"kernel {name!r}", KernelError) as driver:
        driver("cuLinkCreate_v2", c_uint(2), options, values, byref(state))
        try:
            add = (state, _PTX_INPUT, c_char_p(text), c_size_t(len(text)), name.encode(), 0, None, None)
            driver("cuLinkAddData_v2", *add)
            driver("cuLinkComplete", state, byref(image), byref(size))
            return string_at(image, size.value)
        except DriverError as fault:
            said = log.value.decode(errors="replace").strip()
            if not said or fault.is_fatal:
                raise
            raise KernelError(f"kernel {name!r}, on {gpu.name}: {fault}: {said}", hint=fault.hint) from fault
        finally:
            driver.function("cuLinkDestroy")(state)


def code_identity(gpu: CudaGpu) -> str:
    """What all code for a GPU depends on."""
    return identity_of(processor_of(gpu.described), gpu.described.capability, gpu.described.driver)


def identity_of(processor: NvidiaProcessor, capability: tuple[int, int], driver: int) -> str:
    version = sys.modules["weft"].__version__  # the root package is above this layer: loaded, but not to be imported
    parts = (processor.triple, processor.processor, processor.features, repr(capability), str(driver))
    return key_of(*parts, version, llvmlite.__version__, PIPELINE)
