"""LLVM IR text -> object code, or assembly (PTX, for NVIDIA's GPUs).

The IR is what the processor should do already, so few passes are run: registers out of stack slots, and instructions
combined for those who assemble by themselves. What else there is to gain, common subexpressions and invariants of
loops, LLVM's emission finds by itself.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, Protocol

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from weft.errors import InternalError
from weft.threads import Undivided, free_in_children

LLVM = Undivided()
free_in_children(ffi.lib._lock._lock)  # llvmlite's, which it takes for a moment wherever it lets something go


class Processor(Protocol):
    """What code is compiled for, by LLVM's names."""

    @property
    def triple(self) -> str: ...

    @property
    def processor(self) -> str: ...

    @property
    def features(self) -> str: ...


_ASSEMBLY, _OBJECT = 0, 1  # kinds of files, as LLVM numbers them


def compile_module(text: str, processor: Processor) -> bytes:
    """Object code of one module."""
    return _emitted(text, processor, _OBJECT)


def assembly_text(text: str, processor: Processor) -> str:
    """A module as assembly: for people, and for what assembles by itself, as the drivers of NVIDIA's GPUs do."""
    return _emitted(text, processor, _ASSEMBLY).decode()


def _emitted(text: str, processor: Processor, kind: int) -> bytes:
    with LLVM:
        context = llvm.create_context()
        module, target_machine = _optimized(text, processor, context, kind)
        with ffi.OutputString() as error:
            buffer = _concurrent("LLVMPY_TargetMachineEmitToMemory")(target_machine, module, kind, error)
            if not buffer:
                raise InternalError(f"LLVM cannot emit code: {error}")
        try:
            return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer))
        finally:
            ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _optimized(text: str, processor: Processor, context: Any, kind: int) -> tuple[Any, Any]:
    """The module after its passes, and the target machine to emit it with."""
    try:
        module = llvm.parse_assembly(text, context)
    except RuntimeError as error:
        raise InternalError(f"LLVM rejects weft's code: {error}") from error
    machine = target_machine(processor, 1 if kind == _OBJECT else 2)
    module.triple = processor.triple
    module.data_layout = str(machine.target_data)
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    _concurrent("LLVMPY_RunNewModulePassManager")(_pipeline(kind), module, passes)
    return module, machine


def _pipeline(kind: int) -> Any:
    pipeline = llvm.create_new_module_pass_manager()
    pipeline.add_always_inliner_pass()
    pipeline.add_sroa_pass()
    if kind == _ASSEMBLY:
        pipeline.add_instruction_combine_pass()
    pipeline.add_simplify_cfg_pass()
    return pipeline


def target_machine(processor: Processor, effort: int = 2) -> Any:
    """LLVM's own description of a processor, with how much is done for good code, from 0 to 3."""
    if processor.triple == llvm.get_process_triple():
        initialize_compiler()
    else:
        initialize_others()
    return llvm.Target.from_triple(processor.triple).create_target_machine(
        cpu=processor.processor, features=processor.features, opt=effort, reloc="pic", codemodel="small"
    )


@cache
def initialize_compiler() -> None:
    """Make LLVM able to compile for the host: memory that only those need who compile."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@cache
def initialize_others() -> None:
    """Make LLVM able to compile for every processor that it knows."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@cache
def _concurrent(name: str) -> Any:
    """A function of llvmlite's library without the lock around it.

    The lock would serialize all compiling in the process. LLVM itself is safe as long as each thread has a context
    and a target machine of its own.
    """
    locked = getattr(ffi.lib, name)
    free = getattr(ctypes.CDLL(ffi.lib._name), name)
    free.argtypes, free.restype = locked.argtypes, locked.restype
    return free
