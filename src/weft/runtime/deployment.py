"""A model on all the devices that it was compiled for: one session each, made when it is first asked for.

A session has one set of weights for as long as it lives. Others come with other sessions, which take the place of all
at once: whoever has a session has all the old weights or all the new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from weft.errors import Attempt, DeviceLostError
from weft.runtime.attempts import History, is_the_devices
from weft.threads import lock, reentrant_lock

if TYPE_CHECKING:
    from weft.ir.groups import FusedProgram
    from weft.ir.program import TensorProgram
    from weft.runtime.model_files import ModelFiles
    from weft.runtime.options import Precision
    from weft.runtime.policy import DeviceOption
    from weft.runtime.progress import Stages
    from weft.runtime.session import Session
    from weft.runtime.weights import Array


class Opener(Protocol):
    """What brings a model, with one set of weights, to a device."""

    @property
    def file(self) -> str:
        """What to call the model in messages."""
        ...

    @property
    def files(self) -> ModelFiles:
        """What it is read from, and its weights."""
        ...

    @property
    def sample(self) -> Mapping[str, Any] | None:
        """Inputs like those to come."""
        ...

    @property
    def threads(self) -> int | None:
        """How many runs use; None leaves it to the device."""
        ...

    def content(self) -> str | None:
        """What names the model, whatever its weights are; None where nothing of it may be remembered."""
        ...

    def tell(self, stage: str) -> None:
        """Say what is being done, to whoever waits for the model."""
        ...

    def program(self) -> TensorProgram:
        """The optimised program for any shapes."""
        ...

    def fused(self, device: str) -> FusedProgram:
        """Its groups for a device."""
        ...

    def open(self, device: str, progress: Stages | None = None) -> Session:
        """The model there, ready to run."""
        ...

    def with_weights(self, changed: Mapping[str, Array]) -> Opener:
        """The same with some other weights."""
        ...

    def with_precision(self, precision: Precision) -> Opener:
        """The same in another precision."""
        ...

    def renew(self, session: Session) -> Session:
        """What a session with other weights is with these: what it has of use is taken over."""
        ...

    def portable(self, device: DeviceOption) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A function and its arguments that load the same model, for these devices, in another process."""
        ...


class Deployment:
    """The sessions of one model by device. Files and weights are shared by all of them."""

    def __init__(self, opener: Opener, absent: Sequence[Attempt] = ()) -> None:
        self.opener: Opener = opener
        self.sessions: dict[str, Session] = {}  # looked up without a lock
        self.history: History = History(opener.file, absent)
        self._opening: dict[str, object] = {}
        self._lock = lock()  # of the opener together with its sessions
        self._setting = reentrant_lock()  # of whoever sets weights

    def session(self, device: str, progress: Stages | None = None) -> Session:
        """The model on a device; threads that want the same one wait for its compilation."""
        session = self.sessions.get(device)
        if session is not None:
            return session
        with self._lock:
            opening = self._opening.setdefault(device, reentrant_lock())
        with opening:  # type: ignore[attr-defined]
            while (session := self.sessions.get(device)) is None:
                opener = self.opener
                made = opener.open(device, progress)
                with self._lock:
                    if self.opener is opener:  # else weights were set meanwhile
                        self.sessions[device] = made
        return session

    def trial(self, device: str, progress: Stages | None = None) -> Callable[[], object]:
        """What runs the model on a device, to be timed: on the sample, or on inputs that are made up.

        What the device fails at, now or in a run, is an attempt.
        """
        from weft.runtime.generated_inputs import usual_inputs

        try:
            session = self.session(device, progress)
        except Exception as error:
            self._blame(device, "loading", error)
            raise
        sample = self.opener.sample
        request = session.request(usual_inputs(session) if sample is None else sample)

        def run() -> object:
            try:
                return session.answer(request)
            except Exception as error:
                self._blame(device, "running", error)
                raise

        return run

    def _blame(self, device: str, stage: str, error: Exception) -> None:
        if is_the_devices(error):
            self.history.failed(device, stage, error)

    def drop(self, device: str) -> None:
        """Forget what was compiled for a device: runs that are under way end as they would."""
        with self._lock:
            self.sessions.pop(device, None)

    def set_weights(self, given: Mapping[str, Any]) -> None:
        """Change weights on all devices, or nothing at all: an error leaves everything as it was.

        A device that is lost is left: whoever wants it again finds the model compiled for it anew, or hears why not.
        """
        from weft.runtime.weights import checked_weights

        with self._setting:
            opener = self.opener.with_weights(checked_weights(given, self.opener.files))
            renewed: dict[Session, Session | None] = {}
            while True:
                with self._lock:
                    waiting = [session for session in self.sessions.values() if session not in renewed]
                    if not waiting:
                        self.opener = opener
                        for device, session in list(self.sessions.items()):
                            if (successor := renewed[session]) is None:
                                del self.sessions[device]
                            else:
                                self.sessions[device] = successor
                        return
                for session in waiting:
                    try:
                        renewed[session] = opener.renew(session)
                    except DeviceLostError as error:
                        self.history.failed(session.device, "setting weights", error)
                        renewed[session] = None

    def copy(self) -> Deployment:
        """Another one with the same weights, to be changed without this one; sessions never change, and are shared."""
        with self._lock:
            other = Deployment(self.opener)
            other.sessions.update(self.sessions)
        return other
