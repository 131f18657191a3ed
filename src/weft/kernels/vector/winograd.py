"""Winograd convolutions with 3, 5 or 7 taps per axis: tiles of the input are transformed, multiplied and transformed
back.

Along an axis, m outputs of r taps need m + r - 1 products for each pair of channels instead of r m: polynomials are
multiplied by their values at m + r - 2 points and at infinity. Axes with one tap are not transformed, and a dilated
axis is several interleaved plain ones. The products of all tiles at one combination of points are a matrix product.
Tiles that would lose accuracy (`winograd_guard.py`) are detected by the input's transform, and computed as plain sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np

from weft.cost.blocks import TRANSFORM_ELEMENTS
from weft.fuse.winograd import MOST_RECOVERED_TAPS, applies, tile_count, tile_sides
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Call, Code, Number, Statement, When, block, lane
from weft.ir.layout import channels_last, offset, row_major
from weft.ir.packing import Packing
from weft.ir.program import Convolve
from weft.ir.target import VectorTarget
from weft.kernels.build.convolution import Convolution
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.build.loop_axes import LoopAxis, unravel_index
from weft.kernels.build.multiply_add import multiply_add
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch, let, put, repeat
from weft.kernels.lower.memoize import memoize
from weft.kernels.lower.operations import and_masks, cast, less, logical_and
from weft.kernels.lower.tensors import LEFT, RESULT, RIGHT, Epilogue, Launch, Reference, StoredTensor, Work, Workspace
from weft.kernels.vector.panels import choose_panels
from weft.kernels.vector.register_tiles import TiledProduct, build_product_kernel
from weft.kernels.vector.winograd_guard import TileGuard
from weft.kernels.vector.winograd_transforms import IDENTITY, TransformLines, make_transforms, recovery_points
from weft.records import dataclass

TRANSFORMED, PRODUCTS, FLAGS = (
    Reference("workspace", number) for number in range(3)
)  # transformed input, products, whether a tile is unsafe
WEIGHTS = Reference("constant", 0)
_MAX_STRIPS = 8  # if the number of tiles is known only at run time; the last strips are empty if there are few
_TYPICAL_COUNT = 32  # tiles along an axis of unknown size
_CACHE_ALIAS = 4096  # bytes between addresses that share a cache set
_PATCH_CHANNELS = 64  # channels of a tile's input in local memory for plain sums; whole vectors
_ZERO_TOLERANCE = 2.0**-22  # a recovered tap below this fraction of its sources counts as 0


def build_winograd(convolution: Convolution, target: VectorTarget, size: int) -> Work | None:
    """Build a convolution in tiles of `size` outputs along each axis; None if it does not apply."""
    primitive, x, w = convolution.primitive, convolution.x, convolution.constant
    result, epilogue = convolution.result, convolution.epilogue
    if w is None:
        return None
    last = channels_last(w.ndim)
    if not applies(primitive, x.dtype, w.shape[2:]) or not x.layout == last == result.layout:
        return None
    builder, work = _build_without_weights(primitive, x, w.shape, result, epilogue, target, size)
    return replace(work, constants=(builder.packing(w),))


@memoize
def _build_without_weights(
    primitive: Convolve,
    x: StoredTensor,
    weights: tuple[int, ...],
    result: StoredTensor,
    epilogue: Epilogue | None,
    target: VectorTarget,
    size: int,
) -> tuple[_Builder, Work]:
    """Build the work without its weights, which equal layers share; the builder packs them."""
    problem = primitive, x, weights, result, epilogue, target, size
    builder = _Builder(*problem)
    return builder, builder.work(_build_input_transform(*problem), _build_output_transform(*problem))


@memoize
def _build_input_transform(*problem: Any) -> Launch:
    return _Builder(*problem).transform_input()


@memoize
def _build_output_transform(*problem: Any) -> Launch:
    return _Builder(*problem).transform_output()


# -- the kernels -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Strip:
    """Consecutive tiles."""

    first: Dim
    count: Dim


class _Builder:
    def __init__(
        self,
        primitive: Convolve,
        x: StoredTensor,
        weights: tuple[int, ...],
        result: StoredTensor,
        epilogue: Epilogue | None,
        target: VectorTarget,
        size: int,
    ) -> None:
        self.x, self.result, self.epilogue, self.target = x, result, epilogue, target
        self.features, self.channels, *kernel = weights
        self.pads = tuple(before for before, _ in primitive.pads)
        self.taps = kernel
        self.transforms = [make_transforms(size, taps) if taps > 1 else IDENTITY for taps in kernel]
        self.dilations = primitive.dilations
        sides = tile_sides(kernel, size)
        self.sizes, self.sides = [outputs for outputs, _ in sides], [inputs for _, inputs in sides]
        self.points = prod(self.sides)
        self.lanes = target.vector_bytes // 4
        self.panels = choose_panels(target, DType.float32, self.features)
        self.counts = [
            tile_count(extent, size, distance)
            for extent, size, distance in zip(result.shape[2:], self.sizes, self.dilations)
        ]
        self.tiles = result.shape[0] * dims.product(self.counts)

    @property
    def stores_taps(self) -> bool:
        """Whether plain weights are stored as well, because they cannot be recovered well from transformed ones."""
        return max(self.taps) > MOST_RECOVERED_TAPS

    @property
    def heads(self) -> int:
        """Matrices of packed weights: one for each point, then for each stored tap."""
        return self.points + (prod(self.taps) if self.stores_taps else 0)

    def pitch(self, channels: int) -> int:
        """Return the elements between points of a tile, such that neighbouring tiles do not share cache sets."""
        aliased = self.points * channels * 4 % _CACHE_ALIAS == 0
        return channels + self.lanes if aliased else channels

    def work(self, before: Launch, after: Launch) -> Work:
        """Build the work without the weights; `before` and `after` transform the input and the output of all tiles."""
        strips = self.split_strips()
        pitches = self.pitch(self.channels), self.pitch(self.features)
        spaces = [Workspace(DType.float32, strips[0].count * self.points * pitch) for pitch in pitches]
        spaces.append(Workspace(DType.bool, strips[0].count))
        launches: list[Launch] = []
        for strip in strips:
            launches.append(_restrict_to_strip(before, strip))
            launches.append(self.product(strip).rebound({LEFT: TRANSFORMED, RIGHT: WEIGHTS, RESULT: PRODUCTS}))
            launches.append(_restrict_to_strip(after, strip))
        return Work(tuple(launches), tuple(spaces))

    def split_strips(self) -> list[Strip]:
        """Split the tiles into strips whose transformed elements stay in the cache, unless the weights fill it."""
        points = 4 * self.points
        cache_bytes = 4 * max(self.target.cache_bytes, points * self.channels * self.features)
        max_tiles = max(cache_bytes // (points * (self.channels + self.features)), 1)
        if not isinstance(self.tiles, int):
            parts = min(max(-(-self.estimate_tiles() // max_tiles), 1), _MAX_STRIPS)
            strip_tiles = dims.maximum(dims.ceildiv(self.tiles, parts), max_tiles)
            firsts = [number * strip_tiles for number in range(parts)]
            return [Strip(first, dims.minimum(dims.maximum(self.tiles - first, 0), strip_tiles)) for first in firsts]
        if self.tiles <= max_tiles:
            return [Strip(0, self.tiles)]
        each = -(-self.tiles // -(-self.tiles // max_tiles))
        return [Strip(first, min(each, self.tiles - first)) for first in range(0, self.tiles, each)]

    def estimate_tiles(self) -> int:
        """Estimate the number of tiles if it is unknown: those of one large image."""
        counts = [count if isinstance(count, int) else _TYPICAL_COUNT for count in self.counts]
        batch = self.result.shape[0]
        return prod(counts) * (batch if isinstance(batch, int) else 1)

    def packing(self, w: Array) -> Packing:
        """Describe the transformed weights, packed for each point."""
        shape = self.panels.packed_shape(self.heads, self.channels)
        return Packing(w, self.transform_weights, shape, np.dtype(np.float32))

    def transform_weights(self, w: Array) -> Iterator[Array]:
        """Yield the transformed weights of each point along the first axis, then the stored taps."""
        first, *others = self.transforms
        points = self.points // len(first.kernel)

        def part(row: Array, columns: slice) -> Array:
            values = np.tensordot(w[columns].astype(np.float64), row, (2, 0))
            for transform in others:
                values = np.tensordot(values, np.array(transform.kernel, np.float64), (2, 1))
            arranged: Array = values.reshape(values.shape[0], self.channels, points).transpose(2, 1, 0)
            return arranged

        for row in np.array(first.kernel, np.float64):
            yield self.panels.pack_parts(points, self.channels, np.float32, partial(part, row))
        if self.stores_taps:
            plain = w.astype(np.float32).reshape(self.features, self.channels, -1).transpose(2, 1, 0)
            yield self.panels.pack(plain)

    def product(self, strip: Strip) -> Launch:
        """Build the product of tiles and weights for every point."""
        points, step = self.points, self.panels.step
        pitch, padded = self.pitch(self.channels), self.pitch(self.features)
        results = StoredTensor(DType.float32, (strip.count, points, padded), row_major(3))
        product = TiledProduct(
            left=DType.float32,
            right=DType.float32,
            result=results,
            epilogue=None,
            grid=(LoopAxis(points, pitch, self.channels * self.panels.stored(packed=True), 1),),
            rows=(LoopAxis(strip.count, points * pitch, axis=0),),
            column=LoopAxis(self.features, axis=2),
            sums=(LoopAxis(self.channels, 1, step),),
            panels=self.panels,
            panel=self.channels * step,
            padded=True,
            packed=True,
        )
        return build_product_kernel("winograd_product", product, self.target)

    def transform_input(self) -> Launch:
        kernel = _TileLoops("winograd_input", self, self.channels)
        x = kernel.builder.input("x", self.x.dtype, LEFT)
        out = kernel.builder.output("out", DType.float32, TRANSFORMED)
        flags = kernel.builder.output("flags", DType.bool, FLAGS)
        guard = TileGuard(self.target, kernel.builder, self.sizes, self.sides, self.dilations)
        strides, sizes, corner = self.source(kernel)

        def body(panel: Dim, inside: bool) -> list[Statement]:
            def load(place: tuple[int, ...]) -> Code:
                places = self.advance(corner, place)
                mask = kernel.mask(panel)
                for at, size in zip(places, sizes) if not inside else ():
                    mask = and_masks(mask, and_masks(less(-1, at), less(at, size)))
                at = offset(strides, [kernel.places[0], kernel.channel(panel), *places])
                return cast(fetch(x, at, mask=mask), DType.float32)

            lines = TransformLines(self.target, kernel.builder)
            tile = _make_tile(self.sides, lambda place: lines.keep(load(place)))
            lines.statements.extend(guard.accumulate(tile))
            for axis, transform in enumerate(self.transforms):
                tile = lines.map_lines(axis, partial(lines.apply, transform.input), tile)
            places = [kernel.point_offset(number, panel) for number in range(self.points)]
            flat = tile.ravel().tolist()
            puts = [put(out, place, value, mask=kernel.mask(panel)) for place, value in zip(places, flat)]
            return [*lines.statements, *puts]

        ends = self.advance(corner, [side - 1 for side in self.sides])
        below = [less(place, size) for place, size in zip(ends, sizes)]
        whole = reduce(logical_and, [*(less(-1, place) for place in corner), *below])
        outputs = [kernel.builder.parameter(f"outputs{axis}", size) for axis, size in enumerate(self.result.shape[2:])]
        panels = kernel.loop_over_panels(
            lambda panel: [When(whole, tuple(body(panel, True)), tuple(body(panel, False)))]
        )
        check, flag = guard.finish(self.tile_starts(kernel), outputs)
        return kernel.launch([*guard.begin(), panels, *check, put(flags, kernel.number, flag)])

    def source(self, kernel: _TileLoops) -> tuple[list[Dim], list[Dim], list[Dim]]:
        """Return the input's strides and spatial sizes, and where the current tile starts in it."""
        strides = [kernel.stride(f"x{axis}", stride) for axis, stride in enumerate(self.x.strides)]
        sizes = [kernel.builder.parameter(f"size{axis}", size) for axis, size in enumerate(self.x.shape[2:])]
        pads = [kernel.builder.parameter(f"pad{axis}", pad) for axis, pad in enumerate(self.pads)]
        corner = [place - pad for place, pad in zip(self.tile_starts(kernel), pads)]
        return strides, sizes, corner

    def tile_starts(self, kernel: _TileLoops) -> list[Dim]:
        """Return the first output of the current tile; consecutive tiles of a dilated axis start at neighbours."""
        outputs: list[Dim] = []
        for place, size, distance in zip(kernel.places[1:], self.sizes, self.dilations):
            among = dims.mod(place, distance) if distance > 1 else 0
            outputs.append(among + dims.floordiv(place, distance) * (distance * size))
        return outputs

    def advance(self, starts: Sequence[Dim], steps: Sequence[Dim]) -> list[Dim]:
        """Advance positions by steps between elements of a tile."""
        return [start + step * distance for start, step, distance in zip(starts, steps, self.dilations)]

    def transform_output(self) -> Launch:
        kernel = _TileLoops("winograd_output", self, self.features)
        products = kernel.builder.input("in", DType.float32, PRODUCTS)
        sources = _Sources(
            kernel.builder.input("x", self.x.dtype, LEFT),
            kernel.builder.input("weights", DType.float32, WEIGHTS),
            kernel.builder.local("tile", DType.float32, prod(self.sizes) * self.lanes),
            kernel.builder.local("patch", DType.float32, self.points * _PATCH_CHANNELS),
        )
        flags = kernel.builder.input("flags", DType.bool, FLAGS)
        epilogue_writer = EpilogueWriter(self.result, self.epilogue, kernel.builder, 2)
        sizes = [kernel.builder.parameter(f"outputs{axis}", size) for axis, size in enumerate(self.result.shape[2:])]
        corner = self.tile_starts(kernel)

        def writer(panel: Dim, inside: bool) -> Callable[[Code, Sequence[Dim]], tuple[Statement, ...]]:
            def write(value: Code, place: Sequence[Dim]) -> tuple[Statement, ...]:
                places = self.advance(corner, place)
                axes = dict(enumerate((kernel.places[0], kernel.channel(panel), *places)))
                written = epilogue_writer.write(value, axes, kernel.mask(panel))
                exists = reduce(logical_and, [less(at, size) for at, size in zip(places, sizes)])
                return written if inside else (When(exists, written),)  # a mask would not cover uniform reads

            return write

        ends = self.advance(corner, [size - 1 for size in self.sizes])
        is_inside = reduce(logical_and, [less(at, size) for at, size in zip(ends, sizes)])

        def build_transformed(panel: Dim) -> list[Statement]:
            lines = TransformLines(self.target, kernel.builder)
            points = [kernel.point_offset(number, panel) for number in range(self.points)]
            flat = [lines.keep(fetch(products, place, mask=kernel.mask(panel))) for place in points]
            values = _make_tile(self.sides, lambda place: flat[int(np.ravel_multi_index(place, self.sides))])
            for axis, transform in enumerate(self.transforms):
                values = lines.map_lines(axis, partial(lines.transform_back, transform.output), values)
            ends = []
            for inside in (True, False):
                write = writer(panel, inside)
                if epilogue_writer.is_long:  # a loop, so that the code stays small
                    puts = [
                        self.store_output(sources.tile, number, value) for number, value in enumerate(values.ravel())
                    ]
                    ends.append((*puts, self.write_stored(kernel, sources.tile, write)))
                else:
                    places = np.ndindex(values.shape)
                    ends.append(tuple(statement for at in places for statement in write(values[at], at)))
            return [*lines.statements, When(is_inside, *ends)]

        def build_plain(panel: Dim) -> list[Statement]:
            write = writer(panel, inside=False)
            return [*self.build_plain_sums(kernel, sources, panel), self.write_stored(kernel, sources.tile, write)]

        flag = fetch(flags, kernel.number)
        common = kernel.loop_over_panels(build_transformed)
        return kernel.launch([When(flag, (kernel.loop_over_panels(build_plain),), (common,))])

    def store_output(self, tile: Buffer, number: int, value: Code) -> Statement:
        """Store an output of the current tile in local memory."""
        return put(tile, number * self.lanes + lane(self.lanes), value)

    def write_stored(
        self, kernel: _TileLoops, tile: Buffer, write: Callable[[Code, Sequence[Dim]], tuple[Statement, ...]]
    ) -> Statement:
        """Write the stored outputs in a loop."""
        at = kernel.builder.variable("e")
        value = fetch(tile, at * self.lanes + lane(self.lanes))
        return repeat(at, 0, prod(self.sizes), 1, write(value, unravel_index(at, self.sizes)))

    def build_plain_sums(self, kernel: _TileLoops, sources: _Sources, panel: Dim) -> list[Statement]:
        """Compute the current tile's outputs for a vector of features as plain sums, and store them.

        Three taps are recovered from the transformed weights, so that plain weights need not be stored.
        """
        builder = kernel.builder
        numbers = np.arange(prod(self.sizes)).reshape(self.sizes)
        sums = builder.registers("sum", numbers.size, DType.float32)
        statements: list[Statement] = [define(total, Number(0.0, DType.float32)) for total in sums]
        channel, near = builder.variable("channel"), builder.variable("c")
        lines = TransformLines(self.target, builder)
        taps = self.recover_taps(kernel, sources.weights, lines, panel, channel + near, statements)
        for number, place in enumerate(np.ndindex(*self.sides)):
            defined, element = builder.keep("x", fetch(sources.patch, number * _PATCH_CHANNELS + near))
            lines.statements.append(defined)
            for tap in np.ndindex(*self.taps):
                output = tuple(at - before for at, before in zip(place, tap))
                if all(0 <= at < size for at, size in zip(output, self.sizes)):
                    total = sums[int(numbers[output])]
                    lines.statements.append(assign(total, multiply_add(self.target, taps[tap], element, total)))
        channels = builder.parameter("inputs", self.channels)
        more = dims.minimum(channels - channel, _PATCH_CHANNELS)
        step = (self.fill_patch(kernel, sources, channel, more), repeat(near, 0, more, 1, lines.statements))
        statements.append(repeat(channel, 0, channels, _PATCH_CHANNELS, step))
        return [*statements, *(self.store_output(sources.tile, number, total) for number, total in enumerate(sums))]

    def fill_patch(self, kernel: _TileLoops, sources: _Sources, channel: Dim, count: Dim) -> Statement:
        """Load `count` channels of the current tile's input, from `channel` on, into local memory."""
        strides, sizes, corner = self.source(kernel)
        vector, position = kernel.builder.variable("near"), kernel.builder.variable("position")
        near = vector * self.lanes + lane(self.lanes)
        mask: Code | None = less(near, count)
        places = self.advance(corner, unravel_index(position, self.sides))
        for at, size in zip(places, sizes):
            mask = and_masks(mask, and_masks(less(-1, at), less(at, size)))
        fetched = fetch(sources.x, offset(strides, [kernel.places[0], channel + near, *places]), mask=mask)
        fill = put(sources.patch, position * _PATCH_CHANNELS + near, cast(fetched, DType.float32))
        vectors = repeat(vector, 0, dims.ceildiv(count, self.lanes), 1, (fill,))
        return repeat(position, 0, self.points, 1, (vectors,))

    def recover_taps(
        self,
        kernel: _TileLoops,
        weights: Buffer,
        lines: TransformLines,
        panel: Dim,
        channel: Dim,
        statements: list[Statement],
    ) -> Array:
        """Return the taps between a channel and the current vector of features.

        Their offset, in a panel or in a single vector after the panels, is added to `statements`.
        """
        parameter, panels = kernel.builder.parameter, self.panels
        channels = parameter("inputs", self.channels)
        width, lanes = parameter("vectors", panels.width), parameter("single", panels.lanes)
        together = parameter("together", panels.whole * panels.width)
        among = dims.minimum(panel, together)
        place = dims.floordiv(among, width) * width * lanes * channels + dims.mod(among, width) * lanes
        first, start = kernel.builder.let("start", place + (panel - among) * lanes * channels)
        second, step = kernel.builder.let("step", lanes + (width - 1) * lanes * dims.minimum(together - among, 1))
        statements += [first, second]
        point = parameter("point", self.channels * panels.stored(packed=True))
        vector = start + channel * step + lane(self.lanes)

        def fetch_weight(number: int) -> Code:
            return lines.keep(fetch(weights, number * point + vector, mask=kernel.mask(panel)))

        if self.stores_taps:
            heads = np.arange(self.points, self.heads).reshape(self.taps)
            return _make_tile(heads.shape, lambda at: fetch_weight(int(heads[at])))
        points = [recovery_points(transform) for transform in self.transforms]
        places = np.arange(self.points).reshape(self.sides)[np.ix_(*points)]
        tile = _make_tile(places.shape, lambda at: fetch_weight(int(places[at])))
        taps = tile
        for axis, transform in enumerate(self.transforms):
            taps = lines.map_lines(axis, partial(lines.recover_taps, transform), taps)
        if self.taps == [MOST_RECOVERED_TAPS, MOST_RECOVERED_TAPS]:
            taps[1, 1] = self.clear_rounding(lines, taps[1, 1], tile)
        return taps

    def clear_rounding(self, lines: TransformLines, middle: Code, tile: Array) -> Code:
        """Set the middle tap to 0 where it may be no more than the rounding error of other taps."""
        scale = prod(abs(1 / transform.kernel[1][1] / 2) for transform in self.transforms)
        parts = [Call("absolute", (tile[at],), DType.float32) for at in product((1, 2), (1, 2))]
        total: Code = parts[0]
        for part in parts[1:]:
            total = Call("add", (total, part), DType.float32)
        threshold = Call("multiply", (Number(_ZERO_TOLERANCE * float(scale), DType.float32), total), DType.float32)
        size = Call("absolute", (middle,), DType.float32)
        small = Call("less_equal", (size, threshold), DType.bool)
        return lines.keep(Call("select", (small, Number(0.0, DType.float32), middle), DType.float32))


