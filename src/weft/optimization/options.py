"""What `weft.optimize` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from weft.errors import InputError
from weft.records import dataclass

GROWTH = 1 << 20


@dataclass(frozen=True, slots=True)
class OptimizeOptions:
    """What `weft.optimize` takes beside the model and the path; an InputError where an option is none."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    growth: int | None = GROWTH
    opset: int | None = None
    keep_inputs: bool = False
    exact: bool = False

    def __post_init__(self) -> None:
        for name, size in self.sizes.items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise InputError(f"sizes: {name} must be a whole number, not {_shown(size)}")
        if self.growth is not None and (not isinstance(self.growth, int) or self.growth < 0):
            raise InputError(f"growth must be a number of bytes or None, not {_shown(self.growth)}")
        if self.opset is not None and (not isinstance(self.opset, int) or self.opset < 1):
            raise InputError(f"opset must be a version of ai.onnx, not {_shown(self.opset)}")


def _shown(content: Any) -> str:
    return repr(content)[:60]
