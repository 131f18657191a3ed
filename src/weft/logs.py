"""The logger `weft` and its children: what was loaded, compiled, chosen and given up. Silent unless somebody listens.

`logging` takes its time to import, so this does not: who listens has imported it, or has set WEFT_LOG. Texts come from
files that nobody checked; whatever would not print as a part of one line is escaped.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from weft.quantities import printable

if TYPE_CHECKING:
    import logging

VARIABLE = "WEFT_LOG"
"""The environment variable that has log lines written to standard error, from a level on."""

DEBUG, INFO, WARNING = 10, 20, 30  # as `logging` has them
LEVELS = {"debug": DEBUG, "info": INFO, "warning": WARNING}
_OFF = ("", "0", "off", "none")
_LONGEST = 1000  # characters of one text from elsewhere
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_is_asked = False  # whether WEFT_LOG has been looked at


class QuietLogger:
    """One of weft's loggers. `debug`, `info` and `warning` take what `logging` takes: a format, and its arguments."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def debug(self, message: str, *arguments: object) -> None:
        """A stage, for those who look for what takes the time."""
        self._say(DEBUG, message, arguments)

    def info(self, message: str, *arguments: object) -> None:
        """What is worth a line in the log of a program."""
        self._say(INFO, message, arguments)

    def warning(self, message: str, *arguments: object) -> None:
        """What did not go as it should, though it goes on."""
        self._say(WARNING, message, arguments)

    def hears(self, level: int) -> bool:
        """Whether somebody listens, for those who would have to work for what they say."""
        if not _is_asked:
            _ask_the_environment()
        root = getattr(sys.modules.get("logging"), "root", None)
        if root is None or root.manager.disable >= level:
            return False
        found = root.manager.loggerDict.get(self.name) or root.manager.loggerDict.get("weft")
        level_of = getattr(found, "getEffectiveLevel", root.getEffectiveLevel)  # there are places without a logger
        return bool(level_of() <= level)

    def _say(self, level: int, message: str, arguments: tuple[object, ...]) -> None:
        if not self.hears(level):
            return
        found = _loggers.get(self.name) or _made()[self.name]
        frame = sys._getframe(2)
        code, told = frame.f_code, tuple(map(_told, arguments))
        place = (code.co_filename, frame.f_lineno)
        found.handle(found.makeRecord(self.name, level, *place, message, told, None, code.co_name))


NAMES = ("weft.loading", "weft.compiling", "weft.cache", "weft.devices", "weft.inputs")
_loggers: dict[str, logging.Logger] = {}
"""Of `logging`, which makes one under a lock. A thread that forks holds this lock while it waits for compilations to
end, so they may not wait for it: nothing here takes it once these are made, and before that only if somebody listens.
"""


def _made() -> dict[str, logging.Logger]:
    import logging

    root = logging.getLogger("weft")
    if not root.handlers:
        root.addHandler(logging.NullHandler())
    _loggers.update({name: logging.getLogger(name) for name in NAMES})
    return _loggers


LOADING = QuietLogger("weft.loading")
"""Files, and models that are ready."""
COMPILING = QuietLogger("weft.compiling")
"""Kernels, precision, steps for the host, programs for other shapes."""
CACHE = QuietLogger("weft.cache")
"""What is kept on disk, and what of it is used."""
DEVICES = QuietLogger("weft.devices")
"""Which one serves and why, and which ones failed."""
INPUTS = QuietLogger("weft.inputs")
"""What was done to people's files."""


def _told(argument: object) -> object:
    if isinstance(argument, (int, float)):
        return argument
    text = str(argument)
    return printable(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")


def place_of(error: BaseException) -> str:
    """Where an error was raised, and on behalf of whom, innermost first: its texts are left out."""
    places, at = [], error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        places.append(f"{code.co_filename.rpartition(os.sep)[2]}:{at.tb_lineno} ({code.co_name})")
        at = at.tb_next
    return f"{type(error).__name__} at {' < '.join(reversed(places))}"


def write_to_stderr(level: int) -> None:
    """Have log lines written to standard error, unless the program has handlers of its own for them."""
    import logging

    class StandardError(logging.Handler):
        """Standard error as it is when something is said: a progress bar may stand before it."""

        def emit(self, record: logging.LogRecord) -> None:
            stream = sys.stderr
            if stream is None or logging.getLogger().handlers:
                return
            try:
                stream.write(f"{self.format(record)}\n")
                stream.flush()
            except Exception:  # as all handlers have it: the program goes on
                self.handleError(record)

    root = logging.getLogger("weft")
    if not any(type(handler).__name__ == StandardError.__name__ for handler in root.handlers):
        handler = StandardError()
        handler.setFormatter(logging.Formatter(_FORMAT, "%H:%M:%S"))
        root.addHandler(handler)
    root.setLevel(level)


def _ask_the_environment() -> None:
    global _is_asked
    _is_asked = True
    said = os.environ.get(VARIABLE, "").strip().lower()
    if said in _OFF:
        return
    if said not in LEVELS:
        import warnings

        warnings.warn(f"{VARIABLE} is {printable(said)!r}: use debug, info or warning", stacklevel=2)
    write_to_stderr(LEVELS.get(said, INFO))
