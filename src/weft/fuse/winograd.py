"""Which convolutions are computed on transformed tiles: those where that saves most time for the memory it takes.

Transformed weights are larger than the weights themselves, and those of large layers are read from memory with every
run. So tiles are chosen for the whole program: the choice that saves most for each byte comes first, until all
together would add too much to the program's weights. Sizes that are not known are taken for those of usual images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from weft.cost.blocks import OPERATIONS_PER_MOVED_BYTE, OPERATIONS_PER_WEIGHT_BYTE
from weft.cost.tap_runs import share_of_products, worthwhile_runs
from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.groups import FusedProgram, TransformedTiles
from weft.ir.program import Contract, Convolve, Step, TensorProgram, Value
from weft.ir.target import Target, VectorTarget
from weft.ir.types import TensorType
from weft.records import dataclass

Array = np.ndarray[Any, Any]
SIZES = {3: (2, 4), 5: (2,), 7: (2,)}  # outputs of a tile along an axis, by its taps
ALONE = 7  # taps from which on only one axis may have more than one: errors along two would multiply
RECOVERED = 3  # taps of an axis, at most, that transformed weights give back; more of them are kept beside
SUMMED_AS_FLOAT32 = (DType.float32, DType.float16, DType.bfloat16)
WEIGHTS = (2.0**-32, 2.0**32)  # the largest of a layer
_MOST_APART = 2.0**16  # the largest weight of a layer from the usual one
_SAMPLE = 65536  # weights that tell what is usual
_SHARE = 2  # transformed weights may add one part in so many to the bytes of all weights
_ALWAYS = 4 << 20  # bytes that they may add in any case
_WORTH = 0.9  # of the time that it took before, at most, or a choice is not worth its memory
_LARGEST_IMAGE = 1 << 34  # bytes of inputs and results, about: tiles are listed in parts that fit into a cache
_USUAL = (1, 56, 56)  # batch, height and width where they are not known


@dataclass(frozen=True, slots=True)
class Way:
    """To compute a convolution in tiles of `size` outputs along an axis (1: as sums of products)."""

    size: int
    cost: float  # in operations at full speed
    bytes: int  # of its weights


def choose_tiles(fused: FusedProgram, target: Target, *, trusting: bool = False) -> FusedProgram:
    """The convolutions that are to be computed on transformed tiles, with the size of these.

    `trusting`: without a look at the weights, which takes a while and hardly ever tells against it.
    """
    program = fused.program
    if not isinstance(target, VectorTarget) or not target.transformed_products:
        return fused
    layers = {}
    for step in program.steps:
        if _can_be_transformed(step, program.constants, trusting):
            layers[step.results[0]] = _ways(step)
    room = max(_ALWAYS, _weight_bytes(program) // _SHARE)
    tiles = {
        result: TransformedTiles(way.size, f"{way.cost / layers[result][0].cost:.0%} of the time of plain products")
        for result, way in spend(layers, room).items()
        if way.size > 1
    }
    return replace(fused, tiles=tiles)


def spend(layers: Mapping[Value, Sequence[Way]], room: int) -> dict[Value, Way]:
    """A way for each layer, from the first of each on: always the change that saves most for a byte, while one fits."""
    chosen = {layer: ways[0] for layer, ways in layers.items()}
    while True:
        best: tuple[float, Value, Way] | None = None
        for layer, now in chosen.items():
            for way in layers[layer]:
                added = way.bytes - now.bytes
                if way.cost < now.cost and way.cost <= _WORTH * now.cost and added <= room:
                    gain = (now.cost - way.cost) / max(added, 1)
                    if best is None or gain > best[0]:
                        best = gain, layer, way
        if best is None:
            return chosen
        _, layer, way = best
        room -= way.bytes - chosen[layer].bytes
        chosen[layer] = way


def best_share(step: Step) -> float:
    """The part of the time of plain products that the best tiles of a convolution take; 1 where they are of no use."""
    x, w = (value.type for value in step.operands)
    if not isinstance(step.primitive, Convolve) or not isinstance(x, TensorType) or not isinstance(w, TensorType):
        return 1.0
    if w.shape is None or not applies(step.primitive, x.dtype, w.shape[2:]):
        return 1.0
    plain, *ways = _ways(step)
    return min((way.cost / plain.cost for way in ways), default=1.0)


def _can_be_transformed(step: Step, constants: Mapping[Value, Any], trusting: bool) -> bool:
    if not isinstance(step.primitive, Convolve) or step.operands[1] not in constants:
        return False
    x, w = (value.type for value in step.operands)
    if not isinstance(x, TensorType) or not isinstance(w, TensorType) or w.shape is None or x.dtype is not w.dtype:
        return False
    if not all(isinstance(size, int) for size in w.shape) or not applies(step.primitive, x.dtype, w.shape[2:]):
        return False
    return trusting or are_tame(constants[step.operands[1]])


def _ways(step: Step) -> list[Way]:
    weights, result = step.operands[1].type, step.results[0].type
    assert isinstance(weights, TensorType) and isinstance(result, TensorType)
    assert weights.shape is not None and result.shape is not None
    features, channels, *kernel = (size for size in weights.shape if isinstance(size, int))
    image = result.shape[:1] + result.shape[2:]
    sizes = [size if isinstance(size, int) else usual for size, usual in zip(image, _USUAL)]
    assert isinstance(step.primitive, Convolve)
    spread = step.primitive.dilations
    ways = [_way(1, sizes, [(1, taps) for taps in kernel], spread, features, channels)]
    given = step.operands[0].type
    assert isinstance(given, TensorType) and given.shape is not None
    runs = worthwhile_runs(step.primitive, given.shape[2:], kernel, result.shape[2:])
    if runs is not None:
        ways[0] = replace(ways[0], cost=ways[0].cost * share_of_products(runs, kernel))
    if 4 * prod(sizes) * (features + channels) <= _LARGEST_IMAGE:
        ways += [_way(size, sizes, tile_sides(kernel, size), spread, features, channels) for size in SIZES[max(kernel)]]
    return ways


def _way(
    size: int,
    image: Sequence[int],
    sides: Sequence[tuple[int, int]],
    spread: Sequence[int],
    features: int,
    channels: int,
) -> Way:
    """`sides` are outputs and products of a tile along each axis, `spread` the distance of its elements."""
    along = [tile_count(extent, outputs, d) for extent, (outputs, _), d in zip(image[1:], sides, spread)]
    tiles = image[0] * prod(count for count in along if isinstance(count, int))
    points = prod(side for _, side in sides)
    taps = [inputs - outputs + 1 for outputs, inputs in sides]
    kept = prod(taps) if size > 1 and max(taps) > RECOVERED else 0
    weights = 4 * points * features * channels
    products = 2 * points * tiles * features * channels
    moved = 8 * points * tiles * (features + channels) if size > 1 else 0  # written once, read once
    reading = OPERATIONS_PER_WEIGHT_BYTE * weights  # goes on beside products, which moving tiles does not
    return Way(
        size, max(products, reading) + OPERATIONS_PER_MOVED_BYTE * moved, weights + 4 * kept * features * channels
    )


def _weight_bytes(program: TensorProgram) -> int:
    """Bytes of the constants that are multiplied, which are packed whatever way is chosen."""
    multiplied = {
        v for step in program.steps if isinstance(step.primitive, (Contract, Convolve)) for v in step.operands
    }
    return sum(program.constants[value].nbytes for value in multiplied if value in program.constants)


def applies(primitive: Convolve, dtype: DType, kernel: Sequence[Dim]) -> bool:
    """Whether a convolution with constant weights can be done so; `kernel` is the number of taps along each axis."""
    plain = primitive.groups == 1 and not primitive.transposed and len(kernel) <= 2
    dense = all(step == 1 for step in primitive.strides)
    taps = {size for size in kernel if size != 1}
    few = sum(size != 1 for size in kernel) == 1 or ALONE not in taps
    return plain and dense and few and dtype in SUMMED_AS_FLOAT32 and len(taps) == 1 and taps <= SIZES.keys()


def tile_sides(kernel: Sequence[int], size: int) -> list[tuple[int, int]]:
    """Outputs and inputs of a tile, along each axis."""
    return [(size, size + taps - 1) if taps > 1 else (1, 1) for taps in kernel]


def tile_count(extent: Dim, outputs: int, distance: int) -> Dim:
    """Tiles along an axis of so many outputs; those of a tile are `distance` apart."""
    return dims.ceildiv(dims.ceildiv(extent, distance), outputs) * distance


def are_tame(weights: Array) -> bool:
    """Whether weights are finite and of such sizes that none drowns the others in what rounding leaves of it."""
    largest = max(float(weights.max(initial=0)), -float(weights.min(initial=0)))
    if not WEIGHTS[0] <= largest <= WEIGHTS[1]:  # NaN is not within
        return False
    some = np.abs(weights.reshape(-1)[:: -(-weights.size // _SAMPLE)])
    some = some[some > 0]
    return some.size == 0 or largest <= _MOST_APART * float(np.median(some))
