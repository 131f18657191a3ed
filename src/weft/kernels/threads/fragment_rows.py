"""The left operand of products by packed weights, in the order of right fragments of tensor cores.

A float32 is the exact sum of three bfloat16: its leading bits, those of the rest, and what is left. Infinities and NaN
stay in the first plane. Numbers of 16 bits, and those that are rounded to float16, have one plane.

Words are [tiles of 8 rows, windows, planes, halves of a window, lanes, 4]: lane 4 * g + q has of row g the places from
4 * q to 4 * q + 3 of two fragments.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Integer, Number, Register, Statement
from weft.ir.target import ThreadTarget
from weft.kernels.lower.kernel_builder import KernelBuilder, define, fetch, fetch_run, put_run
from weft.kernels.lower.memoize import memoize
from weft.kernels.lower.operations import cast
from weft.kernels.lower.tensors import RESULT, Launch
from weft.kernels.threads.depth import Depth
from weft.kernels.threads.float_splits import convert_value
from weft.kernels.threads.fragment_format import LANES, STEP, WINDOW, FragmentFormat
from weft.kernels.threads.points import points
from weft.kernels.threads.product import Product, merge_product_axes
from weft.kernels.threads.product_operands import RUN, OperandTile, ProductOperand
from weft.kernels.threads.tile_axis import TileAxis

ROWS = 8  # of a fragment
HALVES = 2  # of a window: two fragments each, so that a lane's words are 16 bytes
_HALF = WINDOW // HALVES
_HIGH = -65536  # mask of the upper half of a word
_I32, _F32 = DType.int32, DType.float32


class FragmentRows:
    """Reads rows of a left operand as words of right fragments."""

    def __init__(self, product: Product, fragments: FragmentFormat, builder: KernelBuilder) -> None:
        self.format, self.builder = fragments, builder
        self.operand = ProductOperand(product, builder, is_left=True)
        self.depth = Depth(product.sums, builder, RUN)

    def read(self, row: Sequence[Dim], half: Dim, q: Dim, statements: list[Statement]) -> list[list[Code]]:
        """Return the four words of each plane, of lane q in a half of a window; `half` counts from the first window."""
        words: list[list[Code]] = [[] for _ in range(self.format.planes)]
        for step in range(_HALF // STEP):
            position = _HALF * half + STEP * step + RUN * q
            values = self._read_run(row, position, statements)
            planes = [self._split(value, statements) for value in values]
            for plane, own in enumerate(words):
                bits = [split[plane] for split in planes]
                own += [self._pack(*bits[:2]), self._pack(*bits[2:])]
        return words

    def _read_run(self, row: Sequence[Dim], position: Dim, statements: list[Statement]) -> list[Register]:
        """Read four neighbours along the sums; those after the last are 0."""
        operand = self.operand
        registers = self.builder.registers("left", RUN, operand.buffer.dtype)
        tile = OperandTile(operand.start, (), (), self.depth, self.depth.tile("left"))
        if operand.runs_deep:
            mask = self._test_depth(position)
            statements.append(fetch_run(registers, operand.buffer, operand.offset(tile, row, [position]), mask))
            return registers
        for number, register in enumerate(registers):
            place, mask = operand.offset(tile, row, [position + number]), self._test_depth(position + number)
            statements.append(define(register, fetch(operand.buffer, place, mask=mask)))
        return registers

    def _test_depth(self, position: Dim) -> Code | None:
        if self.format.depth == self.format.windows * WINDOW:
            return None
        whole = Integer(self.builder.parameter("whole_depth", self.format.depth))
        return Call("less", (Integer(position), whole), DType.bool)

    def _split(self, value: Register, statements: list[Statement]) -> list[Code]:
        """Return the planes of a number, each in the upper half of a word (float16: in the lower half)."""
        if self.format.element is DType.float16:
            conversion, (half,) = convert_value(value, DType.float16, 1, self.builder)
            statements += conversion
            return [Call("cast", (Call("bitcast", (half,), DType.uint16),), _I32)]
        rest = self._keep(cast(value, _F32), statements)
        planes: list[Code] = []
        for _ in range(1, self.format.planes):
            bits = self._keep(Call("bit_and", (Call("bitcast", (rest,), _I32), Number(_HIGH, _I32)), _I32), statements)
            planes.append(bits)
            plane = Call("bitcast", (bits,), _F32)
            is_whole = Call("equal", (plane, rest), DType.bool)  # infinity - infinity is NaN
            below = Call("select", (is_whole, Number(0.0, _F32), Call("subtract", (rest, plane), _F32)), _F32)
            rest = self._keep(below, statements)
        return [*planes, Call("bitcast", (rest,), _I32)]

    def _pack(self, first: Code, second: Code) -> Code:
        if self.format.element is DType.float16:
            return Call("bit_or", (first, Call("shift_left", (second, Number(16, _I32)), _I32)), _I32)
        low = Call("bit_and", (Call("shift_right", (first, Number(16, _I32)), _I32), Number(0xFFFF, _I32)), _I32)
        return Call("bit_or", (low, Call("bit_and", (second, Number(_HIGH, _I32)), _I32)), _I32)

    def _keep(self, value: Code, statements: list[Statement]) -> Register:
        definition, register = self.builder.keep("split", value, varying=True)
        statements.append(definition)
        return register


def locate_plane(window: Dim, half: Dim, plane: int, planes: int, within: Dim) -> Dim:
    """Return the offset of a lane's words in a half of a window, which counts from the first tile of rows."""
    return (((window * planes + plane) * HALVES + half) * LANES + within) * 4


def count_row_words(rows: Dim, fragments: FragmentFormat) -> Dim:
    """Return the number of words of all rows."""
    return dims.ceildiv(rows, ROWS) * (fragments.windows * fragments.planes * HALVES * LANES * 4)


@memoize
def build_rows_launch(product: Product, fragments: FragmentFormat, target: ThreadTarget) -> Launch:
    """Write operand 0 in the order of fragments; rows after the last are copies of it."""
    product = merge_product_axes(product)
    builder = KernelBuilder("split_rows")
    rows = FragmentRows(product, fragments, builder)
    out = builder.output("planes", _I32, RESULT)
    axis = TileAxis("row", product.rows, builder, ROWS, lambda number: number)
    halves = HALVES * fragments.windows
    here = points((axis.tiles, halves, LANES), builder, target.block_threads)
    tile, half, within = here.places
    axis.first = ROWS * tile
    statements: list[Statement] = []
    words = rows.read(axis.places(dims.floordiv(within, 4)), half, dims.mod(within, 4), statements)
    window, rest = (
        tile * builder.parameter("windows", fragments.windows) + dims.floordiv(half, HALVES),
        dims.mod(half, HALVES),
    )
    for plane, own in enumerate(words):
        statements.append(put_run(out, locate_plane(window, rest, plane, len(words), within), own, here.mask))
    return builder.launch(target.block_threads, statements, here.blocks)
