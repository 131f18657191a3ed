"""Pooling with channels as neighbours: windows small, lanes along the channels, lines of pixels as in depthwise.py."""

from __future__ import annotations

from weft.cost.sizes import estimate
from weft.ir.dims import Dim
from weft.ir.kernel import Assign, Call, Code, Define, Register, Statement
from weft.ir.program import Pool
from weft.ir.target import VectorTarget
from weft.kernels.build.accumulators import COMBINE, neutral, wide_dtype
from weft.kernels.build.loop_nest import choose_lanes
from weft.kernels.build.windows import Phase, Window
from weft.kernels.lower.tensors import Epilogue, Launch, Tensor
from weft.kernels.vector.depthwise import Lines, Tile

_MOST_TAPS = 8  # along an axis
_MOST_COLUMNS = 20  # at a time, beside the windows of a tile
_CHANNEL = 1


def pooled_lines(
    primitive: Pool, operand: Tensor, result: Tensor, epilogue: Epilogue | None, target: VectorTarget
) -> Launch | None:
    """Buffers: the operand, those of the epilogue, and the result; None where channels are no neighbours, or few."""
    if primitive.kind not in ("maximum", "sum") or 0 in operand.shape:
        return None
    small = all(isinstance(size, int) and size <= _MOST_TAPS for size in primitive.window)
    apart = operand.layout.order[-1] != _CHANNEL or result.layout.order[-1] != _CHANNEL
    lanes = choose_lanes(target, [wide_dtype(primitive.kind, operand.dtype)], widest=8)
    if not small or apart or estimate(operand.shape[_CHANNEL]) * 2 < lanes:
        return None
    windows = zip(result.shape[2:], primitive.pads, primitive.strides, primitive.dilations, primitive.window)
    phase = tuple(
        Window(count, -before, stride, dilation, size) for count, (before, _), stride, dilation, size in windows
    )
    return _PooledLines(primitive.kind, phase, operand, result, epilogue, lanes, target).launch()


class _PooledLines(Lines):
    name = "pool"

    def __init__(
        self,
        kind: str,
        phase: Phase,
        x: Tensor,
        result: Tensor,
        epilogue: Epilogue | None,
        lanes: int,
        target: VectorTarget,
    ) -> None:
        super().__init__(phase, x, result, epilogue, lanes, target)
        self.kind = kind
        self.type = wide_dtype(kind, x.dtype)

    def operands(self) -> tuple[str, ...]:
        return ("x",)

    def columns(self, tile: Tile) -> list[int]:
        """Positions along the last axis that windows of a tile share, from its first one; none if they share nothing.

        What lies in a column of the input is combined once, and the windows from columns.
        """
        window = self.phase[-1]
        assert isinstance(window.taps, int)
        found = {self.position(pixel, tap) for pixel in range(tile.pixels) for tap in range(window.taps)}
        shared = tile.pixels > 1 and len(found) < tile.pixels * window.taps
        return sorted(found) if shared and len(found) <= _MOST_COLUMNS else []

    def position(self, pixel: int, tap: int) -> int:
        return pixel * self.phase[-1].advance + tap * self.phase[-1].dilation

    def gathered(self, tile: Tile, taps: list[Statement]) -> list[Statement]:
        columns = self.columns(tile)
        names = [f"column{column}" for column in columns] or tile.names
        statements: list[Statement] = [Define(name, neutral(self.kind, self.type), True) for name in names]
        statements.extend(taps)
        return [*statements, *self.windows(tile)] if columns else statements

    def windows(self, tile: Tile) -> list[Statement]:
        """The windows of a tile, from its columns."""
        taps = self.phase[-1].taps
        assert isinstance(taps, int)
        statements: list[Statement] = []
        for pixel, name in enumerate(tile.names):
            total: Code = self.register(f"column{self.position(pixel, 0)}")
            for tap in range(1, taps):
                total = self.combine(total, self.register(f"column{self.position(pixel, tap)}"))
            statements.append(Define(name, total, True))
        return statements

    def multiply(self, tile: Tile, tap: Dim, outside: frozenset[tuple[int, int]] = frozenset()) -> list[Statement]:
        """One tap of the last axis for a tile, taken in; of a column by the first tap that meets it."""
        shared = bool(self.columns(tile))
        known: set[int] = set()
        if shared:
            assert isinstance(tap, int)
            known = {self.position(pixel, before) for pixel in range(tile.pixels) for before in range(tap)}
        statements: list[Statement] = []
        for number, (pixel, panel) in enumerate(tile.elements):
            if (pixel, tap) in outside:
                continue
            name = f"sum{number}"
            if shared:
                assert isinstance(tap, int)
                if self.position(pixel, tap) in known:
                    continue
                name = f"column{self.position(pixel, tap)}"
            taken = self.combine(self.register(name), self.element(tile, pixel, panel, tap))
            statements.append(Assign(name, taken))
        return statements

    def register(self, name: str) -> Register:
        return Register(name, self.type, True)

    def combine(self, left: Code, right: Code) -> Code:
        return Call(COMBINE[self.kind], (left, right), self.type)
