"""Run every call with whatever `import onnxruntime` gives, and write down what came of each: `record.py FILE`.

It is a program like any other: a test starts it once as it is, and once with weft in place of onnxruntime.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import calls_inner  # noqa: F401 - each adds its calls
import calls_options  # noqa: F401
import calls_run  # noqa: F401
import calls_session  # noqa: F401
import calls_values  # noqa: F401
import numpy as np
import onnxruntime
from calls import CALLS

PLAIN = (str, bytes, int, float, bool, type(None))


def plain(value: Any) -> Any:
    """A value as builtins and arrays, with the names of types where they matter."""
    match value:
        case np.ndarray():
            return ("array", type(value).__name__, value.dtype.name, np.asarray(value))
        case list() | tuple():
            return (type(value).__name__, [plain(item) for item in value])
        case dict():
            return ("dict", [(plain(key), plain(item)) for key, item in value.items()])
        case _ if type(value) in PLAIN:
            return (type(value).__name__, value)
        case _ if hasattr(type(value), "__members__"):
            return ("member", str(value), int(value))
    return ("object", f"{type(value).__module__}.{type(value).__qualname__}")


def outcome(name: str) -> Any:
    try:
        return plain(CALLS[name](onnxruntime))
    except Exception as error:
        return ("raised", f"{type(error).__module__}.{type(error).__name__}", str(error))


def main() -> None:
    told = {name: outcome(name) for name in CALLS}
    Path(sys.argv[1]).write_bytes(pickle.dumps((onnxruntime.__file__, told)))


if __name__ == "__main__":
    main()
