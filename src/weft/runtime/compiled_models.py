"""Find a compiled model in its own file or in the cache, or compile and cache it; also its programs for other shapes.

A model whose weights were set has no cache entry: there would be one for each set of weights. It reuses the code of the
entry with the file's own weights where it can.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from weft.backends.device import LoadingDriver
from weft.cache.entries import CachedModel, CacheEntry, OtherProgram
from weft.compiler import Pipeline
from weft.ir.compiled import CompiledProgram
from weft.ir.program import TensorProgram
from weft.logs import CACHE
from weft.quantities import format_bytes
from weft.runtime.available_memory import check_memory_to_compile, memory_left
from weft.runtime.load_logs import log_compiled

if TYPE_CHECKING:
    from weft.backends.device import DeviceProgram
    from weft.ir.specs import Signature
    from weft.runtime.progress import Stages


def find_or_compile(pipeline: Pipeline, device: LoadingDriver) -> tuple[Signature, DeviceProgram]:
    """Return the compiled model; one that was compiled now is cached.

    The traced program and its weights may be freed while they are packed: no reference to them is held here.
    """
    file = pipeline.file
    cached = _reuse_code(pipeline, device) if pipeline.files.changed else _find_in_file(pipeline, device)
    entry = _cache_entry(pipeline, device) if cached is None else None
    cached = entry.get() if cached is None and entry is not None else cached
    if cached is None:
        check_memory_to_compile(file, pipeline.files.opened.size)
        start = time.monotonic()
        compiled = pipeline.compile_model()
        if entry is not None:
            report_packing = partial(_report_packing, pipeline.progress)
            compiled = entry.put(compiled, memory_left(), report_packing) or pipeline.compile_model()
        log_compiled(file, device.name, compiled.program, pipeline.precision, time.monotonic() - start)
        return compiled.signature, compiled.program
    origin = "the cache" if entry is not None else "its file"
    CACHE.info("%s: the program for %s is taken from %s", file, device.name, origin)
    return cached.signature, cached.program


def find_program(pipeline: Pipeline, whole: DeviceProgram, name: str) -> CompiledProgram | None:
    """Return one of the model's other programs from the cache, by a name that covers what it is compiled for.

    `whole` is the program for any shapes, whose weights the others share.
    """
    entry = _program_entry(pipeline, whole, name)
    cached = None if entry is None else entry.get()
    return None if cached is None else cached.program


def compile_program(
    pipeline: Pipeline, traced: TensorProgram, specs: Signature, whole: DeviceProgram, name: str
) -> DeviceProgram:
    """Compile one of the model's other programs, and cache it under its name."""
    compiled = pipeline.compile(traced)
    if isinstance(compiled, TensorProgram):
        return compiled
    return store_program(pipeline, compiled, specs, whole, name) or pipeline.compile(traced)


def store_program(
    pipeline: Pipeline, compiled: CompiledProgram, specs: Signature, whole: DeviceProgram, name: str
) -> CompiledProgram | None:
    """Cache one of the model's other programs under its name; return the one to use, None if its arrays are lost."""
    entry = _program_entry(pipeline, whole, name)
    if entry is None:
        return compiled
    cached = entry.put(CachedModel(specs, compiled), memory_left())
    return None if cached is None else cached.program


def _program_entry(pipeline: Pipeline, whole: DeviceProgram, name: str) -> CacheEntry | None:
    device = pipeline.driver
    if not isinstance(device, LoadingDriver) or not isinstance(whole, CompiledProgram):
        return None
    try:
        return _cache_entry(pipeline, device, OtherProgram(name, whole))
    except ModuleNotFoundError:  # an installation without a compiler, which cannot name the processor
        return None


def needs_compilation(pipeline: Pipeline) -> bool:
    """Whether loading the model on this device would compile it."""
    device = pipeline.driver
    if not isinstance(device, LoadingDriver):
        return False
    if not pipeline.files.changed and _find_in_file(pipeline, device) is not None:
        return False
    entry = _cache_entry(pipeline, device)
    return entry is None or entry.get() is None


def _reuse_code(pipeline: Pipeline, device: LoadingDriver) -> CachedModel | None:
    """Return the cached model with the weights that were set; None if nothing is cached."""
    from weft.runtime.revise import recompile

    original = Pipeline(pipeline.files.unchanged, pipeline.options, device.name, pipeline.progress, pipeline.precision)
    entry = _cache_entry(original, device)
    cached = _find_in_file(original, device) or (None if entry is None else entry.get())
    if cached is None or not isinstance(cached.program, CompiledProgram):
        return None
    program = recompile(pipeline, original, cached.program)
    assert not isinstance(program, TensorProgram)
    return CachedModel(cached.signature, program)


def _find_in_file(pipeline: Pipeline, device: LoadingDriver) -> CachedModel | None:
    """Return the program for this device that the model's file contains, if any."""
    options = pipeline.options
    if options.dump is not None:
        return None
    return pipeline.files.prepared(device, pipeline.precision, options.outputs)


def _cache_entry(pipeline: Pipeline, device: LoadingDriver, program: OtherProgram | None = None) -> CacheEntry | None:
    """Return the model's cache entry, or that of one of its other programs; None if it may not have one."""
    options = pipeline.options
    if not options.cache or options.dump is not None or pipeline.files.changed:
        return None
    variant = ("strict",) if options.strict else ()  # other loads may repair the file
    if options.outputs is not None:
        variant = (*variant, "outputs", *options.outputs)
    dependencies = (device.identity(), pipeline.precision, *variant)
    return CacheEntry(pipeline.files, device.name, *dependencies, program=program)


def _report_packing(progress: Stages, done: int, size: int) -> None:
    progress.stage("packing weights", done / max(size, 1), f"{format_bytes(done)} of {format_bytes(size)}")
