"""What a difference from onnxruntime may be due to: limits that weft documents, and faults of onnxruntime's own."""

from __future__ import annotations

import onnx

from weft.errors import WeftError

LIMITS: tuple[tuple[str, str], ...] = ()
"""A part of an error's text, and where the limit is documented."""


def documented(error: WeftError, model: onnx.ModelProto) -> str:
    """Why weft may refuse what onnxruntime runs."""
    return next((why for text, why in LIMITS if text in str(error)), "")


def onnxruntime_is_wrong(model: onnx.ModelProto) -> str:
    """Why onnxruntime's results are not to be trusted for a model; the reference device is asked instead."""
    return ""
