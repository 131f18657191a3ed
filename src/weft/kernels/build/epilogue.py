"""Apply a template's epilogue to a computed element or vector, and write it through the result's layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.cost.expressions import cost
from weft.ir.access import stride_along
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import LANE, Code, Statement, dims_vary, is_varying, variable
from weft.ir.layout import offset
from weft.ir.scalar import ELEMENT, Placeholder, flat_loads, walk
from weft.kernels.lower.expressions import LITERAL_STRIDES, CommonSubexpressions, Lowering, Operand, ValueKey
from weft.kernels.lower.kernel_builder import KernelBuilder, put, put_run
from weft.kernels.lower.merge_axes import flatten_loads, operand_views, pinned_axes
from weft.kernels.lower.operations import cast
from weft.kernels.lower.tensors import Epilogue, Reference, StoredTensor
from weft.threads import cached_property

LONG = 12  # instructions; a longer epilogue should occur in the code only once


class EpilogueAccess:
    """The memory that an epilogue reads and writes, by the axes of the result."""

    def __init__(self, result: StoredTensor, epilogue: Epilogue | None) -> None:
        self.result = result
        self.operands = epilogue.operands if epilogue else ()
        self.expression = None if epilogue is None else flatten_loads(epilogue.expression, self.operands)

    def can_merge_axes(self, outer: tuple[int, Dim], inner: tuple[int, Dim], size: Dim) -> bool:
        """Return whether the inner axis can stand for both: one outer step is `size` inner steps in all tensors.

        Each axis comes with the number of positions per step.
        """
        (far, far_factor), (near, near_factor) = outer, inner
        strides = [(self.result.strides[far], self.result.strides[near])]
        if self.expression is not None:
            if {far, near} & pinned_axes([self.expression]):
                return False
            offsets = [load.offset for load in flat_loads(self.expression)]
            strides += [(stride_along(at, far), stride_along(at, near)) for at in offsets]
        return all(a * far_factor == b * near_factor * size for a, b in strides)


class EpilogueWriter(EpilogueAccess):
    """Writes results; the epilogue's operands are those of the launch from number `first` on."""

    def __init__(self, result: StoredTensor, epilogue: Epilogue | None, builder: KernelBuilder, first: int) -> None:
        super().__init__(result, epilogue)
        self.builder = builder
        self.inputs = {
            number: builder.input(f"in{1 + number}", tensor.dtype, Reference("operand", first + number))
            for number, tensor in enumerate(self.operands)
        }
        self.out = builder.output("out", result.dtype, Reference("result", 0))
        self._strides: list[Dim] | None = None
        self._shared = CommonSubexpressions()
        if self.expression is not None:
            self._shared.count(self.expression)

    @property
    def is_long(self) -> bool:
        return self.expression is not None and cost(self.expression) > LONG

    def write(self, value: Code, axes: Mapping[int, Dim], mask: Code | None = None) -> tuple[Statement, ...]:
        """Apply the epilogue to a value and write it at a position; axes that are left out are at 0.

        A varying value needs a varying offset: if no axis varies, the mask leaves one lane, and the lane is added.
        """
        statements: list[Statement] = []
        value = self.apply(value, axes, mask, statements)
        at = self.result_offset(axes)
        if is_varying(value) and not dims_vary(at):
            at = at + variable(LANE)
        return (*statements, put(self.out, at, value, mask=mask))

    def write_run(
        self, values: Sequence[Code], axes: Mapping[int, Dim], axis: int, mask: Code | None = None
    ) -> tuple[Statement, ...]:
        """Apply the epilogue to neighbours along an axis and write them; the first is at a multiple of their count."""
        if len(values) == 1:
            return self.write(values[0], axes, mask)
        statements: list[Statement] = []
        positions = [{**axes, axis: axes.get(axis, 0) + number} for number in range(len(values))]
        results = tuple(self.apply(value, at, mask, statements) for value, at in zip(values, positions))
        if self.result.strides[axis] == 1:
            return (*statements, put_run(self.out, self.result_offset(axes), results, mask))
        puts = (put(self.out, self.result_offset(at), value, mask=mask) for value, at in zip(results, positions))
        return (*statements, *puts)

    def apply(self, value: Code, axes: Mapping[int, Dim], mask: Code | None, statements: list[Statement]) -> Code:
        """Apply the epilogue to a value at a position; shared subexpressions are added to `statements`."""
        value = self._cast_to_input(value)
        if self.expression is None:
            return value
        positions = {axis: axes.get(axis, 0) for axis in range(len(self.result.shape))}
        values: dict[ValueKey, Code] = {ELEMENT: value}
        lowering = Lowering(self._views, positions, self.builder, values, mask, statements, shared=self._shared)
        return lowering.code(self.expression)

    def result_offset(self, axes: Mapping[int, Dim]) -> Dim:
        numbers = range(len(self.result.shape))
        if self._strides is None:
            self._strides = [self._stride(axis) for axis in numbers]
        return offset(self._strides, [axes.get(axis, 0) for axis in numbers])

    @cached_property
    def _views(self) -> Mapping[int, Operand]:
        return operand_views(self.operands, self.inputs, self.builder)

    @cached_property
    def _input_dtype(self) -> DType | None:
        """The dtype that the epilogue expects; None if it does not read the element."""
        if self.expression is None:
            return self.result.dtype
        return next((node.dtype for node in walk(self.expression) if isinstance(node, Placeholder)), None)

    def _stride(self, axis: int) -> Dim:
        stride = self.result.strides[axis]
        return stride if stride in LITERAL_STRIDES else self.builder.parameter(f"out{axis}", stride)

    def _cast_to_input(self, value: Code) -> Code:
        return cast(value, self._input_dtype or value.dtype)
