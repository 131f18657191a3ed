"""Lane groups: how the lanes of a block share rows, and how what a lane group's lanes have becomes one value.

A block does `rows` rows, each by `members` lanes. Neighbouring lanes are members of one group, or, `interleaved`, of
neighbouring ones.
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
    """Both numbers are powers of two."""

    rows: int
    members: int
    interleaved: bool = False

    @property
    def lanes(self) -> int:
        return self.rows * self.members

    @property
    def row(self) -> Dim:
        """Which of the block's rows a lane belongs to."""
        here = lane(self.lanes)
        if self.rows == 1:
            return 0
        return dims.mod(here, self.rows) if self.interleaved else dims.floordiv(here, self.members)

    @property
    def member(self) -> Dim:
        """The number of a lane in its lane group."""
        here = lane(self.lanes)
        if self.members == 1:
            return 0
        return dims.floordiv(here, self.rows) if self.interleaved else dims.mod(here, self.members)

    def partner(self, distance: int) -> Dim:
        """The lane whose number in the lane group differs in the bit `distance`."""
        step = distance * (self.rows if self.interleaved else 1)
        here = lane(self.lanes)
        return here + step - 2 * step * dims.mod(dims.floordiv(here, step), 2)


@dataclass(slots=True)
class Exchange:
    """Memory through which the members of a group meet: two buffers of a type, by turns, which saves half the waits."""

    lane_group: LaneGroup
    builder: KernelBuilder
    used: dict[DType, int] = field(default_factory=dict)
    buffers: dict[DType, list[Buffer]] = field(default_factory=dict)

    def combined(self, kind: str, value: Code, statements: list[Statement]) -> Code:
        """What all members of a lane group have, as one: in every lane of it the same."""
        if self.lane_group.members == 1:
            return value
        if self.lane_group.rows == 1:
            return Across(kind, value)
        dtype = value.dtype
        if dtype not in self.buffers:
            self.buffers[dtype] = [
                self.builder.local(f"team_{dtype.name}{number}", dtype, self.lane_group.lanes) for number in range(2)
            ]
        defined, register = self.builder.keep("combined", value, varying=True)
        statements.append(defined)
        distance = 1
        while distance < self.lane_group.members:
            turn = self.used[dtype] = self.used.get(dtype, 0) + 1
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

    def member(self) -> Dim:
        return self.exchange.lane_group.member

    def combined(self, kind: str, value: Code, statements: list[Statement]) -> Code:
        return self.exchange.combined(kind, value, statements)


def shares(target: ThreadTarget) -> bool:
    """Whether threads of a block gain by sharing memory and waiting for each other."""
    return target.sharing_pays


def power_of_two(number: int) -> int:
    """The smallest one that is not below a number."""
    return 1 << max(number - 1, 0).bit_length()
