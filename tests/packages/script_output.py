"""Print the results of a script as one line of JSON, with the onnxruntime that computed them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def print_results(results: Callable[[], Any]) -> None:
    content = {
        "results": results(),
        "onnxruntime": sys.modules["onnxruntime"].__file__,
        "libraries": _mapped_libraries(),
    }
    print(json.dumps(content))


def _mapped_libraries() -> list[str]:
    """Return the native libraries of onnxruntime in this process, on Linux."""
    maps = Path("/proc/self/maps")
    files = {Path(line.split()[-1]) for line in maps.read_text().splitlines()} if maps.exists() else ()
    return sorted(str(file) for file in files if "onnxruntime" in file.name)
