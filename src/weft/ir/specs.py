"""What a model takes and gives, in the terms of its users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.ir.dtypes import DType
from weft.ir.metadata import Metadata
from weft.ir.types import AnyType, TensorType, Type
from weft.quantities import few, shape_text, shortened
from weft.records import dataclass
from weft.tables import ShownTable

if TYPE_CHECKING:
    from weft.ir.graph import Graph
    from weft.ir.program import TensorProgram

_LONGEST_NAME = 120
_MOST_DIMS = 12  # that are shown


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output: `shape` holds ints and the names (or expressions) of dynamic dims.

    `dtype` is None for what is not a tensor (see `type`), `shape` where not even the rank is known before a run.
    """

    name: str
    shape: tuple[int | str, ...] | None
    type: Type

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """What arrays for it have, in numpy's terms; those of strings hold Python objects."""
        element = self.element
        return None if element is None else element.numpy

    @property
    def element(self) -> DType | None:
        """The type of its elements, in ONNX's terms: `spec.element == "string"`."""
        return self.type.dtype if isinstance(self.type, TensorType) else None

    def __str__(self) -> str:
        return f"{shortened(self.name, _LONGEST_NAME)}: {_kind(self)}{_extent(self)}"

    def __repr__(self) -> str:
        name = repr(shortened(self.name, _LONGEST_NAME))
        if self.dtype is None:
            return f"TensorSpec(name={name}, type={_kind(self)})"
        if self.shape is None:
            return f"TensorSpec(name={name}, dtype={self.dtype}, shape=None)"
        dims = [repr(shortened(dim)) if isinstance(dim, str) else str(dim) for dim in self.shape]
        comma = "," * (len(dims) == 1)
        return f"TensorSpec(name={name}, dtype={self.dtype}, shape=({few(dims, _MOST_DIMS)}{comma}))"

    def _repr_html_(self) -> str:
        return spec_table([self]).html()


def spec_table(specs: Sequence[TensorSpec]) -> ShownTable:
    """What people see of several, in a notebook or as text."""
    return ShownTable([spec_row(spec) for spec in specs], ("name", "type", "shape"))


def spec_row(spec: TensorSpec) -> tuple[str, str, str]:
    """Its name, the type of its elements, and its shape."""
    return spec.name, _kind(spec), _extent(spec)


def _kind(spec: TensorSpec) -> str:
    return str(spec.element) if spec.element is not None else shortened(str(spec.type))


def _extent(spec: TensorSpec) -> str:
    return "" if spec.element is None else shape_text(spec.shape, _MOST_DIMS)


@dataclass(frozen=True, slots=True)
class Signature:
    """All that a model takes and gives, and says of itself; `defaults` are inputs that need not be given."""

    inputs: tuple[TensorSpec, ...]
    defaults: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    metadata: Metadata = field(default_factory=Metadata)


def signature(graph: Graph, program: TensorProgram, metadata: Metadata | None = None) -> Signature:
    return Signature(
        tuple(spec(value.name, value.type) for value in graph.inputs if value.type is not None),
        tuple(spec(value.name, value.type) for value in graph.defaults if value.type is not None),
        tuple(
            spec(declared.name, _better_known(value.type, declared.type))
            for declared, value in zip(graph.outputs, program.outputs)
        ),
        metadata or Metadata(),
    )


def _better_known(traced: Type, declared: Type | None) -> Type:
    """The traced type, which is right where files often are not, unless tracing could not tell."""
    return declared if isinstance(traced, AnyType) and declared is not None else traced


def spec(name: str, type: Type) -> TensorSpec:
    if not isinstance(type, TensorType):
        return TensorSpec(name, None, type)
    shape = None if type.shape is None else tuple(dim if isinstance(dim, int) else str(dim) for dim in type.shape)
    return TensorSpec(name, shape, type)
