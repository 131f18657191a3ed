"""Kernels: SPMD programs over a grid of independent blocks with a fixed number of lanes each.

On a GPU a block is a workgroup and a lane an invocation; on a CPU a block is a task and the lanes are SIMD lanes: a
varying value is a vector, a uniform one a scalar. Indices are symbolic integers (`Dim`) over the kernel's parameters
and variables, which are symbols by name; `LANE` is the lane's index. A value varies if it depends on the lane.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Union

from weft.ir import dims
from weft.ir.dims import Dim, Expr
from weft.ir.dtypes import DType
from weft.ir.row_products import MultiplyRows, RowStatement
from weft.ir.scalar import same_number
from weft.records import dataclass

BLOCK = "block"
LANE = "lane"


def variable(name: str, low: int | None = 0, high: int | None = None) -> Expr:
    """Return a kernel's integer variable as a Dim; its bounds help to simplify."""
    return dims.symbol(name, low, high)


def lane(count: int) -> Expr:
    """Return the index of the lane in a block of `count`."""
    return dims.symbol(LANE, 0, count - 1)


def block(low: int = 0) -> Expr:
    """Return the index of the block."""
    return dims.symbol(BLOCK, low, None)


# -- values ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Number:
    value: bool | int | float
    dtype: DType

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and self.dtype is other.dtype and same_number(self.value, other.value)

    def __hash__(self) -> int:
        return hash((self.value, self.dtype))


@dataclass(frozen=True, slots=True)
class Integer:
    """Index arithmetic as an int64 value."""

    value: Dim

    @property
    def dtype(self) -> DType:
        return DType.int64


@dataclass(frozen=True, slots=True)
class Register:
    """The current value of a register that `Define` introduced."""

    name: str
    dtype: DType
    varying: bool


