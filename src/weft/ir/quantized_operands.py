"""Operands of products that a map dequantizes: their numbers, zero points and scales, over labelled axes."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.dtypes import DType
from weft.ir.program import Step, Value
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar, loads, rebuild
from weft.ir.types import Shape
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class QuantizationParameter:
    """A zero point or scale: a scalar over the operand's axes that loads only from `source`, plus an offset."""

    scalar: Scalar
    source: Value | None
    offset: int = 0

    @property
    def axes(self) -> set[int]:
        indices = [index.value for load in loads(self.scalar) for index in load.indices if isinstance(index, Index)]
        return {atom.position for index in indices for atom in dims.atoms(index) if isinstance(atom, Axis)}


@dataclass(frozen=True, slots=True)
class QuantizedOperand:
    """scale * (numbers - zero), with a label for each axis of the numbers."""

    numbers: Value
    zero: QuantizationParameter
    scale: QuantizationParameter | None
    labels: tuple[int, ...]

    def labels_of(self, parameter: QuantizationParameter) -> set[int]:
        return {self.labels[axis] for axis in parameter.axes}


class LabelledExpression:
    """Builds a scalar over labelled axes, and collects the values that it loads from."""

    def __init__(self, labels: tuple[int, ...], shape: Shape) -> None:
        self.labels, self.shape = labels, shape
        self.operands: list[Value] = []

    def size(self, label: int) -> Dim:
        return self.shape[self.labels.index(label)]

    def axis(self, label: int) -> Dim:
        return dims.axis(self.labels.index(label), self.size(label))

    def load(self, value: Value, labels: Sequence[int]) -> Load:
        indices = tuple(Index(self.axis(label)) for label in labels)
        return Load(self.position(value), indices, value.dtype)

    def position(self, value: Value) -> int:
        if value not in self.operands:
            self.operands.append(value)
        return self.operands.index(value)

    def parameter(self, parameter: QuantizationParameter, labels: tuple[int, ...]) -> Scalar:
        """Build a zero point or scale of the operand whose axes have these labels."""

        def load_parameter(load: Load) -> Scalar:
            assert parameter.source is not None
            return Load(self.position(parameter.source), load.indices, load.dtype)

        def substitute_axis(atom: Symbol | Axis) -> Dim:
            return self.axis(labels[atom.position]) if isinstance(atom, Axis) else dims.from_atom(atom)

        scalar = rebuild(parameter.scalar, load_parameter, substitute_axis)
        offset = Literal(parameter.offset, DType.int32)
        return Apply("add", (scalar, offset), DType.int32) if parameter.offset else scalar


def match_parameter(scalar: Scalar, step: Step) -> QuantizationParameter | None:
    """Match a literal, or a possibly cast load at indices that depend only on axes, as a parameter."""
    parameter_loads = loads(scalar)
    match scalar:
        case Literal() | Load() | Apply("cast", (Load(),)):
            if all(isinstance(index, Index) for load in parameter_loads for index in load.indices):
                return QuantizationParameter(
                    scalar, step.operands[parameter_loads[0].operand] if parameter_loads else None
                )
    return None
