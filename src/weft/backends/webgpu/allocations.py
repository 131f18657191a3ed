"""GPU memory from wgpu, and a cache of freed memory: creating a buffer may cost more than a run.

Reused memory is uninitialized. The order of wgpu's queue guarantees that earlier submissions and writes are done before
those of its new owner.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import Any
from weakref import WeakSet

from weft.backends.webgpu.wgpu_native import BindGroup
from weft.threads import make_lock

_MOST_SPARE = 64  # buffers
_serials = count()


class GpuMemory:
    """A buffer of wgpu. It is freed together with its attached bind groups, which would otherwise keep it alive."""

    __slots__ = ("__weakref__", "_groups", "handle", "serial", "size")

    def __init__(self, handle: Any, size: int) -> None:
        self.handle = handle
        self.size = size
        self.serial = next(_serials)  # never reused, unlike an id
        self._groups: WeakSet[BindGroup] = WeakSet()

    def attach_group(self, group: BindGroup) -> None:
        """Drop a bind group when this memory is freed."""
        self._groups.add(group)

    def __del__(self) -> None:
        for group in getattr(self, "_groups", ()):  # missing if Ctrl-C interrupted the constructor
            group.handle = None


class SpareMemory:
    """A cache of unused memory of limited size; the oldest is freed first.

    `put` is called by destructors, possibly while the same thread holds the lock. Memory in use is referenced here too:
    if the garbage collector found it together with its user, wgpu's handle would be finalized before `put`.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = make_lock()
        self._returned: deque[GpuMemory] = deque()
        self._unused: list[GpuMemory] = []  # oldest first
        self._lent: dict[int, GpuMemory] = {}  # by serial

    def lend(self, memory: GpuMemory) -> GpuMemory:
        """Register memory in use, which `put` or `forget` ends."""
        self._lent[memory.serial] = memory
        return memory

    def forget(self, memory: GpuMemory) -> None:
        self._lent.pop(memory.serial, None)

    def put(self, memory: GpuMemory) -> None:
        """Add memory that is no longer used."""
        self._returned.append(memory)
        self.forget(memory)
        if self._lock.acquire(blocking=False):
            try:
                self._sort_in()
            finally:
                self._lock.release()

    def take(self, size: int) -> GpuMemory | None:
        """Take and lend the memory of exactly this size that was freed last; None if there is none."""
        with self._lock:
            self._sort_in()
            for number in range(len(self._unused) - 1, -1, -1):
                if self._unused[number].size == size:
                    return self.lend(self._unused.pop(number))
        return None

    def clear(self) -> bool:
        """Free all unused memory; return whether there was any."""
        with self._lock:
            self._sort_in()
            cleared, self._unused = self._unused, []
        return bool(cleared)

    @property
    def size(self) -> int:
        """The bytes of unused memory."""
        return sum(memory.size for memory in (*self._unused, *self._returned))

    def _sort_in(self) -> None:
        while self._returned:
            memory = self._returned.popleft()
            if memory.size <= self._most_bytes:
                self._unused.append(memory)
        while len(self._unused) > _MOST_SPARE or sum(memory.size for memory in self._unused) > self._most_bytes:
            del self._unused[0]