@dataclass(frozen=True, slots=True)
class Fetch:
    """Load the element of a buffer at `offset`, plus `indirect`, an int64 computed from data.

    Lanes where `mask` is false read nothing; their value is 0.
    """

    buffer: str
    offset: Dim
    dtype: DType
    indirect: Code | None = None
    mask: Code | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A scalar function of `weft.ir.scalar.FUNCTIONS`, `fma` (a * b + c), or one of these:

    - `dot4` of three int32: the dot product of four uint8 in the first and four int8 in the second, plus the third
    - `dot2` of two int32 with two bfloat16 each and a float32: the dot product plus the third
    - `half_bits`: a float32 rounded to bfloat16, as bfloat16 or its bits; only for targets with `dot2`, and like it, it
      flushes subnormals to 0. Finite numbers stay finite.
    - `small_half_bits`: the same for numbers within the range of bfloat16
    - `emulated_half_bits`: the same for other targets; it keeps subnormals
    - `code4` (`code2`): the lowest four (two) bits of an int32, minus 8 (2), as a float32
    - `fma_bfloat16x2` (`fma_float16x2`) of three int32 with two bfloat16 (float16) each: a * b + c of both pairs, which
      must be exact; only for targets with tile products
    - `and_or` of three int32: a & b | c in one instruction; only for targets with tile products
    """

    function: str
    arguments: tuple[Code, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Across:
    """A reduction over the lanes of a block to a uniform value: sum, product, maximum or minimum."""

    kind: str
    value: Code

    @property
    def dtype(self) -> DType:
        return self.value.dtype


@dataclass(frozen=True, slots=True)
class AcrossGroup:
    """A reduction over each group of `members` lanes, `step` apart; every lane gets the result of its group.

    Both are powers of two: the lanes of a group differ only in the bits of their indices from `step` on. Values are
    combined in the order of a binary tree over the members.
    """

    kind: str
    value: Code
    members: int
    step: int

    @property
    def dtype(self) -> DType:
        return self.value.dtype


Code = Union[Number, Integer, Register, Fetch, Call, Across, AcrossGroup]

# the function that combines the values of two lanes, by the kind of an Across or AcrossGroup
ACROSS_FUNCTIONS = {"sum": "add", "product": "multiply", "maximum": "maximum", "minimum": "minimum"}


# -- statements ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Define:
    """Introduce a register; it may be reassigned, but stays varying or uniform."""

    name: str
    value: Code
    varying: bool


@dataclass(frozen=True, slots=True)
class Assign:
    register: str
    value: Code


@dataclass(frozen=True, slots=True)
class Put:
    """Write an element of a buffer; lanes where `mask` is false write nothing."""

    buffer: str
    offset: Dim
    value: Code
    indirect: Code | None = None
    mask: Code | None = None


@dataclass(frozen=True, slots=True)
class Repeat:
    """Run the body for variable = start, start + step, ... below stop, in all lanes."""

    variable: str
    start: Dim
    stop: Dim
    step: int
    body: tuple[Statement, ...]
    unroll: int = 1


@dataclass(frozen=True, slots=True)
class When:
    """Run the body where a uniform condition holds."""

    condition: Code
    body: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class Let:
    """Name uniform index arithmetic, until the end of the body."""

    name: str
    value: Dim


@dataclass(frozen=True, slots=True)
class Transpose:
    """Exchange register j of lane i with register i of lane j; there are as many registers as lanes."""

    registers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class View:
    """Name a buffer from a uniform offset on, until the end of the body; the address is computed once.

    With a `dtype` the bytes are reinterpreted; the offset still counts elements of the buffer.
    """

    name: str
    buffer: str
    offset: Dim
    dtype: DType | None = None


@dataclass(frozen=True, slots=True)
class FetchRun:
    """Load consecutive elements of a buffer into new varying registers.

    The first is at `offset`, plus `indirect` as for a `Fetch`, which together are a multiple of their number. Lanes
    where `mask` is false read nothing; their values are 0.
    """

    registers: tuple[str, ...]
    buffer: str
    offset: Dim
    dtype: DType
    mask: Code | None = None
    indirect: Code | None = None


@dataclass(frozen=True, slots=True)
class PutRun:
    """Write consecutive elements of a buffer; `offset` is a multiple of their number."""

    buffer: str
    offset: Dim
    values: tuple[Code, ...]
    mask: Code | None = None


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Start to load bytes of a buffer from a uniform offset on, which may be outside of it; results do not change.

    `level` is the cache that they go to. Devices may ignore it.
    """

    buffer: str
    offset: Dim
    nbytes: int
    level: int = 1


@dataclass(frozen=True, slots=True)
class Barrier:
    """Make earlier writes of the block's lanes visible to all of its lanes."""


# -- tile products: matrices that all lanes of a block multiply together ---------------------------------------------


@dataclass(frozen=True, slots=True)
class TileForm:
    """The shape of a matrix in local memory: `rows` (columns, for the right operand) by the summed `depth`.

    A line is a row or, if `transposed`, a column of the [rows, depth] matrix. Only `MoveRun`, `PutTile` and
    `MultiplyTiles` access a tile, since the order of its elements depends on the device. A `TilePipeline` that writes a
    tile cycles through `stages` copies of it.
    """

    rows: int
    depth: int
    stages: int = 1
    transposed: bool = False

    @property
    def lines(self) -> int:
        return self.depth if self.transposed else self.rows

    @property
    def line_length(self) -> int:
        return self.rows if self.transposed else self.depth


@dataclass(frozen=True, slots=True)
class Sums:
    """Introduce a [rows, columns] accumulator of the block, filled with 0."""

    name: str
    rows: int
    columns: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class MultiplyTiles:
    """Add the product of two tiles, [rows, depth] times [columns, depth] transposed, to an accumulator.

    Elements of float32 are rounded to tf32 (10 bits of mantissa); other types are multiplied exactly. The sum of one
    statement may be rounded towards 0, slightly less accurately than float32, and for float8 to about 13 bits of the
    largest term; it is added to the accumulator in float32.
    """

    sums: str
    left: str
    right: str


