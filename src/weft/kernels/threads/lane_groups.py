"""Lane groups: how the lanes of a block share rows, and how they reduce values.

A block does `rows` rows, each by `members` lanes. Neighbouring lanes are members of one group or, if `interleaved`, of
neighbouring groups.
"""

from __future__ import annotations

from dataclasses import field

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Across, Buffer, Call, Code, Statement, lane
from weft.ir.target import ThreadTarget
from weft.kernels.build.accumulators import COMBINE, Accumulators, Fold
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, fetch, put
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class LaneGroup:
    """`rows` groups of `members` lanes; both are powers of two."""

    rows: int
    members: int
    interleaved: bool = False

    @property
    def lanes(self) -> int:
        return self.rows * self.members

    @property
    def row(self) -> Dim:
        """The row of the block that a lane belongs to."""
        here = lane(self.lanes)
        if self.rows == 1:
            return 0
        return dims.mod(here, self.rows) if self.interleaved else dims.floordiv(here, self.members)

    @property
    def member(self) -> Dim:
        """The index of a lane in its lane group."""
        here = lane(self.lanes)
        if self.members == 1:
            return 0
        return dims.floordiv(here, self.rows) if self.interleaved else dims.mod(here, self.members)

    def partner(self, distance: int) -> Dim:
        """Return the lane whose index in the lane group differs in the bit `distance`."""
        step = distance * (self.rows if self.interleaved else 1)
        here = lane(self.lanes)
        return here + step - 2 * step * dims.mod(dims.floordiv(here, step), 2)


@dataclass(slots=True)
class Exchange:
    """Reduces values across a lane group through shared memory: two buffers per type alternate, to halve barriers."""

    lane_group: LaneGroup
    builder: KernelBuilder
    turns: dict[DType, int] = field(default_factory=dict)
    buffers: dict[DType, list[Buffer]] = field(default_factory=dict)

    def combine_lanes(self, kind: str, value: Code, statements: list[Statement]) -> Code:
        """Reduce a value across a lane group; every lane of it gets the result."""
        if self.lane_group.members == 1:
            return value
        if self.lane_group.rows == 1:
            return Across(kind, value)
        dtype = value.dtype
        if dtype not in self.buffers:
            self.buffers[dtype] = [
                self.builder.local(f"team_{dtype.name}{number}", dtype, self.lane_group.lanes) for number in range(2)
            ]
        definition, register = self.builder.keep("combined", value, varying=True)
        statements.append(definition)
        distance = 1
        while distance < self.lane_group.members:
            turn = self.turns[dtype] = self.turns.get(dtype, 0) + 1
            buffer = self.buffers[dtype][turn % 2]
            other = fetch(buffer, self.lane_group.partner(distance))
            statements.append(put(buffer, lane(self.lane_group.lanes), register))
            statements.append(assign(register, Call(COMBINE[kind], (register, other), dtype)))
            distance *= 2
        return register


class LaneGroupFolding(Accumulators):
    """A fold by the members of a lane group."""

    def __init__(self, fold: Fold, exchange: Exchange) -> None:
        lane_group = exchange.lane_group
        super().__init__(fold, exchange.builder, None if lane_group.members == 1 else lane_group.lanes)
        self.exchange = exchange

    def lane_index(self) -> Dim:
        return self.exchange.lane_group.member

    def combine_lanes(self, kind: str, value: Code, statements: list[Statement]) -> Code:
        return self.exchange.combine_lanes(kind, value, statements)


def shares(target: ThreadTarget) -> bool:
    """Whether sharing work between the threads of a block pays: it takes shared memory and barriers."""
    return target.sharing_pays


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below a number."""
    return 1 << max(number - 1, 0).bit_length()
