"""A tape: the launches of a model in order, run by one native call.

A launch's buffers are places, (region, byte offset). A call passes the regions' addresses (arena, constants, inputs,
outputs), so one tape serves any number of calls at the same time, each with an arena of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.backends.cpu.pool import runner, shared_pool
from weft.errors import InternalError
from weft.ir.work import Place

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Launch:
    """Blocks 0..blocks-1 of a kernel.

    A `parallel` one is spread over threads, `grain` blocks or more at a time.
    """

    function: int  # the kernel's address
    blocks: int
    buffers: tuple[Place, ...]
    parameters: tuple[int, ...] = ()
    parallel: bool = True
    grain: int = 1


class Tape:
    """Launches in the form that the native runner reads; `keep` is whatever must live as long (the code)."""

    def __init__(self, launches: Sequence[Launch], keep: object = None) -> None:
        self.count = len(launches)
        self.regions = 1 + max((place.region for launch in launches for place in launch.buffers), default=-1)
        places = [place for launch in launches for place in launch.buffers]
        parameters = [number for launch in launches for number in launch.parameters]
        self._places = np.array([(place.region, place.offset) for place in places], np.int64).reshape(-1, 2)
        self._parameters = np.array(parameters, np.int64)
        self._launches = np.zeros((self.count, 7), np.int64)
        first_place, first_parameter = 0, self._parameters.ctypes.data
        for row, launch in zip(self._launches, launches, strict=True):
            if launch.grain < 1:
                raise InternalError(f"a launch with grains of {launch.grain} blocks")
            row[:] = (
                launch.function,
                launch.blocks,
                first_place,
                len(launch.buffers),
                first_parameter,
                launch.grain,
                launch.blocks // launch.grain if launch.parallel else 1,  # into how many parts it may be divided
            )
            first_place += len(launch.buffers)
            first_parameter += 8 * len(launch.parameters)
        most = max((len(launch.buffers) for launch in launches), default=0)
        self._head = np.array([self._launches.ctypes.data, self.count, self._places.ctypes.data, most], np.int64)
        self._keep = keep
        self._address = self._head.ctypes.data
        self._run = runner().run

    def run(self, addresses: Sequence[int], threads: int = 1) -> None:
        """Run all launches; `addresses` are those of the regions."""
        self._call(addresses, threads, 0)

    def run_timed(self, addresses: Sequence[int], threads: int = 1) -> Array:
        """The same, and when: int64 [launch, thread, (start, end)] in nanoseconds, 0 for a thread without work."""
        times = np.zeros((self.count, threads, 2), np.int64)
        self._call(addresses, threads, times.ctypes.data)
        return times

    def _call(self, addresses: Sequence[int], threads: int, times: int) -> None:
        if len(addresses) < self.regions:
            raise InternalError(f"a tape over {self.regions} regions was given {len(addresses)}")
        regions = (ctypes.c_void_p * len(addresses))(*addresses)
        pool = shared_pool(threads).address if threads > 1 else 0
        self._run(self._address, ctypes.addressof(regions), pool, threads, times)
