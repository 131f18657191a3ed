"""Convolutions with 3, 5 or 7 taps an axis and fewer multiplications: tiles of the input are transformed, multiplied
and transformed back.

Along an axis, m outputs of r taps need m + r - 1 products for each pair of channels instead of r m: polynomials are
multiplied by their values at m + r - 2 points and at infinity. Axes with one tap are left as they are, and dilated
ones are several in turn, each of every so manyth element. The products of all tiles at one
combination of points are a matrix product. Tiles that transforms would spoil (`winograd_guard.py`) are found on the
way, and computed as plain sums instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from typing import Any

import numpy as np

from weft.cost.blocks import TRANSFORM_ELEMENTS
from weft.fuse.winograd import RECOVERED, applies, tile_count, tile_sides
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Call, Code, Integer, Number, Statement, When, block, lane
from weft.ir.layout import channels_last, offset, row_major
from weft.ir.packing import Packing
from weft.ir.program import Convolve
from weft.ir.target import VectorTarget
from weft.kernels.build.convolution import Convolution
from weft.kernels.build.epilogue import EpilogueWriter
from weft.kernels.build.loop_axes import LoopAxis, split_index
from weft.kernels.build.multiply_add import multiply_add, widened
from weft.kernels.lower.expressions import both
from weft.kernels.lower.kernel_builder import KernelBuilder, assign, define, fetch, let, put, repeat
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.tensors import LEFT, RESULT, RIGHT, Epilogue, Launch, Reference, StoredTensor, Work, Workspace
from weft.kernels.vector.panels import panels_for
from weft.kernels.vector.register_tiles import TiledProduct, product_kernel
from weft.kernels.vector.winograd_guard import Watch
from weft.kernels.vector.winograd_transforms import SAME, TransformLines, recovering, transforms
from weft.records import dataclass

Array = np.ndarray[Any, Any]
TAKEN, PRODUCTS, FLAGS = (
    Reference("workspace", number) for number in range(3)
)  # transformed, multiplied, not harmless
WEIGHTS = Reference("constant", 0)
_MOST_STRIPS = 8  # where only a run will tell how many tiles there are; the last ones are empty where these are few
_USUAL_COUNT = 32  # tiles along an axis of unknown size
_ALIAS = 4096  # bytes between places that compete for the same lines of a cache
_CHANNELS_EACH = 64  # of a tile that lie side by side while plain sums are computed; whole vectors
_NOTHING = 2.0**-22  # of what a tap is recovered from that may be left of one that is 0


def winograd_work(convolution: Convolution, target: VectorTarget, size: int) -> Work | None:
    """In tiles of `size` outputs along each axis; None where weights are not constant, or it cannot be."""
    primitive, x, w = convolution.primitive, convolution.x, convolution.constant
    result, epilogue = convolution.result, convolution.epilogue
    if w is None:
        return None
    last = channels_last(w.ndim)
    if not applies(primitive, x.dtype, w.shape[2:]) or not x.layout == last == result.layout:
        return None
    builder, work = _built(primitive, x, w.shape, result, epilogue, target, size)
    return replace(work, constants=(builder.packing(w),))


@memoized
def _built(
    primitive: Convolve,
    x: StoredTensor,
    weights: tuple[int, ...],
    result: StoredTensor,
    epilogue: Epilogue | None,
    target: VectorTarget,
    size: int,
) -> tuple[_Builder, Work]:
    """The work without its weights, which is the same for equal layers, and what packs them."""
    builder = _Builder(primitive, x, weights, result, epilogue, target, size)
    return builder, builder.work()


# -- the kernels -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Strip:
    """Some of all tiles, one after the other."""

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
        self.transforms = [transforms(size, taps) if taps > 1 else SAME for taps in kernel]
        self.distances = primitive.dilations
        sides = tile_sides(kernel, size)
        self.sizes, self.sides = [outputs for outputs, _ in sides], [inputs for _, inputs in sides]
        self.points = prod(self.sides)
        self.lanes = target.vector_bytes // 4
        self.panels = panels_for(target, DType.float32, self.features)
        self.counts = [
            tile_count(extent, size, distance)
            for extent, size, distance in zip(result.shape[2:], self.sizes, self.distances)
        ]
        self.tiles = result.shape[0] * dims.product(self.counts)

    @property
    def keeps_taps(self) -> bool:
        """Whether plain weights are kept beside the transformed ones, from which they cannot be recovered well."""
        return max(self.taps) > RECOVERED

    @property
    def heads(self) -> int:
        """Matrices of packed weights: one for each point, then for each tap that is kept."""
        return self.points + (prod(self.taps) if self.keeps_taps else 0)

    def pitch(self, channels: int) -> int:
        """Elements between points of a tile, such that neighbouring tiles do not compete for lines of a cache."""
        aliased = self.points * channels * 4 % _ALIAS == 0
        return channels + self.lanes if aliased else channels

    def work(self) -> Work:
        """Without the weights."""
        strips = self.strips()
        pitches = self.pitch(self.channels), self.pitch(self.features)
        spaces = [Workspace(DType.float32, strips[0].count * self.points * pitch) for pitch in pitches]
        spaces.append(Workspace(DType.bool, strips[0].count))
        before, after = self.transform_input(), self.transform_output()
        launches: list[Launch] = []
        for strip in strips:
            launches.append(_for_strip(before, strip))
            launches.append(self.product(strip).rebound({LEFT: TAKEN, RIGHT: WEIGHTS, RESULT: PRODUCTS}))
            launches.append(_for_strip(after, strip))
        return Work(tuple(launches), tuple(spaces))

    def strips(self) -> list[Strip]:
        """All tiles, in parts whose transformed elements stay in a cache, unless the weights are what fills it."""
        points = 4 * self.points
        room = 4 * max(self.target.cache_bytes, points * self.channels * self.features)
        most = max(room // (points * (self.channels + self.features)), 1)
        if not isinstance(self.tiles, int):
            parts = min(max(-(-self.usual_tiles() // most), 1), _MOST_STRIPS)
            some = dims.maximum(dims.ceildiv(self.tiles, parts), most)
            firsts = [number * some for number in range(parts)]
            return [Strip(first, dims.minimum(dims.maximum(self.tiles - first, 0), some)) for first in firsts]
        if self.tiles <= most:
            return [Strip(0, self.tiles)]
        each = -(-self.tiles // -(-self.tiles // most))
        return [Strip(first, min(each, self.tiles - first)) for first in range(0, self.tiles, each)]

    def usual_tiles(self) -> int:
        """How many tiles there are, about, where only a run will tell: those of one large image."""
        counts = [count if isinstance(count, int) else _USUAL_COUNT for count in self.counts]
        batch = self.result.shape[0]
        return prod(counts) * (batch if isinstance(batch, int) else 1)

    def packing(self, w: Array) -> Packing:
        """Transformed weights: packed ones for each point."""
        shape = self.panels.packed_shape(self.heads, self.channels)
        return Packing(w, self.weights, shape, np.dtype(np.float32))

    def weights(self, w: Array) -> Iterator[Array]:
        """One piece for each point along the first axis, then the taps that are kept."""
        first, *others = self.transforms
        points = self.points // len(first.kernel)

        def part(row: Array, columns: slice) -> Array:
            found = np.tensordot(w[columns].astype(np.float64), row, (2, 0))
            for transform in others:
                found = np.tensordot(found, np.array(transform.kernel, np.float64), (2, 1))
            arranged: Array = found.reshape(found.shape[0], self.channels, points).transpose(2, 1, 0)
            return arranged

        for row in np.array(first.kernel, np.float64):
            yield self.panels.pack_parts(points, self.channels, np.float32, partial(part, row))
        if self.keeps_taps:
            plain = w.astype(np.float32).reshape(self.features, self.channels, -1).transpose(2, 1, 0)
            yield self.panels.pack(plain)

    def product(self, strip: Strip) -> Launch:
        """Tiles times weights for every point."""
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
        return product_kernel("winograd_product", product, self.target)

    def transform_input(self) -> Launch:
        kernel = _Loops("winograd_input", self, self.channels)
        x = kernel.builder.input("x", self.x.dtype, LEFT)
        out = kernel.builder.output("out", DType.float32, TAKEN)
        flags = kernel.builder.output("flags", DType.bool, FLAGS)
        watch = Watch(self.target, kernel.builder, self.sizes, self.sides, self.distances)
        strides, sizes, corner = self.source(kernel)

        def body(panel: Dim, inside: bool) -> list[Statement]:
            def load(place: tuple[int, ...]) -> Code:
                places = self.apart(corner, place)
                mask = kernel.mask(panel)
                for at, size in zip(places, sizes) if not inside else ():
                    mask = both(mask, both(_less(-1, at), _less(at, size)))
                at = offset(strides, [kernel.places[0], kernel.channel(panel), *places])
                return widened(fetch(x, at, mask=mask), DType.float32)

            lines = TransformLines(self.target, kernel.builder)
            tile = _tile(self.sides, lambda place: lines.keep(load(place)))
            lines.statements.extend(watch.take(tile))
            for axis, transform in enumerate(self.transforms):
                tile = lines.along(axis, partial(lines.apply, transform.input), tile)
            places = [kernel.at(number, panel) for number in range(self.points)]
            flat = tile.ravel().tolist()
            puts = [put(out, place, value, mask=kernel.mask(panel)) for place, value in zip(places, flat)]
            return [*lines.statements, *puts]

        whole = _all([_less(-1, place) for place in corner])
        for place, size in zip(self.apart(corner, [side - 1 for side in self.sides]), sizes):
            whole = both(whole, _less(place, size))
        assert whole is not None
        outputs = [kernel.builder.named(f"outputs{axis}", size) for axis, size in enumerate(self.result.shape[2:])]
        condition = whole
        panels = kernel.over_panels(
            lambda panel: [When(condition, tuple(body(panel, True)), tuple(body(panel, False)))]
        )
        found, flag = watch.end(self.starts(kernel), outputs)
        return kernel.launch([*watch.begin(), panels, *found, put(flags, kernel.number, flag)])

    def source(self, kernel: _Loops) -> tuple[list[Dim], list[Dim], list[Dim]]:
        """The input's strides and spatial sizes, and where the present tile starts in it."""
        strides = [kernel.stride(f"x{axis}", stride) for axis, stride in enumerate(self.x.strides)]
        sizes = [kernel.builder.named(f"size{axis}", size) for axis, size in enumerate(self.x.shape[2:])]
        pads = [kernel.builder.named(f"pad{axis}", pad) for axis, pad in enumerate(self.pads)]
        corner = [place - pad for place, pad in zip(self.starts(kernel), pads)]
        return strides, sizes, corner

    def starts(self, kernel: _Loops) -> list[Dim]:
        """The first output of the present tile; tiles that follow each other begin at neighbours while they can."""
        found: list[Dim] = []
        for place, size, distance in zip(kernel.places[1:], self.sizes, self.distances):
            among = dims.mod(place, distance) if distance > 1 else 0
            found.append(among + dims.floordiv(place, distance) * (distance * size))
        return found

    def apart(self, starts: Sequence[Dim], steps: Sequence[Dim]) -> list[Dim]:
        """So many elements of a tile further on."""
        return [start + step * distance for start, step, distance in zip(starts, steps, self.distances)]

    def transform_output(self) -> Launch:
        kernel = _Loops("winograd_output", self, self.features)
        products = kernel.builder.input("in", DType.float32, PRODUCTS)
        sources = _Sources(
            kernel.builder.input("x", self.x.dtype, LEFT),
            kernel.builder.input("weights", DType.float32, WEIGHTS),
            kernel.builder.local("tile", DType.float32, prod(self.sizes) * self.lanes),
            kernel.builder.local("patch", DType.float32, self.points * _CHANNELS_EACH),
        )
        flags = kernel.builder.input("flags", DType.bool, FLAGS)
        epilogue_writer = EpilogueWriter(self.result, self.epilogue, kernel.builder, 2)
        sizes = [kernel.builder.named(f"outputs{axis}", size) for axis, size in enumerate(self.result.shape[2:])]
        corner = self.starts(kernel)

        def writer(panel: Dim, inside: bool) -> Callable[[Code, Sequence[Dim]], tuple[Statement, ...]]:
            def write(value: Code, place: Sequence[Dim]) -> tuple[Statement, ...]:
                places = self.apart(corner, place)
                axes = dict(enumerate((kernel.places[0], kernel.channel(panel), *places)))
                written = epilogue_writer.write(value, axes, kernel.mask(panel))
                there = _all([_less(at, size) for at, size in zip(places, sizes)])
                assert there is not None
                return written if inside else (When(there, written),)  # no mask: what is uniform is read without one

            return write

        ends = self.apart(corner, [size - 1 for size in self.sizes])
        whole = _all([_less(at, size) for at, size in zip(ends, sizes)])
        assert whole is not None
        condition = whole

        def usual(panel: Dim) -> list[Statement]:
            lines = TransformLines(self.target, kernel.builder)
            points = [kernel.at(number, panel) for number in range(self.points)]
            flat = [lines.keep(fetch(products, place, mask=kernel.mask(panel))) for place in points]
            values = _tile(self.sides, lambda place: flat[int(np.ravel_multi_index(place, self.sides))])
            for axis, transform in enumerate(self.transforms):
                values = lines.along(axis, partial(lines.back, transform.output), values)
            ends = []
            for inside in (True, False):
                write = writer(panel, inside)
                if epilogue_writer.is_long:  # a loop, so that the code stays small
                    puts = [self.kept(sources.tile, number, value) for number, value in enumerate(values.ravel())]
                    ends.append((*puts, self.write_kept(kernel, sources.tile, write)))
                else:
                    places = np.ndindex(values.shape)
                    ends.append(tuple(statement for at in places for statement in write(values[at], at)))
            return [*lines.statements, When(condition, *ends)]

        def instead(panel: Dim) -> list[Statement]:
            write = writer(panel, inside=False)
            return [*self.plain_sums(kernel, sources, panel), self.write_kept(kernel, sources.tile, write)]

        flag = fetch(flags, kernel.number)
        common = kernel.over_panels(usual)
        return kernel.launch([When(flag, (kernel.over_panels(instead),), (common,))])

    def kept(self, tile: Buffer, number: int, value: Code) -> Statement:
        """An output of the present tile put down."""
        return put(tile, number * self.lanes + lane(self.lanes), value)

    def write_kept(
        self, kernel: _Loops, tile: Buffer, write: Callable[[Code, Sequence[Dim]], tuple[Statement, ...]]
    ) -> Statement:
        """What writes the outputs that were put down."""
        at = kernel.builder.variable("e")
        value = fetch(tile, at * self.lanes + lane(self.lanes))
        return repeat(at, 0, prod(self.sizes), 1, write(value, split_index(at, self.sizes)))

    def plain_sums(self, kernel: _Loops, sources: _Sources, panel: Dim) -> list[Statement]:
        """The present tile's outputs for a vector of features as sums of products, put down.

        Three taps are recovered from the transformed weights, so that no others have to be kept.
        """
        builder = kernel.builder
        numbers = np.arange(prod(self.sizes)).reshape(self.sizes)
        sums = builder.registers("sum", numbers.size, DType.float32)
        statements: list[Statement] = [define(total, Number(0.0, DType.float32)) for total in sums]
        channel, near = builder.variable("channel"), builder.variable("c")
        lines = TransformLines(self.target, builder)
        taps = self.recovered(kernel, sources.weights, lines, panel, channel + near, statements)
        for number, place in enumerate(np.ndindex(*self.sides)):
            defined, element = builder.keep("x", fetch(sources.patch, number * _CHANNELS_EACH + near))
            lines.statements.append(defined)
            for tap in np.ndindex(*self.taps):
                output = tuple(at - before for at, before in zip(place, tap))
                if all(0 <= at < size for at, size in zip(output, self.sizes)):
                    total = sums[int(numbers[output])]
                    lines.statements.append(assign(total, multiply_add(self.target, taps[tap], element, total)))
        channels = builder.named("inputs", self.channels)
        more = dims.minimum(channels - channel, _CHANNELS_EACH)
        step = (self.fill_patch(kernel, sources, channel, more), repeat(near, 0, more, 1, lines.statements))
        statements.append(repeat(channel, 0, channels, _CHANNELS_EACH, step))
        return [*statements, *(self.kept(sources.tile, number, total) for number, total in enumerate(sums))]

    def fill_patch(self, kernel: _Loops, sources: _Sources, channel: Dim, count: Dim) -> Statement:
        """So many channels of the present tile's input, from `channel` on, side by side."""
        strides, sizes, corner = self.source(kernel)
        vector, position = kernel.builder.variable("near"), kernel.builder.variable("position")
        near = vector * self.lanes + lane(self.lanes)
        mask: Code | None = _less(near, count)
        places = self.apart(corner, split_index(position, self.sides))
        for at, size in zip(places, sizes):
            mask = both(mask, both(_less(-1, at), _less(at, size)))
        fetched = fetch(sources.x, offset(strides, [kernel.places[0], channel + near, *places]), mask=mask)
        fill = put(sources.patch, position * _CHANNELS_EACH + near, widened(fetched, DType.float32))
        vectors = repeat(vector, 0, dims.ceildiv(count, self.lanes), 1, (fill,))
        return repeat(position, 0, self.points, 1, (vectors,))

    def recovered(
        self,
        kernel: _Loops,
        weights: Buffer,
        lines: TransformLines,
        panel: Dim,
        channel: Dim,
        statements: list[Statement],
    ) -> Array:
        """The taps between a channel and the present vector of features.

        `statements` takes what tells where they lie: in a panel, or in a single vector after the panels.
        """
        named, panels = kernel.builder.named, self.panels
        channels = named("inputs", self.channels)
        width, lanes = named("vectors", panels.width), named("single", panels.lanes)
        together = named("together", panels.whole * panels.width)
        among = dims.minimum(panel, together)
        place = dims.floordiv(among, width) * width * lanes * channels + dims.mod(among, width) * lanes
        first, start = kernel.builder.let("start", place + (panel - among) * lanes * channels)
        second, step = kernel.builder.let("step", lanes + (width - 1) * lanes * dims.minimum(together - among, 1))
        statements += [first, second]
        point = named("point", self.channels * panels.stored(packed=True))
        vector = start + channel * step + lane(self.lanes)

        def fetched(number: int) -> Code:
            return lines.keep(fetch(weights, number * point + vector, mask=kernel.mask(panel)))

        if self.keeps_taps:
            kept = np.arange(self.points, self.heads).reshape(self.taps)
            return _tile(kept.shape, lambda at: fetched(int(kept[at])))
        points = [recovering(transform) for transform in self.transforms]
        places = np.arange(self.points).reshape(self.sides)[np.ix_(*points)]
        tile = _tile(places.shape, lambda at: fetched(int(places[at])))
        taps = tile
        for axis, transform in enumerate(self.transforms):
            taps = lines.along(axis, partial(lines.taps, transform), taps)
        if self.taps == [RECOVERED, RECOVERED]:
            taps[1, 1] = self.cleaned(lines, taps[1, 1], tile)
        return taps

    def cleaned(self, lines: TransformLines, middle: Code, tile: Array) -> Code:
        """The tap in the middle, 0 where it may be no more than what rounding left of other taps."""
        scale = prod(abs(1 / transform.kernel[1][1] / 2) for transform in self.transforms)
        parts = [Call("absolute", (tile[at],), DType.float32) for at in product((1, 2), (1, 2))]
        total: Code = parts[0]
        for part in parts[1:]:
            total = Call("add", (total, part), DType.float32)
        least = Call("multiply", (Number(_NOTHING * float(scale), DType.float32), total), DType.float32)
        size = Call("absolute", (middle,), DType.float32)
        small = Call("less_equal", (size, least), DType.bool)
        return lines.keep(Call("select", (small, Number(0.0, DType.float32), middle), DType.float32))


