"""Matrix products on tiles as kernels of all shapes, for tests and GPUs, with the expected results."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir import kernel as ir
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    AddSums,
    Buffer,
    Call,
    Code,
    FetchRun,
    Integer,
    Kernel,
    MoveRun,
    MultiplyTiles,
    PutRun,
    PutSums,
    PutTile,
    Register,
    Repeat,
    ScaleSums,
    Statement,
    Sums,
    TileForm,
    TilePipeline,
)

Array = np.ndarray[Any, Any]
F32, I32 = DType.float32, DType.int32
PAD = 8  # elements between rows of results, so that rows begin in other banks


@dataclass(frozen=True)
class Product:
    """[rows, depth] times [columns, depth], in tiles; transposed operands are stored with their depth first.

    `bring` is how tiles come: by "moves", or by fetches and "puts", or the left one by puts and the right one by moves
    ("both"), or all at once outside of a pipeline ("whole"). With `parts` each turn has sums of its own, added up;
    with `scaled` rows of the sums are scaled before each turn and after the last. Numbers are from a random seed.
    """

    name: str
    left: DType = DType.bfloat16
    right: DType = DType.bfloat16
    shape: tuple[int, int, int] = (64, 64, 128)
    tiles: tuple[int, int, int] = (64, 64, 64)
    lanes: int = 128
    stages: int = 2
    transposed_left: bool = False
    transposed_right: bool = False
    bring: str = "moves"
    parts: bool = False
    scaled: bool = False
    repeated: int = 1  # how often each product is added
    ordered: int = 1  # blocks of rows that are neighbours in time
    result: DType | None = None
    seed: int = 1

    @property
    def sums(self) -> DType:
        return I32 if self.left.is_integer else F32

    @property
    def out(self) -> DType:
        return self.result or self.sums

    @property
    def blocks(self) -> int:
        return -(-self.shape[0] // self.tiles[0]) * -(-self.shape[1] // self.tiles[1])

    @property
    def turns(self) -> int:
        return -(-self.shape[2] // self.tiles[2])

    # -- the kernel --------------------------------------------------------------------------------------------------

    @property
    def kernel(self) -> Kernel:
        rows, columns, depth = self.tiles
        forms = (
            TileForm(rows, depth, self.stages, self.transposed_left),
            TileForm(columns, depth, self.stages, self.transposed_right),
        )
        buffers = (
            Buffer("left", self.left, False),
            Buffer("right", self.right, False),
            Buffer("factors", F32, False),
            Buffer("out", self.out, True),
            Buffer("left_tile", self.left, True, rows * depth, forms[0]),
            Buffer("right_tile", self.right, True, columns * depth, forms[1]),
            Buffer("held", self.out, True, rows * (columns + PAD), late=True),
        )
        return Kernel(self.name, buffers, (), self.lanes, tuple(self._body(forms)))

    def _body(self, forms: tuple[TileForm, TileForm]) -> list[Statement]:
        count = [-(-size // tile) for size, tile in zip(self.shape, self.tiles)]
        group = self.ordered * count[1]
        within = dims.mod(ir.block(), group)
        row = (dims.floordiv(ir.block(), group) * self.ordered + dims.mod(within, self.ordered)) * self.tiles[0]
        column = dims.floordiv(within, self.ordered) * self.tiles[1]
        turn = ir.variable("turn", 0, self.turns - 1)
        kinds = {"moves": "mm", "puts": "pp", "both": "pm", "whole": "pp"}[self.bring]
        moves: list[Statement] = []
        fetches: list[Statement] = []
        puts: list[Statement] = []
        for kind, side, form, first in zip(kinds, ("left", "right"), forms, (row, column)):
            if kind == "m":
                moves += self._moves(side, form, first, turn * self.tiles[2])
            else:
                one, other = self._puts(side, form, first, turn * self.tiles[2])
                fetches += one
                puts += other
        body: list[Statement] = []
        if self.scaled:
            body.append(ScaleSums("total", "factors", turn * self.shape[0] + row))
        if self.parts:
            part = Sums("part", *self.tiles[:2], self.sums)
            products = [MultiplyTiles("part", "left_tile", "right_tile")] * self.repeated
            body += [part, *products, AddSums("total", "part")]
        else:
            body += [MultiplyTiles("total", "left_tile", "right_tile")] * self.repeated
        values: list[Statement] = [Sums("total", *self.tiles[:2], self.sums)]
        if self.bring == "whole":
            values.append(Repeat("turn", 0, self.turns, 1, (*fetches, *puts, *body)))
        else:
            values.append(TilePipeline("turn", 0, self.turns, tuple(moves), tuple(fetches), tuple(puts), tuple(body)))
        if self.scaled:
            values.append(ScaleSums("total", "factors", self.turns * self.shape[0] + row))
        values.append(PutSums("total", "held", 0, self.tiles[1] + PAD))
        return values + self._results(row, column)

    def _runs(self, side: str, form: TileForm, row: Dim, depth: Dim) -> list[tuple[Dim, Dim, int, Dim, Code | None]]:
        """Yield line, position in it, number of elements, buffer offset and mask of each run that a lane copies."""
        dtype, rows = (self.left, self.shape[0]) if side == "left" else (self.right, self.shape[1])
        count = 16 * 8 // dtype.bits
        along = form.line_length // count
        limits = (rows, self.shape[2])
        first, second = (depth, row) if form.transposed else (row, depth)
        lines, length = (limits[1], limits[0]) if form.transposed else limits
        values = []
        for number in range(-(-form.lines * along // self.lanes)):
            element = dims.mod(ir.lane(self.lanes) + number * self.lanes, form.lines * along)
            line, place = dims.floordiv(element, along), dims.mod(element, along) * count
            tests = []
            if lines % form.lines:
                tests.append(Call("less", (Integer(first + line), Integer(lines)), DType.bool))
            if length % form.line_length:
                tests.append(Call("less", (Integer(second + place), Integer(length)), DType.bool))
            mask = None if not tests else tests[0] if len(tests) == 1 else Call("logical_and", tuple(tests), DType.bool)
            values.append((line, place, count, (first + line) * length + second + place, mask))
        return values

    def _moves(self, side: str, form: TileForm, row: Dim, depth: Dim) -> list[Statement]:
        return [
            MoveRun(f"{side}_tile", line, place, count, side, offset, mask)
            for line, place, count, offset, mask in self._runs(side, form, row, depth)
        ]

    def _puts(self, side: str, form: TileForm, row: Dim, depth: Dim) -> tuple[list[Statement], list[Statement]]:
        dtype = self.left if side == "left" else self.right
        fetches: list[Statement] = []
        puts: list[Statement] = []
        for number, (line, place, count, offset, mask) in enumerate(self._runs(side, form, row, depth)):
            names = tuple(f"{side}_{number}_{part}" for part in range(count))
            fetches.append(FetchRun(names, side, offset, dtype, mask))
            puts.append(PutTile(f"{side}_tile", line, place, tuple(Register(name, dtype, True) for name in names)))
        return fetches, puts

    def _results(self, row: Dim, column: Dim) -> list[Statement]:
        """Write four neighbours per lane, if all of them are inside."""
        rows, columns, _ = self.tiles
        number = ir.variable("number", 0, None)
        element = (number * self.lanes + ir.lane(self.lanes)) * 4
        line, place = dims.floordiv(element, columns), dims.mod(element, columns)
        mask: Code | None = None
        if self.shape[0] % rows or self.shape[1] % columns or rows * columns % (4 * self.lanes):
            tests = [(row + line, self.shape[0]), (column + place, self.shape[1]), (element, rows * columns)]
            calls = [Call("less", (Integer(at), Integer(stop)), DType.bool) for at, stop in tests]
            mask = Call("logical_and", (calls[0], Call("logical_and", (calls[1], calls[2]), DType.bool)), DType.bool)
        names = tuple(f"result_{part}" for part in range(4))
        offset = (row + line) * self.shape[1] + column + place
        body = (
            FetchRun(names, "held", line * (columns + PAD) + place, self.out, mask),
            PutRun("out", offset, tuple(Register(name, self.out, True) for name in names), mask),
        )
        return [Repeat("number", 0, -(-rows * columns // (4 * self.lanes)), 1, body)]

    # -- numbers -----------------------------------------------------------------------------------------------------

    @cached_property
    def operands(self) -> tuple[Array, Array, Array]:
        """Return the operands as stored in memory, and the factors of rows."""
        random = np.random.default_rng(self.seed)
        rows, columns, depth = self.shape

        def numbers(dtype: DType, size: tuple[int, int], transposed: bool) -> Array:
            if dtype.is_integer:
                low, high = dtype.limits
                values = random.integers(int(low), int(high), size, endpoint=True).astype(dtype.numpy)
            else:
                values = random.standard_normal(size, np.float32).astype(dtype.numpy)
            return np.ascontiguousarray(values.T if transposed else values)

        factors = random.uniform(0.5, 1.5, (self.turns + 1, rows)).astype(np.float32)
        left = numbers(self.left, (rows, depth), self.transposed_left)
        return left, numbers(self.right, (columns, depth), self.transposed_right), factors

    @property
    def arrays(self) -> list[Array]:
        return [*self.operands, np.zeros(self.shape[:2], self.out.numpy)]

    @cached_property
    def expected(self) -> Array:
        """Compute the product in float64, or exactly."""
        left, right, factors = self.operands
        wide = [_exact(array.T if transposed else array) for array, transposed in
                ((left, self.transposed_left), (right, self.transposed_right))]  # fmt: skip
        total = np.zeros(self.shape[:2])
        for turn in range(self.turns):
            at = slice(turn * self.tiles[2], (turn + 1) * self.tiles[2])
            if self.scaled:
                total *= factors[turn].astype(np.float64)[:, None]
            total += self.repeated * (wide[0][:, at] @ wide[1][:, at].T)
        return total * factors[self.turns].astype(np.float64)[:, None] if self.scaled else total

    def check(self, values: Array) -> float:
        """Return the largest error relative to the magnitude of the results."""
        if self.out.is_integer:
            np.testing.assert_array_equal(values, self.expected, err_msg=f"{self.name}, seed {self.seed}")
            return 0.0
        scale = np.sqrt(self.shape[2])
        error = float(np.abs(values.astype(np.float64) - self.expected).max() / scale)
        narrow = self.out.bits == 16
        least = 2e-5 if not narrow else 0.05
        assert error < least, f"{self.name}, seed {self.seed}: wrong by {error:.3g}"
        return error


def _exact(array: Array) -> Array:
    """As float64; of float32 as many bits as take part."""
    if array.dtype == np.float32:
        array = (array.copy().view(np.int32) & ~0x1FFF).view(np.float32)
    return array.astype(np.float64)
