"""The sessions of one model: one for each device, opened on first use.

A session has one set of weights for its whole life. `set_weights` replaces all sessions at once, so a thread that
holds a session sees only old weights or only new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.cache.digests import key_of
from weft.cache.sources import definitions_digest
from weft.compiler import Pipeline
from weft.errors import Attempt, DeviceLostError
from weft.runtime.compiled_models import needs_compilation
from weft.runtime.device_history import DeviceHistory, is_device_error
from weft.runtime.devices import HOST
from weft.runtime.open_session import open_session, renew_session
from weft.runtime.progress import stages
from weft.threads import make_lock, make_reentrant_lock

if TYPE_CHECKING:
    from threading import RLock

    from weft.ir.groups import FusedProgram
    from weft.ir.program import TensorProgram
    from weft.runtime.model_files import ModelFiles
    from weft.runtime.options import LoadOptions, Precision
    from weft.runtime.progress import Stages
    from weft.runtime.session import Session


class _TracedModel(NamedTuple):
    """The program traced to choose a device, kept until a session is opened."""

    files: ModelFiles  # which have the weights that it was traced with
    program: TensorProgram
    groups: dict[str, FusedProgram]  # by device


class SessionPool:
    """The sessions of one model by device, which share its files and weights. Safe to use from several threads."""

    def __init__(
        self, files: ModelFiles, options: LoadOptions, progress: Stages, absent: Sequence[Attempt] = ()
    ) -> None:
        """`absent`: devices that were asked for and are not available."""
        self.files = files
        self.options = options
        self.sessions: dict[str, Session] = {}  # looked up without a lock
        self.history: DeviceHistory = DeviceHistory(files.file, absent)
        self._progress = progress  # of the load
        self._traced: _TracedModel | None = None
        self._opening: dict[str, RLock] = {}  # by device
        self._lock = make_lock()  # guards `files` together with `sessions`
        self._setting = make_reentrant_lock()  # held while weights are set

    @property
    def file(self) -> str:
        return self.files.file

    def session(self, device: str, progress: Stages | None = None) -> Session:
        """Return the session on a device; threads that ask for the same one wait while it is opened."""
        session = self.sessions.get(device)
        if session is not None:
            return session
        with self._lock:
            opening = self._opening.setdefault(device, make_reentrant_lock())
        with opening:
            while (session := self.sessions.get(device)) is None:
                files = self.files
                opened = self._open(device, files, progress)
                with self._lock:
                    if self.files is files:  # otherwise weights were set meanwhile
                        self.sessions[device] = opened
        return session

    def _open(self, device: str, files: ModelFiles, progress: Stages | None) -> Session:
        if progress is None and self._progress.is_over:
            with stages("loading") as progress:
                return self._open(device, files, progress)
        pipeline = Pipeline(files, self.options, device, progress or self._progress)
        traced, self._traced = self._traced, None
        if traced is not None and traced.files is files and self.options.dump is None:
            pipeline.traced = (traced.program, traced.groups.get(device))
        del traced  # the pipeline frees weights as it packs them
        return open_session(pipeline)

    def open_in_precision(self, device: str, precision: Precision) -> Session:
        """Open one more session, in another precision; it is not kept."""
        pool = SessionPool(self.files, replace(self.options, precision=precision, dump=None), self._progress)
        return pool.session(device)

    def drop(self, device: str) -> None:
        """Forget the session on a device; runs in progress finish with it."""
        with self._lock:
            self.sessions.pop(device, None)

    def copy(self) -> SessionPool:
        """Return a pool with the same weights, which can be set independently; the sessions are shared."""
        with self._lock:
            copy = SessionPool(self.files, self.options, self._progress)
            copy.sessions.update(self.sessions)
        return copy

    # -- weights -----------------------------------------------------------------------------------------------------

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Change weights on all devices; an error leaves everything as it was.

        The session of a device that is lost is dropped, and opened again when it is next used.
        """
        from weft.runtime.weights import check_weights

        with self._setting:
            files = self.files.with_weights(check_weights(weights, self.files))
            renewed: dict[Session, Session | None] = {}
            while True:
                with self._lock:
                    waiting = [session for session in self.sessions.values() if session not in renewed]
                    if not waiting:
                        self.files, self._traced = files, None
                        for device, session in list(self.sessions.items()):
                            if (successor := renewed[session]) is None:
                                del self.sessions[device]
                            else:
                                self.sessions[device] = successor
                        return
                for session in waiting:
                    try:
                        renewed[session] = self._renew(session, files)
                    except DeviceLostError as error:
                        self.history.add_failure(session.device, "setting weights", error)
                        renewed[session] = None

    def _renew(self, session: Session, files: ModelFiles) -> Session:
        return renew_session(session, Pipeline(files, self.options, session.device, self._progress))

    # -- the choice of a device --------------------------------------------------------------------------------------

    def program(self) -> TensorProgram:
        """Return the optimised program for any shapes, traced once for all devices."""
        return self._trace().program

    def fused(self, device: str) -> FusedProgram:
        """Return the program's groups for a device."""
        traced = self._trace()
        groups = traced.groups.get(device)
        if groups is None:
            groups = traced.groups[device] = self._candidate(device, traced.files).fuse(traced.program)
        return groups

    def _trace(self) -> _TracedModel:
        traced, files = self._traced, self.files
        if traced is None or traced.files is not files:
            traced = self._traced = _TracedModel(files, self._candidate(HOST, files).program(), {})
        return traced

    def _candidate(self, device: str, files: ModelFiles) -> Pipeline:
        """Return a pipeline that may stop early, and that dumps nothing."""
        return Pipeline(files, replace(self.options, dump=None), device, self._progress)

    def needs_compilation(self, device: str) -> bool:
        """Whether opening a session on a device would compile the model."""
        return needs_compilation(Pipeline(self.files, self.options, device, self._progress))

    def prepare_trial(self, device: str, progress: Stages | None = None) -> Callable[[], object]:
        """Open a session and return a function that runs it once, on the sample or on random inputs.

        Failures of the device, now or in a run, are added to the history.
        """
        from weft.runtime.generated_inputs import usual_inputs

        try:
            session = self.session(device, progress)
        except Exception as error:
            self._add_failure(device, "loading", error)
            raise
        sample = self.options.sample
        request = session.request(usual_inputs(session) if sample is None else sample)

        def run() -> object:
            try:
                return session.answer(request)
            except Exception as error:
                self._add_failure(device, "running", error)
                raise

        return run

    def _add_failure(self, device: str, stage: str, error: Exception) -> None:
        if is_device_error(error):
            self.history.add_failure(device, stage, error)

    def cache_key(self) -> str | None:
        """Return the key that the choice of a device is cached under, whatever the weights; None if it may not be."""
        definitions, options = definitions_digest(), self.options
        if not options.cache or options.dump is not None or definitions is None:
            return None
        return key_of(self.files.name(), definitions, options.precision, repr(options.outputs))

    def report_stage(self, stage: str) -> None:
        """Report a stage to the progress of the load."""
        self._progress.stage(stage)
