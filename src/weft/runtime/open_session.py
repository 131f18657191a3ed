"""Open a session: tune the device, find or compile the model, start its code, and check the memory limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from weft.backends.device import LoadingDriver, TunableDriver
from weft.cache.code import read_only_caches
from weft.compiler import Pipeline
from weft.errors import OutOfMemoryError, WeftError
from weft.ir.compiled import AwaitedObjects, CompiledProgram
from weft.ir.packing import release_pages
from weft.ir.program import TensorProgram
from weft.ir.specs import signature
from weft.runtime.available_memory import check_memory_to_start
from weft.runtime.compiled_models import find_or_compile
from weft.runtime.model_files import raise_missing_package
from weft.runtime.session import Session

if TYPE_CHECKING:
    from weft.backends.device import DeviceProgram

LEANEST_PRECISION = "strict"  # its kernels need the least workspace


def open_session(pipeline: Pipeline) -> Session:
    """Load the model on the pipeline's device; in the leanest precision if it must fit into a memory limit."""
    with load_errors(pipeline.file):
        if isinstance(pipeline.driver, LoadingDriver):
            check_memory_to_start()
        session = _open(pipeline)
        limit = pipeline.options.bytes_limit
        return session if limit is None else _fit_memory_limit(session, pipeline, limit)


def _open(pipeline: Pipeline) -> Session:

    try:
        pipeline.driver.check_precision(pipeline.precision)
    except WeftError as error:
        raise error.at(file=pipeline.file) from error.__cause__
    if isinstance(pipeline.options.tune, (int, float)) and isinstance(pipeline.driver, TunableDriver):
        from weft.runtime.tuning import tune_pipeline

        tune_pipeline(pipeline, pipeline.driver, pipeline.options.tune)
    program: DeviceProgram
    if isinstance(pipeline.driver, LoadingDriver):
        specs, program = find_or_compile(pipeline, pipeline.driver)
    else:
        program = pipeline.program()
        specs = signature(pipeline.read().graph, program, pipeline.read().about)
    _show_compilation(pipeline, program)
    pipeline.progress.stage("starting")
    pipeline.files.end_loading(keep=isinstance(program, TensorProgram))
    try:
        executable = pipeline.start(program)
    except WeftError as error:
        raise error.at(file=pipeline.file) from error.__cause__
    session = Session(specs, executable, pipeline)
    if isinstance(pipeline.driver, LoadingDriver):
        pipeline.dump.plan(session.plan)
    return session


def renew_session(session: Session, pipeline: Pipeline) -> Session:
    """Rebuild a session with the pipeline's weights, reusing its compiled code where possible.

    Code that is compiled for new weights is not cached.
    """
    from weft.runtime.revise import recompile

    with load_errors(pipeline.file):
        program, options = session.whole.program, pipeline.options
        with read_only_caches():
            if options.bytes_limit is not None or options.dump is not None or not isinstance(program, CompiledProgram):
                return open_session(pipeline)
            renewed = recompile(pipeline, session.pipeline, program)
        for copy in pipeline.files.views():
            release_pages(copy)
        return Session(session.signature, pipeline.start(renewed), pipeline)


def _show_compilation(pipeline: Pipeline, program: DeviceProgram) -> None:
    """Wait for code that is still compiling if progress is shown; otherwise the first run waits, without progress."""
    if pipeline.progress.is_seen and isinstance(program, CompiledProgram):
        objects = program.objects
        if isinstance(objects, AwaitedObjects):
            pipeline.progress.follow("compiling kernels", objects.count_ready, len(objects))
            objects.wait()


def _fit_memory_limit(session: Session, pipeline: Pipeline, limit: int) -> Session:
    """Return the session if it fits, else one in the leanest precision; OutOfMemoryError if neither fits."""
    try:
        session.check_limit(limit)
    except OutOfMemoryError as error:
        try:
            if pipeline.precision != LEANEST_PRECISION:
                device = pipeline.driver.name
                session = _open(
                    Pipeline(pipeline.files, pipeline.options, device, pipeline.progress, LEANEST_PRECISION)
                )
            session.check_limit(limit)
        except OutOfMemoryError:
            raise error from None
    return session


@contextmanager
def load_errors(file: str) -> Iterator[None]:
    """Turn a lack of memory or of a compiler package into a WeftError that says so."""
    try:
        yield
    except WeftError:
        raise
    except MemoryError as error:
        hint = "allow this process more memory; a cached model needs less to load"
        raise OutOfMemoryError("there is not enough memory to load the model", file=file, hint=hint) from error
    except ModuleNotFoundError as error:
        raise_missing_package(error, file)
