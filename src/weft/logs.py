"""The logger `weft` and its children.

`logging` is slow to import, so this module does not import it: a program that listens has done so, or has set WEFT_LOG.
Arguments may come from untrusted files, so unprintable characters are escaped.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING

from weft.quantities import escape_unprintable

if TYPE_CHECKING:
    import logging

VARIABLE = "WEFT_LOG"
"""The environment variable that sets the level from which log lines go to standard error."""

DEBUG, INFO, WARNING = 10, 20, 30  # the values of `logging`
LEVELS = {"debug": DEBUG, "info": INFO, "warning": WARNING}
_OFF = ("", "0", "off", "none")
_MAX_ARGUMENT = 1000  # characters
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_is_configured = False  # whether WEFT_LOG has been read


class LazyLogger:
    """A logger that does nothing unless `logging` is in use; methods take a format and its arguments."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def debug(self, message: str, *arguments: object) -> None:
        """Log a stage of the compilation."""
        self._log(DEBUG, message, arguments)

    def info(self, message: str, *arguments: object) -> None:
        """Log an event that is worth a line in a program's log."""
        self._log(INFO, message, arguments)

    def warning(self, message: str, *arguments: object) -> None:
        """Log a problem that weft works around."""
        self._log(WARNING, message, arguments)

    def is_enabled_for(self, level: int) -> bool:
        """Whether a message of this level would be handled."""
        if not _is_configured:
            _read_environment()
        root = getattr(sys.modules.get("logging"), "root", None)
        if root is None or root.manager.disable >= level:
            return False
        logger = root.manager.loggerDict.get(self.name) or root.manager.loggerDict.get("weft")
        effective_level = getattr(logger, "getEffectiveLevel", root.getEffectiveLevel)  # may be a PlaceHolder
        return bool(effective_level() <= level)

    def _log(self, level: int, message: str, arguments: tuple[object, ...]) -> None:
        if not self.is_enabled_for(level):
            return
        logger = _loggers.get(self.name) or _create_loggers()[self.name]
        frame = sys._getframe(2)  # `Logger.log` would find the caller itself, but takes a lock that a fork may hold
        code, escaped = frame.f_code, tuple(map(_escape, arguments))
        place = (code.co_filename, frame.f_lineno)
        logger.handle(logger.makeRecord(self.name, level, *place, message, escaped, None, code.co_name))


NAMES = ("weft.loading", "weft.compiling", "weft.cache", "weft.devices", "weft.inputs")
_loggers: dict[str, logging.Logger] = {}
"""Created once: `logging.getLogger` takes a lock that a forking thread holds while it waits for compilations to end, so
compiling threads must not call it.
"""


def _create_loggers() -> dict[str, logging.Logger]:
    import logging

    root = logging.getLogger("weft")
    if not root.handlers:
        root.addHandler(logging.NullHandler())
    _loggers.update({name: logging.getLogger(name) for name in NAMES})
    return _loggers


LOADING = LazyLogger("weft.loading")
"""Files read and models loaded."""
COMPILING = LazyLogger("weft.compiling")
"""Kernels, precision, host steps, programs for other shapes."""
CACHE = LazyLogger("weft.cache")
"""Cache entries read and written."""
DEVICES = LazyLogger("weft.devices")
"""Which device runs a model and why; which ones failed."""
INPUTS = LazyLogger("weft.inputs")
"""How input files were converted."""


def _escape(argument: object) -> object:
    if isinstance(argument, (int, float)):
        return argument
    text = str(argument)
    return escape_unprintable(text if len(text) <= _MAX_ARGUMENT else f"{text[:_MAX_ARGUMENT]}...")


def format_traceback(error: BaseException) -> str:
    """Format where an error was raised on one line, innermost frame first, without its message."""
    places, at = [], error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        places.append(f"{code.co_filename.rpartition(os.sep)[2]}:{at.tb_lineno} ({code.co_name})")
        at = at.tb_next
    return f"{type(error).__name__} at {' < '.join(reversed(places))}"


def write_to_stderr(level: int) -> None:
    """Write log lines to standard error, unless the program has configured handlers."""
    import logging

    class StandardError(logging.Handler):
        """Writes to the current `sys.stderr`, which a progress bar may have replaced."""

        def emit(self, record: logging.LogRecord) -> None:
            stream = sys.stderr
            if stream is None or logging.getLogger().handlers:
                return
            try:
                stream.write(f"{self.format(record)}\n")
                stream.flush()
            except Exception:  # logging never raises
                self.handleError(record)

    root = logging.getLogger("weft")
    if not any(type(handler).__name__ == StandardError.__name__ for handler in root.handlers):
        handler = StandardError()
        handler.setFormatter(logging.Formatter(_FORMAT, "%H:%M:%S"))
        root.addHandler(handler)
    root.setLevel(level)


def _read_environment() -> None:
    global _is_configured
    _is_configured = True
    setting = os.environ.get(VARIABLE, "").strip().lower()
    if setting in _OFF:
        return
    if setting not in LEVELS:
        warnings.warn(f"{VARIABLE} is {escape_unprintable(setting)!r}: use debug, info or warning", stacklevel=2)
    write_to_stderr(LEVELS.get(setting, INFO))
