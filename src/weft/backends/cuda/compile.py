"""Compile kernels for a GPU: LLVM writes PTX, and the driver assembles it.

Each kernel becomes an encoded `KernelCode`. It includes the kernel itself, because programs in the cache only name
their kernels, and a launch may need another variant of the code. The driver's version is part of the cache key.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from ctypes import addressof, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p, create_string_buffer, string_at
from dataclasses import field

import llvmlite

from weft.backends.cuda.discovery import GpuProperties
from weft.backends.cuda.gpu import CudaGpu
from weft.backends.cuda.library import DriverError
from weft.backends.cuda.processors import choose_lanes, choose_processor
from weft.backends.llvm import assembly
from weft.backends.llvm.compilation import assembly_text
from weft.backends.llvm.emit import emit
from weft.backends.llvm.nvptx import NvidiaProcessor
from weft.backends.llvm.pass_pipeline import PIPELINE
from weft.backends.llvm.thread_lanes import ThreadLanes, dynamic_shared_bytes
from weft.backends.naming import name_kernels, replace_kernels
from weft.cache.code import shared_cache
from weft.cache.digests import key_of
from weft.cache.serialization import deserialize_kernel, serialize_kernel
from weft.cache.sources import package_digest
from weft.errors import KernelError
from weft.ir.compiled import CompiledProgram, build_compiled_program
from weft.ir.kernel import FetchRun, Kernel, MoveRun, PutRun, View, inner_bodies
from weft.ir.program import TensorProgram
from weft.ir.work import Section
from weft.records import dataclass
from weft.threads import HelperPool, usable_cores
from weft.version import __version__

Progress = Callable[[float], None]
_PTX_INPUT = 1  # CU_JIT_INPUT_PTX
_ERROR_LOG, _ERROR_LOG_SIZE = 5, 6  # CU_JIT_ERROR_LOG_BUFFER and its size
_HEAD = struct.Struct("<III")


@dataclass(frozen=True, slots=True)
class KernelCode:
    """A kernel assembled for one GPU."""

    shared_bytes: int  # dynamic shared memory that launches must request
    code: bytes
    runs: Mapping[str, int] = field(default_factory=dict)  # see `find_run_widths`
    packed: bytes = b""  # the kernel, serialized and compressed

    @property
    def kernel(self) -> Kernel:
        return deserialize_kernel(zlib.decompress(self.packed))

    def encode(self) -> bytes:
        runs = json.dumps(dict(self.runs)).encode()
        return _HEAD.pack(self.shared_bytes, len(runs), len(self.packed)) + runs + self.packed + self.code

    @classmethod
    def decode(cls, content: bytes) -> KernelCode:
        shared, runs, packed = _HEAD.unpack_from(content)
        start = _HEAD.size + runs
        widths = json.loads(content[_HEAD.size : start])
        return cls(shared, content[start + packed :], widths, content[start : start + packed])


def find_run_widths(kernel: Kernel) -> dict[str, int]:
    """Find how many neighbouring elements a kernel accesses at once, at most, for each buffer that has such runs.

    Runs start at multiples of their width.
    """
    widths: dict[str, int] = {}
    homes: dict[str, str] = {}
    pending = list(kernel.body)
    while pending:
        statement = pending.pop(0)
        match statement:
            case FetchRun(registers, name):
                count = len(registers)
            case PutRun(name, _, values):
                count = len(values)
            case MoveRun(count=count, buffer=name):
                pass
            case View(view, buffer):
                homes[view] = homes.get(buffer, buffer)
                continue
            case _:
                pending = [*(inner for body in inner_bodies(statement) for inner in body), *pending]
                continue
        home = homes.get(name, name)
        widths[home] = max(widths.get(home, 0), count)
    return widths


def compile_program(
    program: TensorProgram,
    sections: Sequence[Section],
    gpu: CudaGpu,
    cache: bool = True,
    progress: Progress | None = None,
) -> CompiledProgram:
    """Compile all kernels of a program."""
    kernels = name_kernels(sections)
    distinct = {kernel.name: kernel for kernel in kernels.values()}
    lanes = choose_lanes(choose_processor(gpu.properties))
    codes = compile_kernels([(kernel, lanes) for kernel in distinct.values()], gpu, cache, progress)
    return build_compiled_program(program, replace_kernels(sections, kernels), tuple(code.encode() for code in codes))


def compile_kernels(
    kernels: Sequence[tuple[Kernel, ThreadLanes]], gpu: CudaGpu, cache: bool = True, progress: Progress | None = None
) -> list[KernelCode]:
    """Compile kernels in parallel, or read them from the cache."""
    emitter = package_digest("backends", "ir")
    code_cache = shared_cache() if cache and emitter is not None else None
    common = code_identity(gpu.properties)
    keys = [key_of(kernel.name, repr(lanes), common, emitter or "") for kernel, lanes in kernels]
    codes = [code_cache.get(key) if code_cache is not None else None for key in keys]
    missing = [number for number, code in enumerate(codes) if code is None]
    done = 0

    def build(number: int) -> bytes:
        nonlocal done
        code = compile_kernel(*kernels[number], gpu).encode()
        if code_cache is not None:
            code_cache.put(keys[number], code)
        done += 1
        if progress is not None:
            progress(done / len(missing))
        return code

    if missing:
        with HelperPool(min(usable_cores(), len(missing))) as workers:
            new_codes = dict(zip(missing, workers.map(build, missing)))
        codes = [new_codes.get(number, code) for number, code in enumerate(codes)]
    return [KernelCode.decode(code) for code in codes if code is not None]


def compile_kernel(kernel: Kernel, lanes: ThreadLanes, gpu: CudaGpu) -> KernelCode:
    text, shared_bytes = emit_ptx(kernel, lanes, choose_processor(gpu.properties))
    packed = zlib.compress(serialize_kernel(kernel), 1)
    return KernelCode(shared_bytes, assemble_ptx(kernel.name, text, gpu), find_run_widths(kernel), packed)


def emit_ptx(kernel: Kernel, lanes: ThreadLanes, processor: NvidiaProcessor) -> tuple[str, int]:
    """Return a kernel's PTX, and the bytes of dynamic shared memory that launches must request."""
    module = assembly.Module("weft")
    emit(kernel, module, lanes)
    return assembly_text(str(module), processor), dynamic_shared_bytes(kernel, module)


