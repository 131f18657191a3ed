"""onnx passes inputs by position: this gives them the names of a graph's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from weft.errors import InputError


def bind_inputs(graph: onnx.GraphProto, values: Sequence[Any]) -> dict[str, Any]:
    """Names for positional values: those inputs without a default, or all of them where there are as many values."""
    every = [value.name for value in graph.input]
    defaults = {initializer.name for initializer in graph.initializer}
    needed = [name for name in every if name not in defaults]
    names = every if len(values) == len(every) else needed
    if len(values) != len(names):
        raise InputError(
            f"{len(values)} inputs were given, the model takes {len(needed)}",
            hint=f"pass them in this order: {', '.join(needed)}",
        )
    return dict(zip(names, values, strict=True))
