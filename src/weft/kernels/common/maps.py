"""Maps for both families: the statements that compute and write elements of an expression, on any layouts."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.dims import Dim
from weft.ir.kernel import Code, Statement
from weft.ir.layout import offset
from weft.ir.scalar import Scalar
from weft.kernels.build.error_flag import ErrorFlag, has_checked_loads
from weft.kernels.build.in_place import find_copy, find_overwritable
from weft.kernels.build.loop_nest import Body
from weft.kernels.lower.expressions import Lowering, Operand, ValueKey
from weft.kernels.lower.kernel_builder import KernelBuilder, put
from weft.kernels.lower.merge_axes import merge_axes, operand_inputs, operand_views
from weft.kernels.lower.tensors import RESULT, Launch, StoredTensor, Work
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a larger tensor, from `start` on."""

    whole: StoredTensor
    start: tuple[Dim, ...]


def build_map_work(
    launch: Launch, expression: Scalar, operands: Sequence[StoredTensor], result: StoredTensor, region: Region | None
) -> Work:
    """Wrap a map's only launch as work, with the operands that it may overwrite or copies."""
    if region is not None:
        return Work((launch,))
    copy = find_copy(expression, operands, result)
    overwritable = find_overwritable(expression, operands, result)
    return Work((launch,), overwritable=overwritable, copies=() if copy is None else (copy,))


class MapWriter:
    """Builds statements that compute and write elements, one for each lane.

    With a region, the result (with the same order of axes) is that part of a larger tensor.
    """

    def __init__(
        self, expression: Scalar, operands: Sequence[StoredTensor], result: StoredTensor, region: Region | None
    ) -> None:
        whole = result if region is None else region.whole
        self.expression = expression
        self.merged = merge_axes([expression], operands, result.shape, whole.layout.order, [whole.strides])
        self.builder = KernelBuilder("map")
        self.base = 0 if region is None else self.builder.size(offset(whole.strides, region.start))
        self.views = operand_views(operands, operand_inputs(operands, self.builder), self.builder)
        self.out = self.builder.output("out", result.dtype, RESULT)
        self.error_flag = ErrorFlag(self.builder)
        self.strides = self.merged.strides(whole.strides)
        self.literal = False  # strides are literals, which simplify together with positions
        self.branches = False  # lanes run in lockstep, so costly branches that no lane needs can be skipped
        self.operands = tuple(operands)

    def use_literal_strides(self) -> None:
        """Use literals for known strides instead of parameters."""
        self.literal = True
        for number, view in self.views.items():
            strides = self.operands[number].strides
            if all(isinstance(stride, int) for stride in strides):
                self.views[number] = Operand(view.buffer, view.shape, strides)

    def launch(self, body: Body, blocks: Dim, lanes: int) -> Launch:
        """Build the launch of a body, with error reporting if loads are checked."""
        if has_checked_loads(self.expression):
            body = self.error_flag.wrap(body)
        return self.builder.launch(lanes, body, blocks)

    def element(self, groups: Sequence[Dim], mask: Code | None, place: Dim | None = None) -> Body:
        return self.write(self.merged.expressions[0], groups, mask, {}, place)

    def write(
        self,
        expression: Scalar,
        groups: Sequence[Dim],
        mask: Code | None,
        values: dict[ValueKey, Code],
        place: Dim | None = None,
    ) -> Body:
        """Compute the expression at the groups' positions and write it, at offset `place` if given.

        `values` are those that the kernel has already computed.
        """
        statements: list[Statement] = []
        lowering = Lowering(
            self.views,
            self.merged.axis_positions(groups),
            self.builder,
            values,
            mask,
            statements,
            literal=self.literal,
            branches=self.branches,
        )
        value = lowering.code(expression)
        if place is None:
            place = self.base
            for stride, position in zip(self.strides, groups, strict=True):
                stride = self.builder.replace_symbols(stride) if self.literal else self.builder.size(stride)
                place = place + stride * position
        return (*statements, *self.error_flag.collect(lowering.checks), put(self.out, place, value, mask=mask))
