"""Which convolutions are computed on transformed tiles: those where that saves most time for the memory it takes.

Transformed weights are larger than the weights themselves, and those of large layers are read from memory with every
run. So tiles are chosen for the whole program: the choice that saves most for each byte comes first, until all
together would add too much to the program's weights. Sizes that are not known are taken for those of usual images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from weft.ir.program import Contract, Convolve, Step, TensorProgram, Value
from weft.ir.target import Target
from weft.ir.types import TensorType
from weft.kernels.vector.winograd import applies, tile_sides
from weft.kernels.vector.winograd_guard import are_tame
from weft.kernels.vector.winograd_transforms import SIZES

_SHARE = 2  # transformed weights may add one part in so many to the bytes of all weights
_ALWAYS = 4 << 20  # bytes that they may add in any case
_WORTH = 0.9  # of the time that it took before, at most, or a choice is not worth its memory
_WEIGHT_BYTE = 9  # operations that take as long as reading a byte of weights from memory, which goes on beside them
_TILE_BYTE = 6  # and as moving a byte of transformed elements, which does not
_LARGEST_IMAGE = 1 << 34  # bytes of inputs and results, about: tiles are listed in parts that fit into a cache
_USUAL = (1, 56, 56)  # batch, height and width where they are not known


@dataclass(frozen=True, slots=True)
class Way:
    """To compute a convolution in tiles of `size` outputs along an axis (1: as sums of products)."""

    size: int
    cost: float  # in operations at full speed
    bytes: int  # of its weights


def choose_tiles(program: TensorProgram, target: Target) -> dict[Value, int]:
    """The size of tiles, by a convolution's result, for those that are to be computed on transformed tiles."""
    if not target.transformed_products or target.threads:
        return {}
    layers = {}
    for step in program.steps:
        if _can_be_transformed(step, program.constants):
            layers[step.results[0]] = _ways(step)
    room = max(_ALWAYS, _weight_bytes(program) // _SHARE)
    chosen = spend(layers, room)
    return {result: way.size for result, way in chosen.items() if way.size > 1}


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


def _can_be_transformed(step: Step, constants: Mapping[Value, Any]) -> bool:
    if not isinstance(step.primitive, Convolve) or step.operands[1] not in constants:
        return False
    x, w = (value.type for value in step.operands)
    if not isinstance(x, TensorType) or not isinstance(w, TensorType) or w.shape is None or x.dtype is not w.dtype:
        return False
    if not all(isinstance(size, int) for size in w.shape) or not applies(step.primitive, x.dtype, w.shape[2:]):
        return False
    return are_tame(constants[step.operands[1]])


def _ways(step: Step) -> list[Way]:
    weights, result = step.operands[1].type, step.results[0].type
    assert isinstance(weights, TensorType) and isinstance(result, TensorType)
    assert weights.shape is not None and result.shape is not None
    features, channels, *kernel = (size for size in weights.shape if isinstance(size, int))
    image = result.shape[:1] + result.shape[2:]
    sizes = [size if isinstance(size, int) else usual for size, usual in zip(image, _USUAL)]
    ways = [_way(1, sizes, [(1, taps) for taps in kernel], features, channels)]
    if 4 * prod(sizes) * (features + channels) <= _LARGEST_IMAGE:
        ways += [_way(size, sizes, tile_sides(kernel, size), features, channels) for size in SIZES]
    return ways


def _way(size: int, image: Sequence[int], sides: Sequence[tuple[int, int]], features: int, channels: int) -> Way:
    """`sides` are outputs and products of a tile along each axis."""
    tiles = image[0] * prod(-(-extent // outputs) for extent, (outputs, _) in zip(image[1:], sides))
    points = prod(side for _, side in sides)
    weights = 4 * points * features * channels
    products = 2 * points * tiles * features * channels
    moved = 8 * points * tiles * (features + channels) if size > 1 else 0  # written once, read once
    return Way(size, max(products, _WEIGHT_BYTE * weights) + _TILE_BYTE * moved, weights)


def _weight_bytes(program: TensorProgram) -> int:
    """Bytes of the constants that are multiplied, which are packed whatever way is chosen."""
    multiplied = {
        v for step in program.steps if isinstance(step.primitive, (Contract, Convolve)) for v in step.operands
    }
    return sum(program.constants[value].nbytes for value in multiplied if value in program.constants)
