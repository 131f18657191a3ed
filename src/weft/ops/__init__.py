"""All ops as functions of the tensors of a `weft.Graph`.

`weft.ops.conv(x, w, strides=(2, 2))` adds a node to the graph of `x`, and returns its result. Names are those of
ONNX in Python's spelling (`mat_mul`, `and_`); other domains than ai.onnx have modules of their own
(`weft.ops.microsoft.fused_mat_mul`), and `weft.ops.domain("com.acme")` is one for ops that you define.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from weft.builder.namespaces import Functions

domain = Functions

_FUNCTIONS = Functions("")
_MODULES = ("microsoft", "ml", "preview", "preview_training")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"weft.ops.{name}")
    return getattr(_FUNCTIONS, name)


def __dir__() -> list[str]:
    return sorted([*dir(_FUNCTIONS), *_MODULES, "domain"])
