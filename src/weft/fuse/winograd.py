"""Choose the convolutions that use Winograd tiles: those that save most time per byte of additional weights.

Transformed weights are larger, and those of large layers are read from memory in every run. So tiles are chosen for the
whole program: the choice that saves most per byte first, within a limit on the program's weights. Unknown sizes are
assumed to be those of typical images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from weft.cost.blocks import OPERATIONS_PER_MOVED_BYTE, OPERATIONS_PER_WEIGHT_BYTE
from weft.cost.tap_runs import find_worthwhile_runs, remaining_products
from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.groups import FusedProgram, TransformedTiles
from weft.ir.program import Contract, Convolve, Step, TensorProgram, Value
from weft.ir.target import Target, VectorTarget
from weft.records import dataclass

SIZES = {3: (2, 4), 5: (2,), 7: (2,)}  # outputs of a tile along an axis, by its taps
SINGLE_AXIS_TAPS = 7  # with this many taps, only one axis may have several: errors along two would multiply
MOST_RECOVERED_TAPS = 3  # limit on taps per axis from which weights can be recovered; otherwise they are stored too
SUMMED_AS_FLOAT32 = (DType.float32, DType.float16, DType.bfloat16)
WEIGHTS = (2.0**-32, 2.0**32)  # range of a layer's largest weight
_MOST_APART = 2.0**16  # limit on the ratio of the largest to the median weight of a layer
_SAMPLE = 65536  # weights in the sample for the median
_SHARE = 2  # transformed weights may add 1 / _SHARE to the bytes of all weights
_FREE_BYTES = 4 << 20  # bytes that may always be added
_LEAST_GAIN = 0.9  # limit on the time of a choice relative to the previous one
_LARGEST_IMAGE = 1 << 34  # limit on the bytes of inputs and results
_TYPICAL_IMAGE = (1, 56, 56)  # assumed batch, height and width if unknown


@dataclass(frozen=True, slots=True)
class TileCandidate:
    """A tile size of a convolution: `size` outputs along an axis (1: direct convolution), with its cost."""

    size: int
    cost: float  # in operations at full speed
    bytes: int  # of its weights


def choose_tiles(fused: FusedProgram, target: Target, *, trusting: bool = False) -> FusedProgram:
    """Choose the convolutions that use Winograd tiles, and the sizes of these.

    With `trusting`, weights are not checked, which is slow and rarely excludes a convolution.
    """
    program = fused.program
    if not isinstance(target, VectorTarget) or not target.transformed_products:
        return fused
    layers = {}
    for step in program.steps:
        if _can_be_transformed(step, program.constants, trusting):
            layers[step.results[0]] = _find_candidates(step)
    room = max(_FREE_BYTES, _weight_bytes(program) // _SHARE)
    tiles = {
        result: TransformedTiles(
            candidate.size, f"{candidate.cost / layers[result][0].cost:.0%} of the time of plain products"
        )
        for result, candidate in choose_candidates(layers, room).items()
        if candidate.size > 1
    }
    return replace(fused, tiles=tiles)


def choose_candidates(layers: Mapping[Value, Sequence[TileCandidate]], room: int) -> dict[Value, TileCandidate]:
    """Choose a candidate for each layer, greedily: the change that saves most per byte, while one fits in `room`."""
    chosen = {layer: candidates[0] for layer, candidates in layers.items()}
    while True:
        best: tuple[float, Value, TileCandidate] | None = None
        for layer, now in chosen.items():
            for candidate in layers[layer]:
                added = candidate.bytes - now.bytes
                if candidate.cost < now.cost and candidate.cost <= _LEAST_GAIN * now.cost and added <= room:
                    gain = (now.cost - candidate.cost) / max(added, 1)
                    if best is None or gain > best[0]:
                        best = gain, layer, candidate
        if best is None:
            return chosen
        _, layer, candidate = best
        room -= candidate.bytes - chosen[layer].bytes
        chosen[layer] = candidate


def winograd_time_ratio(step: Step) -> float:
    """Return the time of the best Winograd tiles relative to direct convolution; 1 if they do not apply."""
    if not isinstance(step.primitive, Convolve):
        return 1.0
    x, w = step.operands
    if not applies(step.primitive, x.dtype, w.shape[2:]):
        return 1.0
    plain, *candidates = _find_candidates(step)
    return min((candidate.cost / plain.cost for candidate in candidates), default=1.0)


def _can_be_transformed(step: Step, constants: Mapping[Value, Any], trusting: bool) -> bool:
    if not isinstance(step.primitive, Convolve) or step.operands[1] not in constants:
        return False
    x, w = step.operands
    if (
        x.dtype is not w.dtype
        or not all(isinstance(size, int) for size in w.shape)
        or not applies(step.primitive, x.dtype, w.shape[2:])
    ):
        return False
    return trusting or has_moderate_range(constants[step.operands[1]])


def _find_candidates(step: Step) -> list[TileCandidate]:
    (x, weights), (result,) = step.operands, step.results
    features, channels, *kernel = (size for size in weights.shape if isinstance(size, int))
    image = result.shape[:1] + result.shape[2:]
    sizes = [size if isinstance(size, int) else usual for size, usual in zip(image, _TYPICAL_IMAGE)]
    assert isinstance(step.primitive, Convolve)
    dilations = step.primitive.dilations
    candidates = [_build_candidate(1, sizes, [(1, taps) for taps in kernel], dilations, features, channels)]
    runs = find_worthwhile_runs(step.primitive, x.shape[2:], kernel, result.shape[2:])
    if runs is not None:
        candidates[0] = replace(candidates[0], cost=candidates[0].cost * remaining_products(runs, kernel))
    if 4 * prod(sizes) * (features + channels) <= _LARGEST_IMAGE:
        candidates += [
            _build_candidate(size, sizes, tile_sides(kernel, size), dilations, features, channels)
            for size in SIZES[max(kernel)]
        ]
    return candidates


def _build_candidate(
    size: int,
    image: Sequence[int],
    sides: Sequence[tuple[int, int]],
    dilations: Sequence[int],
    features: int,
    channels: int,
) -> TileCandidate:
    """Build a candidate; `sides` are the outputs and inputs of a tile along each axis."""
    tile_counts = [tile_count(extent, outputs, d) for extent, (outputs, _), d in zip(image[1:], sides, dilations)]
    tiles = image[0] * prod(count for count in tile_counts if isinstance(count, int))
    points = prod(side for _, side in sides)
    taps = [inputs - outputs + 1 for outputs, inputs in sides]
    stored_taps = prod(taps) if size > 1 and max(taps) > MOST_RECOVERED_TAPS else 0
    weights = 4 * points * features * channels
    products = 2 * points * tiles * features * channels
    moved_bytes = 8 * points * tiles * (features + channels) if size > 1 else 0  # written once, read once
    weight_reading = OPERATIONS_PER_WEIGHT_BYTE * weights  # overlaps with products, unlike moving tiles
    return TileCandidate(
        size,
        max(products, weight_reading) + OPERATIONS_PER_MOVED_BYTE * moved_bytes,
        weights + 4 * stored_taps * features * channels,
    )


def _weight_bytes(program: TensorProgram) -> int:
    """Sum the bytes of the weights of all products."""
    multiplied = {
        v for step in program.steps if isinstance(step.primitive, (Contract, Convolve)) for v in step.operands
    }
    return sum(program.constants[value].nbytes for value in multiplied if value in program.constants)


def applies(primitive: Convolve, dtype: DType, kernel: Sequence[Dim]) -> bool:
    """Whether Winograd tiles suit a convolution; `kernel` is the number of taps along each axis."""
    plain = primitive.groups == 1 and not primitive.transposed and len(kernel) <= 2
    dense = all(step == 1 for step in primitive.strides)
    taps = {size for size in kernel if size != 1}
    few = sum(size != 1 for size in kernel) == 1 or SINGLE_AXIS_TAPS not in taps
    return plain and dense and few and dtype in SUMMED_AS_FLOAT32 and len(taps) == 1 and taps <= SIZES.keys()


def tile_sides(kernel: Sequence[int], size: int) -> list[tuple[int, int]]:
    """Return the outputs and inputs of a tile along each axis."""
    return [(size, size + taps - 1) if taps > 1 else (1, 1) for taps in kernel]


def tile_count(extent: Dim, outputs: int, distance: int) -> Dim:
    """Return the number of tiles along an axis of `extent` outputs; those of a tile are `distance` apart."""
    return dims.ceildiv(dims.ceildiv(extent, distance), outputs) * distance


def has_moderate_range(weights: Array) -> bool:
    """Whether weights are finite, and the largest does not dominate the rounding errors of the others."""
    largest = max(float(weights.max(initial=0)), -float(weights.min(initial=0)))
    if not WEIGHTS[0] <= largest <= WEIGHTS[1]:  # false for NaN
        return False
    sample = np.abs(weights.reshape(-1)[:: -(-weights.size // _SAMPLE)])
    sample = sample[sample > 0]
    return sample.size == 0 or largest <= _MOST_APART * float(np.median(sample))
