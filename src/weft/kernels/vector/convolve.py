"""Convolutions as tiled products: output pixels are rows, output channels lanes, and the sums run over taps and input
channels. The input is read in place, or from a padded copy if windows leave it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product as cartesian
from math import prod

import numpy as np

from weft.cost.tap_runs import find_worthwhile_runs
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.layout import channels_last, offset, row_major
from weft.ir.packing import Packing
from weft.ir.program import Convolve
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar
from weft.ir.target import VectorTarget
from weft.kernels.build.contraction import zero_outside
from weft.kernels.build.convolution import Convolution, constant_size, tap_slice
from weft.kernels.build.loop_axes import LoopAxis
from weft.kernels.build.loop_nest import choose_lanes
from weft.kernels.build.multiply_add import accumulator_dtype
from weft.kernels.build.windows import Phase, find_input_range
from weft.kernels.lower.tensors import LEFT, RESULT, RIGHT, Launch, Reference, StoredTensor, Work, Workspace
from weft.kernels.vector.column_split import ColumnPart, split_columns
from weft.kernels.vector.depthwise import SINGLE_CHANNEL, ChannelGroup, build_depthwise_launch
from weft.kernels.vector.dot_products import build_dot_kernel
from weft.kernels.vector.maps import build_map_kernel
from weft.kernels.vector.panels import Panels, choose_panels, choose_product_lanes
from weft.kernels.vector.register_tiles import TiledProduct, build_product_kernel
from weft.records import dataclass

_MAX_DOT_FEATURES = 4  # with more features, lanes do not run along the channels
_MIN_DOT_VECTORS = 4  # vectors to sum for a final sum across lanes to pay


def build_convolution(convolution: Convolution, target: VectorTarget, *, words: str = "") -> Work:
    """Build a convolution; `words` as in `TiledProduct`."""
    return _Builder(convolution, target, words=words).build()


@dataclass(frozen=True, slots=True)
class Source:
    """The input that kernels read, with the position of its first element along each spatial axis."""

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
        self.phases, self.input_dilations = convolution.phases, convolution.input_dilations
        self.kernel = convolution.w.shape[2:]
        self.whole_phase = self.phases[0] if self.phases else ()
        plain = all(distance == 1 for distance in self.input_dilations)
        self.group = self.find_small_group() if plain else None
        self.depthwise = self.group is not None
        self.parts = self.split_features()
        self.regions = self.find_regions(convolution.primitive)
        self.phases = self.regions or self.phases
        self.launches: list[Launch] = []
        self.spaces: list[Workspace] = []
        self.constants: list[Packing] = []

    def find_regions(self, primitive: Convolve) -> list[Phase]:
        """Split the result into regions that use the same taps, if many taps elsewhere fall outside the input."""
        if self.group is not None or self.constant is None or self.order is not None or self.words:
            return []
        if any(self.uses_dots(phase) for phase in self.phases):
            return []
        if any(part.panels.width > 1 and part.panels.singles != 0 for part in self.parts):
            return []  # taps of single vectors have smaller strides than those of panels
        runs = find_worthwhile_runs(primitive, self.x.shape[2:], self.kernel, self.result.shape[2:])
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

    def build(self) -> Work:
        source = self.source()
        shared: dict[ColumnPart, Reference] = {}  # weights read by all regions
        for phase in self.phases:
            for part in self.parts:
                if self.group is not None:
                    launch = build_depthwise_launch(
                        phase, self.x, self.result, self.epilogue, part.panels.lanes, self.target, self.group
                    )
                elif self.uses_dots(phase):
                    launch = self.build_dot_launch(source, phase, part)
                else:
                    launch = build_product_kernel("convolve", self.product(source, phase, part), self.target)
                if self.regions:
                    weights = shared[part] = shared.get(part) or self.pack_weights(self.whole_phase, part)
                else:
                    weights = self.pack_weights(phase, part)
                self.launches.append(launch.rebound({LEFT: source.reference, RIGHT: weights}))
        return Work(tuple(self.launches), tuple(self.spaces), tuple(self.constants))

    def find_small_group(self) -> ChannelGroup | None:
        """Return the group if it is so small that lanes should span several: always if it is one channel."""
        if self.groups == 1:
            return None
        if self.channels == 1 and self.features == 1:
            return SINGLE_CHANNEL
        if self.words or self.order is not None or self.constant is None:
            return None
        if not isinstance(self.channels, int) or not isinstance(self.features, int):
            return None
        lanes = choose_product_lanes(self.target, self.x.dtype, self.result.shape[1])
        group = ChannelGroup(self.channels, self.features)
        return group if self.features < lanes and group.fills_lanes(lanes, self.result.shape[1]) else None

    def split_features(self) -> tuple[ColumnPart, ...]:
        """Split the features of a group (depthwise: all features) into parts with suitable numbers of lanes."""
        if self.depthwise:
            lanes = choose_product_lanes(self.target, self.x.dtype, self.result.shape[1])
            return (ColumnPart(0, Panels(self.result.shape[1], lanes, 1)),)
        if self.constant is None or not isinstance(self.features, int):
            return (ColumnPart(0, choose_panels(self.target, self.x.dtype, self.features)),)
        depth = self.constant.size // max(self.constant.shape[1 if self.transposed else 0], 1)
        rows = self.result.shape[0] * dims.product(self.result.shape[2:]) * self.groups
        return split_columns(self.features, rows, depth, self.target, self.x.dtype)

    def product(self, source: Source, phase: Phase, part: ColumnPart) -> TiledProduct:
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
        """Return whether lanes should run along the channels: few features, many channels."""
        if self.group is not None or self.groups != 1 or self.words or self.order is not None or self.constant is None:
            return False
        few = constant_size(self.features) <= _MAX_DOT_FEATURES
        lanes, depth = (
            self.dot_lanes,
            constant_size(self.channels) * prod(constant_size(window.taps) for window in phase),
        )
        return few and constant_size(self.channels) >= lanes and depth >= _MIN_DOT_VECTORS * lanes

    @property
    def dot_lanes(self) -> int:
        return choose_product_lanes(self.target, accumulator_dtype(self.x.dtype), 1 << 30)

    def build_dot_launch(self, source: Source, phase: Phase, part: ColumnPart) -> Launch:
        """Build the product with lanes along the channels, and weights as [features, taps, channels]."""
        product = self.product(source, phase, part)
        sums: list[LoopAxis] = []
        distance: Dim = 1
        for axis in reversed(product.sums):
            sums.insert(0, LoopAxis(axis.size, axis.left, distance))
            distance = distance * axis.size
        column = LoopAxis(part.panels.columns, 0, distance, axis=1)
        product = replace(product, sums=tuple(sums), grid=())
        return build_dot_kernel("convolve", product, (), (column,), self.dot_lanes, self.target)

    # -- the input ---------------------------------------------------------------------------------------------------

    def source(self) -> Source:
        """Return the input: in place if no window leaves it, else a padded copy."""
        sizes = [(size - 1) * distance + 1 for size, distance in zip(self.x.shape[2:], self.input_dilations)]
        ranges = [find_input_range(self.phases, axis, size) for axis, size in enumerate(sizes)]
        whole = all(low == 0 and high == size - 1 for (low, high), size in zip(ranges, self.x.shape[2:]))
        if self.depthwise or (whole and not self.widens):
            return Source(self.x, Reference("operand", 0), (0,) * len(sizes))
        lows = tuple(low for low, _ in ranges)
        shape = (*self.x.shape[:2], *(high - low + 1 for low, high in ranges))
        padded = StoredTensor(accumulator_dtype(self.x.dtype), shape, channels_last(len(shape)))
        reference = self.add_workspace(padded.dtype, dims.product(shape))
        self.launches.append(self.build_padding(padded, lows).rebound({RESULT: reference}))
        return Source(padded, reference, lows)

    @property
    def widens(self) -> bool:
        """Whether elements, which products read one by one, are narrower than their sums."""
        return accumulator_dtype(self.x.dtype) is not self.x.dtype and self.order is None

    def build_padding(self, padded: StoredTensor, lows: Sequence[Dim]) -> Launch:
        """Build the copy of x into the padded input; channels-last channels are joined with the last axis."""
        starts: list[Dim]
        x, starts, input_dilations = self.x, [0, 0, *lows], [1, 1, *self.input_dilations]
        if x.layout == padded.layout and input_dilations[-1] == 1:
            channels = x.shape[1]
            starts, input_dilations = [0, *lows[:-1], lows[-1] * channels], input_dilations[1:]
            x, padded = _join_channels(x, channels), _join_channels(padded, channels)
        names: dict[str, Dim] = {}
        x, padded = _name_sizes("x", x, names), _name_sizes("padded", padded, names)
        for axis, start in enumerate(starts):
            starts[axis] = _add_name(f"start{axis}", start, names) if start != 0 else 0
        axes = [dims.axis(axis, size) for axis, size in enumerate(padded.shape)]
        places = [axis + start for axis, start in zip(axes, starts)]
        indices = [Index(dims.floordiv(place, distance)) for place, distance in zip(places, input_dilations)]
        value: Scalar = Load(0, tuple(indices), x.dtype)
        test: Scalar | None = None
        for place, size, distance in zip(places, x.shape, input_dilations):
            for condition in _list_bounds_checks(place, size, distance):
                test = condition if test is None else Apply("logical_and", (test, condition), DType.bool)
        if test is not None:
            value = Apply("select", (test, value, Literal(0, x.dtype)), x.dtype)
        if padded.dtype is not x.dtype:
            value = Apply("cast", (value,), padded.dtype)
        return _bind_names(build_map_kernel(value, [x], padded, choose_lanes(self.target, (x.dtype,))), names)

    # -- the weights -------------------------------------------------------------------------------------------------

    def pack_weights(self, phase: Phase, part: ColumnPart) -> Reference:
        """Pack the weights of a phase as [groups, panels, taps, channels, columns] (depthwise: channels as columns)."""
        if self.constant is not None:
            heads = 1 if self.depthwise else constant_size(self.groups)
            sums = prod(constant_size(window.taps) for window in phase) * constant_size(self.channels)
            pack = partial(self.pack_constant, phase=phase, part=part)
            constant_shape, dtype = part.panels.packed_shape(heads, sums), self.w.dtype.numpy
            if self.uses_dots(phase):
                constant_shape, dtype = (constant_size(part.panels.columns), sums), self.constant.dtype
            self.constants.append(Packing(self.constant, pack, constant_shape, dtype))
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
        launch = build_map_kernel(zero_outside(load, column, columns), [self.w], packed, step)
        reference = self.add_workspace(self.w.dtype, dims.product(shape))
        self.launches.append(launch.rebound({Reference("operand", 0): Reference("operand", 1), RESULT: reference}))
        return reference

    def pack_constant(self, array: Array, phase: Phase, part: ColumnPart) -> Iterator[Array]:
        groups, channels, features = (constant_size(size) for size in (self.groups, self.channels, self.features))
        array = array if self.prepare is None else self.prepare(array)
        kernel = array.shape[2:]
        shape = (groups, channels, features) if self.transposed else (groups, features, channels)
        arranged = array.reshape(*shape, *kernel)
        arranged = arranged.swapaxes(1, 2) if self.transposed else arranged
        arranged = arranged[(slice(None),) * 3 + tuple(map(tap_slice, phase))]
        if self.depthwise:
            arranged = arranged.reshape(1, groups * features, 1, channels, *arranged.shape[3:])
        columns = slice(part.first, part.first + constant_size(part.panels.columns))
        if self.uses_dots(phase):
            yield np.ascontiguousarray(np.moveaxis(arranged[0, columns], 1, -1)).reshape(
                constant_size(part.panels.columns), -1
            )
            return
        chosen = np.moveaxis(arranged[:, columns], (1, 2), (-1, -2))
        yield part.panels.pack(chosen.reshape(len(arranged), -1, chosen.shape[-1]))

    def add_workspace(self, dtype: DType, size: Dim) -> Reference:
        self.spaces.append(Workspace(dtype, size))
        return Reference("workspace", len(self.spaces) - 1)


def _join_channels(tensor: StoredTensor, channels: Dim) -> StoredTensor:
    """View channels-last [N, C, *S] as [N, *S] with the channels joined to the last axis."""
    shape = (tensor.shape[0], *tensor.shape[2:-1], tensor.shape[-1] * channels)
    return StoredTensor(tensor.dtype, shape, row_major(len(shape)))


def _add_name(name: str, value: Dim, names: dict[str, Dim]) -> Dim:
    names[name] = value
    return dims.symbol(name, dims.bounds(value)[0])


def _name_sizes(prefix: str, tensor: StoredTensor, names: dict[str, Dim]) -> StoredTensor:
    """Replace the sizes of a tensor by names, so that one kernel serves all sizes."""
    shape = tuple(
        size if size == 1 else _add_name(f"{prefix}{axis}", size, names) for axis, size in enumerate(tensor.shape)
    )
    return StoredTensor(tensor.dtype, shape, tensor.layout)


def _bind_names(launch: Launch, names: Mapping[str, Dim]) -> Launch:
    """Replace names in a launch by their values."""

    def value(atom: dims.Symbol | dims.Axis) -> Dim:
        assert isinstance(atom, dims.Symbol)
        return names[atom.name] if atom.name in names else dims.from_atom(atom)

    parameters = tuple((name, dims.substitute(parameter, value)) for name, parameter in launch.parameters)
    return replace(launch, blocks=dims.substitute(launch.blocks, value), parameters=parameters)


def _list_bounds_checks(place: Dim, size: Dim, distance: int) -> list[Scalar]:
    """List the conditions, unless provably true, under which there is an element at a position."""
    end = (size - 1) * distance + 1
    conditions: list[Scalar] = []
    if not dims.is_at_least(place, 0):
        conditions.append(Apply("greater_equal", (Index(place), Index(0)), DType.bool))
    if not dims.is_at_least(end - 1, place):
        conditions.append(Apply("less", (Index(place), Index(end)), DType.bool))
    if distance != 1:
        conditions.append(Apply("equal", (Index(dims.mod(place, distance)), Index(0)), DType.bool))
    return conditions
