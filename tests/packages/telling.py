"""How a script of this folder tells its results: one line of JSON, with what served them.

Texts and whole numbers are to be equal whoever serves; numbers with a fraction are scores.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def tell(results: Callable[[], Any]) -> None:
    print(json.dumps({"results": results(), "onnxruntime": sys.modules["onnxruntime"].__file__, "mapped": _mapped()}))


def _mapped() -> list[str]:
    """The native libraries of onnxruntime in this process, where the system tells."""
    maps = Path("/proc/self/maps")
    files = {Path(line.split()[-1]) for line in maps.read_text().splitlines()} if maps.exists() else ()
    return sorted(str(file) for file in files if "onnxruntime" in file.name)
