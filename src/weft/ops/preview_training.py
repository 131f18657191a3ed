"""The ops of the domain ai.onnx.preview.training as functions; see `weft.ops`."""

from __future__ import annotations

from typing import Any

from weft.builder.namespaces import Functions

_FUNCTIONS = Functions("ai.onnx.preview.training")


def __getattr__(name: str) -> Any:
    return getattr(_FUNCTIONS, name)


def __dir__() -> list[str]:
    return dir(_FUNCTIONS)