@dataclass(frozen=True, slots=True)
class MultiplyFragments:
    """Add products of fragments in registers: each warp of 32 lanes multiplies matrices of its own.

    An int32 register holds two neighbours along the sums, of type `dtype`. Lane 4 * g + q of a warp holds

    - of a left fragment (16 rows), four registers: row g, row g + 8, row g, row g + 8;
    - of a right fragment (8 columns), two registers of column g;
    - of their product, four float32 registers: row g, columns 2 * q and 2 * q + 1; row g + 8, the same columns.

    The first two left registers and the first right one are at the same place along the sums, the others at another.
    `left` and `right` have the registers of one fragment after the other along the sums; each left fragment is
    multiplied by `planes` right ones in a row. The sums of left i and right j are `sums[i * len(right) + j]`. Every
    product is added in this order, whatever the numbers of fragments.
    """

    sums: tuple[tuple[str, ...], ...]
    left: tuple[tuple[str, ...], ...]
    right: tuple[tuple[str, ...], ...]
    planes: int
    dtype: DType

    @property
    def steps(self) -> int:
        """Left fragments along the sums."""
        return len(self.left[0]) // 4


@dataclass(frozen=True, slots=True)
class AddSums:
    """Add another accumulator, elementwise, in float32."""

    sums: str
    other: str


@dataclass(frozen=True, slots=True)
class ScaleSums:
    """Multiply row i of an accumulator by the element at `offset` + i of a buffer."""

    sums: str
    buffer: str
    offset: Dim


@dataclass(frozen=True, slots=True)
class PutSums:
    """Store an accumulator to local memory: [row, column] at `offset` + row * pitch + column, in the buffer's type."""

    sums: str
    buffer: str
    offset: Dim
    pitch: int


@dataclass(frozen=True, slots=True)
class MoveRun:
    """Copy `count` consecutive elements (16 aligned bytes) of a buffer per lane to a line of a tile, from `first` on.

    Where `mask` is false the elements become 0. Allowed only among the moves of a pipeline.
    """

    tile: str
    line: Dim
    first: Dim
    count: int
    buffer: str
    offset: Dim
    mask: Code | None = None


@dataclass(frozen=True, slots=True)
class PutTile:
    """Write consecutive elements of a line of a tile per lane; `first` is a multiple of their number.

    Each element is written at most once before the tile is read.
    """

    tile: str
    line: Dim
    first: Dim
    values: tuple[Code, ...]
    mask: Code | None = None


@dataclass(frozen=True, slots=True)
class TilePipeline:
    """A software-pipelined loop over variable = start, ..., stop - 1, which loads tiles ahead of their use.

    Each iteration runs `moves` (asynchronous copies), and `puts`, which store what `fetches` loaded into registers;
    after a barrier, `body` uses the tiles. Moves, fetches and puts of later iterations run ahead of bodies as far as
    the tiles have stages: they must not depend on bodies, and no other code may use their tiles. There is a barrier
    before the first iteration and after the last.
    """

    variable: str
    start: Dim
    stop: Dim
    moves: tuple[Statement, ...]
    fetches: tuple[Statement, ...]
    puts: tuple[Statement, ...]
    body: tuple[Statement, ...]


TileStatement = Union[
    Sums, MultiplyTiles, MultiplyFragments, RowStatement, AddSums, ScaleSums, PutSums, MoveRun, PutTile, TilePipeline
]
Statement = Union[
    Define, Assign, Put, Repeat, When, Let, View, Transpose, FetchRun, PutRun, Prefetch, Barrier, TileStatement
]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer of a kernel; one with `local_size` elements is private to each block.

    A local buffer with a `tile` holds a matrix; a `late` one is used only after all pipelines, so that it may share the
    memory of tiles.
    """

    name: str
    dtype: DType
    written: bool
    local_size: int | None = None
    tile: TileForm | None = None
    late: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel; a launch passes int64 `parameters` and the buffers that are not local."""

    name: str
    buffers: tuple[Buffer, ...]
    parameters: tuple[str, ...]
    lanes: int
    body: tuple[Statement, ...]

    def __str__(self) -> str:
        from weft.ir.kernel_text import print_kernel

        return print_kernel(self)


