"""What a model takes and gives, in the terms of its users."""

from __future__ import annotations

from dataclasses import dataclass

from weft.ir.dtypes import DType
from weft.ir.types import TensorType, Type


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output: `shape` holds ints and the names (or expressions) of dynamic dims.

    `dtype` is None for what is not a tensor (see `type`), `shape` where not even the rank is known before a run.
    """

    name: str
    dtype: DType | None
    shape: tuple[int | str, ...] | None
    type: Type

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


def spec(name: str, type: Type) -> TensorSpec:
    if not isinstance(type, TensorType):
        return TensorSpec(name, None, None, type)
    shape = None if type.shape is None else tuple(dim if isinstance(dim, int) else str(dim) for dim in type.shape)
    return TensorSpec(name, type.dtype, shape, type)
