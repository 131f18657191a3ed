"""The state of a program: inputs that are buffers, which a run extends in place.

`passes/hold_state.py` makes such programs. Their compiled form carries the layout of its state, so that a program from
the cache needs no other description.
"""

from __future__ import annotations

from weft.ir.dims import Dim
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class StatePair:
    """An input that comes back as an output; `axis` is the one that grows, None if the size is fixed."""

    input: str
    output: str
    axis: int | None = None


@dataclass(frozen=True, slots=True)
class HeldInput:
    """An input that became a buffer, and the sizes that a run binds.

    `rooms` are sizes that are the capacity minus a length after the run, with that length; there are several if
    branches compute it. `reads_beyond`: kernels may read elements after the last ones, which must be finite.
    """

    name: str
    axis: int
    length: str  # the size that is the number of elements
    rooms: tuple[tuple[str, Dim], ...]
    reads_beyond: bool = False

    @property
    def length_after(self) -> Dim | None:
        """The length after the run; None if it depends on the branch that runs, which returns it."""
        return self.rooms[0][1] if len(self.rooms) == 1 else None


@dataclass(frozen=True, slots=True)
class PagedInput:
    """An input that became a pool of blocks of `block_size` elements along `axis` (`passes/page_state.py`)."""

    name: str
    axis: int
    length: str  # the size that is the largest number of elements before the run in a sequence of the batch
    block_size: int


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The inputs that a program changes in place, and what it returns after the outputs that were asked for.

    These are the outputs of the pairs in `carried`, and the new lengths of the sizes in `lengths`. `pages` are inputs
    that became pools of blocks.
    """

    inputs: tuple[HeldInput, ...]
    carried: tuple[StatePair, ...] = ()
    lengths: tuple[str, ...] = ()
    pages: tuple[PagedInput, ...] = ()
