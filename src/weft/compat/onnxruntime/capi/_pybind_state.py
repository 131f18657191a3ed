"""An alias of onnxruntime_pybind11_state, by which onnxruntime's own Python files import it."""

from __future__ import annotations

from weft.compat.onnxruntime.capi import onnxruntime_pybind11_state as _state
from weft.compat.onnxruntime.capi.onnxruntime_pybind11_state import __getattr__ as __getattr__

globals().update({name: content for name, content in vars(_state).items() if not name.startswith("_")})
