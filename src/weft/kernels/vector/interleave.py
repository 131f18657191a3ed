"""Transposed convolutions whose windows do not overlap: every input pixel becomes a rectangle of output pixels.

With few features, rectangles fill a vector better than the features alone. So a plain 1 x 1 convolution computes all
pixels of a rectangle as its features, and a map interleaves them, with the epilogue on whole vectors.
"""

from __future__ import annotations

from math import prod

import numpy as np

from weft.ir import dims
from weft.ir.arrays import Array
from weft.ir.dims import Dim
from weft.ir.layout import channels_last, row_major
from weft.ir.program import Convolve
from weft.ir.scalar import Index, Load
from weft.ir.target import VectorTarget
from weft.kernels.build.convolution import Convolution
from weft.kernels.build.loop_nest import choose_lanes
from weft.kernels.build.multiply_add import accumulator_dtype
from weft.kernels.lower.tensors import StoredTensor, Work
from weft.kernels.vector.convolve import build_convolution
from weft.kernels.vector.maps import append_map


def build_interleave(convolution: Convolution, target: VectorTarget) -> Work | None:
    """Build the convolution; None if weights are not constant, or rectangles overlap or do not fit a vector."""
    primitive, x, w = convolution.primitive, convolution.x, convolution.constant
    result, epilogue = convolution.result, convolution.epilogue
    if w is None or not _applies(primitive, x, w, result, target):
        return None
    rank = len(x.shape)
    plain = Convolve((1,) * (rank - 2), (1,) * (rank - 2), ((0, 0),) * (rank - 2), 1)
    weights = np.moveaxis(w, (0, 1), (-1, -2)).reshape(-1, w.shape[0], *(1,) * (rank - 2))
    pixels = StoredTensor(x.dtype, (x.shape[0], len(weights), *x.shape[2:]), channels_last(rank))
    right = StoredTensor(x.dtype, weights.shape, row_major(rank))
    work = build_convolution(Convolution(plain, x, right, pixels, constant=np.ascontiguousarray(weights)), target)
    return append_map(work, _locate_element(primitive, pixels, result), pixels, result, epilogue, 2, target)


def _applies(primitive: Convolve, x: StoredTensor, w: Array, result: StoredTensor, target: VectorTarget) -> bool:
    if not primitive.transposed or primitive.groups != 1 or accumulator_dtype(x.dtype) is not x.dtype:
        return False
    strides = primitive.strides
    plain = all(distance == 1 for distance in primitive.dilations) and all(pad[0] == 0 for pad in primitive.pads)
    covered = all(size * stride == whole for size, stride, whole in zip(x.shape[2:], strides, result.shape[2:]))
    fits = w.shape[1] * prod(strides) <= choose_lanes(target, [x.dtype])
    return plain and covered and fits and w.shape[2:] == strides and prod(strides) > 1


def _locate_element(primitive: Convolve, pixels: StoredTensor, result: StoredTensor) -> Load:
    """Load an element of the result from its rectangle."""
    axes = [dims.axis(axis, size) for axis, size in enumerate(result.shape)]
    number: Dim = 0
    for axis, stride in zip(axes[2:], primitive.strides):
        number = number * stride + dims.mod(axis, stride)
    places = [axes[0], number * result.shape[1] + axes[1]]
    places += [dims.floordiv(axis, stride) for axis, stride in zip(axes[2:], primitive.strides)]
    return Load(0, tuple(map(Index, places)), pixels.dtype)
