"""Interfaces of other projects: onnx's backend, test suite and operator schemas, and the onnxruntime drop-in.

`install()` makes `import onnxruntime` return `weft.compat.onnxruntime` in this process, `python -m weft.compat
script.py` runs a program that way, and WEFT_COMPAT=onnxruntime does it in all Python processes that inherit it.
"""

from __future__ import annotations

from weft.compat.installation import install as install
from weft.compat.installation import is_installed as is_installed
from weft.compat.installation import uninstall as uninstall
