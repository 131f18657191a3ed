"""The log of a server on standard error: lines for people, or one JSON object a line for programs."""

from __future__ import annotations

import json
import logging
import time

FIELDS = ("request_id", "method", "path", "status")


class TextFormatter(logging.Formatter):
    """Writes the time, the level if it is not usual, and the message."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record."""
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        identifier = getattr(record, "request_id", None)
        text = f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {level}{record.getMessage()}"
        if identifier is not None:
            text += f" [{identifier}]"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonFormatter(logging.Formatter):
    """Writes a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        content = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        content.update({name: getattr(record, name) for name in FIELDS if hasattr(record, name)})
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        return json.dumps(content, ensure_ascii=False)


def configure_log(form: str, level: int = logging.INFO) -> None:
    """Write the log of the server to standard error: `form` is "text" or "json"."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    for name in ("weft.server", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level if name == "weft.server" else logging.WARNING)