def assemble_ptx(name: str, ptx: str, gpu: CudaGpu) -> bytes:
    """Assemble PTX with the driver; KernelError with the driver's log if it refuses."""
    log = create_string_buffer(8192)
    options = (c_int * 2)(_ERROR_LOG, _ERROR_LOG_SIZE)
    values = (c_void_p * 2)(addressof(log), len(log))
    state, image, size = c_void_p(), c_void_p(), c_size_t()
    text = ptx.encode() + b"\0"
    with gpu.guard(f"kernel {name!r}", KernelError) as driver:
        driver("cuLinkCreate_v2", c_uint(2), options, values, byref(state))
        try:
            add = (state, _PTX_INPUT, c_char_p(text), c_size_t(len(text)), name.encode(), 0, None, None)
            driver("cuLinkAddData_v2", *add)
            driver("cuLinkComplete", state, byref(image), byref(size))
            return string_at(image, size.value)
        except DriverError as fault:
            message = log.value.decode(errors="replace").strip()
            if not message or fault.is_fatal:
                raise
            raise KernelError(f"kernel {name!r}, on {gpu.name}: {fault}: {message}", hint=fault.hint) from fault
        finally:
            driver.function("cuLinkDestroy")(state)


def code_identity(gpu: GpuProperties) -> str:
    """Return a key of everything that all code for a GPU depends on."""
    processor = choose_processor(gpu)
    parts = (processor.triple, processor.processor, processor.features, repr(gpu.capability), str(gpu.driver))
    return key_of(*parts, __version__, llvmlite.__version__, PIPELINE)
