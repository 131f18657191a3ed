"""What a call is: a small function that gets the module onnxruntime, whichever that is, and gives plain values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from made_models import made

CALLS: dict[str, Callable[[Any], Any]] = {}
_sessions: dict[tuple[int, str], Any] = {}


def call(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    assert function.__name__ not in CALLS, function.__name__
    CALLS[function.__name__] = function
    return function


def calls_of(prefix: str, functions: dict[str, Callable[[Any], Any]]) -> None:
    """Several that are one line each."""
    for name, function in functions.items():
        assert f"{prefix}_{name}" not in CALLS, name
        CALLS[f"{prefix}_{name}"] = function


def session(ort: Any, name: str) -> Any:
    """A session that no call changes; made once in a process."""
    key = (id(ort), name)
    if key not in _sessions:
        _sessions[key] = fresh(ort, name)
    return _sessions[key]


def fresh(ort: Any, name: str, options: Any = None, **keywords: Any) -> Any:
    keywords.setdefault("providers", ["CPUExecutionProvider"])
    return ort.InferenceSession(made(name), options, **keywords)


def run(ort: Any, name: str, names: Any = None, **feed: Any) -> Any:
    return session(ort, name).run(names, feed)


def written(name: str, content: bytes) -> Path:
    """A file in the folder that the process runs in."""
    path = Path(name)
    path.write_bytes(content)
    return path
