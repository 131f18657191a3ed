"""Compile LLVM IR to object code, or to assembly (PTX for NVIDIA GPUs).

The IR is close to machine code already, so few passes run: inlining, SROA, and for assembly instcombine. LLVM's code
generator itself eliminates common subexpressions and hoists loop invariants.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, Protocol

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from weft.errors import InternalError
from weft.threads import NativeLibraryGuard, reset_in_children

LLVM = NativeLibraryGuard()
reset_in_children(ffi.lib._lock._lock)  # llvmlite's destructors take it


class Processor(Protocol):
    """A processor to compile for, in LLVM's names."""

    @property
    def triple(self) -> str: ...

    @property
    def processor(self) -> str: ...

    @property
    def features(self) -> str: ...


_ASSEMBLY, _OBJECT = 0, 1  # LLVMCodeGenFileType


def compile_module(text: str, processor: Processor) -> bytes:
    """Compile a module to object code."""
    return _compile(text, processor, _OBJECT)


def assembly_text(text: str, processor: Processor) -> str:
    """Compile a module to assembly, for display or for a driver that assembles it (PTX)."""
    return _compile(text, processor, _ASSEMBLY).decode()


def _compile(text: str, processor: Processor, kind: int) -> bytes:
    with LLVM:
        context = llvm.create_context()
        module, target_machine = _optimize(text, processor, context, kind)
        with ffi.OutputString() as error:
            buffer = _concurrent("LLVMPY_TargetMachineEmitToMemory")(target_machine, module, kind, error)
            if not buffer:
                raise InternalError(f"LLVM cannot emit code: {error}")
        try:
            return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer))
        finally:
            ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _optimize(text: str, processor: Processor, context: Any, kind: int) -> tuple[Any, Any]:
    """Parse a module and run its passes; return it with the target machine to emit it with."""
    try:
        module = llvm.parse_assembly(text, context)
    except RuntimeError as error:
        raise InternalError(f"LLVM rejects weft's code: {error}") from error
    machine = target_machine(processor, 1 if kind == _OBJECT else 2)
    module.triple = processor.triple
    module.data_layout = str(machine.target_data)
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    _concurrent("LLVMPY_RunNewModulePassManager")(_build_pipeline(kind), module, passes)
    return module, machine


def _build_pipeline(kind: int) -> Any:
    pipeline = llvm.create_new_module_pass_manager()
    pipeline.add_always_inliner_pass()
    pipeline.add_sroa_pass()
    if kind == _ASSEMBLY:
        pipeline.add_instruction_combine_pass()
    pipeline.add_simplify_cfg_pass()
    return pipeline


def target_machine(processor: Processor, effort: int = 2) -> Any:
    """Create LLVM's target machine of a processor; `effort` is the code generator's optimization level, 0 to 3."""
    if processor.triple == llvm.get_process_triple():
        initialize_compiler()
    else:
        initialize_others()
    return llvm.Target.from_triple(processor.triple).create_target_machine(
        cpu=processor.processor, features=processor.features, opt=effort, reloc="pic", codemodel="small"
    )


@cache
def initialize_compiler() -> None:
    """Initialize LLVM's code generator for the host."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@cache
def initialize_others() -> None:
    """Initialize LLVM's code generators for all processors."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@cache
def _concurrent(name: str) -> Any:
    """Return a function of llvmlite's library without its lock, which would serialize all compilation.

    LLVM is thread-safe as long as each thread has its own context and target machine.
    """
    locked = getattr(ffi.lib, name)
    unlocked = getattr(ctypes.CDLL(ffi.lib._name), name)
    unlocked.argtypes, unlocked.restype = locked.argtypes, locked.restype
    return unlocked
