"""Epilogues of products by threads: four neighbours are finished and written together where possible.

Positions must be inside of the result for all lanes; lanes without an element are masked when writing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir import dims
from weft.ir.access import find_nonlinear_axes, stride_along, without_axis
from weft.ir.dims import Dim
from weft.ir.kernel import LANE, Buffer, Code, Register, Statement, dims_vary, variable
from weft.ir.scalar import ELEMENT, FlatLoad, Load, walk
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.build.loop_axes import LoopAxis
from weft.kernels.lower.expressions import Lowering, ValueKey
from weft.kernels.lower.kernel_builder import KernelBuilder, fetch_run, put, put_run
from weft.kernels.lower.merge_axes import operand_views
from weft.kernels.lower.tensors import Epilogue, StoredTensor
from weft.kernels.threads.product_operands import RUN


class RunEpilogueWriter(EpilogueWriter):
    def __init__(self, result: StoredTensor, epilogue: Epilogue | None, builder: KernelBuilder, first: int) -> None:
        super().__init__(result, epilogue, builder, first)
        self._fetched: dict[tuple[Buffer, Dim], list[Register]] = {}

    def has_runs(self, columns: Sequence[LoopAxis], starts: Mapping[int, Dim]) -> bool:
        """Whether aligned runs of four columns are contiguous and aligned in the result."""
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
        """Finish and write four neighbours along an axis."""
        statements: list[Statement] = []
        runs = self._fetch_runs(axes, axis, statements)
        results = []
        for number, value in enumerate(values):
            at = {**axes, axis: axes[axis] + number}
            elements: dict[ValueKey, Code] = {load: registers[number] for load, registers in runs.items()}
            results.append(self._finish(value, at, elements, statements))
        return [*statements, put_run(self.out, self.result_offset(axes), results, mask)]

    def write_one(self, value: Code, axes: Mapping[int, Dim], mask: Code | None) -> list[Statement]:
        """Finish and write one element; where all lanes have the same place, the mask must hold in the first alone."""
        statements: list[Statement] = []
        result = self._finish(value, axes, {}, statements)
        place = self.result_offset(axes)
        place = place if dims_vary(place) else place + variable(LANE)
        return [*statements, put(self.out, place, result, mask=mask)]

    def _finish(
        self, value: Code, axes: Mapping[int, Dim], values: dict[ValueKey, Code], statements: list[Statement]
    ) -> Code:
        value = self._cast_to_input(value)
        if self.expression is None:
            return value
        return self._lowering(axes, {ELEMENT: value, **values}, statements).code(self.expression)

    def _lowering(
        self, axes: Mapping[int, Dim], values: Mapping[ValueKey, Code], statements: list[Statement]
    ) -> Lowering:
        places = {axis: axes.get(axis, 0) for axis in range(len(self.result.shape))}
        views = operand_views(self.operands, self.inputs, self.builder)
        return Lowering(views, places, self.builder, values, None, statements)

    def _fetch_runs(
        self, axes: Mapping[int, Dim], axis: int, statements: list[Statement]
    ) -> dict[FlatLoad, list[Register]]:
        """Read operands of the epilogue in runs of four, once for each offset."""
        runs: dict[FlatLoad, list[Register]] = {}
        for load in self._list_run_loads(axis):
            buffer = self.inputs[load.operand]
            offset = self._lowering(axes, {}, statements).flat_offset(load.offset)
            if (buffer, offset) not in self._fetched:
                registers = self._fetched[buffer, offset] = self.builder.registers("four", RUN, buffer.dtype)
                statements.append(fetch_run(registers, buffer, offset))
            runs[load] = self._fetched[buffer, offset]
        return runs

    def _list_run_loads(self, axis: int) -> list[FlatLoad]:
        """List the loads that read aligned runs along an axis, of operands that have no other load."""
        operand_loads: dict[int, set[Load | FlatLoad]] = {}
        for node in walk(self.expression) if self.expression is not None else ():
            if isinstance(node, (Load, FlatLoad)):
                operand_loads.setdefault(node.operand, set()).add(node)
        runs: list[FlatLoad] = []
        for loads in operand_loads.values():
            load = next(iter(loads))
            if len(loads) != 1 or not isinstance(load, FlatLoad) or axis in find_nonlinear_axes(load.offset):
                continue
            if stride_along(load.offset, axis) == 1 and dims.mod(without_axis(load.offset, axis), RUN) == 0:
                runs.append(load)
        return runs
