"""The options of `weft.optimize`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from weft.errors import InputError, short_repr
from weft.records import dataclass

GROWTH = 1 << 20


@dataclass(frozen=True, slots=True)
class OptimizeOptions:
    """Validated options; raises InputError for a wrong value."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    growth: int | None = GROWTH
    opset: int | None = None
    keep_inputs: bool = False
    exact: bool = False
    verify: bool = True

    def __post_init__(self) -> None:
        for name, size in self.sizes.items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise InputError(f"sizes: {name} must be a whole number, not {short_repr(size)}")
        if self.growth is not None and (not isinstance(self.growth, int) or self.growth < 0):
            raise InputError(f"growth must be a number of bytes or None, not {short_repr(self.growth)}")
        if self.opset is not None and (not isinstance(self.opset, int) or self.opset < 1):
            raise InputError(f"opset must be a version of ai.onnx, not {short_repr(self.opset)}")