@dataclass(frozen=True, slots=True)
class _Sources:
    """Buffers that plain sums are computed from and stored in."""

    x: Buffer
    weights: Buffer
    tile: Buffer
    patch: Buffer


def _make_tile(sides: Sequence[int], make: Callable[[tuple[int, ...]], Code]) -> Array:
    """Make an array of codes, one for every position of a tile."""
    tile = np.empty(tuple(sides), object)
    for place in np.ndindex(tile.shape):
        tile[place] = make(place)
    return tile


class _TileLoops:
    """Loops that the transforms share: over tiles (image, then spatial axes) and channels."""

    def __init__(self, name: str, convolution: _Builder, channels: int) -> None:
        self.convolution = convolution
        self.channels = channels
        self.lanes = convolution.lanes
        self.builder = KernelBuilder(name)
        self.number = self.builder.variable("number")  # of the current tile
        self.places = self.builder.variables("y", 1 + len(convolution.counts))

    def stride(self, name: str, value: Dim) -> Dim:
        return value if value in (0, 1) else self.builder.parameter(name, value)

    def channel(self, panel: Dim) -> Dim:
        return panel * self.lanes + lane(self.lanes)

    def mask(self, panel: Dim) -> Code | None:
        if self.channels % self.lanes == 0:
            return None
        return less(self.channel(panel), self.builder.parameter("channels", self.channels))

    def point_offset(self, point: int, panel: Dim) -> Dim:
        """Return the offset of a tile's transformed element at a point."""
        pitch = self.builder.parameter("pitch", self.convolution.pitch(self.channels))
        return (self.number * self.convolution.points + point) * pitch + self.channel(panel)

    def loop_over_panels(self, body: Callable[[Dim], Sequence[Statement]]) -> Statement:
        """Loop over all channels of a tile, a vector at a time."""
        panel = self.builder.variable("panel")
        inner = body(panel)
        return repeat(panel, 0, self.builder.parameter("panels", -(-self.channels // self.lanes)), 1, inner)

    def launch(self, body: Sequence[Statement]) -> Launch:
        """Build the launch of a body for all tiles."""
        parameter = self.builder.parameter
        tiles = self.convolution.tiles
        each = max(1, TRANSFORM_ELEMENTS // (self.convolution.points * self.channels))
        start = block() * parameter("tiles_each", each)
        stop = dims.minimum(start + parameter("tiles_each", each), parameter("tiles", tiles))
        counts = (self.convolution.result.shape[0], *self.convolution.counts)
        sizes = [parameter(f"tiles{n}", size) for n, size in enumerate(counts)]
        places = unravel_index(self.number + parameter("first", 0), sizes)
        lets = [let(name, place) for name, place in zip(self.places, places)]
        statements = (repeat(self.number, start, stop, 1, (*lets, *body)),)
        return self.builder.launch(self.lanes, statements, dims.ceildiv(tiles, each))


def _restrict_to_strip(launch: Launch, strip: Strip) -> Launch:
    """Restrict a launch over all tiles to a strip."""
    values = {**dict(launch.parameters), "first": strip.first, "tiles": strip.count}
    blocks = dims.ceildiv(strip.count, values["tiles_each"])
    return replace(launch, blocks=blocks, parameters=tuple(values.items()))
