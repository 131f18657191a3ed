"""What happened to a model and its devices: failed attempts, who serves since when, and why. Told through `logging`."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from weft.errors import (
    Attempt,
    ChangedFileError,
    ExecutionError,
    FallbackWarning,
    InputError,
    ModelError,
    WeftError,
)
from weft.logs import DEVICES, place_of
from weft.records import dataclass

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


NOT_THE_DEVICES = (ModelError, InputError, ExecutionError, ChangedFileError)  # errors that another device has too


@dataclass(frozen=True, slots=True)
class Service:
    """A device that serves a model from some moment on, and why it and no other."""

    device: str
    reason: str


class History:
    """What happened to one model, in order. Several threads may add to it."""

    def __init__(self, file: str, absent: Sequence[Attempt] = ()) -> None:
        self.file = file
        self.attempts: list[Attempt] = []
        self.services: list[Service] = []
        for attempt in absent:
            self.attempts.append(attempt)
            DEVICES.info("%s: %s is not here: %s", file, attempt.device, attempt.reason)

    def failed(self, device: str, stage: str, error: Exception) -> None:
        """A device failed at a model."""
        reason = error.problem if isinstance(error, WeftError) else f"{type(error).__name__}: {error}"
        attempt = Attempt(device, stage, reason)
        self.attempts.append(attempt)
        DEVICES.warning("%s: %s", self.file, attempt)
        DEVICES.debug("%s: %s failed at %s", self.file, device, place_of(error))

    def serves(self, device: str, reason: str) -> None:
        """A device serves from now on."""
        self.services.append(Service(device, reason))
        DEVICES.info("%s: %s serves: %s", self.file, device, reason)

    def warn(self, device: str, attempts: Sequence[Attempt]) -> None:
        """Say aloud that a device serves instead of those that failed."""
        failed = ", ".join(attempt.device for attempt in attempts)
        reasons = "; ".join(attempt.reason for attempt in attempts)
        said = f"{failed} failed, {device} is used instead: {reasons}"
        warnings.warn(said, FallbackWarning, stacklevel=_users_level())


def _users_level() -> int:
    """How many frames, counted from whoever asks, lie between it and the line of a user's that led here."""
    frame, level = sys._getframe(1), 1
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    return level


def is_the_devices(error: Exception) -> bool:
    """Whether an error is a device's, so that another one may do better."""
    return not isinstance(error, NOT_THE_DEVICES)
