"""What a difference from onnxruntime may be due to: limits that weft documents, and faults of onnxruntime's own."""

from __future__ import annotations

import onnx
from attack.float64 import nodes_of

from weft.errors import InvalidModelError, WeftError

LIMITS: tuple[tuple[str, str], ...] = (
    ("name a dimension twice", "axes are a set: ONNX gives a repeated one no meaning"),
    ("cannot be inferred beside one of size 0", "ONNX allows no -1 beside a 0 that is a size"),
    ("(PRelu)", "a slope broadcasts to its input, never the other way"),
)
"""A part of an error's text, and where the limit is documented."""


def documented(error: WeftError, model: onnx.ModelProto) -> str:
    """Why weft may refuse what onnxruntime runs."""
    inside = {_name(node) for node in nodes_of(model)} - {_name(node) for node in model.graph.node}
    if isinstance(error, InvalidModelError) and error.node and error.node.rpartition(" (")[0] in inside:
        return "sizes that contradict each other in a branch make a model invalid, taken or not"
    return next((why for text, why in LIMITS if text in str(error)), "")


def _name(node: onnx.NodeProto) -> str:
    """As weft's errors have it."""
    return node.name or f"{node.op_type}_{next(filter(None, node.output), '')}"


def onnxruntime_is_wrong(model: onnx.ModelProto) -> str:
    """Why onnxruntime's results are not to be trusted for a model; the reference device is asked instead."""
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)
    if opset < 12 and any(node.op_type == "Dropout" and len(node.output) > 1 for node in nodes_of(model)):
        return "the mask of a Dropout before opset 12 is not filled"
    for node in nodes_of(model):
        attributes = {attribute.name: attribute for attribute in node.attribute}
        same = "auto_pad" in attributes and attributes["auto_pad"].s.startswith(b"SAME")
        if same and "Pool" in node.op_type and "dilations" in attributes and max(attributes["dilations"].ints) > 1:
            return "a dilated pool of the same size is smaller there"
    return ""
