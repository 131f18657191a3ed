"""Launches as tables from which native code submits them: a row for each launch, and the words of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import c_void_p

import numpy as np

from weft.backends.cuda.gpu import CudaFunction
from weft.backends.cuda.library import DriverLibrary
from weft.backends.host.runner import runner
from weft.ir.arrays import Array
from weft.records import dataclass

FUNCTION, BLOCKS, LANES, SHARED_BYTES, PARAMETERS = range(5)  # columns of a row, as in host/native/cuda.ll
_ROW_BYTES = 40
_SUBMITTED_TOGETHER = 256  # launches between two chances for Ctrl-C: the driver waits where its queue is full


@dataclass(frozen=True, slots=True, eq=False)
class LaunchTable:
    """Launches in the form that the driver takes. Rows without blocks are left out of a run."""

    rows: Array  # int64 [launch, column]
    words: Array  # uint64: for each launch the addresses of its buffers, then its numbers
    pointers: Array  # to each word
    functions: Sequence[CudaFunction]  # that rows refer to

    @classmethod
    def build(cls, rows: Array, words: Array, functions: Sequence[CudaFunction]) -> LaunchTable:
        """Build a table; PARAMETERS of the rows are the numbers of their first words, and become addresses."""
        pointers = words.ctypes.data + 8 * np.arange(len(words), dtype=np.int64)
        rows[:, PARAMETERS] = pointers.ctypes.data + 8 * rows[:, PARAMETERS]
        return cls(rows, words, pointers, functions)

    def list_filled(self) -> list[int]:
        """Return the numbers of the launches that have blocks."""
        return [int(number) for number in np.flatnonzero(self.rows[:, BLOCKS])]

    def submit(self, driver: DriverLibrary, stream: c_void_p, describe: Callable[[int], str]) -> None:
        """Submit all launches to a stream, one after the other; an error names the launch as `describe` does."""
        submit, launch_kernel = runner().submit, driver.address("cuLaunchKernel")
        start, count = self.rows.ctypes.data, len(self.rows)
        for first in range(0, count, _SUBMITTED_TOGETHER):
            together = min(count - first, _SUBMITTED_TOGETHER)
            failure = submit(launch_kernel, stream.value or 0, start + first * _ROW_BYTES, together)
            if failure:
                name = describe(first + (failure >> 32))
                raise driver.fault(f"cuLaunchKernel{f' of {name}' if name else ''}", failure & 0xFFFFFFFF)


def repeat_launch(
    function: CudaFunction, blocks: int, lanes: int, values: Sequence[int], times: int = 1
) -> LaunchTable:
    """Build a table of one launch that is repeated; `values` are its parameters, addresses and then numbers."""
    rows = np.array([(function.handle, blocks, lanes, function.shared_bytes, 0)] * times, np.int64)
    return LaunchTable.build(rows, np.array([value % 2**64 for value in values], np.uint64), [function])
