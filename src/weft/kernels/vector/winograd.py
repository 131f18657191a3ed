"""Convolutions with 3 taps an axis and fewer multiplications: tiles of the input are transformed, multiplied and
transformed back.

Along an axis, m outputs need m + 2 products for each pair of channels instead of 3 m: polynomials are multiplied by
their values at m + 1 points and at infinity. Axes with one tap are left as they are. The products of all tiles at one
combination of points are a matrix product. Tiles that transforms would spoil (`winograd_guard.py`) are found on the
way, and computed as plain sums instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod
from typing import Any

import numpy as np

from weft.cost.blocks import TRANSFORM_ELEMENTS
from weft.fuse.winograd import TAPS, applies, tile_sides
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Assign,
    Buffer,
    Call,
    Code,
    Define,
    Fetch,
    Integer,
    Kernel,
    Let,
    Number,
    Put,
    Register,
    Repeat,
    Statement,
    When,
    block,
    lane,
    variable,
)
from weft.ir.layout import channels_last, offset, row_major
from weft.ir.packing import Packing
from weft.ir.program import Convolve
from weft.ir.target import VectorTarget
from weft.kernels.build.epilogue import EpilogueWriter, epilogue_references
from weft.kernels.build.loop_axes import LoopAxis, split_index
from weft.kernels.build.multiply_add import multiply_add
from weft.kernels.lower.expressions import both
from weft.kernels.lower.memoize import memoized
from weft.kernels.lower.parameters import Parameters
from weft.kernels.lower.tensors import Epilogue, Launch, Reference, Tensor, Work, Workspace
from weft.kernels.vector.panels import panels_for
from weft.kernels.vector.register_tiles import Product, product_kernel
from weft.kernels.vector.winograd_guard import Watch
from weft.kernels.vector.winograd_transforms import SAME, Lines, recovering, transforms

Array = np.ndarray[Any, Any]
_MOST_STRIPS = 8  # where only a run will tell how many tiles there are; the last ones are empty where these are few
_USUAL_COUNT = 32  # tiles along an axis of unknown size
_ALIAS = 4096  # bytes between places that compete for the same lines of a cache
_CHANNELS_EACH = 64  # of a tile that lie side by side while plain sums are computed; whole vectors
_NOTHING = 2.0**-22  # of what a tap is recovered from that may be left of one that is 0


def winograd_work(
    primitive: Convolve, x: Tensor, w: Array, result: Tensor, epilogue: Epilogue | None, target: VectorTarget, size: int
) -> Work | None:
    """The convolution with constant weights, in tiles of `size` outputs along each axis; None where it cannot be."""
    last = channels_last(w.ndim)
    if not applies(primitive, x.dtype, w.shape[2:]) or not x.layout == last == result.layout:
        return None
    builder, work = _built(primitive, x, w.shape, result, epilogue, target, size)
    return replace(work, constants=(builder.packing(w),))


@memoized
def _built(
    primitive: Convolve,
    x: Tensor,
    weights: tuple[int, ...],
    result: Tensor,
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
        x: Tensor,
        weights: tuple[int, ...],
        result: Tensor,
        epilogue: Epilogue | None,
        target: VectorTarget,
        size: int,
    ) -> None:
        self.x, self.result, self.epilogue, self.target = x, result, epilogue, target
        self.features, self.channels, *kernel = weights
        self.pads = tuple(before for before, _ in primitive.pads)
        self.taps = kernel
        self.transforms = [transforms(size) if taps == TAPS else SAME for taps in kernel]
        sides = tile_sides(kernel, size)
        self.sizes, self.sides = [outputs for outputs, _ in sides], [inputs for _, inputs in sides]
        self.points = prod(self.sides)
        self.lanes = target.vector_bytes // 4
        self.panels = panels_for(target, DType.float32, self.features)
        self.counts = [dims.ceildiv(extent, size) for extent, size in zip(result.shape[2:], self.sizes)]
        self.tiles = result.shape[0] * dims.product(self.counts)

    def pitch(self, channels: int) -> int:
        """Elements between points of a tile, such that neighbouring tiles do not compete for lines of a cache."""
        aliased = self.points * channels * 4 % _ALIAS == 0
        return channels + self.lanes if aliased else channels

    def work(self) -> Work:
        """Without the weights."""
        taken, products, flags = (Reference("workspace", number) for number in range(3))
        strips = self.strips()
        pitches = self.pitch(self.channels), self.pitch(self.features)
        spaces = [Workspace(DType.float32, strips[0].count * self.points * pitch) for pitch in pitches]
        spaces.append(Workspace(DType.bool, strips[0].count))
        before, after = self.transform_input(), self.transform_output()
        x, weights = Reference("operand", 0), Reference("constant", 0)
        launches: list[tuple[Launch, tuple[Reference, ...]]] = []
        for strip in strips:
            launches.append((_for_strip(before, strip), (x, taken, flags)))
            launches.append((self.product(strip), (taken, weights, products)))
            ends = products, x, weights, flags, *epilogue_references(self.epilogue)
            launches.append((_for_strip(after, strip), ends))
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
        shape = self.panels.packed_shape(self.points, self.channels)
        return Packing(w, self.weights, shape, np.dtype(np.float32))

    def weights(self, w: Array) -> Iterator[Array]:
        """One piece for each point along the first axis."""
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

    def product(self, strip: Strip) -> Launch:
        """Tiles times weights for every point."""
        points, step = self.points, self.panels.step
        pitch, padded = self.pitch(self.channels), self.pitch(self.features)
        results = Tensor(DType.float32, (strip.count, points, padded), row_major(3))
        product = Product(
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
        kernel, watch = _Loops(self, self.channels), Watch(self.target, self.sizes, self.sides)
        strides, sizes, corner = self.source(kernel)

        def body(inside: bool) -> list[Statement]:
            def load(place: tuple[int, ...]) -> Code:
                places = [first + further for first, further in zip(corner, place)]
                mask = kernel.mask()
                for at, size in zip(places, sizes) if not inside else ():
                    mask = both(mask, both(_less(-1, at), _less(at, size)))
                at = offset(strides, [variable("y0"), kernel.channel(), *places])
                return Fetch("x", at, DType.float32, mask=mask)

            lines = Lines(self.target)
            tile = _tile(self.sides, lambda place: lines.keep(load(place)))
            lines.statements.extend(watch.take(tile))
            for axis, transform in enumerate(self.transforms):
                tile = lines.along(axis, partial(lines.apply, transform.input), tile)
            places = [kernel.at(number) for number in range(self.points)]
            flat = tile.ravel().tolist()
            puts = [Put("out", place, value, mask=kernel.mask()) for place, value in zip(places, flat)]
            return [*lines.statements, *puts]

        whole = _all([_less(-1, place) for place in corner])
        for place, side, size in zip(corner, self.sides, sizes):
            whole = both(whole, _less(place + side - 1, size))
        assert whole is not None
        outputs = [kernel.parameters.named(f"outputs{axis}", size) for axis, size in enumerate(self.result.shape[2:])]
        found = watch.end([variable(f"y{axis + 1}") * size for axis, size in enumerate(self.sizes)], outputs)
        names = (("x", DType.float32, False), ("out", DType.float32, True), ("flags", DType.bool, True))
        buffers = tuple(Buffer(*name) for name in names)
        panels = kernel.over_panels([When(whole, tuple(body(True)), tuple(body(False)))])
        return kernel.launch("winograd_input", buffers, [*watch.begin(), panels, *found])

    def source(self, kernel: _Loops) -> tuple[list[Dim], list[Dim], list[Dim]]:
        """The input's strides and spatial sizes, and where the present tile starts in it."""
        strides = [kernel.stride(f"x{axis}", stride) for axis, stride in enumerate(self.x.strides)]
        sizes = [kernel.parameters.named(f"size{axis}", size) for axis, size in enumerate(self.x.shape[2:])]
        pads = [kernel.parameters.named(f"pad{axis}", pad) for axis, pad in enumerate(self.pads)]
        corner = [variable(f"y{axis + 1}") * self.sizes[axis] - pad for axis, pad in enumerate(pads)]
        return strides, sizes, corner

    def transform_output(self) -> Launch:
        kernel = _Loops(self, self.features)
        epilogue_writer = EpilogueWriter(self.result, self.epilogue, kernel.parameters)
        sizes = [kernel.parameters.named(f"outputs{axis}", size) for axis, size in enumerate(self.result.shape[2:])]
        corner = [variable(f"y{axis + 1}") * size for axis, size in enumerate(self.sizes)]

        def write(value: Code, place: Sequence[Dim], inside: bool, prefix: str) -> tuple[Statement, ...]:
            places = [first + further for first, further in zip(corner, place)]
            mask = kernel.mask()
            for at, size in zip(places, sizes) if not inside else ():
                mask = both(mask, _less(at, size))
            return epilogue_writer.write(
                value, dict(enumerate((variable("y0"), kernel.channel(), *places))), mask, prefix
            )

        lines = Lines(self.target)
        points = [kernel.at(number) for number in range(self.points)]
        flat = [lines.keep(Fetch("in", place, DType.float32, mask=kernel.mask())) for place in points]
        values = _tile(self.sides, lambda place: flat[int(np.ravel_multi_index(place, self.sides))])
        for axis, transform in enumerate(self.transforms):
            values = lines.along(axis, partial(lines.back, transform.output), values)
        ends = self.endings(values, epilogue_writer, write)
        whole = _all([_less(at + side - 1, size) for at, side, size in zip(corner, self.sizes, sizes)])
        assert whole is not None
        names = (("in", DType.float32), ("x", DType.float32), ("weights", DType.float32), ("flags", DType.bool))
        local = {"tile": prod(self.sizes) * self.lanes, "patch": self.points * _CHANNELS_EACH}
        own = (Buffer(name, DType.float32, True, size) for name, size in local.items())
        buffers = (*(Buffer(*name, False) for name in names), *epilogue_writer.buffers, *own)
        usual = kernel.over_panels([*lines.statements, When(whole, ends(True), ends(False))])
        instead = kernel.over_panels([*self.plain_sums(kernel), self.ending_loop(write, False)])
        flag = Fetch("flags", variable("number"), DType.bool)
        return kernel.launch("winograd_output", buffers, [When(flag, (instead,), (usual,))])

    def plain_sums(self, kernel: _Loops) -> list[Statement]:
        """The present tile's outputs for a vector of features as sums of products, in the buffer `tile`.

        The taps are recovered from the transformed weights, so that no others have to be kept.
        """
        numbers = np.arange(prod(self.sizes)).reshape(self.sizes)
        sums = [Register(f"sum{number}", DType.float32, True) for number in range(numbers.size)]
        statements: list[Statement] = [Define(total.name, Number(0.0, DType.float32), True) for total in sums]
        lines = Lines(self.target, "w")
        taps = self.recovered(kernel, lines, statements)
        for number, place in enumerate(np.ndindex(*self.sides)):
            element = Register(f"x{number}", DType.float32, False)
            fetched = Fetch("patch", number * _CHANNELS_EACH + variable("c"), DType.float32)
            lines.statements.append(Define(element.name, fetched, False))
            for tap in np.ndindex(*self.taps):
                output = tuple(at - before for at, before in zip(place, tap))
                if all(0 <= at < size for at, size in zip(output, self.sizes)):
                    total = sums[int(numbers[output])]
                    added = multiply_add(self.target, taps[tap], element, total)
                    lines.statements.append(Assign(total.name, added))
        channels = kernel.parameters.named("inputs", self.channels)
        more = dims.minimum(channels - variable("channel"), _CHANNELS_EACH)
        step = (*self.patch(kernel, more), Repeat("c", 0, more, 1, tuple(lines.statements)))
        statements.append(Repeat("channel", 0, channels, _CHANNELS_EACH, step))
        for number, total in enumerate(sums):
            statements.append(Put("tile", number * self.lanes + lane(self.lanes), total))
        return statements

    def patch(self, kernel: _Loops, channels: Dim) -> list[Statement]:
        """Some channels of the present tile's input, from channel `channel` on, in the buffer `patch`."""
        strides, sizes, corner = self.source(kernel)
        near = variable("near") * self.lanes + lane(self.lanes)
        mask: Code | None = _less(near, channels)
        places = [start + further for start, further in zip(corner, split_index(variable("position"), self.sides))]
        for at, size in zip(places, sizes):
            mask = both(mask, both(_less(-1, at), _less(at, size)))
        fetched = Fetch(
            "x", offset(strides, [variable("y0"), variable("channel") + near, *places]), DType.float32, mask=mask
        )
        put = Put("patch", variable("position") * _CHANNELS_EACH + near, fetched)
        vectors = Repeat("near", 0, dims.ceildiv(channels, self.lanes), 1, (put,))
        return [Repeat("position", 0, self.points, 1, (vectors,))]

    def recovered(self, kernel: _Loops, lines: Lines, statements: list[Statement]) -> Array:
        """The taps between the channel `channel` + `c` and the present vector of features.

        `statements` takes what tells where they lie: in a panel, or in a single vector after the panels.
        """
        named, panels = kernel.parameters.named, self.panels
        channels = named("inputs", self.channels)
        width, lanes = named("vectors", panels.width), named("single", panels.lanes)
        together = named("together", panels.whole * panels.width)
        among = dims.minimum(variable("panel"), together)
        start = dims.floordiv(among, width) * width * lanes * channels + dims.mod(among, width) * lanes
        start = start + (variable("panel") - among) * lanes * channels
        step = lanes + (width - 1) * lanes * dims.minimum(together - among, 1)
        statements += [Let("start", start), Let("step", step)]
        point = named("point", self.channels * panels.stored(packed=True))
        place = variable("start") + (variable("channel") + variable("c")) * variable("step") + lane(self.lanes)

        def fetched(number: int) -> Code:
            return lines.keep(Fetch("weights", number * point + place, DType.float32, mask=kernel.mask()))

        points = [recovering(transform) for transform in self.transforms]
        places = np.arange(self.points).reshape(self.sides)[np.ix_(*points)]
        tile = _tile(places.shape, lambda at: fetched(int(places[at])))
        taps = tile
        for axis, transform in enumerate(self.transforms):
            taps = lines.along(axis, partial(lines.taps, transform), taps)
        if self.taps == [TAPS, TAPS]:
            taps[1, 1] = self.cleaned(lines, taps[1, 1], tile)
        return taps

    def cleaned(self, lines: Lines, middle: Code, tile: Array) -> Code:
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

    def endings(
        self, values: Array, epilogue_writer: EpilogueWriter, write: Callable[..., tuple[Statement, ...]]
    ) -> Callable[[bool], tuple[Statement, ...]]:
        """What writes a tile; a long epilogue as a loop, so that the code stays small."""

        def ends(inside: bool) -> tuple[Statement, ...]:
            statements: list[Statement] = []
            for number, place in enumerate(np.ndindex(values.shape)):
                value = values[place]
                if epilogue_writer.is_long:
                    statements.append(Put("tile", number * self.lanes + lane(self.lanes), value))
                else:
                    statements.extend(write(value, place, inside, f"e{number}_"))
            if epilogue_writer.is_long:
                statements.append(self.ending_loop(write, inside))
            return tuple(statements)

        return ends

    def ending_loop(self, write: Callable[..., tuple[Statement, ...]], inside: bool) -> Statement:
        """What writes the outputs that lie in the buffer `tile`."""
        at = variable("e")
        value = Fetch("tile", at * self.lanes + lane(self.lanes), DType.float32)
        return Repeat("e", 0, prod(self.sizes), 1, write(value, split_index(at, self.sizes), inside, "e_"))


