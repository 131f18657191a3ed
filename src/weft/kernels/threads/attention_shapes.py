"""Attention on tile products: the types numbers are multiplied in, how large tiles are, and whether keys are split."""

from __future__ import annotations

from dataclasses import replace

from weft.ir import dims
from weft.ir.attention import Attention
from weft.ir.dims import Axis, Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Call, Code, Number, Statement
from weft.ir.scalar import Index, loads, walk
from weft.ir.target import Float32Products, ThreadTarget
from weft.kernels.lower.kernel_builder import KernelBuilder
from weft.kernels.threads.attention import FLOAT, RUN, Split, call, number_of
from weft.kernels.threads.lane_groups import power_of_two
from weft.records import dataclass

ROWS = 64  # of a block
KEYS, FEW_KEYS = 64, 32  # of a piece; and where numbers take several elements
STAGES = 2
LANE_SHARES = 2  # times the lanes that products need: they take up the scores of a row sooner
LEAST_LINE = 16
ELSEWHERE = 2048  # bytes of shared memory that are left to others
_MOVED_BYTES = 16
_LARGEST_HALF = 65504.0
_NARROW = (DType.float16, DType.bfloat16)
_FULL_PARTS = 3  # numbers of bfloat16 that hold all bits of a float32
_HALF_WORD, _UPPER = Number(16, DType.uint32), Number(0xFFFF0000, DType.uint32)

FEWEST_KEYS = 512  # that are split: below, joining the parts takes longer than it saves
LEAST_PART = 128  # keys of a part
MOST_PARTS = 32
BLOCKS_A_UNIT = 4  # that hide each other's waits


