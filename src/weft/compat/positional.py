"""Bind positional inputs, which onnx passes, to the names of a graph's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from weft.errors import InputError


def bind_inputs(graph: onnx.GraphProto, values: Sequence[Any]) -> dict[str, Any]:
    """Return the values by name: for all inputs if there are as many values, else for the inputs without a default."""
    every_name = [value.name for value in graph.input]
    defaults = {initializer.name for initializer in graph.initializer}
    required = [name for name in every_name if name not in defaults]
    names = every_name if len(values) == len(every_name) else required
    if len(values) != len(names):
        raise InputError(
            f"{len(values)} inputs were given, the model takes {len(required)}",
            hint=f"pass them in this order: {', '.join(required)}",
        )
    return dict(zip(names, values, strict=True))
