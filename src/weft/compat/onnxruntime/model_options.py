"""Session options in a model's metadata, which onnxruntime reads if ORT_LOAD_CONFIG_FROM_MODEL is 1."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from weft.compat.onnxruntime.declarations import read_declarations
from weft.compat.onnxruntime.enumerations import ExecutionMode, GraphOptimizationLevel
from weft.compat.onnxruntime.options import SessionOptions

READ_CONFIG = "ORT_LOAD_CONFIG_FROM_MODEL"
_KEY = "ort_config"


def read_model_options(source: str | bytes) -> SessionOptions:
    """Read the options in a model's metadata. As in onnxruntime, they replace those of the caller."""
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
        if name in _PARSERS:
            setattr(options, name, _PARSERS[name](name, value))
    return options


def _parse_count(name: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise _unsupported_value(name, value)
    return value


def _parse_flag(name: str, value: Any) -> bool:
    if _parse_count(name, value) > 1:
        raise _unsupported_value(name, value)
    return bool(value)


def _parse_member(enumeration: Any) -> Callable[[str, Any], Any]:
    def parse(name: str, value: Any) -> Any:
        if _parse_count(name, value) not in enumeration.__members__.values():
            raise _unsupported_value(name, value)
        return enumeration(value)

    return parse


def _unsupported_value(name: str, value: Any) -> RuntimeError:
    return RuntimeError(f"Unsupported value for {name} in the model's `{_KEY}`: {value!r}")


_PARSERS: dict[str, Callable[[str, Any], Any]] = {
    "intra_op_num_threads": _parse_count,
    "inter_op_num_threads": _parse_count,
    "execution_mode": _parse_member(ExecutionMode),
    "graph_optimization_level": _parse_member(GraphOptimizationLevel),
    "enable_profiling": _parse_flag,
}
