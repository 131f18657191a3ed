"""Scatters on vectors.

Blocks and lanes run along axes on which no two points update the same element; the others are sequential.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.cost.sizes import estimate
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.kernel import Call, Code, Statement
from weft.ir.program import Scatter
from weft.ir.scalar import computed_dtypes, loads
from weft.ir.scatter_points import find_disjoint_axes
from weft.ir.target import VectorTarget
from weft.kernels.build.error_flag import ErrorFlag, has_checked_loads
from weft.kernels.build.loop_nest import Body, Span, build_lane_loop, build_loops, choose_lanes, split_into_blocks
from weft.kernels.build.scatter_points import find_contiguous_axis, list_indices, locate_point
from weft.kernels.common.scatter import build_scatter_work
from weft.kernels.lower.expressions import Lowering
from weft.kernels.lower.kernel_builder import KernelBuilder, fetch, put
from weft.kernels.lower.memoize import memoize_launch
from weft.kernels.lower.merge_axes import operand_inputs, operand_views
from weft.kernels.lower.operations import cast
from weft.kernels.lower.tensors import Launch, Reference, StoredTensor, Work, Workspace
from weft.kernels.vector.maps import build_map_launch


def build_scatter(
    primitive: Scatter, operands: Sequence[StoredTensor], result: StoredTensor, target: VectorTarget
) -> Work:
    """Build the copy, one kernel for all updates, and for reductions of narrow floats a final rounding."""
    return build_scatter_work(primitive, operands, result, target, build_map_launch, _updates)


def _updates(
    primitive: Scatter,
    operands: Sequence[StoredTensor],
    copied: StoredTensor,
    target: VectorTarget,
    place: Reference,
    _: int,
) -> tuple[list[Launch], tuple[Workspace, ...]]:
    return [_build_updates(primitive, tuple(operands), copied, target, place)], ()


class _Updates:
    def __init__(
        self,
        primitive: Scatter,
        operands: Sequence[StoredTensor],
        copied: StoredTensor,
        target: VectorTarget,
        place: Reference,
    ) -> None:
        self.primitive = primitive
        self.copied = copied
        self.builder = KernelBuilder("scatter")
        self.expressions = (*primitive.indices, primitive.update)
        read = sorted({load.operand for expression in self.expressions for load in loads(expression)})
        self.views = operand_views(operands, operand_inputs(operands, self.builder, read), self.builder)
        self.out = self.builder.output("out", copied.dtype, place)
        self.error_flag = ErrorFlag(self.builder)
        self.strides = tuple(self.builder.size(stride) for stride in copied.strides)
        self.free = find_disjoint_axes(primitive)
        self.lane_axis = find_contiguous_axis(primitive, copied)
        self.lanes = 1 if self.lane_axis is None else choose_lanes(target, computed_dtypes(primitive.update))
        self.reports = primitive.checked or has_checked_loads(*self.expressions)

    def build_launch(self) -> Launch:
        domain = self.primitive.domain
        outer = [axis for axis in self.free if axis != self.lane_axis]
        if self.lane_axis is not None:
            outer.append(self.lane_axis)
        steps = [axis for axis in range(len(domain)) if axis not in self.free]
        weight = estimate(dims.product(domain[axis] for axis in steps))
        blocks, spans = split_into_blocks([domain[axis] for axis in outer], self.builder, weight, self.lanes)
        ends = [Span(0, self.builder.size(domain[axis])) for axis in steps]

        def points(free: list[Dim], mask: Code | None) -> Body:
            places = dict(zip(outer, free, strict=True))
            return build_loops(
                self.builder, "s", ends, lambda rest: self.point({**places, **dict(zip(steps, rest))}, mask)
            )

        if self.lane_axis is None:
            body = build_loops(self.builder, "o", spans, lambda free: points(free, None))
        else:

            def vectors(free: list[Dim]) -> Body:
                return build_lane_loop(
                    self.builder, "c", spans[-1], self.lanes, lambda at, mask: points([*free, at], mask)
                )

            body = build_loops(self.builder, "o", spans[:-1], vectors)
        if self.reports:
            body = self.error_flag.wrap(body)
        return self.builder.launch(self.lanes, body, blocks)

    def point(self, places: dict[int, Dim], mask: Code | None) -> Body:
        """Build the update of one point, or one per lane."""
        statements: list[Statement] = []
        lowering = Lowering(self.views, places, self.builder, None, mask, statements)
        indices = list_indices(self.primitive, self.copied, self.strides)
        point = locate_point(indices, lowering, mask, self.primitive.checked)
        value = lowering.code(self.primitive.update)
        dtype = self.copied.dtype
        value = cast(value, dtype)
        if self.primitive.reduction != "none":
            present = fetch(self.out, point.place, point.indirect, point.inside)
            value = Call(self.primitive.reduction, (present, value), dtype)
        checks = self.error_flag.collect([*lowering.checks, *point.wrong])
        return (*statements, *checks, put(self.out, point.place, value, point.indirect, point.inside))


_build_updates = memoize_launch(_Updates)
