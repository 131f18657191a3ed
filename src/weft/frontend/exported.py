"""Models as exporters hold them in memory: a torch ONNXProgram, onnx_ir's Model, a function of onnxscript.

None of these libraries is imported: what they make is known by the methods it has, and by where its class comes from.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from weft.errors import InvalidModelError, ModelError, WeftError

_KINDS = "pass a path, bytes, an open binary file, a ModelProto or what torch.onnx.export gives"
_WAYS = {  # by the library that a class, or one that it extends, comes from
    "torch": "export it first: weft.load(torch.onnx.export(module, arguments, dynamo=True))",
    "keras": "export it first, with tf2onnx or model.export(path, format='onnx')",
    "tensorflow": "export it first, with tf2onnx",
    "sklearn": "export it first, with skl2onnx.to_onnx(model, sample)",
    "xgboost": "export it first, with onnxmltools",
    "lightgbm": "export it first, with onnxmltools",
    "catboost": "export it first, with model.save_model(path, format='onnx')",
    "onnxruntime": "pass the path or the bytes that the session was made from",
    "openvino": "pass the ONNX file that it was read from",
}


def is_convertible(source: object) -> bool:
    """Whether it is a model that its library can give as a ModelProto."""
    if isinstance(source, type):
        return False
    kind = type(source)
    return _is_ir(source) or hasattr(kind, "model_proto") or callable(getattr(kind, "to_model_proto", None))


def converted(source: Any) -> tuple[Any, Path | None]:
    """The ModelProto, and the folder that its weights lie in where it names files."""
    kind = type(source)
    try:
        if _is_ir(source):
            return _library(source).to_proto(source), _folder(source)
        if hasattr(kind, "model_proto"):
            model = getattr(source, "model", None)
            return source.model_proto, _folder(model) if _is_ir(model) else None
        return source.to_model_proto(), None
    except (WeftError, MemoryError):
        raise
    except Exception as error:  # whatever a library of someone else's raises
        problem = f"the {kind.__name__} cannot be made a ModelProto: {type(error).__name__}: {error}"
        raise InvalidModelError(problem, hint="save it as a file, and pass its path") from error


def way_to_onnx(source: object) -> str:
    """What to do with something that is no ONNX model."""
    for kind in type(source).__mro__:
        found = _WAYS.get(kind.__module__.partition(".")[0])
        if found is not None:
            return found
    if type(source).__module__.startswith("weft."):
        return "a graph becomes a model by `compile`" if hasattr(source, "compile") else "it is loaded: run it"
    if source is None:
        return f"{_KINDS}; torch's exporter gives nothing with dynamo=False, but writes a file"
    if isinstance(source, tuple):
        return f"{_KINDS}; of a tuple, the part that is one"
    return _KINDS


def _is_ir(source: object) -> bool:
    """Whether it is a model of onnx_ir, or of the module in onnxscript that it came from."""
    kind = type(source)
    root = kind.__module__.partition(".")[0]
    return kind.__name__ == "Model" and root in ("onnx_ir", "onnxscript") and hasattr(source, "graph")


def _library(source: object) -> Any:
    root = type(source).__module__.partition(".")[0]
    return sys.modules["onnx_ir" if root == "onnx_ir" else "onnxscript.ir"]


def _folder(model: Any) -> Path | None:
    """Where the files lie that a model's tensors are in; None where all are in memory."""
    tensors = [value.const_value for graph in _graphs(model) for value in graph.initializers.values()]
    folders = {str(tensor.base_dir) for tensor in tensors if type(tensor).__name__ == "ExternalTensor"}
    if len(folders) > 1:
        hint = "save it as one model first, and pass the path"
        raise ModelError(f"its weights lie in {len(folders)} folders", hint=hint)
    return Path(folders.pop()) if folders else None


def _graphs(model: Any) -> list[Any]:
    subgraphs = getattr(model.graph, "subgraphs", None)
    return [model.graph, *(subgraphs() if callable(subgraphs) else ())]
