"""Which devices of a model failed, and which served since when and why; all of it is logged."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from inspect import currentframe
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
from weft.logs import DEVICES, format_traceback
from weft.records import dataclass

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


_ERRORS_ON_ALL_DEVICES = (ModelError, InputError, ExecutionError, ChangedFileError)


@dataclass(frozen=True, slots=True)
class Service:
    """A device that served a model, and why it was chosen."""

    device: str
    reason: str


class DeviceHistory:
    """The failures and services of one model, in order. Several threads may add to it."""

    def __init__(self, file: str, absent: Sequence[Attempt] = ()) -> None:
        self.file = file
        self.attempts: list[Attempt] = []
        self.services: list[Service] = []
        for attempt in absent:
            self.attempts.append(attempt)
            DEVICES.info("%s: %s is not available: %s", file, attempt.device, attempt.reason)

    def add_failure(self, device: str, stage: str, error: Exception) -> None:
        """Record that a device failed."""
        reason = error.problem if isinstance(error, WeftError) else f"{type(error).__name__}: {error}"
        attempt = Attempt(device, stage, reason)
        self.attempts.append(attempt)
        DEVICES.warning("%s: %s", self.file, attempt)
        DEVICES.debug("%s: %s failed at %s", self.file, device, format_traceback(error))

    def add_service(self, device: str, reason: str) -> None:
        """Record that a device serves from now on."""
        self.services.append(Service(device, reason))
        DEVICES.info("%s: %s serves: %s", self.file, device, reason)

    def warn(self, device: str, attempts: Sequence[Attempt]) -> None:
        """Warn that a device serves instead of those that failed."""
        failed = ", ".join(attempt.device for attempt in attempts)
        reasons = "; ".join(attempt.reason for attempt in attempts)
        message = f"{failed} failed, {device} is used instead: {reasons}"
        warnings.warn(message, FallbackWarning, stacklevel=_user_stack_level())


def _user_stack_level() -> int:
    """Count the frames between the caller and the first one outside this package."""
    frame, level = currentframe(), 0
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return max(level, 1)


def is_device_error(error: Exception) -> bool:
    """Whether an error comes from the device, so that another device may not have it."""
    return not isinstance(error, _ERRORS_ON_ALL_DEVICES)
