"""The interface of an opened device with its own memory: buffers, copies, launches.

A device implements `MemoryDevice` and `LaunchCompiler`; the weights, tensors, run memory, plans and executables of this
folder use these. Buffers are of the device's own type, of which only `size` is used here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from weft.ir.arrays import Array
from weft.ir.work import Place
from weft.plan.plan_numbers import PlanNumbers, SizedNumbers
from weft.records import dataclass

Copy = tuple[Any, int, Any, int, int]  # source buffer and offset, destination buffer and offset, bytes
Read = tuple[Any, int, int]  # buffer, offset, bytes


@dataclass(frozen=True, slots=True)
class BufferSlice:
    """A slice of a buffer on the device, in bytes."""

    buffer: Any
    offset: int
    size: int


Find = Callable[[Place, int], BufferSlice]
"""Finds the slice for a place of a plan and the number of bytes used from there on."""


class LaunchRecording(Protocol):
    """A plan's launches, bound to memory; may be submitted any number of times."""

    seconds: float  # of the last run

    def bind(self, regions: Mapping[int, BufferSlice]) -> None:
        """Bind inputs and outputs, by region, to other memory from the next run on."""
        ...


class Commands(NamedTuple):
    """The commands of one run, in this order. Copies may write up to the next multiple of 4 bytes."""

    cleared: Sequence[BufferSlice]  # set to 0
    before: Sequence[Copy]
    recording: Any  # the LaunchRecording, of the device's own kind
    after: Sequence[Copy]


class MemoryDevice(Protocol):
    """An opened device. Several threads may use it at once. A lost device raises DeviceLostError."""

    @property
    def device(self) -> str:
        """The device's name in weft."""
        ...

    @property
    def alignment(self) -> int:
        """Bytes; the buffers of a launch start at multiples of it."""
        ...

    @property
    def largest_buffer(self) -> int:
        """The size of the largest buffer in bytes."""
        ...

    @property
    def binds_in_place(self) -> bool:
        """Whether recordings `bind` inputs and outputs; otherwise these are copied into and out of a run's memory."""
        ...

    def buffer(self, size: int, label: str = "") -> Any:
        """Allocate zeroed memory, freed with the last reference to it; OutOfMemoryError if there is not enough."""
        ...

    def unset_buffer(self, size: int) -> Any:
        """Allocate uninitialised memory, for content that is written entirely before it is read."""
        ...

    def write(self, buffer: Any, offset: int, data: Any) -> None:
        """Write contiguous bytes at a multiple of 4; up to 3 bytes after them may become 0."""
        ...

    def read(self, reads: Sequence[Read]) -> list[Array]:
        """Read slices, each into a new array."""
        ...

    def start_read(self, reads: Sequence[Read]) -> Callable[[], list[Array]]:
        """Read slices as they are after all work submitted so far; return a function that waits for that, no longer."""
        ...

    def execute(self, commands: Commands, reads: Sequence[Read], long: bool = False) -> list[Array]:
        """Run commands and read slices; without slices, do not wait. Ctrl-C ends the wait for a `long` run."""
        ...

    def check_can_time(self) -> None:
        """Raise DeviceError if the device has no clock."""
        ...

    def timed(self, recording: Any) -> Any:
        """Return a recording with `ticks`: when each launch of the last run began and the last ended.

        Ticks are nanoseconds of the device's clock.
        """
        ...

    def wait(self) -> None:
        """Wait until all submitted work is done."""
        ...

    def check(self) -> None:
        """Raise DeviceLostError if the device is lost."""
        ...


class LaunchCompiler(Protocol):
    """Compiles and records the planned launches of one program, whose code it has."""

    @property
    def parameter_bytes(self) -> int:
        """The bytes on the device for a launch's parameters."""
        ...

    def compile(self, slots: PlanNumbers, numbers: SizedNumbers, find: Find) -> None:
        """Compile the code that a plan needs for some sizes; other sizes with the same bindings share it."""
        ...

    def record(self, slots: PlanNumbers, numbers: SizedNumbers, find: Find, movable: range) -> Any:
        """Record the launches of a plan for some sizes, in order, as a LaunchRecording.

        `movable` regions may be bound to other memory later.
        """
        ...
