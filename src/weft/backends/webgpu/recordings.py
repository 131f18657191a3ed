"""What a GPU is given to do: shaders with their bindings, dispatches of them, and recordings of many dispatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from weft.backends.resident.device import BufferSlice
from weft.backends.webgpu import native
from weft.backends.webgpu.native import BindGroup, GroupSlot
from weft.records import dataclass

if TYPE_CHECKING:
    from weft.backends.webgpu.moving import MovableRegions

READ, WRITE, UNIFORM = "read-only-storage", "storage", "uniform"  # how a shader sees a binding
DYNAMIC = "dynamic"  # UNIFORM, from an offset that each dispatch states


@dataclass(frozen=True, slots=True)
class ShaderSource:
    """WGSL with an entry point `main`, what its bindings 0, 1, … of group 0 are, and how many bytes are immediate."""

    source: str
    bindings: tuple[str, ...]  # READ, WRITE, UNIFORM; one may be DYNAMIC
    immediate_bytes: int = 0
    shared_bytes: int = 0  # of a group, which wgpu does not hold against the limit
    checked: bool = False  # whether indices and loops are bounded


@dataclass(frozen=True, slots=True, eq=False)
class ComputePipeline:
    """A compiled shader; pipelines with equal bindings share a layout, and so can share bind groups."""

    name: str
    handle: Any
    layout: Any


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One launch: so many groups along x, y, z. `offset` is that of the DYNAMIC binding, a multiple of 256.

    Immediates are bytes, a multiple of 4. The group is wgpu's, or a slot for one that may become another.
    """

    pipeline: ComputePipeline
    group: Any
    x: int
    y: int = 1
    z: int = 1
    offset: int | None = None
    immediates: bytes = b""


class Recording:
    """Dispatches in order, prepared so that encoding them costs as little as it can."""

    __slots__ = ("count", "dispatches", "regions", "seconds", "steps")

    def __init__(self, dispatches: Sequence[Dispatch], regions: MovableRegions | None = None) -> None:
        """`regions` are those that some of the dispatches have slots for."""
        self.dispatches = dispatches
        self.regions = regions
        self.seconds = inf  # that the last run took, for whoever wants to know what to expect
        self.count = len(dispatches)
        steps = []
        before: Dispatch | None = None
        for entry in dispatches:
            same = before is not None and before.pipeline is entry.pipeline
            bound = same and before is not None and before.group is entry.group and before.offset == entry.offset
            pipeline, slot = None if same else entry.pipeline.handle, None if bound else _slot(entry.group)
            steps.append(
                native.EncodedDispatch(pipeline, slot, entry.offset, entry.immediates, entry.x, entry.y, entry.z)
            )
            before = entry
        self.steps = native.Steps(steps)

    def bind(self, regions: Mapping[int, BufferSlice]) -> None:
        """Let inputs and outputs, by the numbers of their regions, be elsewhere from the next run on."""
        if self.regions is not None:
            self.regions.bind(regions)

    def __call__(self, encoder: Any) -> None:
        if self.regions is not None:
            self.regions.copy_in(encoder)
        if self.count:
            self._dispatch(encoder)
        if self.regions is not None:
            self.regions.copy_out(encoder)

    def _dispatch(self, encoder: Any) -> None:
        compute_pass = encoder.begin_compute_pass()
        self.steps.encode(compute_pass)
        compute_pass.end()


def _slot(group: Any) -> GroupSlot:
    return group if isinstance(group, GroupSlot) else GroupSlot(BindGroup(group))