@dataclass(frozen=True, slots=True)
class _Sources:
    """What plain sums are made from, and where they are put down."""

    x: Buffer
    weights: Buffer
    tile: Buffer
    patch: Buffer


def _tile(sides: Sequence[int], make: Callable[[tuple[int, ...]], Code]) -> Array:
    """An array of what is made for every place."""
    tile = np.empty(tuple(sides), object)
    for place in np.ndindex(tile.shape):
        tile[place] = make(place)
    return tile


class _Loops:
    """Loops that the transforms share: over tiles (an image, then places along the spatial axes) and channels."""

    def __init__(self, name: str, convolution: _Builder, channels: int) -> None:
        self.convolution = convolution
        self.channels = channels
        self.lanes = convolution.lanes
        self.builder = KernelBuilder(name)
        self.number = self.builder.variable("number")  # of the present tile
        self.places = self.builder.variables("y", 1 + len(convolution.counts))

    def stride(self, name: str, value: Dim) -> Dim:
        return value if value in (0, 1) else self.builder.named(name, value)

    def channel(self, panel: Dim) -> Dim:
        return panel * self.lanes + lane(self.lanes)

    def mask(self, panel: Dim) -> Code | None:
        if self.channels % self.lanes == 0:
            return None
        return _less(self.channel(panel), self.builder.named("channels", self.channels))

    def at(self, point: int, panel: Dim) -> Dim:
        """Where a tile's element for a point lies among the transformed ones."""
        pitch = self.builder.named("pitch", self.convolution.pitch(self.channels))
        return (self.number * self.convolution.points + point) * pitch + self.channel(panel)

    def over_panels(self, body: Callable[[Dim], Sequence[Statement]]) -> Statement:
        """A loop over all channels of a tile, a vector at a time."""
        panel = self.builder.variable("panel")
        inner = body(panel)
        return repeat(panel, 0, self.builder.named("panels", -(-self.channels // self.lanes)), 1, inner)

    def launch(self, body: Sequence[Statement]) -> Launch:
        """`body` for all tiles."""
        named = self.builder.named
        tiles = self.convolution.tiles
        each = max(1, TRANSFORM_ELEMENTS // (self.convolution.points * self.channels))
        start = block() * named("tiles_each", each)
        stop = dims.minimum(start + named("tiles_each", each), named("tiles", tiles))
        counts = (self.convolution.result.shape[0], *self.convolution.counts)
        sizes = [named(f"tiles{n}", size) for n, size in enumerate(counts)]
        places = split_index(self.number + named("first", 0), sizes)
        lets = [let(name, place) for name, place in zip(self.places, places)]
        statements = (repeat(self.number, start, stop, 1, (*lets, *body)),)
        return self.builder.launch(self.lanes, statements, dims.ceildiv(tiles, each))


def _for_strip(launch: Launch, strip: Strip) -> Launch:
    """A launch over all tiles, for some of them."""
    values = {**dict(launch.parameters), "first": strip.first, "tiles": strip.count}
    blocks = dims.ceildiv(strip.count, values["tiles_each"])
    return replace(launch, blocks=blocks, parameters=tuple(values.items()))


def _less(left: Dim, right: Dim) -> Code:
    return Call("less", (Integer(left), Integer(right)), DType.bool)


def _all(conditions: Sequence[Code]) -> Code | None:
    found: Code | None = None
    for condition in conditions:
        found = both(found, condition)
    return found