@dataclass(frozen=True, slots=True)
class ProductShape:
    """`rows` queries of a block and `keys` of a piece, as tiles of `element`; a number is `parts` of it.

    Tiles of weights have lines of `line`, those of queries and keys of `deep_line`; tiles of values have `columns`.
    Where scores are found `ahead`, lanes are neighbouring keys while they read what scores are made from.
    """

    element: DType
    parts: int
    lanes: int
    line: int
    deep_line: int
    columns: int
    rows: int = ROWS
    keys: int = KEYS
    stages: int = STAGES
    ahead: bool = False

    @property
    def run(self) -> int:
        """Elements of a line that a lane writes at once."""
        return _MOVED_BYTES // self.element.numpy.itemsize

    @property
    def members(self) -> int:
        """Lanes that share a row."""
        return self.lanes // self.rows

    @property
    def turns_values(self) -> bool:
        """Whether values are multiplied as they lie, or lanes have to turn them."""
        return self.element is not DType.float32

    def deep(self, depth: int) -> int:
        """Tiles for queries of so many numbers."""
        return -(-depth // self.deep_line)

    def across(self, width: int) -> int:
        """Tiles for values of so many numbers."""
        return -(-width // self.columns)

    def bytes(self, depth: int, width: int) -> int:
        """Shared memory."""
        brought = self.keys * (self.deep(depth) * self.deep_line + self.across(width) * self.columns)
        kept = self.rows * (self.deep(depth) * self.deep_line + self.keys)
        tiles = self.parts * self.element.numpy.itemsize * (kept + self.stages * brought)
        scores = self.rows * (self.keys + RUN) + 2 * self.lanes + (self.rows * self.keys if self.ahead else 0)
        results = self.rows * (self.across(width) * self.columns + RUN)
        size = FLOAT.numpy.itemsize
        return max(tiles, size * results) + size * scores


def product_shape(attention: Attention, target: ThreadTarget) -> ProductShape | None:
    """The tiles for an attention; None where it is better, or has to be, computed without."""
    types = {attention.query.dtype, attention.key.dtype, attention.value.dtype}
    found = _element(types.pop(), target) if len(types) == 1 else None
    if found is None:
        return None
    element, parts = found
    product = target.tile_product(element, element)
    if product is None or product.sums is not FLOAT or ROWS % product.rows:
        return None
    lanes = LANE_SHARES * ROWS // product.rows * product.lanes
    line = target.tile_line_bytes // element.numpy.itemsize
    deep_line = min(line, max(power_of_two(attention.depth), LEAST_LINE))
    columns = min(line if element is not FLOAT else 2 * line, max(power_of_two(attention.width), LEAST_LINE))
    keys = KEYS if parts == 1 else FEW_KEYS
    shape = ProductShape(
        element, parts, lanes, min(line, keys), deep_line, columns, keys=keys, ahead=_reads_by_row(attention)
    )
    simple, room = replace(shape, stages=1), target.shared_bytes - ELSEWHERE
    if shape.bytes(attention.depth, attention.width) <= room // 2:  # a second block beside it is worth more
        return shape
    return simple if simple.bytes(attention.depth, attention.width) <= room else None


def _reads_by_row(attention: Attention) -> bool:
    """Whether scores are made from what lies in memory for each row and key."""
    last, rows = len(attention.shape) - 1, {axis for axis in attention.rows if attention.shape[axis] != 1}
    for load in loads(attention.score):
        used: set[int] = set()
        for index in load.indices:
            for node in walk(index):
                if isinstance(node, Index):
                    used |= {atom.position for atom in dims.atoms(node.value) if isinstance(atom, Axis)}
        if last in used and used & rows:
            return True
    return False


def _element(dtype: DType, target: ThreadTarget) -> tuple[DType, int] | None:
    """The type of tiles for numbers of a type, and as how many of it they are."""
    if dtype in _NARROW:
        return dtype, 1
    if dtype is not FLOAT:
        return None
    match target.float32_products:
        case Float32Products.EXACT:
            return None
        case Float32Products.TF32:
            return FLOAT, 1
        case Float32Products.HALVES:
            return DType.float16, 1
        case Float32Products.PARTS:
            return DType.bfloat16, _FULL_PARTS


def key_split(attention: Attention, target: ThreadTarget, rows: int, keys: int) -> tuple[Split, Dim]:
    """Keys in as many parts as keep the device busy, and what is 1 where that is worth it, else 0.

    `rows` are those of a block, `keys` those of a piece. It follows from shapes alone.
    """
    count = dims.product(attention.shape[axis] for axis in attention.rows)
    heads = dims.product(size for axis, size in enumerate(attention.shape[:-1]) if axis not in attention.rows)
    blocks = dims.maximum(heads * dims.ceildiv(count, rows), 1)
    pieces = dims.ceildiv(attention.shape[-1], keys)
    wanted = dims.floordiv(BLOCKS_A_UNIT * target.rates.compute_units, blocks)
    parts = dims.minimum(dims.minimum(wanted, dims.floordiv(pieces, LEAST_PART // keys)), MOST_PARTS)
    parts = dims.maximum(parts, 1)
    each = dims.ceildiv(pieces, parts)
    used = dims.maximum(dims.ceildiv(pieces, dims.maximum(each, 1)), 1)
    busy = dims.minimum(dims.floordiv(pieces, FEWEST_KEYS // keys), 1)
    return Split(used, each), busy * dims.minimum(dims.floordiv(used, 2), 1)


class Forming:
    """Numbers as elements of tiles."""

    def __init__(self, shape: ProductShape, builder: KernelBuilder) -> None:
        self.shape, self.builder = shape, builder

    def parts(self, value: Code, statements: list[Statement], *, limited: bool) -> list[Code]:
        """The elements that a number is, largest first: of several, each has the next bits, and none is rounded."""
        element = self.shape.element
        if value.dtype is element:
            return [value]
        if self.shape.parts == 1:
            if limited and value.dtype is FLOAT and element is DType.float16:
                least = call("minimum", value, number_of(_LARGEST_HALF))
                value = call("maximum", least, number_of(-_LARGEST_HALF))
            return [self.keep(Call("cast", (value,), element), statements)]
        found: list[Code] = []
        rest = value
        for part in range(self.shape.parts):
            bits = self.keep(Call("bitcast", (rest,), DType.uint32), statements)
            upper = Call("cast", (Call("shift_right", (bits, _HALF_WORD), DType.uint32),), DType.uint16)
            found.append(self.keep(Call("bitcast", (upper,), element), statements))
            if part + 1 < self.shape.parts:
                own = Call("bitcast", (Call("bit_and", (bits, _UPPER), DType.uint32),), FLOAT)
                rest = self.keep(call("subtract", rest, own), statements)
        return found

    def keep(self, value: Code, statements: list[Statement]) -> Code:
        defined, register = self.builder.keep("formed", value, varying=True)
        statements.append(defined)
        return register
