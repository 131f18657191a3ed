"""Admit runs by the memory that they will need, which weft knows before they start."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from pathlib import Path

from weft.quantities import format_bytes
from weft.runtime.available_memory import memory_left

SHARE = 0.8  # of the available memory, if no limit is given


class MemoryBudget:
    """Bytes that weights, runs and requests of one server may take together.

    Loaded models reserve bytes for as long as they are loaded, runs while they last. A run that does not fit now waits;
    one that can never fit is refused.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reserved = 0  # by models
        self.used = 0  # by runs and requests
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def free(self) -> int:
        """The bytes that are left now."""
        return self.limit - self.reserved - self.used

    def can_ever_fit(self, size: int) -> bool:
        """Whether a run of this size fits while no other runs."""
        return size <= self.limit - self.reserved

    def reserve(self, size: int) -> None:
        """Count a model that is loaded, or with a negative size one that is unloaded."""
        self.reserved += size
        self._wake()

    def try_acquire(self, size: int) -> bool:
        """Take bytes if they are free and no other run waits for some."""
        if self._waiting or size > self.free:
            return False
        self.used += size
        return True

    async def acquire(self, size: int) -> None:
        """Take bytes, after those who asked before."""
        if self.try_acquire(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(size)
            else:
                self._waiting = deque(entry for entry in self._waiting if entry[1] is not turn)
                self._wake()
            raise

    def release(self, size: int) -> None:
        """Give bytes back."""
        self.used -= size
        self._wake()

    def _wake(self) -> None:
        while self._waiting and (self._waiting[0][0] <= self.free or not self.used):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self.used += size
                turn.set_result(None)

    def __repr__(self) -> str:
        return f"<memory budget: {format_bytes(self.reserved + self.used)} of {format_bytes(self.limit)}>"


def default_limit() -> int:
    """Return the bytes that a server may use if its user sets no limit: most of the available memory."""
    limits = [memory_left(), _free_memory()]
    least_limits = [limit for limit in limits if limit is not None]
    return int(SHARE * min(least_limits, default=1 << 40))


def _free_memory() -> int | None:
    """Return the bytes that the system can hand out without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, amount = line.partition(":")
            if name == "MemAvailable":
                return int(amount.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
