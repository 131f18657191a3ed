"""The whole way of a model, on one page: file -> Graph -> TensorProgram -> passes -> Model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from weft.backends.reference.interpret import Reference
from weft.errors import (
    DeviceError,
    ExecutionError,
    FallbackWarning,
    InputError,
    InvalidModelError,
    OutOfMemoryError,
    WeftError,
    shown,
)
from weft.frontend import Source as Opened
from weft.frontend import open_model, read_model, release_pages
from weft.ir.graph import Model as Source
from weft.ir.program import TensorProgram
from weft.ir.verify import verify
from weft.ops import registry
from weft.ops.lower import lower, run_eagerly, untraced
from weft.ops.tensor import OnlyAtRunError
from weft.passes import PIPELINE
from weft.runtime.arguments import whole_number
from weft.runtime.devices import Compiled, Engine, Recorder, Wishes, choose, next_best
from weft.runtime.devices import engine as device_engine
from weft.runtime.kept import KeptModel, Shelf
from weft.runtime.memory import parse_bytes
from weft.runtime.model_cache import shared_models
from weft.runtime.progress import Stages, stages
from weft.runtime.reading import Reading
from weft.runtime.room import check_room_to_compile, check_room_to_start
from weft.runtime.session import Model, Prepared, Workshop
from weft.runtime.specs import signature
from weft.threads import once

PRECISIONS = ("float32", "strict")
LEANEST = "strict"  # the precision whose kernels need the least memory to work in


def load(
    source: Any,
    *,
    device: str = "auto",
    threads: int | None = None,
    precision: str = "float32",
    memory_limit: int | str | None = None,
    prefer: str = "memory",
    cache: bool = True,
    dump: str | Path | None = None,
) -> Model:
    """Load an ONNX model, ready to run.

    source: a path, bytes, a file object or an onnx.ModelProto.
    device: a name from `weft.devices()`, or "auto" for the best one here; "webgpu" is the best GPU, "webgpu:1" one by
        its number, "webgpu:geforce" by a part of its name. If a GPU that "auto" chose fails, at load or in a run, the
        next best device takes over, and a FallbackWarning tells.
    threads: how many threads to use; None leaves it to the device. The reference device leaves it to numpy.
    precision: "float32" narrows no operand but may reassociate, and compute products in another basis (Winograd) where
        values are of one size, so that errors stay in proportion to what an output sees, and NaN and infinity where
        they are seen; "strict" allows nothing less accurate than a blocked dot product. The reference device computes
        both alike.
    memory_limit: bytes, or a text like "200MB", that weights, arena, workspace and outputs of one run at a time may
        take. A model that does not fit is refused with OutOfMemoryError, one with dynamic shapes when it is run.
    prefer: "memory" keeps the arena as small as it can be; "speed" lets it grow where kernels can then run side by side
        on threads that would wait. A memory_limit comes first.
    cache: whether compiled models and code may be kept on disk; the reference device compiles none.
    dump: a folder into which each stage is written as a numbered text file.
    """
    threads, folder = _checked_options(threads, precision, prefer, dump)
    limit = None if memory_limit is None else parse_bytes(memory_limit)
    chosen = choose(device).name
    if device_engine(chosen).identity is not None:
        check_room_to_start()
    with stages("loading") as progress:
        progress.stage("reading")
        kept = shared_models() if cache else None
        folders = (None, None) if kept is None else (kept.folder, kept.records)
        reading = Reading(open_model(source), _read, *folders)
        wishes = Wishes(threads, limit, prefer)
        load_on = partial(_load, reading, wishes, cache, folder, precision)
        try:
            return _load_on_best(load_on, chosen, progress) if device == "auto" else load_on(chosen, None, progress)
        except WeftError:
            raise
        except MemoryError as error:
            hint = "this process may take too little memory to load it; a model that is cached takes less"
            raise OutOfMemoryError("the memory is used up", file=reading.file, hint=hint) from error


def _load_on_best(load_on: Callable[..., Model], chosen: str, progress: Stages | None = None) -> Model:
    """Load on a device, or if that fails on the next best one; so too when it fails in a run."""
    following = next_best(chosen)
    if following is None:
        return load_on(chosen, None, progress)
    fall_back = partial(_fall_back, load_on, chosen, following.name)
    try:
        return load_on(chosen, fall_back, progress)
    except (DeviceError, OutOfMemoryError) as error:
        return fall_back(error, progress)


def _fall_back(
    load_on: Callable[..., Model], failed: str, following: str, error: WeftError, progress: Stages | None = None
) -> Model:
    warnings.warn(f"{failed} failed, {following} is used instead: {error.problem}", FallbackWarning, stacklevel=2)
    return _load_on_best(load_on, following, progress)


def _load(
    reading: Reading,
    wishes: Wishes,
    cache: bool,
    dump: Path | None,
    precision: str,
    device: str,
    fall_back: Callable[[WeftError], Model] | None,
    progress: Stages | None,
) -> Model:
    """A model on a device, with leaner kernels where it must fit into a limit."""
    make = partial(_load_as, reading, device, wishes, cache, dump, progress or Stages("loading", show=False), fall_back)
    model = make(precision)
    return model if wishes.limit is None else _fitting(model, wishes.limit, make, precision)


def _load_as(
    reading: Reading,
    device: str,
    wishes: Wishes,
    cache: bool,
    dump: Path | None,
    progress: Stages,
    fall_back: Callable[[WeftError], Model] | None,
    precision: str,
) -> Model:
    engine = device_engine(device)
    read = reading.model
    compile = partial(_compile, read, dump)
    trace: Callable[..., TensorProgram] = once(partial(_trace, read, compile))
    shelf = Shelf(reading, engine, precision) if cache and dump is None else None
    kept = shelf.get() if shelf is not None else None
    if kept is None:
        if engine.identity is not None:
            check_room_to_compile(reading.file, reading.opened.size)
        make = partial(_make, read, compile, engine, precision, cache, partial(_tell, progress, reading))
        made = make(progress)
        progress.stage("saving")
        kept = (made if shelf is None else shelf.put(made)) or make(progress)
        if isinstance(kept.program, TensorProgram):
            trace = partial(_given, kept.program)
    reading.end_loading(keep=isinstance(kept.program, TensorProgram))
    try:
        whole = _start(engine, wishes, kept.program)
    except WeftError as error:
        raise error.at(file=reading.file) from error.__cause__
    prepare = partial(_prepare, engine, wishes, precision, cache)
    eager, record = partial(_run_eagerly, read), partial(_record, device, engine, wishes.threads)
    workshop = Workshop(read, trace, compile, prepare, eager, record, engine.place, engine.has_memory, fall_back)
    return Model(reading.file, device, kept.signature, whole, workshop)


def _fitting(model: Model, limit: int, load_as: Callable[[str], Model], precision: str) -> Model:
    """The model if it fits into its limit, else one whose kernels need less memory to work in; or OutOfMemoryError."""
    try:
        model.check_limit(limit)
    except OutOfMemoryError as error:
        try:
            lean = load_as(LEANEST) if precision != LEANEST else model
            lean.check_limit(limit)
        except OutOfMemoryError:
            raise error from None
        return lean
    return model


def _make(
    read: Callable[[], Source],
    compile: Callable[..., TensorProgram],
    engine: Engine,
    precision: str,
    cache: bool,
    tell: Callable[[str, float], None],
    progress: Stages,
) -> KeptModel:
    """What runs a model on a device; what was traced on the way, and its weights, can go as they are packed."""
    program = _trace(read, compile, progress)
    return KeptModel(signature(read().graph, program), engine.compile(program, precision, cache, tell))


def _trace(
    read: Callable[[], Source], compile: Callable[..., TensorProgram], progress: Stages | None = None
) -> TensorProgram:
    """The program for any shapes."""
    file = read().file
    try:
        return compile(None, (), progress=progress)
    except OnlyAtRunError:
        return untraced(read().graph)
    except ExecutionError as error:  # of constants, which no run could change
        where = {"file": file, "node": error.node, "value": error.value}
        raise InvalidModelError(error.problem, hint=error.hint, **where) from error
    except WeftError as error:
        raise error.at(file=file) from error.__cause__


def _prepare(engine: Engine, wishes: Wishes, precision: str, cache: bool, program: TensorProgram) -> Prepared:
    """Make a program run on a device."""
    return _start(engine, wishes, engine.compile(program, precision, cache, lambda *_: None))


def _start(engine: Engine, wishes: Wishes, program: Compiled) -> Prepared:
    names = tuple(value.name for value in program.inputs)
    return Prepared(names, engine.start(program, wishes), program, engine.has_memory)


def _record(device: str, engine: Engine, threads: int | None, program: Compiled) -> Recorder:
    if engine.record is None:
        raise DeviceError(f"device {device!r} cannot time its kernels one by one", hint="choose another device")
    return engine.record(program, threads)


def _tell(progress: Stages, reading: Reading, stage: str, fraction: float) -> None:
    """Say how far a stage is; weights that were packed on the way are no longer needed as the files have them."""
    progress.stage(stage, fraction)
    for copy in reading.views():
        release_pages(copy)


def _read(opened: Opened, folders: Sequence[Path]) -> Source:
    return read_model(opened, is_defined=is_defined, folders=folders)


def _run_eagerly(read: Callable[[], Source], inputs: Mapping[str, Any]) -> list[Any]:
    return run_eagerly(read().graph, Reference(), inputs)


def _given(program: TensorProgram) -> TensorProgram:
    return program


def is_defined(domain: str, op: str, version: int) -> bool:
    """Whether weft has a definition of its own for an op."""
    return registry.find(domain, op, version) is not None


def _compile(
    read: Callable[[], Source],
    dump: Path | None,
    sizes: Mapping[str, Sequence[int | None]] | None,
    overridden: Sequence[str],
    progress: Stages | None = None,
) -> TensorProgram:
    """Graph -> TensorProgram through all passes; for given input shapes, or for any."""
    tell: Callable[[str], None] = progress.stage if progress is not None else lambda _: None
    tell("tracing")
    evaluator = Reference()
    program = lower(
        read().graph,
        evaluator,
        sizes=sizes,
        overridden=overridden,
        progress=progress.update if progress is not None else None,
    )
    verified = verify(program)
    _write(dump, 0, "traced", program)
    for number, apply in enumerate(PIPELINE):
        tell(apply.__name__.replace("_", " "))
        program = apply(program, evaluator)
        verified = verify(program, verified)
        _write(dump, number + 1, apply.__name__, program)
    return program


def _write(dump: Path | None, number: int, stage: str, program: TensorProgram) -> None:
    if dump is None:
        return
    try:
        dump.mkdir(parents=True, exist_ok=True)
        (dump / f"{number:02}-{stage}.txt").write_text(f"{program}\n", encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"nothing can be written to the dump folder {dump}: {reason}") from error


def _checked_options(threads: Any, precision: Any, prefer: Any, dump: Any) -> tuple[int | None, Path | None]:
    """The number of threads and the folder for dumps; an error of weft's where an option is none."""
    if not isinstance(prefer, str) or prefer not in ("memory", "speed"):
        raise DeviceError(f"prefer must be 'memory' or 'speed', not {shown(prefer)}")
    if not isinstance(precision, str) or precision not in PRECISIONS:
        hint = f"use one of {', '.join(PRECISIONS)}"
        is_fast = isinstance(precision, str) and precision == "fast"
        why = ": no layer is computed in bfloat16 or narrower yet" if is_fast else ""
        raise DeviceError(f"precision {shown(precision)} is not available{why}", hint=hint)
    try:
        folder = None if dump is None else Path(dump)
    except Exception as error:  # whatever a class of someone else's raises
        raise InputError(f"dump must be the path of a folder, not a {type(dump).__name__}") from error
    try:
        return (None if threads is None else whole_number(threads, "threads")), folder
    except InputError as error:
        raise DeviceError(error.problem) from None
