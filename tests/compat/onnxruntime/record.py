"""Run every call with the imported onnxruntime, and write the outcomes to a file: `record.py FILE`.

A test runs this program twice: with onnxruntime, and with weft in its place.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import calls_inner  # noqa: F401 - registers its calls
import calls_options  # noqa: F401
import calls_run  # noqa: F401
import calls_session  # noqa: F401
import calls_values  # noqa: F401
import numpy as np
import onnxruntime
from calls import CALLS

PLAIN_TYPES = (str, bytes, int, float, bool, type(None))


def to_plain(value: Any) -> Any:
    """Convert a value to builtins and arrays, with the names of types."""
    match value:
        case np.ndarray():
            return ("array", type(value).__name__, value.dtype.name, np.asarray(value))
        case list() | tuple():
            return (type(value).__name__, [to_plain(item) for item in value])
        case dict():
            return ("dict", [(to_plain(key), to_plain(item)) for key, item in value.items()])
        case _ if type(value) in PLAIN_TYPES:
            return (type(value).__name__, value)
        case _ if hasattr(type(value), "__members__"):
            return ("member", str(value), int(value))
    return ("object", f"{type(value).__module__}.{type(value).__qualname__}")


def record_outcome(name: str) -> Any:
    try:
        return to_plain(CALLS[name](onnxruntime))
    except Exception as error:
        return ("raised", f"{type(error).__module__}.{type(error).__name__}", str(error))


def main() -> None:
    outcomes = {name: record_outcome(name) for name in CALLS}
    Path(sys.argv[1]).write_bytes(pickle.dumps((onnxruntime.__file__, outcomes)))


if __name__ == "__main__":
    main()
