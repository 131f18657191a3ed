"""How product kernels address their operands: offsets, bounds tests, and runs of neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Statement
from weft.ir.layout import offset
from weft.kernels.build.loop_axes import LoopAxis
from weft.kernels.lower.kernel_builder import KernelBuilder, let
from weft.kernels.lower.tensors import LEFT, RIGHT
from weft.kernels.threads.depth import Depth, DepthTile
from weft.kernels.threads.points import all_of
from weft.kernels.threads.product import BoundsTest, Product
from weft.records import dataclass

RUN = 4  # neighbouring elements that are read or written at once


@dataclass(frozen=True, slots=True)
class OperandTile:
    """A depth tile of an operand: its offset, and the first position of each bounds test."""

    base: Dim
    firsts: tuple[Dim, ...]
    grid: tuple[Dim, ...]
    depth: Depth
    depth_tile: DepthTile


class ProductOperand:
    """An operand of a product. `across` means along the rows of the left one, or the columns of the right one."""

    def __init__(self, product: Product, builder: KernelBuilder, *, is_left: bool, run: int = RUN) -> None:
        self.name = "left" if is_left else "right"
        self.is_left = is_left
        self.builder = builder
        dtype, reference = (product.left, LEFT) if is_left else (product.right, RIGHT)
        self.buffer = builder.input(self.name, dtype, reference)
        self.across = product.rows if is_left else product.columns
        self.grid, self.sums = product.grid, product.sums
        self.order = product.order if is_left else None
        self.inside = product.inside if is_left else ()
        self.start = product.left_start if is_left else product.right_start
        direction = run_direction(product, is_left, run)
        self.runs_across, self.runs_deep = direction == "across", direction == "deep"
        self._run = run if direction is not None else 1
        self._strides = {
            kind: [self._named(f"{kind}{number}", self._step(loop_axis)) for number, loop_axis in enumerate(loop_axes)]
            for kind, loop_axes in (("grid", self.grid), ("across", self.across), ("sums", self.sums))
        }
        self._start = 0 if self.start == 0 else self._named("start", self.start)
        self._tests = [self._test(number, test) for number, test in enumerate(self.inside)]

    @property
    def is_deep(self) -> bool:
        """Whether the depth is innermost in memory, aligned or not."""
        return bool(self.sums) and self._step(self.sums[-1]) == 1

    @property
    def has_outer_tests(self) -> bool:
        """Whether there are bounds tests, and all are uniform along the innermost reduction axis."""
        return bool(self.inside) and all(test.sums[-1] == 0 for test in self.inside)

    def begin(
        self, hint: str, grid: Sequence[Dim], depth: Depth, depth_tile: DepthTile
    ) -> tuple[list[Statement], OperandTile]:
        """Compute the offset and the test positions that all elements of a depth tile share."""
        outer = depth.outer(depth_tile)
        base = self._start + offset(self._strides["sums"], outer)
        base = base if self.order is not None else base + offset(self._strides["grid"], grid)
        first, start = self.builder.let(f"{hint}_{self.name}", base, None)
        firsts = self.builder.variables(f"{hint}_inside", len(self._tests), None)
        lets = [let(name, test.first + offset(test.sums, outer)) for name, test in zip(firsts, self._tests)]
        return [first, *lets], OperandTile(start, tuple(firsts), tuple(grid), depth, depth_tile)

    def locate(self, tile: OperandTile, across: Sequence[Dim], within: Dim) -> tuple[Dim, Code | None]:
        """Return an element's offset, and the condition under which it exists; `within` is its depth in the tile."""
        inner = tile.depth.inner(tile.depth_tile, within)
        tests = [*tile.depth.test(tile.depth_tile, within), *self.tests(tile, across, inner)]
        return self.offset(tile, across, inner), all_of(tests)

    def offset(self, tile: OperandTile, across: Sequence[Dim], inner: Sequence[Dim]) -> Dim:
        """Return the offset of an element, by its positions across and its inner ones (see `Depth.inner`)."""
        strides = self._strides
        place = tile.base + offset(strides["across"], across)
        if self.order is None:
            return place + offset(strides["sums"], inner)
        index = offset(strides["grid"], tile.grid) + offset(strides["sums"][-1:], inner[-1:])
        return place + offset(strides["sums"][:-1], inner[:-1]) + dims.substitute(self.order, lambda _: index)

    def tests(self, tile: OperandTile, across: Sequence[Dim], inner: Sequence[Dim]) -> list[Code]:
        """Return the bounds tests of an element."""
        conditions: list[Code] = []
        for first, test in zip(tile.firsts, self._tests):
            place = Integer(first + offset(test.rows, across) + offset(test.sums, inner))
            conditions.append(Call("greater_equal", (place, Integer(0)), DType.bool))
            conditions.append(Call("less", (place, Integer(test.size)), DType.bool))
        return conditions

    def _step(self, loop_axis: LoopAxis) -> Dim:
        return loop_axis.left if self.is_left else loop_axis.right

    def _named(self, name: str, value: Dim) -> Dim:
        """Return a stride as a parameter; a multiple of a run is written as one, so that alignment is visible."""
        if value in (0, 1):
            return value
        if self._run == 1:
            return self.builder.parameter(f"{self.name}_{name}", value)
        return self._run * self.builder.parameter(f"{self.name}_{name}_{self._run}", dims.floordiv(value, self._run))

    def _test(self, number: int, test: BoundsTest) -> BoundsTest:
        parameter = self.builder.parameter

        def step(name: str, value: Dim) -> Dim:
            return 0 if value == 0 else parameter(f"step{number}_{name}", value)

        return BoundsTest(
            parameter(f"first{number}", test.first),
            parameter(f"inside{number}", test.size),
            tuple(step(f"row{n}", value) for n, value in enumerate(test.rows)),
            tuple(step(f"sum{n}", value) for n, value in enumerate(test.sums)),
        )


def run_direction(product: Product, is_left: bool, run: int) -> Literal["across", "deep"] | None:
    """Return the direction in which aligned runs of `run` elements are contiguous; None if there is none."""
    side = 0 if is_left else 1
    across, start = (product.rows, product.left_start) if is_left else (product.columns, product.right_start)
    inside = product.inside if is_left else ()
    order = product.order if is_left else None

    def step(loop_axis: LoopAxis) -> Dim:
        return loop_axis.left if is_left else loop_axis.right

    def has_runs(loop_axes: Sequence[LoopAxis], others: Sequence[LoopAxis], padded: bool) -> bool:
        if not loop_axes or step(loop_axes[-1]) != 1:
            return False
        if dims.mod(loop_axes[-1].size, run) != 0 and not (padded and len(loop_axes) == 1):
            return False
        other_steps = [step(loop_axis) for loop_axis in (*loop_axes[:-1], *others, *product.grid)]
        return all(dims.mod(value, run) == 0 for value in (*other_steps, start))

    if has_runs(across, product.sums, product.padded[side]) and not any(
        test.rows and test.rows[-1] != 0 for test in inside
    ):
        return "across"
    is_deep = has_runs(product.sums, across, product.padded_sums[side]) and order is None
    return "deep" if is_deep and not any(test.sums and test.sums[-1] != 0 for test in inside) else None
