"""Session options in a model's metadata, which onnxruntime reads where ORT_LOAD_CONFIG_FROM_MODEL is 1."""

from __future__ import annotations

import json
from typing import Any

from weft.compat.onnxruntime.declared import read_declarations
from weft.compat.onnxruntime.enumerations import ExecutionMode, GraphOptimizationLevel
from weft.compat.onnxruntime.options import SessionOptions

READ_CONFIG = "ORT_LOAD_CONFIG_FROM_MODEL"
_KEY = "ort_config"


def read_model_options(source: str | bytes) -> SessionOptions:
    """Read the options that a model's metadata states. They replace those of the caller, as in onnxruntime."""
    declared = read_declarations(source)
    options = SessionOptions()
    text = None if declared is None else declared.metadata.properties.get(_KEY)
    if text is None:
        return options
    try:
        config = json.loads(text)
    except ValueError as error:
        raise RuntimeError(f"the model's metadata `{_KEY}` is not valid JSON: {error}") from error
    session_options = config.get("session_options") if isinstance(config, dict) else None
    for name, value in session_options.items() if isinstance(session_options, dict) else ():
        if name in _OPTIONS:
            setattr(options, name, _OPTIONS[name](name, value))
    return options


def _count(name: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise RuntimeError(f"Unsupported value for {name} in the model's `{_KEY}`: {value!r}")
    return value


def _flag(name: str, value: Any) -> bool:
    return bool(_member(name, value, (0, 1)))


def _mode(name: str, value: Any) -> Any:
    return ExecutionMode(_member(name, value, _numbers(ExecutionMode)))


def _level(name: str, value: Any) -> Any:
    return GraphOptimizationLevel(_member(name, value, _numbers(GraphOptimizationLevel)))


def _member(name: str, value: Any, members: tuple[int, ...]) -> int:
    if _count(name, value) not in members:
        raise RuntimeError(f"Unsupported value for {name} in the model's `{_KEY}`: {value!r}")
    return int(value)


def _numbers(kind: Any) -> tuple[int, ...]:
    return tuple(int(member) for member in kind.__members__.values())


_OPTIONS = {
    "intra_op_num_threads": _count,
    "inter_op_num_threads": _count,
    "execution_mode": _mode,
    "graph_optimization_level": _level,
    "enable_profiling": _flag,
}
