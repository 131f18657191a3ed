"""Convolutions as products (implicit GEMM): output positions are rows, output channels columns, and taps and input
channels are summed.

The input is read in place, with zeros outside of it. Constant weights are packed at compile time so that output
channels are contiguous; others are read in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod

import numpy as np

from weft.fuse.channel_order import find_period
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import channels_last, offset
from weft.ir.packing import Packing
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar
from weft.ir.target import ThreadTarget
from weft.kernels.build.convolution import CHANNEL, Convolution, constant_size, tap_slice
from weft.kernels.build.loop_axes import LoopAxis
from weft.kernels.build.windows import Phase
from weft.kernels.lower.tensors import Reference, StoredTensor, Work, Workspace
from weft.kernels.threads.float_splits import convert_array
from weft.kernels.threads.maps import build_map
from weft.kernels.threads.product import BoundsTest, Product
from weft.kernels.threads.product_choice import BoundProduct, build_product_work
from weft.kernels.threads.tensor_tile import ProductScheme, chunk_length, constant_layout, find_product_scheme
from weft.records import dataclass

_LARGE_IMAGE = 1 << 12  # positions of an input for padding its channels to pay


def build_convolution(convolution: Convolution, target: ThreadTarget) -> Work:
    """Build a product for each phase."""
    return _ConvolutionBuilder(convolution, target).work()


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """The layout of packed weights: their type, the multiple that lines are padded to, the number of planes, and
    whether sums are innermost (`is_deep`) or features.
    """

    element: DType
    run: int
    planes: int = 1
    is_deep: bool = False

    @staticmethod
    def of(scheme: ProductScheme) -> WeightLayout:
        """Return the layout that tile products read."""
        return WeightLayout(scheme.right, chunk_length(scheme.right), scheme.planes, not scheme.can_transpose)


class _ConvolutionBuilder:
    def __init__(self, convolution: Convolution, target: ThreadTarget) -> None:
        self.x, self.w, self.result = convolution.x, convolution.w, convolution.result
        self.epilogue, self.target = convolution.epilogue, target
        self.constant, self.transposed = convolution.constant, convolution.primitive.transposed
        self.groups = convolution.primitive.groups
        self.channels, self.features = convolution.channels, convolution.features
        self.phases, self.input_dilations = convolution.phases, convolution.input_dilations
        self.has_wide_result = convolution.has_wide_result
        self.order, self.first_channel = _simplify_order(convolution.order)
        self.own_channels, self.padded_channels = self.channels, self.choose_channels()

    def work(self) -> Work:
        source, work = Reference("operand", 0), Work(())
        if any(distance != 1 for distance in self.input_dilations):
            self.x, source, work = self.dilate_input()
        elif self.padded_channels != self.channels:
            self.x, source, work = self.pad_channels()
            self.channels = self.padded_channels
        for phase in self.phases:
            work = build_product_work("convolve", partial(self.build_product, phase, source), self.target, work)
        return work

    def build_product(self, phase: Phase, source: Reference, scheme: ProductScheme | None) -> BoundProduct:
        """Build the product of a phase for a scheme of tile products, or (None) for other kernels."""
        if self.constant is None:
            return BoundProduct(self.product(phase, None), source, Reference("operand", 1))
        constant_type, run = constant_layout(self.x.dtype, self.w.dtype, self.target)
        layout = WeightLayout(constant_type or self.w.dtype, run) if scheme is None else WeightLayout.of(scheme)
        return BoundProduct(self.product(phase, layout), source, self.packing(phase, layout))

    def product(self, phase: Phase, layout: WeightLayout | None) -> Product:
        strides, spatial = self.x.strides, self.x.strides[2:]
        right, start = self.right_strides(phase, layout)
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
            right=self.w.dtype if layout is None else layout.element,
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
            padded=(False, layout is not None and not layout.is_deep),
            padded_sums=(False, layout is not None and layout.is_deep),
            elements=(dims.product(self.x.shape), dims.product(self.w.shape) if self.constant is None else 0),
            planes=(0, 0 if layout is None or layout.planes == 1 else prod(self.packed_shape(phase, layout))),
            has_wide_result=self.has_wide_result,
        )

    def inside(self, phase: Phase) -> tuple[BoundsTest, ...]:
        """Build the bounds tests of windows along each spatial axis."""
        count = len(phase)
        tests = []
        for axis, window in enumerate(phase):
            along = [int(other == axis) for other in range(count)]
            rows = (0, *(window.advance * here for here in along))
            sums = (*(window.dilation * here for here in along), 0)
            tests.append(BoundsTest(window.base, self.x.shape[2 + axis], rows, sums))
        return tuple(tests)

    # -- the weights -------------------------------------------------------------------------------------------------

    def right_strides(self, phase: Phase, layout: WeightLayout | None) -> tuple[dict[str, list[Dim]], Dim]:
        """Return the strides of taps along each axis, and of channels, features and groups; and the first offset."""
        if layout is not None:
            _, pitch = self.packed_shape(phase, layout)
            feature: Dim = pitch if layout.is_deep else 1
            channel: Dim = 1 if layout.is_deep else pitch
            taps: list[Dim] = []
            step = channel * self.channels
            for window in reversed(phase):
                taps.insert(0, step)
                step = step * window.taps
            group = self.features * pitch if layout.is_deep else step
            return {"taps": taps, "others": [channel, feature, group]}, 0
        strides = self.w.strides
        taps = [stride * window.tap_step for stride, window in zip(strides[2:], phase)]
        start = offset(strides[2:], [window.tap_first for window in phase])
        if self.transposed:
            return {"taps": taps, "others": [strides[0], strides[1], self.channels * strides[0]]}, start
        return {"taps": taps, "others": [strides[1], strides[0], self.features * strides[0]]}, start

    def packed_shape(self, phase: Phase, layout: WeightLayout) -> tuple[int, int]:
        """Return the number of lines of the packed weights, and their length."""
        groups, channels, features = (constant_size(size) for size in (self.groups, self.channels, self.features))
        sums = prod(constant_size(window.taps) for window in phase) * channels
        lines, length = (features, sums) if layout.is_deep else (sums, features)
        return groups * lines, -(-length // layout.run) * layout.run

    def packing(self, phase: Phase, layout: WeightLayout) -> Packing:
        """Pack the weights of a phase as [groups, taps, channels, features], with features padded; or, if deep, as
        [groups, features, taps, channels], with lines padded.
        """
        assert self.constant is not None
        groups, channels, features = (constant_size(size) for size in (self.groups, self.own_channels, self.features))
        lines, width = self.packed_shape(phase, layout)
        shape = (groups, channels, features) if self.transposed else (groups, features, channels)
        padding = constant_size(self.channels) - channels
        pack = partial(
            _pack, phase=phase, shape=shape, padding=padding, transposed=self.transposed, width=width, layout=layout
        )
        return Packing(self.constant, pack, (layout.planes * lines, width), layout.element.numpy)

    # -- the input ---------------------------------------------------------------------------------------------------

    def choose_channels(self) -> Dim:
        """Choose the channels to pad the input to: a few are padded to a chunk, which can be moved into tiles."""
        scheme = find_product_scheme(self.x.dtype, self.w.dtype, self.target)
        positions = dims.product(self.x.shape[2:])
        is_plain = self.constant is not None and self.groups == 1 and self.order is None and self.first_channel == 0
        if scheme is None or not is_plain or not isinstance(self.channels, int):
            return self.channels
        chunk = chunk_length(scheme.left)
        has_few = 2 <= self.channels < chunk and len(self.phases) == 1
        return chunk if has_few and dims.is_at_least(positions, _LARGE_IMAGE) else self.channels

    def pad_channels(self) -> tuple[StoredTensor, Reference, Work]:
        """Pad the channels of the input with zeros."""
        assert isinstance(self.channels, int)
        shape = (self.x.shape[0], self.padded_channels, *self.x.shape[2:])
        axes = [dims.axis(axis, size) for axis, size in enumerate(shape)]
        places = [Index(axis) for axis in axes]
        places[CHANNEL] = Index(dims.minimum(axes[CHANNEL], self.channels - 1))
        test = Apply("less", (Index(axes[CHANNEL]), Index(self.channels)), DType.bool)
        load = Load(0, tuple(places), self.x.dtype)
        return self.map_input(Apply("select", (test, load, Literal(0, self.x.dtype)), self.x.dtype), shape)

    def dilate_input(self) -> tuple[StoredTensor, Reference, Work]:
        """Dilate the input: put zeros between its elements."""
        apart = [1, 1, *self.input_dilations]
        shape = tuple((size - 1) * distance + 1 for size, distance in zip(self.x.shape, apart))
        axes = [dims.axis(axis, size) for axis, size in enumerate(shape)]
        places = tuple(Index(dims.floordiv(axis, distance)) for axis, distance in zip(axes, apart))
        value: Scalar = Load(0, places, self.x.dtype)
        for axis, distance in zip(axes, apart):
            if distance != 1:
                test = Apply("equal", (Index(dims.mod(axis, distance)), Index(0)), DType.bool)
                value = Apply("select", (test, value, Literal(0, self.x.dtype)), self.x.dtype)
        return self.map_input(value, shape)

    def map_input(self, value: Scalar, shape: tuple[Dim, ...]) -> tuple[StoredTensor, Reference, Work]:
        """Map the input into a workspace."""
        mapped = StoredTensor(self.x.dtype, shape, channels_last(len(shape)))
        workspace = Reference("workspace", 0)
        map_launches = build_map(value, [self.x], mapped, self.target).launches
        launches = tuple(launch.rebound({Reference("result", 0): workspace}) for launch in map_launches)
        return mapped, workspace, Work(launches, (Workspace(self.x.dtype, dims.product(shape)),))


def _simplify_order(order: Dim | None) -> tuple[Dim | None, Dim]:
    """Reduce an order of consecutive channels to the first one; returns the order, if any, and the first channel."""
    if order is None:
        return None, 0
    start = dims.substitute(order, lambda _: 0)
    return (None, start) if find_period(order) == (1, 1) else (order, 0)


def _pack(
    array: Array,
    *,
    phase: Phase,
    shape: Sequence[int],
    padding: int,
    transposed: bool,
    width: int,
    layout: WeightLayout,
) -> Iterator[Array]:
    """Pack group by group, so that little is in memory at once; with `padding` channels that are 0."""
    weights = array.reshape(*shape, *array.shape[2:])
    weights = weights if transposed else weights.swapaxes(1, 2)
    weights = weights[(slice(None),) * 3 + tuple(map(tap_slice, phase))]
    for plane in range(layout.planes):
        for group in weights:
            group = np.pad(group, ((0, padding), *((0, 0) for _ in group.shape[1:]))) if padding else group
            lines = np.moveaxis(group, (0, 1), (-2, -1))
            lines = lines.reshape(-1, lines.shape[-1])
            converted = convert_array(lines, layout.element, layout.planes)
            lines = converted[plane] if layout.planes > 1 else converted
            lines = lines.T if layout.is_deep else lines
            yield np.pad(lines, ((0, 0), (0, width - lines.shape[1])))
