"""Maps for both families: what a kernel for any expression on any layouts consists of, whatever its lanes are."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.dims import Dim
from weft.ir.kernel import Code, Statement
from weft.ir.layout import offset
from weft.ir.scalar import Scalar
from weft.kernels.build.checks import FaultReport, is_checked
from weft.kernels.build.in_place import overwritable, stretch
from weft.kernels.build.loop_nest import Body
from weft.kernels.lower.expressions import Known, Lowering, Operand
from weft.kernels.lower.kernel_builder import KernelBuilder, put
from weft.kernels.lower.merge_axes import merge_axes, operand_inputs, operand_views
from weft.kernels.lower.tensors import RESULT, Launch, StoredTensor, Work
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a larger tensor, from `start` on."""

    whole: StoredTensor
    start: tuple[Dim, ...]


def single_map(
    launch: Launch, expression: Scalar, operands: Sequence[StoredTensor], result: StoredTensor, region: Region | None
) -> Work:
    """The work of a map's only launch."""
    if region is not None:
        return Work((launch,))
    copy = stretch(expression, operands, result)
    return Work(
        (launch,),
        overwritable=overwritable(expression, operands, result),
        copies=() if copy is None else (copy,),
    )


class MapWriter:
    """Statements that compute and write elements, one for each lane.

    With a region, the result (of the same order of axes) is that part of it.
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
        self.faults = FaultReport(self.builder)
        self.strides = self.merged.strides(whole.strides)
        self.literal = False  # strides as numbers in the kernel, where they simplify with the positions
        self.asks = False  # whether lanes go on together, and may be asked who needs what
        self.operands = tuple(operands)

    def write_strides(self) -> None:
        """Take strides that are known into the kernel as numbers."""
        self.literal = True
        for number, view in self.views.items():
            strides = self.operands[number].strides
            if all(isinstance(stride, int) for stride in strides):
                self.views[number] = Operand(view.buffer, view.shape, strides)

    def launch(self, body: Body, blocks: Dim, lanes: int) -> Launch:
        """The kernel with this body."""
        if is_checked(self.expression):
            body = self.faults.around(body)
        return self.builder.launch(lanes, body, blocks)

    def element(self, groups: Sequence[Dim], mask: Code | None, place: Dim | None = None) -> Body:
        return self.write(self.merged.expressions[0], groups, mask, {}, place)

    def write(
        self,
        expression: Scalar,
        groups: Sequence[Dim],
        mask: Code | None,
        known: dict[Known, Code],
        place: Dim | None = None,
    ) -> Body:
        """The expression at the groups' positions, or written to a `place`; `known` are elements at hand."""
        statements: list[Statement] = []
        lowering = Lowering(
            self.views,
            self.merged.places(groups),
            self.builder,
            known,
            mask,
            statements,
            literal=self.literal,
            asks=self.asks,
        )
        value = lowering.code(expression)
        if place is None:
            place = self.base
            for stride, position in zip(self.strides, groups, strict=True):
                factor = self.builder.symbols(stride) if self.literal else self.builder.size(stride)
                place = place + factor * position
        return (*statements, *self.faults.gather(lowering.checks), put(self.out, place, value, mask=mask))
