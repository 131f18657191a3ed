"""Registry of calls: small functions that take the module `onnxruntime`, real or weft, and return plain values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from small_models import model_bytes

CALLS: dict[str, Callable[[Any], Any]] = {}
_sessions: dict[tuple[int, str], Any] = {}


def call(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    assert function.__name__ not in CALLS, function.__name__
    CALLS[function.__name__] = function
    return function


def add_calls(prefix: str, functions: dict[str, Callable[[Any], Any]]) -> None:
    """Register several calls; their names start with the prefix."""
    for name, function in functions.items():
        assert f"{prefix}_{name}" not in CALLS, name
        CALLS[f"{prefix}_{name}"] = function


def session(ort: Any, name: str) -> Any:
    """Return a session that all calls share and none modifies."""
    key = (id(ort), name)
    if key not in _sessions:
        _sessions[key] = open_session(ort, name)
    return _sessions[key]


def open_session(ort: Any, name: str, options: Any = None, **keywords: Any) -> Any:
    keywords.setdefault("providers", ["CPUExecutionProvider"])
    return ort.InferenceSession(model_bytes(name), options, **keywords)


def run(ort: Any, name: str, names: Any = None, **feed: Any) -> Any:
    return session(ort, name).run(names, feed)


def write_file(name: str, content: bytes) -> Path:
    """Write a file in the current directory."""
    path = Path(name)
    path.write_bytes(content)
    return path
