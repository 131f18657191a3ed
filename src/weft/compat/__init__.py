"""Interfaces of other projects: onnx's backend, test suite and operator schemas, and drop-ins for other engines.

`install()` makes `import onnxruntime` return `weft.compat.onnxruntime` in this process, and
`install("onnxruntime_genai")` does so for onnxruntime_genai. `python -m weft.compat script.py` runs a program with
both, and WEFT_COMPAT=onnxruntime,onnxruntime_genai replaces them in all Python processes that inherit it.
"""

from __future__ import annotations

from weft.compat.installation import install as install
from weft.compat.installation import is_installed as is_installed
from weft.compat.installation import uninstall as uninstall
