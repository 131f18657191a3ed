"""Types of values: tensors with symbolic shapes, sequences, optionals, maps.

Every type has a `dtype` and a `shape`; both are None for values that are not tensors.
"""

from __future__ import annotations

from typing import ClassVar, Union

from weft.errors import InvalidModelError
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.records import dataclass

Shape = tuple[Dim, ...]

MAX_DEPTH = 64
"""Limit on the nesting of types, which makes recursion over them safe."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor; `shape` is None if the rank is known only at run time."""

    dtype: DType
    shape: Shape | None

    def __str__(self) -> str:
        return f"{self.dtype}[{'...' if self.shape is None else ', '.join(map(str, self.shape))}]"


class _NonTensorType:
    __slots__ = ()

    dtype: ClassVar[None] = None
    shape: ClassVar[None] = None


@dataclass(frozen=True, slots=True)
class SequenceType(_NonTensorType):
    element: Type

    def __post_init__(self) -> None:
        _check_depth(self)

    def __str__(self) -> str:
        return f"sequence({self.element})"


@dataclass(frozen=True, slots=True)
class OptionalType(_NonTensorType):
    element: Type

    def __post_init__(self) -> None:
        _check_depth(self)

    def __str__(self) -> str:
        return f"optional({self.element})"


@dataclass(frozen=True, slots=True)
class MapType(_NonTensorType):
    key: DType
    value: Type

    def __post_init__(self) -> None:
        _check_depth(self)

    def __str__(self) -> str:
        return f"map({self.key}, {self.value})"


@dataclass(frozen=True, slots=True)
class AnyType(_NonTensorType):
    """A value whose type is known only at run time."""

    def __str__(self) -> str:
        return "any"


Type = Union[TensorType, SequenceType, OptionalType, MapType, AnyType]


def _check_depth(type: Type) -> None:
    depth = 0
    while isinstance(type, (SequenceType, OptionalType, MapType)):
        depth += 1
        type = type.value if isinstance(type, MapType) else type.element
    if depth > MAX_DEPTH:
        raise InvalidModelError(f"types nest more than {MAX_DEPTH} deep")
