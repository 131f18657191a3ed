"""Convert in-memory models of exporters to ModelProtos: torch's ONNXProgram, onnx_ir's Model, onnxscript functions.

None of these libraries is imported unless it made the model: objects are recognised by their methods and by the module
of their class.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from weft.errors import InvalidModelError, ModelError, WeftError

_SOURCES = "pass a path, bytes, an open binary file, a ModelProto or the result of torch.onnx.export"
_EXPORT_HINTS = {  # by the top-level package of a class or one of its bases
    "torch": "export it first: weft.load(torch.onnx.export(module, arguments, dynamo=True))",
    "keras": "export it first, with tf2onnx or model.export(path, format='onnx')",
    "tensorflow": "export it first, with tf2onnx",
    "sklearn": "export it first, with skl2onnx.to_onnx(model, sample)",
    "xgboost": "export it first, with onnxmltools",
    "lightgbm": "export it first, with onnxmltools",
    "catboost": "export it first, with model.save_model(path, format='onnx')",
    "onnxruntime": "pass the path or the bytes that the session was created from",
    "openvino": "pass the original ONNX file",
}


def is_convertible(source: object) -> bool:
    """Whether the source is a model that its library can convert to a ModelProto."""
    if isinstance(source, type):
        return False
    kind = type(source)
    return _is_ir_model(source) or hasattr(kind, "model_proto") or callable(getattr(kind, "to_model_proto", None))


def convert_to_proto(source: Any) -> tuple[Any, Path | None]:
    """Return the ModelProto, and the folder of its external weights if it has any."""
    kind = type(source)
    try:
        if _is_ir_model(source):
            library = import_module("onnx_ir" if kind.__module__.startswith("onnx_ir") else "onnxscript.ir")
            return library.to_proto(source), _weights_folder(source)
        if hasattr(kind, "model_proto"):
            model = getattr(source, "model", None)
            return source.model_proto, _weights_folder(model) if _is_ir_model(model) else None
        return source.to_model_proto(), None
    except (WeftError, MemoryError):
        raise
    except Exception as error:  # foreign code may raise anything
        problem = f"the {kind.__name__} cannot be converted to a ModelProto: {type(error).__name__}: {error}"
        raise InvalidModelError(problem, hint="save it as a file, and pass its path") from error


def conversion_hint(source: object) -> str:
    """Return how to turn an object that is not an ONNX model into one."""
    for kind in type(source).__mro__:
        hint = _EXPORT_HINTS.get(kind.__module__.partition(".")[0])
        if hint is not None:
            return hint
    if type(source).__module__.startswith("weft."):
        return (
            "call its `compile` method to get a model" if hasattr(source, "compile") else "it is already loaded: run it"
        )
    if source is None:
        return f"{_SOURCES}; with dynamo=False torch's exporter returns None and writes a file: pass its path"
    if isinstance(source, tuple):
        return f"{_SOURCES}; of a tuple, pass the item that is one"
    return _SOURCES


def _is_ir_model(source: object) -> bool:
    """Whether the source is a model of onnx_ir, or of onnxscript.ir, its predecessor."""
    kind = type(source)
    root = kind.__module__.partition(".")[0]
    return kind.__name__ == "Model" and root in ("onnx_ir", "onnxscript") and hasattr(source, "graph")


def _weights_folder(model: Any) -> Path | None:
    """Return the folder of a model's external tensors; None if all are in memory."""
    tensors = [value.const_value for graph in _walk_graphs(model) for value in graph.initializers.values()]
    folders = {str(tensor.base_dir) for tensor in tensors if type(tensor).__name__ == "ExternalTensor"}
    if len(folders) > 1:
        hint = "save it as one file, and pass its path"
        raise ModelError(f"its weights are in {len(folders)} folders", hint=hint)
    return Path(folders.pop()) if folders else None


def _walk_graphs(model: Any) -> list[Any]:
    subgraphs = getattr(model.graph, "subgraphs", None)
    return [model.graph, *(subgraphs() if callable(subgraphs) else ())]
