"""Transposed convolutions whose windows do not overlap: every input pixel becomes a rectangle of output pixels.

With few features the rectangles fill a vector better than the features alone would. So a plain 1 x 1 convolution gives
all pixels of a rectangle as its features, and a map puts them in their places, with the epilogue on whole vectors.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.layout import channels_last, row_major
from weft.ir.program import Convolve
from weft.ir.scalar import AT_HAND, Index, Load, Scalar, computed_dtypes, rebuild, with_held
from weft.ir.target import VectorTarget
from weft.kernels.build.convolution import Convolution
from weft.kernels.build.loop_nest import choose_lanes
from weft.kernels.build.multiply_add import accumulator_type
from weft.kernels.lower.tensors import Epilogue, Launch, Reference, StoredTensor, Work, Workspace
from weft.kernels.vector.convolve import convolve_work
from weft.kernels.vector.maps import map_launch

Array = np.ndarray[Any, Any]


def interleave_work(convolution: Convolution, target: VectorTarget) -> Work | None:
    """None where weights are not constant, rectangles overlap, or do not fit a vector."""
    primitive, x, w = convolution.primitive, convolution.x, convolution.constant
    result, epilogue = convolution.result, convolution.epilogue
    if w is None or not _applies(primitive, x, w, result, target):
        return None
    rank = len(x.shape)
    plain = Convolve((1,) * (rank - 2), (1,) * (rank - 2), ((0, 0),) * (rank - 2), 1)
    weights = np.moveaxis(w, (0, 1), (-1, -2)).reshape(-1, w.shape[0], *(1,) * (rank - 2))
    pixels = StoredTensor(x.dtype, (x.shape[0], len(weights), *x.shape[2:]), channels_last(rank))
    right = StoredTensor(x.dtype, weights.shape, row_major(rank))
    work = convolve_work(Convolution(plain, x, right, pixels, constant=np.ascontiguousarray(weights)), target)
    space = Reference("workspace", len(work.workspaces))
    launches = [launch.rebound({Reference("result", 0): space}) for launch in work.launches]
    # the map's operands are the pixels and the epilogue's, which come after x and w
    count = 0 if epilogue is None else len(epilogue.operands)
    moved = {Reference("operand", 1 + number): Reference("operand", 2 + number) for number in range(count)}
    place = _place(primitive, pixels, result, epilogue, target)
    launches.append(place.rebound({**moved, Reference("operand", 0): space}))
    spaces = (*work.workspaces, Workspace(x.dtype, dims.product(pixels.shape)))
    return replace(work, launches=tuple(launches), workspaces=spaces)


def _applies(primitive: Convolve, x: StoredTensor, w: Array, result: StoredTensor, target: VectorTarget) -> bool:
    if not primitive.transposed or primitive.groups != 1 or accumulator_type(x.dtype) is not x.dtype:
        return False
    strides = primitive.strides
    plain = all(distance == 1 for distance in primitive.dilations) and all(pad[0] == 0 for pad in primitive.pads)
    covered = all(size * stride == whole for size, stride, whole in zip(x.shape[2:], strides, result.shape[2:]))
    fits = w.shape[1] * prod(strides) <= choose_lanes(target, [x.dtype])
    return plain and covered and fits and w.shape[2:] == strides and prod(strides) > 1


def _place(
    primitive: Convolve, pixels: StoredTensor, result: StoredTensor, epilogue: Epilogue | None, target: VectorTarget
) -> Launch:
    """Each element from its rectangle; operands are the pixels and the epilogue's."""
    axes = [dims.axis(axis, size) for axis, size in enumerate(result.shape)]
    number: Dim = 0
    for axis, stride in zip(axes[2:], primitive.strides):
        number = number * stride + dims.mod(axis, stride)
    places = [axes[0], number * result.shape[1] + axes[1]]
    places += [dims.floordiv(axis, stride) for axis, stride in zip(axes[2:], primitive.strides)]
    element = Load(0, tuple(map(Index, places)), pixels.dtype)
    expression: Scalar = element
    if epilogue is not None:
        moved = rebuild(epilogue.expression, lambda load: replace(load, operand=1 + load.operand))
        expression = with_held(moved, {AT_HAND: element})
    operands = [pixels, *(epilogue.operands if epilogue is not None else ())]
    return map_launch(expression, operands, result, choose_lanes(target, (*computed_dtypes(expression), result.dtype)))
