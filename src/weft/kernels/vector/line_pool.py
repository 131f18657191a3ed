"""Pooling of channels-last tensors with small windows: lanes along the channels, lines of pixels as in depthwise.py."""

from __future__ import annotations

from dataclasses import replace

from weft.cost.sizes import estimate
from weft.ir.dims import Dim
from weft.ir.kernel import Call, Code, Statement
from weft.ir.program import Pool
from weft.ir.target import VectorTarget
from weft.kernels.build.accumulators import COMBINE, identity_element, reduction_dtype
from weft.kernels.build.loop_nest import choose_lanes
from weft.kernels.build.multiply_add import accumulator_dtype
from weft.kernels.build.windows import Phase, Window
from weft.kernels.lower.kernel_builder import assign, define
from weft.kernels.lower.memoize import memoize_launch
from weft.kernels.lower.tensors import Epilogue, Launch, StoredTensor
from weft.kernels.vector.depthwise import PixelLines, PixelTile

_MAX_TAPS = 8  # along an axis
_MAX_COLUMNS = 20  # in registers, besides the windows of a tile
_CHANNEL = 1


def build_line_pool(
    primitive: Pool, operand: StoredTensor, result: StoredTensor, epilogue: Epilogue | None, target: VectorTarget
) -> Launch | None:
    """Build a launch whose operands are the pool's and the epilogue's; None if it does not apply."""
    if primitive.kind not in ("maximum", "sum") or 0 in operand.shape:
        return None
    small = all(isinstance(size, int) and size <= _MAX_TAPS for size in primitive.window)
    apart = operand.layout.order[-1] != _CHANNEL or result.layout.order[-1] != _CHANNEL
    lanes = choose_lanes(target, [accumulator_dtype(reduction_dtype(primitive.kind, operand.dtype))], widest=8)
    if not small or apart or estimate(operand.shape[_CHANNEL]) * 2 < lanes:
        return None
    windows = zip(result.shape[2:], primitive.pads, primitive.strides, primitive.dilations, primitive.window)
    phase = tuple(
        Window(count, -before, stride, dilation, size) for count, (before, _), stride, dilation, size in windows
    )
    return _build_lines(primitive.kind, phase, operand, result, epilogue, lanes, target)


class _PoolLines(PixelLines):
    name = "pool"
    operands = 1

    def __init__(
        self,
        kind: str,
        phase: Phase,
        x: StoredTensor,
        result: StoredTensor,
        epilogue: Epilogue | None,
        lanes: int,
        target: VectorTarget,
    ) -> None:
        super().__init__(phase, x, result, epilogue, lanes, target)
        self.kind = kind
        self.type = accumulator_dtype(reduction_dtype(kind, x.dtype))

    def add_operands(self) -> None:
        pass

    def tile(self, pixels: int, panels: list[Dim], whole: bool, pixel: Dim, corner: Dim) -> PixelTile:
        columns = {at: self.builder.register("column", self.type) for at in self.columns(pixels)}
        return replace(super().tile(pixels, panels, whole, pixel, corner), columns=columns)

    def columns(self, pixels: int) -> list[int]:
        """Return the input columns of a tile, relative to its first, if windows share them and they fit registers.

        Each column of the input is combined once, and the windows from columns.
        """
        window = self.phase[-1]
        assert isinstance(window.taps, int)
        positions = {self.position(pixel, tap) for pixel in range(pixels) for tap in range(window.taps)}
        shared = pixels > 1 and len(positions) < pixels * window.taps
        return sorted(positions) if shared and len(positions) <= _MAX_COLUMNS else []

    def position(self, pixel: int, tap: int) -> int:
        return pixel * self.phase[-1].advance + tap * self.phase[-1].dilation

    def accumulate_taps(self, tile: PixelTile, taps: list[Statement]) -> list[Statement]:
        totals = tile.columns.values() or tile.sums
        statements: list[Statement] = [define(total, identity_element(self.kind, self.type)) for total in totals]
        statements.extend(taps)
        return [*statements, *self.windows(tile)] if tile.columns else statements

    def windows(self, tile: PixelTile) -> list[Statement]:
        """Combine the columns of a tile into its windows."""
        taps = self.phase[-1].taps
        assert isinstance(taps, int)
        statements: list[Statement] = []
        for pixel, window in enumerate(tile.sums):
            total: Code = tile.columns[self.position(pixel, 0)]
            for tap in range(1, taps):
                total = self.combine(total, tile.columns[self.position(pixel, tap)])
            statements.append(define(window, total))
        return statements

    def multiply(self, tile: PixelTile, tap: Dim, outside: frozenset[tuple[int, int]] = frozenset()) -> list[Statement]:
        """Combine one tap of the last axis into a tile; a column is combined at the first tap that reads it."""
        done: set[int] = set()
        if tile.columns:
            assert isinstance(tap, int)
            done = {self.position(pixel, before) for pixel in range(tile.pixels) for before in range(tap)}
        statements: list[Statement] = []
        for total, (pixel, panel) in zip(tile.sums, tile.elements):
            if (pixel, tap) in outside:
                continue
            register = total
            if tile.columns:
                assert isinstance(tap, int)
                if self.position(pixel, tap) in done:
                    continue
                register = tile.columns[self.position(pixel, tap)]
            combined = self.combine(register, self.element(tile, pixel, panel, tap))
            statements.append(assign(register, combined))
        return statements

    def combine(self, left: Code, right: Code) -> Code:
        return Call(COMBINE[self.kind], (left, right), self.type)


_build_lines = memoize_launch(_PoolLines)