def is_varying(code: Code) -> bool:
    """Whether a value may differ between the lanes of a block."""
    if isinstance(code, Register):
        return code.varying
    if isinstance(code, Call):
        for argument in code.arguments:  # noqa: SIM110  # faster than a generator; this is hot
            if is_varying(argument):
                return True
        return False
    match code:
        case Integer(value):
            return dims_vary(value)
        case Fetch(_, offset, _, indirect, mask):
            return dims_vary(offset) or any(part is not None and is_varying(part) for part in (indirect, mask))
        case AcrossGroup():
            return True
        case _:
            return False


def dims_vary(value: Dim) -> bool:
    """Whether index arithmetic depends on the lane."""
    return LANE in dims.symbol_names(value)


def walk_code(code: Code) -> Iterator[Code]:
    """Yield every node of a value, parents first."""
    pending: list[Code] = [code]
    while pending:
        node = pending.pop()
        yield node
        match node:
            case Fetch(_, _, _, indirect, mask):
                pending.extend(part for part in (indirect, mask) if part is not None)
            case Call(_, arguments):
                pending.extend(arguments)
            case Across(_, value) | AcrossGroup(_, value):
                pending.append(value)


def statement_codes(statement: Statement) -> list[Code]:
    """Return the values that a statement itself computes."""
    match statement:
        case Define(_, value) | Assign(_, value):
            return [value]
        case Put(_, _, value, indirect, mask):
            return [value, *(part for part in (indirect, mask) if part is not None)]
        case PutRun(_, _, values, mask):
            return [*values, *(() if mask is None else (mask,))]
        case PutTile(_, _, _, values, mask):
            return [*values, *(() if mask is None else (mask,))]
        case FetchRun(mask=mask, indirect=indirect):
            return [part for part in (indirect, mask) if part is not None]
        case MoveRun(mask=mask):
            return [] if mask is None else [mask]
        case When(condition):
            return [condition]
        case _:
            return []


def inner_bodies(statement: Statement) -> tuple[tuple[Statement, ...], ...]:
    """Return the nested bodies of a statement, in the order in which they run."""
    match statement:
        case Repeat(body=body):
            return (body,)
        case When(_, then, otherwise):
            return (then, otherwise)
        case TilePipeline():
            return (statement.moves, (*statement.fetches, *statement.puts), statement.body)
        case _:
            return ()


def read_buffers(body: tuple[Statement, ...]) -> set[str]:
    """Return the names of the buffers that are read, with views resolved."""
    buffers: set[str] = set()
    views: dict[str, str] = {}
    pending = list(body)
    while pending:
        statement = pending.pop(0)
        names = [n.buffer for code in statement_codes(statement) for n in walk_code(code) if isinstance(n, Fetch)]
        match statement:
            case FetchRun(_, name) | ScaleSums(_, name) | MoveRun(buffer=name):
                names.append(name)
            case MultiplyTiles(_, left, right):
                names += [left, right]
            case MultiplyRows():
                names += statement.tiles
            case View(name, buffer):
                views[name] = views.get(buffer, buffer)
        pending = [*(inner for body in inner_bodies(statement) for inner in body), *pending]
        buffers.update(views.get(name, name) for name in names)
    return buffers


def indices(statement: Statement) -> list[Dim]:
    """Return the index arithmetic of a statement itself, without that of its values."""
    match statement:
        case Put(_, offset) | FetchRun(_, _, offset) | PutRun(_, offset) | Prefetch(_, offset):
            return [offset]
        case PutSums(offset=offset) | ScaleSums(offset=offset):
            return [offset]
        case MoveRun(line=line, first=first, offset=offset):
            return [line, first, offset]
        case PutTile(line=line, first=first):
            return [line, first]
        case Repeat(_, start, stop) | TilePipeline(_, start, stop):
            return [start, stop]
        case Let(_, value) | View(_, _, value):
            return [value]
        case _:
            return []
