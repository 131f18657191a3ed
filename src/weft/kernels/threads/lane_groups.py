"""Lane groups: how the lanes of a block share rows, and how they reduce values.

A block does `rows` rows, each by `members` lanes. Neighbouring lanes are members of one group or, if `interleaved`, of
neighbouring groups.
"""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.kernel import Across, AcrossGroup, Code, lane
from weft.ir.target import ThreadTarget
from weft.kernels.build.accumulators import Accumulators, Fold
from weft.kernels.lower.kernel_builder import KernelBuilder
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

    def combine_lanes(self, kind: str, value: Code) -> Code:
        """Reduce a value across a lane group; every lane of it gets the result."""
        if self.members == 1:
            return value
        if self.rows == 1:
            return Across(kind, value)
        return AcrossGroup(kind, value, self.members, self.rows if self.interleaved else 1)


class LaneGroupFolding(Accumulators):
    """A fold by the members of a lane group."""

    def __init__(self, fold: Fold, lane_group: LaneGroup, builder: KernelBuilder) -> None:
        super().__init__(fold, builder, None if lane_group.members == 1 else lane_group.lanes)
        self.lane_group = lane_group

    def lane_index(self) -> Dim:
        return self.lane_group.member

    def combine_lanes(self, kind: str, value: Code) -> Code:
        return self.lane_group.combine_lanes(kind, value)


def shares(target: ThreadTarget) -> bool:
    """Whether sharing work between the threads of a block pays: it takes shared memory and barriers."""
    return target.sharing_pays


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below a number."""
    return 1 << max(number - 1, 0).bit_length()
