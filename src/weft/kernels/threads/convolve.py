"""Convolutions as sums of products where lanes are threads: output positions are rows, output channels columns, and
taps and input channels are summed up.

The input is read in place, with what lies outside of it as 0. Constant weights are rearranged when compiling, so that
output channels are neighbours; others are read in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from weft.fuse.channel_order import period_of
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import channels_last, offset
from weft.ir.packing import Packing
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar
from weft.ir.target import ThreadTarget
from weft.kernels.build.convolution import CHANNEL, Convolution, fixed, kernel_slice
from weft.kernels.build.loop_axes import LoopAxis
from weft.kernels.build.windows import Phase
from weft.kernels.lower.tensors import Reference, StoredTensor, Work, Workspace
from weft.kernels.threads.maps import map_work
from weft.kernels.threads.number_parts import formed_array
from weft.kernels.threads.product import Inside, Product
from weft.kernels.threads.product_choice import GivenProduct, product_work
from weft.kernels.threads.tensor_tiles import CHUNK, Multiplying, constant_form, multiplying
from weft.records import dataclass

Array = np.ndarray[Any, Any]
_LARGE_IMAGE = 1 << 12  # positions from which on it pays to give an input more channels


def convolve_work(convolution: Convolution, target: ThreadTarget) -> Work:
    """One product for each phase."""
    return _Builder(convolution, target).work()


@dataclass(frozen=True, slots=True)
class _Arranged:
    """How constant weights lie: in which type, with room for how many neighbours, as how many numbers, sums last or
    features.
    """

    element: DType
    run: int
    planes: int = 1
    is_deep: bool = False

    @staticmethod
    def of(how: Multiplying) -> _Arranged:
        """For tile products."""
        return _Arranged(how.right, CHUNK * 8 // how.right.bits, how.planes, not how.can_turn)


class _Builder:
    def __init__(self, convolution: Convolution, target: ThreadTarget) -> None:
        self.x, self.w, self.result = convolution.x, convolution.w, convolution.result
        self.epilogue, self.target = convolution.epilogue, target
        self.constant, self.transposed = convolution.constant, convolution.primitive.transposed
        self.groups = convolution.primitive.groups
        self.channels, self.features = convolution.channels, convolution.features
        self.phases, self.distances = convolution.phases, convolution.distances
        self.order, self.first_channel = _simplified(convolution.order)
        self.own_channels, self.room = self.channels, self.channel_room()

    def work(self) -> Work:
        source, work = Reference("operand", 0), Work(())
        if any(distance != 1 for distance in self.distances):
            self.x, source, work = self.spread()
        elif self.room != self.channels:
            self.x, source, work = self.padded()
            self.channels = self.room
        for phase in self.phases:
            work = product_work("convolve", partial(self.given, phase, source), self.target, work)
        return work

    def given(self, phase: Phase, source: Reference, how: Multiplying | None) -> GivenProduct:
        """The product of a phase, for tile products or for other kernels."""
        if self.constant is None:
            return GivenProduct(self.product(phase, None), source, Reference("operand", 1))
        kept, run = constant_form(self.x.dtype, self.w.dtype, self.target)
        arranged = _Arranged(kept or self.w.dtype, run) if how is None else _Arranged.of(how)
        return GivenProduct(self.product(phase, arranged), source, self.packing(phase, arranged))

    def product(self, phase: Phase, arranged: _Arranged | None) -> Product:
        strides, spatial = self.x.strides, self.x.strides[2:]
        right, start = self.right_strides(phase, arranged)
        rows = [LoopAxis(self.x.shape[0], strides[0], axis=0)]
        for axis, (window, stride) in enumerate(zip(phase, spatial)):
            rows.append(LoopAxis(window.count, stride * window.advance, axis=2 + axis, factor=window.step))
        sums = [
            LoopAxis(window.taps, stride * window.dilation, step)
            for window, stride, step in zip(phase, spatial, right["taps"])
        ]
        channel, feature, group = right["others"]
        sums.append(LoopAxis(self.channels, strides[CHANNEL], channel))
        groups = LoopAxis(self.groups, self.channels * strides[CHANNEL], group, CHANNEL, self.features)
        first = offset(spatial, [window.base for window in phase]) if all(w.taps != 0 for w in phase) else 0
        return Product(
            left=self.x.dtype,
            right=self.w.dtype if arranged is None else arranged.element,
            result=self.result,
            epilogue=self.epilogue,
            grid=() if self.groups == 1 else (groups,),
            rows=tuple(rows),
            columns=(LoopAxis(self.features, 0, feature, CHANNEL),),
            sums=tuple(sums),
            left_start=first + self.first_channel * strides[CHANNEL],
            right_start=start,
            result_start=tuple((2 + axis, window.first) for axis, window in enumerate(phase) if window.first),
            inside=self.inside(phase),
            order=self.order,
            padded=(False, arranged is not None and not arranged.is_deep),
            padded_sums=(False, arranged is not None and arranged.is_deep),
            elements=(dims.product(self.x.shape), dims.product(self.w.shape) if self.constant is None else 0),
            planes=(0, 0 if arranged is None or arranged.planes == 1 else prod(self.packed_shape(phase, arranged))),
        )

    def inside(self, phase: Phase) -> tuple[Inside, ...]:
        """Where windows meet the input, along each spatial axis."""
        count = len(phase)
        found = []
        for axis, window in enumerate(phase):
            along = [int(other == axis) for other in range(count)]
            rows = (0, *(window.advance * here for here in along))
            sums = (*(window.dilation * here for here in along), 0)
            found.append(Inside(window.base, self.x.shape[2 + axis], rows, sums))
        return tuple(found)

    # -- the weights -------------------------------------------------------------------------------------------------

    def right_strides(self, phase: Phase, arranged: _Arranged | None) -> tuple[dict[str, list[Dim]], Dim]:
        """Of taps along each axis, and of channels, features and groups; and where the first element lies."""
        if arranged is not None:
            _, pitch = self.packed_shape(phase, arranged)
            feature: Dim = pitch if arranged.is_deep else 1
            channel: Dim = 1 if arranged.is_deep else pitch
            taps: list[Dim] = []
            step = channel * self.channels
            for window in reversed(phase):
                taps.insert(0, step)
                step = step * window.taps
            group = self.features * pitch if arranged.is_deep else step
            return {"taps": taps, "others": [channel, feature, group]}, 0
        strides = self.w.strides
        taps = [stride * window.tap_step for stride, window in zip(strides[2:], phase)]
        start = offset(strides[2:], [window.tap_first for window in phase])
        if self.transposed:
            return {"taps": taps, "others": [strides[0], strides[1], self.channels * strides[0]]}, start
        return {"taps": taps, "others": [strides[1], strides[0], self.features * strides[0]]}, start

    def packed_shape(self, phase: Phase, arranged: _Arranged) -> tuple[int, int]:
        """Lines of the arranged weights, and how long each is."""
        groups, channels, features = (fixed(size) for size in (self.groups, self.channels, self.features))
        sums = prod(fixed(window.taps) for window in phase) * channels
        lines, length = (features, sums) if arranged.is_deep else (sums, features)
        return groups * lines, -(-length // arranged.run) * arranged.run

    def packing(self, phase: Phase, arranged: _Arranged) -> Packing:
        """The weights of a phase as [groups, taps, channels, features], with zeros after the last feature; or as
        [groups, features, taps, channels], with zeros after the last sum.
        """
        assert self.constant is not None
        groups, channels, features = (fixed(size) for size in (self.groups, self.own_channels, self.features))
        lines, width = self.packed_shape(phase, arranged)
        given = (groups, channels, features) if self.transposed else (groups, features, channels)
        more = fixed(self.channels) - channels
        pack = partial(
            _pack, phase=phase, given=given, more=more, transposed=self.transposed, width=width, arranged=arranged
        )
        return Packing(self.constant, pack, (arranged.planes * lines, width), arranged.element.numpy)

    # -- the input ---------------------------------------------------------------------------------------------------

    def channel_room(self) -> Dim:
        """Channels that the input is given: so many more, for few of them, that tiles are moved and not fetched."""
        how = multiplying(self.x.dtype, self.w.dtype, self.target)
        positions = dims.product(self.x.shape[2:])
        is_plain = self.constant is not None and self.groups == 1 and self.order is None and self.first_channel == 0
        if how is None or not is_plain or not isinstance(self.channels, int):
            return self.channels
        chunk = CHUNK * 8 // how.left.bits
        few = 2 <= self.channels < chunk and len(self.phases) == 1
        return chunk if few and dims.is_at_least(positions, _LARGE_IMAGE) else self.channels

    def padded(self) -> tuple[StoredTensor, Reference, Work]:
        """The input with zeros after its last channel."""
        assert isinstance(self.channels, int)
        shape = (self.x.shape[0], self.room, *self.x.shape[2:])
        axes = [dims.axis(axis, size) for axis, size in enumerate(shape)]
        places = [Index(axis) for axis in axes]
        places[CHANNEL] = Index(dims.minimum(axes[CHANNEL], self.channels - 1))
        test = Apply("less", (Index(axes[CHANNEL]), Index(self.channels)), DType.bool)
        load = Load(0, tuple(places), self.x.dtype)
        return self.made(Apply("select", (test, load, Literal(0, self.x.dtype)), self.x.dtype), shape)

    def spread(self) -> tuple[StoredTensor, Reference, Work]:
        """The input with its elements apart, and zeros between them."""
        apart = [1, 1, *self.distances]
        shape = tuple((size - 1) * distance + 1 for size, distance in zip(self.x.shape, apart))
        axes = [dims.axis(axis, size) for axis, size in enumerate(shape)]
        places = tuple(Index(dims.floordiv(axis, distance)) for axis, distance in zip(axes, apart))
        value: Scalar = Load(0, places, self.x.dtype)
        for axis, distance in zip(axes, apart):
            if distance != 1:
                test = Apply("equal", (Index(dims.mod(axis, distance)), Index(0)), DType.bool)
                value = Apply("select", (test, value, Literal(0, self.x.dtype)), self.x.dtype)
        return self.made(value, shape)

    def made(self, value: Scalar, shape: tuple[Dim, ...]) -> tuple[StoredTensor, Reference, Work]:
        """What a map makes of the input."""
        made = StoredTensor(self.x.dtype, shape, channels_last(len(shape)))
        space = Reference("workspace", 0)
        launches = map_work(value, [self.x], made, self.target).launches
        moved = tuple(launch.rebound({Reference("result", 0): space}) for launch in launches)
        return made, space, Work(moved, (Workspace(self.x.dtype, dims.product(shape)),))


def _simplified(order: Dim | None) -> tuple[Dim | None, Dim]:
    """An order of channels, and the first of them: without an order where they follow each other from there."""
    if order is None:
        return None, 0
    start = dims.substitute(order, lambda _: 0)
    return (None, start) if period_of(order) == (1, 1) else (order, 0)


def _pack(
    array: Array,
    *,
    phase: Phase,
    given: Sequence[int],
    more: int,
    transposed: bool,
    width: int,
    arranged: _Arranged,
) -> Iterator[Array]:
    """Group by group, so that little is in memory at once; with `more` channels that are 0."""
    found = array.reshape(*given, *array.shape[2:])
    found = found if transposed else found.swapaxes(1, 2)
    found = found[(slice(None),) * 3 + tuple(map(kernel_slice, phase))]
    for plane in range(arranged.planes):
        for group in found:
            group = np.pad(group, ((0, more), *((0, 0) for _ in group.shape[1:]))) if more else group
            lines = np.moveaxis(group, (0, 1), (-2, -1))
            lines = lines.reshape(-1, lines.shape[-1])
            formed = formed_array(lines, arranged.element, arranged.planes)
            lines = formed[plane] if arranged.planes > 1 else formed
            lines = lines.T if arranged.is_deep else lines
            yield np.pad(lines, ((0, 0), (0, width - lines.shape[1])))
