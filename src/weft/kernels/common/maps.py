"""Maps for both families: what a kernel for any expression on any layouts consists of, whatever its lanes are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Code, Kernel, Put, Statement
from weft.ir.layout import offset
from weft.ir.scalar import Scalar
from weft.kernels.build.checks import gather_errors, is_checked, report_errors
from weft.kernels.build.in_place import overwritable, stretch
from weft.kernels.build.loop_nest import Body
from weft.kernels.lower.expressions import Lowering
from weft.kernels.lower.merge_axes import merge_axes, operand_views
from weft.kernels.lower.parameters import Parameters
from weft.kernels.lower.tensors import Launch, Reference, Tensor, Work


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a larger tensor, from `start` on."""

    whole: Tensor
    start: tuple[Dim, ...]


def single_map(
    launch: Launch, expression: Scalar, operands: Sequence[Tensor], result: Tensor, region: Region | None
) -> Work:
    """The work of a map's only launch.

    Buffers: the operands, the result, and the errors where the expression checks its indices.
    """
    references = [*(Reference("operand", number) for number in range(len(operands))), Reference("result", 0)]
    if is_checked(expression):
        references.append(Reference("errors", 0))
    if region is not None:
        return Work(((launch, tuple(references)),))
    copy = stretch(expression, operands, result)
    return Work(
        ((launch, tuple(references)),),
        overwritable=overwritable(expression, operands, result),
        copies=() if copy is None else (copy,),
    )


class MapWriter:
    """Statements that compute and write elements, one for each lane: operands in in0, in1, ..., the result in out.

    With a region, the result (of the same order of axes) is that part of it.
    """

    def __init__(self, expression: Scalar, operands: Sequence[Tensor], result: Tensor, region: Region | None) -> None:
        whole = result if region is None else region.whole
        self.expression = expression
        self.operands = operands
        self.result = result
        self.merged = merge_axes([expression], operands, result.shape, whole.layout.order, [whole.strides])
        self.parameters = Parameters()
        self.base = 0 if region is None else self.parameters.size(offset(whole.strides, region.start))
        self.views = operand_views(operands, self.parameters)
        self.strides = self.merged.strides(whole.strides)
        self.literal = False  # strides as numbers in the kernel, where they simplify with the positions

    def launch(self, body: Body, blocks: Dim, lanes: int, local: tuple[Buffer, ...] = ()) -> Launch:
        """The kernel with this body."""
        buffers = [Buffer(f"in{n}", t.dtype, False) for n, t in enumerate(self.operands)]
        buffers.append(Buffer("out", self.result.dtype, True))
        if is_checked(self.expression):
            buffers.append(Buffer("errors", DType.int32, True))
            body = report_errors(body)
        kernel = Kernel("map", (*buffers, *local), tuple(self.parameters.values), lanes, body)
        return Launch(kernel, blocks, tuple(self.parameters.values.values()))

    def element(self, groups: Sequence[Dim], mask: Code | None, place: Dim | None = None) -> Body:
        return self.write(self.merged.expressions[0], groups, mask, {}, place)

    def write(
        self,
        expression: Scalar,
        groups: Sequence[Dim],
        mask: Code | None,
        known: dict[int, Code],
        place: Dim | None = None,
    ) -> Body:
        """The expression at the groups' positions, or written to a `place`; `known` are elements at hand."""
        statements: list[Statement] = []
        lowering = Lowering(
            self.views, self.merged.places(groups), self.parameters, known, mask, statements, literal=self.literal
        )
        value = lowering.code(expression)
        if place is None:
            place = self.base
            for stride, position in zip(self.strides, groups, strict=True):
                factor = self.parameters.symbols(stride) if self.literal else self.parameters.size(stride)
                place = place + factor * position
        return (*statements, *gather_errors(lowering.checks), Put("out", place, value, mask=mask))
