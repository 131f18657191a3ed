"""The inputs and outputs of a model, as users see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.ir.dtypes import DType
from weft.ir.metadata import Metadata
from weft.ir.types import AnyType, Type
from weft.quantities import format_shape, join_few, shorten
from weft.records import dataclass
from weft.tables import Table

if TYPE_CHECKING:
    from weft.ir.graph import Graph
    from weft.ir.program import TensorProgram

_LONGEST_NAME = 120
_MOST_DIMS = 12  # in a printed shape


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output: `shape` holds ints and the names (or expressions) of dynamic dims.

    `dtype` is None for values that are not tensors (see `type`), `shape` if the rank is known only at run time.
    """

    name: str
    shape: tuple[int | str, ...] | None
    type: Type

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The numpy dtype of its arrays; strings are object arrays."""
        element = self.element
        return None if element is None else element.numpy

    @property
    def element(self) -> DType | None:
        """The ONNX element type: `spec.element == "string"`."""
        return self.type.dtype

    def __str__(self) -> str:
        return f"{shorten(self.name, _LONGEST_NAME)}: {_type_text(self)}{_shape_text(self)}"

    def __repr__(self) -> str:
        name = repr(shorten(self.name, _LONGEST_NAME))
        if self.dtype is None:
            return f"TensorSpec(name={name}, type={_type_text(self)})"
        if self.shape is None:
            return f"TensorSpec(name={name}, dtype={self.dtype}, shape=None)"
        dims = [repr(shorten(dim)) if isinstance(dim, str) else str(dim) for dim in self.shape]
        comma = "," * (len(dims) == 1)
        return f"TensorSpec(name={name}, dtype={self.dtype}, shape=({join_few(dims, _MOST_DIMS)}{comma}))"

    def _repr_html_(self) -> str:
        return spec_table([self]).html()


def spec_table(specs: Sequence[TensorSpec]) -> Table:
    """Build the table shown in notebooks and as text."""
    return Table([spec_row(spec) for spec in specs], ("name", "type", "shape"))


def spec_row(spec: TensorSpec) -> tuple[str, str, str]:
    """Return the name, element type and shape as texts."""
    return spec.name, _type_text(spec), _shape_text(spec)


def _type_text(spec: TensorSpec) -> str:
    return str(spec.element) if spec.element is not None else shorten(str(spec.type))


def _shape_text(spec: TensorSpec) -> str:
    return "" if spec.element is None else format_shape(spec.shape, _MOST_DIMS)


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs, outputs and metadata of a model; `defaults` are optional inputs."""

    inputs: tuple[TensorSpec, ...]
    defaults: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    metadata: Metadata = field(default_factory=Metadata)


def signature(graph: Graph, program: TensorProgram, metadata: Metadata | None = None) -> Signature:
    return Signature(
        tuple(spec(value.name, value.type) for value in graph.inputs if value.type is not None),
        tuple(spec(value.name, value.type) for value in graph.defaults if value.type is not None),
        tuple(
            spec(declared.name, _choose_type(value.type, declared.type))
            for declared, value in zip(graph.outputs, program.outputs)
        ),
        metadata or Metadata(),
    )


def _choose_type(traced: Type, declared: Type | None) -> Type:
    """Prefer the traced type, since declarations are often wrong, unless tracing could not determine it."""
    return declared if isinstance(traced, AnyType) and declared is not None else traced


def spec(name: str, type: Type) -> TensorSpec:
    shape = None if type.shape is None else tuple(dim if isinstance(dim, int) else str(dim) for dim in type.shape)
    return TensorSpec(name, shape, type)
