"""How a template ends: the epilogue on an element or a vector at hand, and the write through the result's layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from weft.cost.expressions import cost
from weft.ir.access import stride_along
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import LANE, Call, Code, Statement, dims_vary, is_varying, variable
from weft.ir.layout import offset
from weft.ir.scalar import AT_HAND, Held, flat_loads, walk
from weft.kernels.lower.expressions import LITERAL_STRIDES, Known, Lowering, Operand, Sharing
from weft.kernels.lower.kernel_builder import KernelBuilder, put, put_run
from weft.kernels.lower.merge_axes import flatten_loads, operand_views, pinned_axes
from weft.kernels.lower.tensors import Epilogue, Reference, StoredTensor

LONG = 12  # instructions of an epilogue that should be in the code only once


class EpilogueAccess:
    """What an epilogue reads and writes, by the axes of the result."""

    def __init__(self, result: StoredTensor, epilogue: Epilogue | None) -> None:
        self.result = result
        self.operands = epilogue.operands if epilogue else ()
        self.expression = None if epilogue is None else flatten_loads(epilogue.expression, self.operands)

    def steps_alike(self, outer: tuple[int, Dim], inner: tuple[int, Dim], size: Dim) -> bool:
        """Whether one step along the outer axis is `size` steps along the inner one, for all that is read or written.

        Each is an axis with its positions a step. Where that holds, the inner axis can stand for both.
        """
        (far, far_factor), (near, near_factor) = outer, inner
        strides = [(self.result.strides[far], self.result.strides[near])]
        if self.expression is not None:
            if {far, near} & pinned_axes([self.expression]):
                return False
            places = [load.offset for load in flat_loads(self.expression)]
            strides += [(stride_along(place, far), stride_along(place, near)) for place in places]
        return all(a * far_factor == b * near_factor * size for a, b in strides)


class EpilogueWriter(EpilogueAccess):
    """The epilogue's operands are those of the launch from number `first` on."""

    def __init__(self, result: StoredTensor, epilogue: Epilogue | None, builder: KernelBuilder, first: int) -> None:
        super().__init__(result, epilogue)
        self.builder = builder
        self.inputs = {
            number: builder.input(f"in{1 + number}", tensor.dtype, Reference("operand", first + number))
            for number, tensor in enumerate(self.operands)
        }
        self.out = builder.output("out", result.dtype, Reference("result", 0))
        self._strides: list[Dim] | None = None
        self._shared = Sharing()
        if self.expression is not None:
            self._shared.count(self.expression)

    @property
    def is_long(self) -> bool:
        return self.expression is not None and cost(self.expression) > LONG

    def write(self, value: Code, axes: Mapping[int, Dim], mask: Code | None = None) -> tuple[Statement, ...]:
        """Write what becomes of a value at the given places of the result's axes (those not given are 0).

        A varying value needs a varying place: where no axis varies, the mask leaves one lane, and lanes are told apart.
        """
        statements: list[Statement] = []
        value = self.finished(value, axes, mask, statements)
        place = self.place(axes)
        if is_varying(value) and not dims_vary(place):
            place = place + variable(LANE)
        return (*statements, put(self.out, place, value, mask=mask))

    def write_run(
        self, values: Sequence[Code], axes: Mapping[int, Dim], axis: int, mask: Code | None = None
    ) -> tuple[Statement, ...]:
        """Write what becomes of neighbours along an axis, from a multiple of their number on."""
        if len(values) == 1:
            return self.write(values[0], axes, mask)
        statements: list[Statement] = []
        places = [{**axes, axis: axes.get(axis, 0) + number} for number in range(len(values))]
        ended = tuple(self.finished(value, at, mask, statements) for value, at in zip(values, places))
        if self.result.strides[axis] == 1:
            return (*statements, put_run(self.out, self.place(axes), ended, mask))
        return (*statements, *(put(self.out, self.place(at), value, mask=mask) for value, at in zip(ended, places)))

    def finished(self, value: Code, axes: Mapping[int, Dim], mask: Code | None, statements: list[Statement]) -> Code:
        """What becomes of a value at given places; `statements` takes what has to be computed for it."""
        value = self._narrowed(value)
        if self.expression is None:
            return value
        places = {axis: axes.get(axis, 0) for axis in range(len(self.result.shape))}
        known: dict[Known, Code] = {AT_HAND: value}
        lowering = Lowering(self._views, places, self.builder, known, mask, statements, shared=self._shared)
        return lowering.code(self.expression)

    def place(self, axes: Mapping[int, Dim]) -> Dim:
        """Where the element at given places is written."""
        numbers = range(len(self.result.shape))
        if self._strides is None:
            self._strides = [self._stride(axis) for axis in numbers]
        return offset(self._strides, [axes.get(axis, 0) for axis in numbers])

    @cached_property
    def _views(self) -> Mapping[int, Operand]:
        return operand_views(self.operands, self.inputs, self.builder)

    @cached_property
    def _held(self) -> DType | None:
        """What the epilogue takes, if it says so."""
        if self.expression is None:
            return self.result.dtype
        return next((node.dtype for node in walk(self.expression) if isinstance(node, Held)), None)

    def _stride(self, axis: int) -> Dim:
        stride = self.result.strides[axis]
        return stride if stride in LITERAL_STRIDES else self.builder.named(f"out{axis}", stride)

    def _narrowed(self, value: Code) -> Code:
        """A sum as the element that the epilogue, or the result, takes."""
        dtype = self._held or value.dtype
        return value if value.dtype is dtype else Call("cast", (value,), dtype)
