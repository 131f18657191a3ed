"""The end of a product where lanes are threads: four neighbours are finished and written together, where they can be.

Places given here lie inside always; lanes without an element of their own only do not write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir import dims
from weft.ir.access import nonlinear_axes, stride_along, without_axis
from weft.ir.dims import Dim
from weft.ir.kernel import LANE, Buffer, Code, Register, Statement, dims_vary, variable
from weft.ir.scalar import AT_HAND, FlatLoad, Load, walk
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.build.loop_axes import LoopAxis
from weft.kernels.lower.expressions import Known, Lowering
from weft.kernels.lower.kernel_builder import KernelBuilder, fetch_run, put, put_run
from weft.kernels.lower.merge_axes import operand_views
from weft.kernels.lower.tensors import Epilogue, StoredTensor
from weft.kernels.threads.product_operands import RUN


class RunEpilogueWriter(EpilogueWriter):
    """`columns` are the loop axes along which neighbours are written."""

    def __init__(self, result: StoredTensor, epilogue: Epilogue | None, builder: KernelBuilder, first: int) -> None:
        super().__init__(result, epilogue, builder, first)
        self._fetched: dict[tuple[Buffer, Dim], list[Register]] = {}

    def has_runs(self, columns: Sequence[LoopAxis], starts: Mapping[int, Dim]) -> bool:
        """Whether four neighbouring columns are four neighbours of the result, from a multiple of four on."""
        if not columns or columns[-1].axis is None or columns[-1].factor != 1:
            return False
        near, size = columns[-1].axis, columns[-1].size
        others = [
            stride
            for axis, (stride, extent) in enumerate(zip(self.result.strides, self.result.shape))
            if axis != near and extent != 1
        ]
        return self.result.strides[near] == 1 and all(
            dims.mod(value, RUN) == 0 for value in (size, starts.get(near, 0), *others)
        )

    def write_four(
        self, values: Sequence[Code], axes: Mapping[int, Dim], axis: int, mask: Code | None
    ) -> list[Statement]:
        """Write what becomes of four neighbours along an axis."""
        statements: list[Statement] = []
        known = self._runs(axes, axis, statements)
        ended = []
        for number, value in enumerate(values):
            at = {**axes, axis: axes[axis] + number}
            elements: dict[Known, Code] = {load: registers[number] for load, registers in known.items()}
            ended.append(self._finish(value, at, elements, statements))
        return [*statements, put_run(self.out, self.place(axes), ended, mask)]

    def write_one(self, value: Code, axes: Mapping[int, Dim], mask: Code | None) -> list[Statement]:
        """Write what becomes of one element; where all lanes have the same place, only the first is in the mask."""
        statements: list[Statement] = []
        ended = self._finish(value, axes, {}, statements)
        place = self.place(axes)
        place = place if dims_vary(place) else place + variable(LANE)
        return [*statements, put(self.out, place, ended, mask=mask)]

    def _finish(
        self, value: Code, axes: Mapping[int, Dim], known: dict[Known, Code], statements: list[Statement]
    ) -> Code:
        value = self._narrowed(value)
        if self.expression is None:
            return value
        return self._lowering(axes, {AT_HAND: value, **known}, statements).code(self.expression)

    def _lowering(self, axes: Mapping[int, Dim], known: Mapping[Known, Code], statements: list[Statement]) -> Lowering:
        places = {axis: axes.get(axis, 0) for axis in range(len(self.result.shape))}
        views = operand_views(self.operands, self.inputs, self.builder)
        return Lowering(views, places, self.builder, known, None, statements)

    def _runs(self, axes: Mapping[int, Dim], axis: int, statements: list[Statement]) -> dict[FlatLoad, list[Register]]:
        """Operands of the epilogue of which four neighbours are read at once, each once for the same place."""
        found: dict[FlatLoad, list[Register]] = {}
        for load in self._neighbours(axis):
            buffer = self.inputs[load.operand]
            offset = self._lowering(axes, {}, statements).flat_offset(load.offset)
            if (buffer, offset) not in self._fetched:
                registers = self._fetched[buffer, offset] = self.builder.registers("four", RUN, buffer.dtype)
                statements.append(fetch_run(registers, buffer, offset))
            found[load] = self._fetched[buffer, offset]
        return found

    def _neighbours(self, axis: int) -> list[FlatLoad]:
        """Loads of operands that are read in one place alone, whose neighbours are those along an axis."""
        places: dict[int, set[Load | FlatLoad]] = {}
        for node in walk(self.expression) if self.expression is not None else ():
            if isinstance(node, (Load, FlatLoad)):
                places.setdefault(node.operand, set()).add(node)
        found: list[FlatLoad] = []
        for known in places.values():
            load = next(iter(known))
            if len(known) != 1 or not isinstance(load, FlatLoad) or axis in nonlinear_axes(load.offset):
                continue
            if stride_along(load.offset, axis) == 1 and dims.mod(without_axis(load.offset, axis), RUN) == 0:
                found.append(load)
        return found
