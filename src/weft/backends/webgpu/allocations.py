"""A GPU's memory as wgpu gives it out, and a store of what was freed lately: making a buffer may cost more than a run.

What is taken from the store has anything in it. All that was submitted or written before is done before what its new
owner submits, for that is the order of wgpu's queue.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import Any
from weakref import WeakSet

from weft.backends.webgpu.native import BindGroup
from weft.threads import lock

_MOST_SPARE = 64  # buffers
_serials = count()


class GpuMemory:
    """A buffer of wgpu's. The bind groups that are tied to it go with it: they would keep it alive."""

    __slots__ = ("__weakref__", "_groups", "handle", "serial", "size")

    def __init__(self, handle: Any, size: int) -> None:
        self.handle = handle
        self.size = size
        self.serial = next(_serials)  # its own for ever, which an address is not
        self._groups: WeakSet[BindGroup] = WeakSet()

    def tie(self, group: BindGroup) -> None:
        """Let go of what a group binds as soon as this memory is freed."""
        self._groups.add(group)

    def __del__(self) -> None:
        for group in getattr(self, "_groups", ()):  # none where Ctrl-C came while it was made
            group.handle = None


class SpareMemory:
    """Memory that nobody uses, at most so many bytes; what was freed first is let go first.

    `put` is called where references end, which may be while this very thread holds the lock. What is lent is held here
    too: were it garbage together with who has it, wgpu's part of it would be finished when it comes back.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = lock()
        self._returned: deque[GpuMemory] = deque()
        self._kept: list[GpuMemory] = []
        self._lent: dict[int, GpuMemory] = {}  # by serial

    def lend(self, memory: GpuMemory) -> GpuMemory:
        """Have memory that will be `put` here, or that `forget` is told of."""
        self._lent[memory.serial] = memory
        return memory

    def forget(self, memory: GpuMemory) -> None:
        self._lent.pop(memory.serial, None)

    def put(self, memory: GpuMemory) -> None:
        """Have memory that nobody uses any more."""
        self._returned.append(memory)
        self.forget(memory)
        if self._lock.acquire(blocking=False):
            try:
                self._sort_in()
            finally:
                self._lock.release()

    def take(self, size: int) -> GpuMemory | None:
        """What has exactly this size, the last that was freed first; it is lent."""
        with self._lock:
            self._sort_in()
            for number in range(len(self._kept) - 1, -1, -1):
                if self._kept[number].size == size:
                    return self.lend(self._kept.pop(number))
        return None

    def clear(self) -> bool:
        """Let all go; whether there was any."""
        with self._lock:
            self._sort_in()
            found, self._kept = self._kept, []
        return bool(found)

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(memory.size for memory in (*self._kept, *self._returned))

    def _sort_in(self) -> None:
        while self._returned:
            memory = self._returned.popleft()
            if memory.size <= self._most:
                self._kept.append(memory)
        while len(self._kept) > _MOST_SPARE or sum(memory.size for memory in self._kept) > self._most:
            del self._kept[0]
