"""What an opened device with memory of its own does for the programs on it: buffers, copies, launches.

A device brings a `MemoryDevice` and a `LaunchCompiler`; weights, tensors, run memory, plans and executables of this
folder work with these. Buffers are the device's own kind, here known by their size alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from weft.ir.work import Place, PlannedLaunch, Repeated
from weft.records import dataclass

Array = np.ndarray[Any, Any]
Copy = tuple[Any, int, Any, int, int]  # from a buffer's offset to another buffer's, so many bytes
Read = tuple[Any, int, int]  # of a buffer, from an offset, so many bytes


@dataclass(frozen=True, slots=True)
class BufferSlice:
    """Bytes of a buffer on the device."""

    buffer: Any
    offset: int
    size: int


Find = Callable[[Place, int], BufferSlice]
"""Where a place of a plan is, given the bytes from there on that are used."""


class LaunchRecording(Protocol):
    """A plan's launches, bound to memory and ready to be submitted as often as is asked for."""

    seconds: float  # that the last run took, for whoever wants to know what to expect

    def bind(self, regions: Mapping[int, BufferSlice]) -> None:
        """Let inputs and outputs, by the numbers of their regions, be elsewhere from the next run on."""
        ...


class TimedLaunches(LaunchRecording, Protocol):
    """The same with times."""

    def ticks(self) -> Array:
        """The nanoseconds, by the device's clock, at which each launch of the last run began, and the last ended."""
        ...


class Commands(NamedTuple):
    """What one run asks of a device, in this order. Copies may write up to the next multiple of 4 bytes."""

    cleared: Sequence[BufferSlice]  # set to 0
    before: Sequence[Copy]
    recording: Any  # the LaunchRecording, of the device's own kind
    after: Sequence[Copy]


class MemoryDevice(Protocol):
    """An opened device. Several threads may use it at once; it may be lost, which is a DeviceLostError."""

    @property
    def device(self) -> str:
        """weft's name for it."""
        ...

    @property
    def alignment(self) -> int:
        """Bytes that what launches work on starts at a multiple of."""
        ...

    @property
    def largest_buffer(self) -> int:
        """Bytes."""
        ...

    @property
    def binds_in_place(self) -> bool:
        """Whether recordings `bind` inputs and outputs; otherwise these are copied into and out of a run's memory."""
        ...

    def buffer(self, size: int, label: str = "") -> Any:
        """Memory, zero at first, that goes with the last reference to it; OutOfMemoryError if it cannot be had."""
        ...

    def unset_buffer(self, size: int) -> Any:
        """The same with anything in it, for what is written whole before it is read."""
        ...

    def write(self, buffer: Any, offset: int, data: Any) -> None:
        """Write anything with bytes in a row, at a multiple of 4; up to 3 bytes behind may become 0."""
        ...

    def read(self, reads: Sequence[Read]) -> list[Array]:
        """Bytes of slices, each an array of its own."""
        ...

    def execute(self, commands: Commands, reads: Sequence[Read], long: bool = False) -> list[Array]:
        """Run commands and read slices; without any to read, do not wait. Ctrl-C ends the wait for a `long` run."""
        ...

    def check_can_time(self) -> None:
        """Raise DeviceError where it has no clock."""
        ...

    def timed(self, recording: Any) -> Any:
        """The same launches as TimedLaunches."""
        ...

    def wait(self) -> None:
        """Wait until all that was submitted is done."""
        ...

    def check(self) -> None:
        """Raise DeviceLostError if the device is lost."""
        ...


class LaunchCompiler(Protocol):
    """Makes what a device runs of the planned launches of one program, whose code it has."""

    @property
    def parameter_bytes(self) -> int:
        """That a launch takes on the device for its parameters."""
        ...

    def compile(self, launches: Sequence[PlannedLaunch | Repeated], find: Find) -> None:
        """Get ready what these launches need, and those of other sizes too where they are alike."""
        ...

    def record(self, launches: Sequence[PlannedLaunch | Repeated], find: Find, movable: range) -> Any:
        """The launches in order, as a LaunchRecording; regions that are `movable` may be bound to other places."""
        ...
