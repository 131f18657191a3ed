"""A model on all the devices that it was compiled for: one session each, made when it is first asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from weft.errors import Attempt
from weft.ir.specs import Signature
from weft.runtime.attempts import History
from weft.runtime.session import Session
from weft.threads import lock, reentrant_lock


class Opener(Protocol):
    """What brings a model to a device."""

    @property
    def file(self) -> str:
        """What to call the model in messages."""
        ...

    def open(self, device: str) -> Session:
        """The model there, ready to run."""
        ...


class Deployment:
    """The sessions of one model by device. Files and weights are shared by all of them."""

    def __init__(self, opener: Opener, absent: Sequence[Attempt] = ()) -> None:
        self.opener = opener
        self.sessions: dict[str, Session] = {}  # looked up without a lock
        self.history = History(opener.file, absent)
        self._opening: dict[str, object] = {}
        self._lock = lock()

    def session(self, device: str) -> Session:
        """The model on a device; threads that want the same one wait for its compilation."""
        session = self.sessions.get(device)
        if session is not None:
            return session
        with self._lock:
            opening = self._opening.setdefault(device, reentrant_lock())
        with opening:  # type: ignore[attr-defined]
            session = self.sessions.get(device)
            if session is None:
                session = self.sessions[device] = self.opener.open(device)
        return session

    def signature(self) -> Signature:
        """What the model takes and gives, which is the same everywhere; it was compiled for a device before."""
        return next(iter(self.sessions.values())).signature

    def drop(self, device: str) -> None:
        """Forget what was compiled for a device: runs that are under way end as they would."""
        self.sessions.pop(device, None)
