"""weft seen from others: onnx (its test suite, backend interface and operator schemas), and programs for onnxruntime.

`install()` makes `import onnxruntime` mean `weft.compat.onnxruntime` in this process, `python -m weft.compat script.py`
runs a program that way, and the variable WEFT_COMPAT=onnxruntime does it for every Python process that inherits it.
"""

from __future__ import annotations

from weft.compat.installation import install as install
from weft.compat.installation import is_installed as is_installed
from weft.compat.installation import uninstall as uninstall
