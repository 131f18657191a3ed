"""Read buffers back to the host through staging buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import wgpu

from weft.backends.webgpu import wgpu_native
from weft.backends.webgpu.recordings import Encode
from weft.ir.arrays import Array
from weft.records import dataclass
from weft.threads import make_lock

if TYPE_CHECKING:
    from weft.backends.webgpu.gpu import Gpu, GpuBuffer

_BATCH_BYTES = 16 << 20  # read through one staging buffer
_SPARE_BUFFERS = 4
_SIZE_STEP = 1 << 12  # sizes of staging buffers are multiples of it
Read = tuple[Any, int, int]  # buffer, offset, size


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """Bytes of a buffer, and where they go in one of the results."""

    result: int
    position: int
    buffer: Any
    offset: int
    size: int

    @property
    def first(self) -> int:
        """The offset that is copied from: wgpu requires a multiple of 4."""
        return self.offset & ~3

    @property
    def skipped(self) -> int:
        return self.offset - self.first

    @property
    def padded(self) -> int:
        return -(-(self.skipped + self.size) // 4) * 4


def split_into_batches(reads: Sequence[Read]) -> list[list[ReadChunk]]:
    """Split reads into chunks, in batches that fit a staging buffer."""
    batches: list[list[ReadChunk]] = []
    total = _BATCH_BYTES
    for number, (buffer, offset, size) in enumerate(reads):
        for start in range(0, size, _BATCH_BYTES):
            chunk = ReadChunk(number, start, buffer, offset + start, min(_BATCH_BYTES, size - start))
            if total + chunk.size > _BATCH_BYTES:
                batches.append([])
                total = 0
            batches[-1].append(chunk)
            total += chunk.size
    return batches


class Readback:
    """Reads buffers of a GPU through staging buffers, which it reuses."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._lock = make_lock()
        self._spare: list[GpuBuffer] = []

    def start(
        self, batch: Sequence[ReadChunk], results: Sequence[Array], encode: Encode | None, long: bool
    ) -> Callable[[], None]:
        """Submit other commands and the copies of a batch; return a function that waits and fills in the results."""
        starts, total = [], 0
        for chunk in batch:
            starts.append(total)
            total += -(-chunk.padded // 8) * 8
        staging = self._take_buffer(total)

        def record(encoder: Any) -> None:
            if encode is not None:
                encode(encoder)
            for chunk, start in zip(batch, starts):
                source = chunk.buffer.live_handle()
                encoder.copy_buffer_to_buffer(source, chunk.first, staging.handle, start, chunk.padded)

        submission = self._gpu.submit(record)

        def finish() -> None:
            self._finish(zip(batch, starts), results, staging, total, submission, long)

        return finish

    def _finish(
        self,
        chunks: Iterable[tuple[ReadChunk, int]],
        results: Sequence[Array],
        staging: GpuBuffer,
        total: int,
        submission: Any,
        long: bool,
    ) -> None:
        """Wait for a submission, and copy chunks from where they start in the staging buffer."""
        handles = self._gpu.handle, staging.handle
        mapping = self._gpu.call("reading a buffer", wgpu_native.Mapping, *handles, total, submission, long)
        content = mapping.content()
        for chunk, start in chunks:
            begin = start + chunk.skipped
            target = slice(chunk.position, chunk.position + chunk.size)
            results[chunk.result][target] = content[begin : begin + chunk.size]
        del content
        self._gpu.call("reading a buffer", mapping.close)
        with self._lock:
            if len(self._spare) < _SPARE_BUFFERS:
                self._spare.append(staging)

    def clear(self) -> None:
        """Drop the spare buffers."""
        self._spare.clear()

    def _take_buffer(self, size: int) -> GpuBuffer:
        """Return a spare buffer that is large enough, or a new one."""
        with self._lock:
            for number, spare in enumerate(self._spare):
                if size <= spare.size:
                    return self._spare.pop(number)
            if len(self._spare) == _SPARE_BUFFERS:
                self._spare.pop(0)
        flags = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        return self._gpu.buffer(-(-size // _SIZE_STEP) * _SIZE_STEP, usage=flags)
