"""onnxruntime's inner modules, from which programs import exceptions and classes."""

from __future__ import annotations

from weft.compat.onnxruntime.capi import _pybind_state as _pybind_state
from weft.compat.onnxruntime.capi import onnxruntime_inference_collection as onnxruntime_inference_collection
from weft.compat.onnxruntime.capi import onnxruntime_pybind11_state as onnxruntime_pybind11_state
from weft.compat.onnxruntime.capi import onnxruntime_validation as onnxruntime_validation