def _tile(sides: Sequence[int], make: Callable[[tuple[int, ...]], Code]) -> Array:
    """An array of what is made for every place."""
    tile = np.empty(tuple(sides), object)
    for place in np.ndindex(tile.shape):
        tile[place] = make(place)
    return tile


class _Loops:
    """Loops that the transforms share: over tiles (image y0, then y1, y2 along the spatial axes) and channels."""

    def __init__(self, builder: _Builder, channels: int) -> None:
        self.builder = builder
        self.channels = channels
        self.lanes = builder.lanes
        self.parameters = Parameters()

    def stride(self, name: str, value: Dim) -> Dim:
        return value if value in (0, 1) else self.parameters.named(name, value)

    def channel(self) -> Dim:
        return variable("panel") * self.lanes + lane(self.lanes)

    def mask(self) -> Code | None:
        if self.channels % self.lanes == 0:
            return None
        return _less(self.channel(), self.parameters.named("channels", self.channels))

    def at(self, point: int) -> Dim:
        """Where a tile's element for a point lies among the transformed ones."""
        pitch = self.parameters.named("pitch", self.builder.pitch(self.channels))
        return (variable("number") * self.builder.points + point) * pitch + self.channel()

    def over_panels(self, body: Sequence[Statement]) -> Statement:
        """A loop over all channels of a tile, a vector at a time."""
        panels = self.parameters.named("panels", -(-self.channels // self.lanes))
        return Repeat("panel", 0, panels, 1, tuple(body))

    def launch(self, name: str, buffers: tuple[Buffer, ...], body: Sequence[Statement]) -> Launch:
        """`body` for all tiles."""
        named = self.parameters.named
        tiles = self.builder.tiles
        each = max(1, TRANSFORM_ELEMENTS // (self.builder.points * self.channels))
        start = block() * named("tiles_each", each)
        stop = dims.minimum(start + named("tiles_each", each), named("tiles", tiles))
        sizes = [
            named(f"tiles{n}", size) for n, size in enumerate((self.builder.result.shape[0], *self.builder.counts))
        ]
        places = split_index(variable("number") + named("first", 0), sizes)
        lets = [Let(f"y{number}", place) for number, place in enumerate(places)]
        statements = (Repeat("number", start, stop, 1, (*lets, *body)),)
        kernel = Kernel(name, buffers, tuple(self.parameters.values), self.lanes, statements)
        return Launch(kernel, dims.ceildiv(tiles, each), tuple(self.parameters.values.values()))


def _for_strip(launch: Launch, strip: Strip) -> Launch:
    """A launch over all tiles, for some of them."""
    values = dict(zip(launch.kernel.parameters, launch.parameters, strict=True))
    values |= {"first": strip.first, "tiles": strip.count}
    return Launch(launch.kernel, dims.ceildiv(strip.count, values["tiles_each"]), tuple(values.values()))


def _less(left: Dim, right: Dim) -> Code:
    return Call("less", (Integer(left), Integer(right)), DType.bool)


def _all(conditions: Sequence[Code]) -> Code | None:
    found: Code | None = None
    for condition in conditions:
        found = both(found, condition)
    return found
