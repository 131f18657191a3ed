"""Convolutions as tiled products: output pixels are rows, output channels lanes, and kernel elements and input channels
are summed up. The input is read in place, or from a copy with its padding written out; 1 x 1 kernels need neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product as cartesian
from math import prod
from typing import Any

import numpy as np

from weft.cost.tap_runs import worthwhile_runs
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import channels_last, offset, row_major
from weft.ir.packing import Packing
from weft.ir.program import Convolve
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar
from weft.ir.target import VectorTarget
from weft.kernels.build.contraction import guarded
from weft.kernels.build.convolution import Convolution, fixed, kernel_slice
from weft.kernels.build.loop_axes import LoopAxis
from weft.kernels.build.loop_nest import choose_lanes
from weft.kernels.build.multiply_add import accumulator_type
from weft.kernels.build.windows import Phase, needed
from weft.kernels.lower.tensors import LEFT, RIGHT, Launch, Reference, StoredTensor, Work, Workspace
from weft.kernels.vector.columns import Columns, split_columns
from weft.kernels.vector.depthwise import ALONE, ChannelGroup, depthwise_launch
from weft.kernels.vector.dot_products import dot_kernel
from weft.kernels.vector.maps import map_launch
from weft.kernels.vector.panels import Panels, lanes_for, panels_for
from weft.kernels.vector.register_tiles import TiledProduct, product_kernel
from weft.records import dataclass

Array = np.ndarray[Any, Any]
_FEW = 4  # features for which lanes go along the channels
_ENDS = 4  # vectors of channels, from which on it pays to sum up their lanes in the end


def convolve_work(convolution: Convolution, target: VectorTarget, *, words: str = "") -> Work:
    """With `words` elements are words, as those of a `TiledProduct`."""
    return _Builder(convolution, target, words=words).work()


@dataclass(frozen=True, slots=True)
class Source:
    """The input as the kernels meet it, with the position that its first element has along each spatial axis."""

    tensor: StoredTensor
    reference: Reference
    low: tuple[Dim, ...]


class _Builder:
    def __init__(self, convolution: Convolution, target: VectorTarget, *, words: str = "") -> None:
        self.words, self.prepare = words, convolution.prepare
        self.x, self.w, self.result = convolution.x, convolution.w, convolution.result
        self.epilogue, self.target = convolution.epilogue, target
        self.constant, self.transposed = convolution.constant, convolution.primitive.transposed
        self.groups, self.order = convolution.primitive.groups, convolution.order
        self.channels, self.features = convolution.channels, convolution.features
        self.phases, self.distances = convolution.phases, convolution.distances
        self.kernel = convolution.w.shape[2:]
        self.whole_phase = self.phases[0] if self.phases else ()
        plain = all(distance == 1 for distance in self.distances)
        self.group = self.small_group() if plain else None
        self.depthwise = self.group is not None
        self.parts = self.column_parts()
        self.regions = self.known_regions(convolution.primitive)
        self.phases = self.regions or self.phases
        self.launches: list[Launch] = []
        self.spaces: list[Workspace] = []
        self.constants: list[Packing] = []

    def known_regions(self, primitive: Convolve) -> list[Phase]:
        """Parts of the result that meet the input with the same taps each, where many taps of others meet nothing."""
        if self.group is not None or self.constant is None or self.order is not None or self.words:
            return []
        if any(self.uses_dots(phase) for phase in self.phases):
            return []
        if any(part.panels.width > 1 and part.panels.singles != 0 for part in self.parts):
            return []  # taps of single vectors lie closer together than those of panels
        runs = worthwhile_runs(primitive, self.x.shape[2:], self.kernel, self.result.shape[2:])
        if runs is None:
            return []
        along = [
            [
                replace(
                    window,
                    count=run.count,
                    base=window.base + run.first * window.advance + run.tap * window.dilation,
                    taps=run.taps,
                    first=run.first,
                    tap_first=run.tap,
                )
                for run in axis
            ]
            for window, axis in zip(self.whole_phase, runs)
        ]
        return list(cartesian(*along))

    def work(self) -> Work:
        source = self.source()
        shared: dict[Columns, Reference] = {}  # weights that all regions read
        for phase in self.phases:
            for part in self.parts:
                if self.group is not None:
                    launch = depthwise_launch(
                        phase, self.x, self.result, self.epilogue, part.panels.lanes, self.target, self.group
                    )
                elif self.uses_dots(phase):
                    launch = self.dots(source, phase, part)
                else:
                    launch = product_kernel("convolve", self.product(source, phase, part), self.target)
                if self.regions:
                    weights = shared[part] = shared.get(part) or self.weights(self.whole_phase, part)
                else:
                    weights = self.weights(phase, part)
                self.launches.append(launch.rebound({LEFT: source.reference, RIGHT: weights}))
        return Work(tuple(self.launches), tuple(self.spaces), tuple(self.constants))

    def small_group(self) -> ChannelGroup | None:
        """A group that is so small that lanes had better go along several: always where it is one channel."""
        if self.groups == 1:
            return None
        if self.channels == 1 and self.features == 1:
            return ALONE
        if self.words or self.order is not None or self.constant is None:
            return None
        if not isinstance(self.channels, int) or not isinstance(self.features, int):
            return None
        lanes = lanes_for(self.target, self.x.dtype, self.result.shape[1])
        group = ChannelGroup(self.channels, self.features)
        return group if self.features < lanes and group.fills(lanes, self.result.shape[1]) else None

    def column_parts(self) -> tuple[Columns, ...]:
        """Features, of a group or of all depthwise ones, in parts of as many lanes as suit each."""
        if self.depthwise:
            lanes = lanes_for(self.target, self.x.dtype, self.result.shape[1])
            return (Columns(0, Panels(self.result.shape[1], lanes, 1)),)
        if self.constant is None or not isinstance(self.features, int):
            return (Columns(0, panels_for(self.target, self.x.dtype, self.features)),)
        depth = self.constant.size // max(self.constant.shape[1 if self.transposed else 0], 1)
        rows = self.result.shape[0] * dims.product(self.result.shape[2:]) * self.groups
        return split_columns(self.features, rows, depth, self.target, self.x.dtype)

    def product(self, source: Source, phase: Phase, part: Columns) -> TiledProduct:
        strides = source.tensor.strides
        spatial = strides[2:]
        rows = [LoopAxis(self.x.shape[0], strides[0], axis=0)]
        for axis, (window, stride) in enumerate(zip(phase, spatial)):
            rows.append(LoopAxis(window.count, stride * window.advance, axis=2 + axis, factor=window.step))
        sums = [LoopAxis(window.taps, stride * window.dilation) for window, stride in zip(phase, spatial)]
        sums.append(LoopAxis(self.channels, strides[1]))
        distance: Dim = part.panels.step
        extents = [*(self.kernel if self.regions else (axis.size for axis in sums[:-1])), self.channels]
        right_start: Dim = 0
        for number in reversed(range(len(sums))):
            sums[number] = LoopAxis(sums[number].size, sums[number].left, distance)
            if self.regions and number < len(phase):
                right_start = right_start + phase[number].tap_first * distance
            distance = distance * extents[number]
        constant = self.constant is not None
        size = dims.floordiv(distance, part.panels.step) * part.panels.stored(packed=constant)
        group = LoopAxis(self.groups, self.channels * strides[1], size, 1, self.features)
        firsts = {2 + axis: window.first for axis, window in enumerate(phase) if window.first}
        starts = [window.base - low for window, low in zip(phase, source.low)]
        return TiledProduct(
            left=source.tensor.dtype,
            right=self.w.dtype,
            result=self.result,
            epilogue=self.epilogue,
            grid=() if self.groups == 1 else (group,),
            rows=tuple(rows),
            column=LoopAxis(part.panels.columns, axis=1),
            sums=tuple(sums),
            panels=part.panels,
            panel=distance,
            padded=True,
            packed=constant,
            order=self.order,
            words=self.words,
            left_start=offset(spatial, starts) if all(window.taps != 0 for window in phase) else 0,
            right_start=right_start,
            result_start=firsts | {1: part.first} if part.first else firsts,
        )

    def uses_dots(self, phase: Phase) -> bool:
        """Whether so few features are made of so many channels that lanes had better go along these."""
        if self.group is not None or self.groups != 1 or self.words or self.order is not None or self.constant is None:
            return False
        few = fixed(self.features) <= _FEW
        lanes, depth = self.dot_lanes, fixed(self.channels) * prod(fixed(window.taps) for window in phase)
        return few and fixed(self.channels) >= lanes and depth >= _ENDS * lanes

    @property
    def dot_lanes(self) -> int:
        return lanes_for(self.target, accumulator_type(self.x.dtype), 1 << 30)

    def dots(self, source: Source, phase: Phase, part: Columns) -> Launch:
        """Products with lanes along the channels, and weights as [features, taps, channels]."""
        product = self.product(source, phase, part)
        sums: list[LoopAxis] = []
        distance: Dim = 1
        for axis in reversed(product.sums):
            sums.insert(0, LoopAxis(axis.size, axis.left, distance))
            distance = distance * axis.size
        column = LoopAxis(part.panels.columns, 0, distance, axis=1)
        product = replace(product, sums=tuple(sums), grid=())
        return dot_kernel("convolve", product, (), (column,), self.dot_lanes, self.target)

    # -- the input ---------------------------------------------------------------------------------------------------

    def source(self) -> Source:
        """The input, in place where no window leaves it."""
        sizes = [(size - 1) * distance + 1 for size, distance in zip(self.x.shape[2:], self.distances)]
        ranges = [needed(self.phases, axis, size) for axis, size in enumerate(sizes)]
        whole = all(low == 0 and high == size - 1 for (low, high), size in zip(ranges, self.x.shape[2:]))
        if self.depthwise or (whole and not self.widens):
            return Source(self.x, Reference("operand", 0), (0,) * len(sizes))
        lows = tuple(low for low, _ in ranges)
        shape = (*self.x.shape[:2], *(high - low + 1 for low, high in ranges))
        padded = StoredTensor(accumulator_type(self.x.dtype), shape, channels_last(len(shape)))
        reference = self.space(padded.dtype, dims.product(shape))
        self.launches.append(self.pad(padded, lows).rebound({Reference("result", 0): reference}))
        return Source(padded, reference, lows)

    @property
    def widens(self) -> bool:
        """Whether elements, which products read one by one, are narrower than what they are summed up in."""
        return accumulator_type(self.x.dtype) is not self.x.dtype and self.order is None

    def pad(self, padded: StoredTensor, lows: Sequence[Dim]) -> Launch:
        """Copy x into the padded input; where it has its channels last, they count as part of the last axis."""
        starts: list[Dim]
        x, starts, distances = self.x, [0, 0, *lows], [1, 1, *self.distances]
        if x.layout == padded.layout and distances[-1] == 1:
            channels = x.shape[1]
            starts, distances = [0, *lows[:-1], lows[-1] * channels], distances[1:]
            x, padded = _joined(x, channels), _joined(padded, channels)
        names: dict[str, Dim] = {}
        x, padded = _with_names("x", x, names), _with_names("padded", padded, names)
        for axis, start in enumerate(starts):
            starts[axis] = _name(f"start{axis}", start, names) if start != 0 else 0
        axes = [dims.axis(axis, size) for axis, size in enumerate(padded.shape)]
        places = [axis + start for axis, start in zip(axes, starts)]
        indices = [Index(dims.floordiv(place, distance)) for place, distance in zip(places, distances)]
        value: Scalar = Load(0, tuple(indices), x.dtype)
        test: Scalar | None = None
        for place, size, distance in zip(places, x.shape, distances):
            for condition in _inside(place, size, distance):
                test = condition if test is None else Apply("logical_and", (test, condition), DType.bool)
        if test is not None:
            value = Apply("select", (test, value, Literal(0, x.dtype)), x.dtype)
        if padded.dtype is not x.dtype:
            value = Apply("cast", (value,), padded.dtype)
        return _bind(map_launch(value, [x], padded, choose_lanes(self.target, (x.dtype,))), names)

    # -- the weights -------------------------------------------------------------------------------------------------

    def weights(self, phase: Phase, part: Columns) -> Reference:
        """The weights of a phase as [groups, panels, taps, channels, columns] (depthwise: channels are columns)."""
        if self.constant is not None:
            heads = 1 if self.depthwise else fixed(self.groups)
            sums = prod(fixed(window.taps) for window in phase) * fixed(self.channels)
            pack = partial(self.packed, phase=phase, part=part)
            if self.uses_dots(phase):
                self.constants.append(
                    Packing(self.constant, pack, (fixed(part.panels.columns), sums), self.constant.dtype)
                )
                return Reference("constant", len(self.constants) - 1)
            self.constants.append(
                Packing(self.constant, pack, part.panels.packed_shape(heads, sums), self.w.dtype.numpy)
            )
            return Reference("constant", len(self.constants) - 1)
        taps = [window.taps for window in phase]
        columns, step = part.panels.columns, part.panels.step
        shape = (1 if self.depthwise else self.groups, dims.ceildiv(columns, step), *taps, self.channels, step)
        axes = [dims.axis(axis, size) for axis, size in enumerate(shape)]
        column = axes[1] * step + axes[-1]
        group = column if self.depthwise else axes[0]
        feature = 0 if self.depthwise else column
        if self.transposed:
            places = [group * self.channels + axes[-2], feature]
        else:
            places = [group * self.features + feature, axes[-2]]
        places += [window.tap_first + axis * window.tap_step for window, axis in zip(phase, axes[2:-2])]
        load = Load(0, tuple(map(Index, places)), self.w.dtype)
        packed = StoredTensor(self.w.dtype, shape, row_major(len(shape)))
        launch = map_launch(guarded(load, column, columns), [self.w], packed, step)
        reference = self.space(self.w.dtype, dims.product(shape))
        self.launches.append(
            launch.rebound({Reference("operand", 0): Reference("operand", 1), Reference("result", 0): reference})
        )
        return reference

    def packed(self, array: Array, phase: Phase, part: Columns) -> Iterator[Array]:
        groups, channels, features = (fixed(size) for size in (self.groups, self.channels, self.features))
        array = array if self.prepare is None else self.prepare(array)
        kernel = array.shape[2:]
        shape = (groups, channels, features) if self.transposed else (groups, features, channels)
        arranged = array.reshape(*shape, *kernel)
        arranged = arranged.swapaxes(1, 2) if self.transposed else arranged
        arranged = arranged[(slice(None),) * 3 + tuple(map(kernel_slice, phase))]
        if self.depthwise:
            arranged = arranged.reshape(1, groups * features, 1, channels, *arranged.shape[3:])
        columns = slice(part.first, part.first + fixed(part.panels.columns))
        if self.uses_dots(phase):
            yield np.ascontiguousarray(np.moveaxis(arranged[0, columns], 1, -1)).reshape(fixed(part.panels.columns), -1)
            return
        chosen = np.moveaxis(arranged[:, columns], (1, 2), (-1, -2))
        yield part.panels.pack(chosen.reshape(len(arranged), -1, chosen.shape[-1]))

    def space(self, dtype: DType, size: Dim) -> Reference:
        self.spaces.append(Workspace(dtype, size))
        return Reference("workspace", len(self.spaces) - 1)


def _joined(tensor: StoredTensor, channels: Dim) -> StoredTensor:
    """[N, C, *S] with its channels last as [N, *S] with channels and last axis in one."""
    shape = (tensor.shape[0], *tensor.shape[2:-1], tensor.shape[-1] * channels)
    return StoredTensor(tensor.dtype, shape, row_major(len(shape)))


def _name(name: str, value: Dim, names: dict[str, Dim]) -> Dim:
    names[name] = value
    return dims.symbol(name, dims.bounds(value)[0])


def _with_names(prefix: str, tensor: StoredTensor, names: dict[str, Dim]) -> StoredTensor:
    """A tensor whose sizes are names: so that one kernel does for all sizes."""
    shape = tuple(
        size if size == 1 else _name(f"{prefix}{axis}", size, names) for axis, size in enumerate(tensor.shape)
    )
    return StoredTensor(tensor.dtype, shape, tensor.layout)


def _bind(launch: Launch, names: Mapping[str, Dim]) -> Launch:
    """A launch with the values put in for names."""

    def value(atom: dims.Symbol | dims.Axis) -> Dim:
        assert isinstance(atom, dims.Symbol)
        return names[atom.name] if atom.name in names else dims.symbol(atom.name, atom.low, atom.high)

    parameters = tuple((name, dims.substitute(parameter, value)) for name, parameter in launch.parameters)
    return replace(launch, blocks=dims.substitute(launch.blocks, value), parameters=parameters)


def _inside(place: Dim, size: Dim, distance: int) -> list[Scalar]:
    """The conditions, as far as they are not certain, under which there is an element at a place."""
    end = (size - 1) * distance + 1
    conditions: list[Scalar] = []
    if not dims.is_at_least(place, 0):
        conditions.append(Apply("greater_equal", (Index(place), Index(0)), DType.bool))
    if not dims.is_at_least(end - 1, place):
        conditions.append(Apply("less", (Index(place), Index(end)), DType.bool))
    if distance != 1:
        conditions.append(Apply("equal", (Index(dims.mod(place, distance)), Index(0)), DType.bool))
    return conditions
