"""Images: decoding, non-maximum suppression, Col2Im and unpooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.types import TensorType
from weft.opset.language import (
    Element,
    Tensor,
    assume_at_least,
    assume_equal,
    constant,
    fresh_symbol,
    full,
    host,
    pad,
    reshape,
    scatter,
    window_count,
)
from weft.opset.registry import REQUIRED, Sizes, op, require

CHANNELS = {"RGB": 3, "BGR": 3, "Grayscale": 1}


@op("ImageDecoder", since=20)
def image_decoder(encoded_stream: Tensor, *, pixel_format: str = "RGB") -> Tensor:
    require(pixel_format in CHANNELS, f"pixel_format is {pixel_format!r}, not one of {', '.join(CHANNELS)}")
    shape = (fresh_symbol("height"), fresh_symbol("width"), CHANNELS[pixel_format])
    return host("decode_image", [encoded_stream], [TensorType(DType.uint8, shape)], pixel_format=pixel_format)[0]


@op("NonMaxSuppression", since=10)
def non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    max_output_boxes_per_class: Tensor | None = None,
    iou_threshold: Tensor | None = None,
    score_threshold: Tensor | None = None,
    *,
    center_point_box: int = 0,
) -> Tensor:
    require(boxes.rank == 3 and scores.rank == 3, f"ranks must be 3 and 3, not {boxes.rank} and {scores.rank}")
    assume_equal(boxes.shape[2], 4, "a box has four numbers")
    assume_equal(boxes.shape[0], scores.shape[0], "boxes and scores must have the same batch size")
    assume_equal(boxes.shape[1], scores.shape[2], "there must be a score for each box")
    operands = [
        boxes,
        scores,
        constant(np.int64(0)) if max_output_boxes_per_class is None else max_output_boxes_per_class,
        constant(np.float32(0)) if iou_threshold is None else iou_threshold,
        constant(np.float32(-inf)) if score_threshold is None else score_threshold,
    ]
    for operand, name in zip(operands[2:], ("max_output_boxes_per_class", "iou_threshold", "score_threshold")):
        require(operand.rank <= 1 and operand.size != 0, f"{name} must hold one number, not {operand.type}")
        if operand.rank == 1:
            assume_at_least(operand.shape[0], 1, f"{name} must hold one number")
    types = [TensorType(DType.int64, (fresh_symbol("selected"), 3))]
    return host("suppress_boxes", operands, types, centers=bool(center_point_box))[0]


@op("Col2Im", since=18)
def col2im(
    x: Tensor,
    image_shape: Sizes,
    block_shape: Sizes,
    *,
    dilations: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    rank = len(image_shape)
    require(x.rank == 3, f"the input must be [N, C * block, L], not of rank {x.rank}")
    require(len(block_shape) == rank, f"a block of {len(block_shape)} dimensions in an image of {rank}")
    dilations, strides = dilations or (1,) * rank, strides or (1,) * rank
    pads = pads or (0,) * (2 * rank)
    counts = [
        window_count(
            image_shape[axis], block_shape[axis], strides[axis], dilations[axis], (pads[axis], pads[rank + axis])
        )
        for axis in range(rank)
    ]
    channels = dims.floordiv(x.shape[1], dims.product(block_shape))
    assume_equal(channels * dims.product(block_shape), x.shape[1], "dimension 1 must hold whole blocks")
    assume_equal(dims.product(counts), x.shape[2], "dimension 2 must hold one column for each place of the block")
    columns = reshape(x, (x.shape[0], channels, *block_shape, *counts))

    def place(*i: Element) -> tuple[Sequence[Element], Element]:
        inside, outside = i[2 : 2 + rank], i[2 + rank :]
        positions = [
            block * stride + tap * dilation - before
            for block, stride, tap, dilation, before in zip(outside, strides, inside, dilations, pads)
        ]
        return (*i[:2], *positions), columns.at(*i)

    image = full((x.shape[0], channels, *image_shape), 0, x.dtype)
    return scatter(image, columns.shape, place, reduction="add", checked=False)


@op("MaxUnpool", since=9)
def max_unpool(
    x: Tensor,
    indices: Tensor,
    output_shape: Sizes | None = None,
    *,
    kernel_shape: tuple[int, ...] = REQUIRED,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    rank = x.rank - 2
    require(len(kernel_shape) == rank, f"kernel_shape is {kernel_shape} for an input of rank {x.rank}")
    strides = strides or (1,) * rank
    pads = pads or (0,) * (2 * rank)
    shape: list[Dim] = list(x.shape)
    for axis in range(rank):
        grown = (x.shape[2 + axis] - 1) * strides[axis] + kernel_shape[axis]
        shape[2 + axis] = grown - pads[axis] - pads[rank + axis]
    flat = full((dims.product(shape),), 0, x.dtype)
    unpooled = reshape(scatter(flat, x.shape, lambda *i: ((indices.at(*i),), x.at(*i))), shape)
    if output_shape is None:
        return unpooled
    require(len(output_shape) == x.rank, f"output_shape has {len(output_shape)} sizes for rank {x.rank}")
    for size, target in zip(shape, output_shape):
        assume_at_least(target, size, "output_shape must be at least the unpooled size")
    return pad(unpooled, [(0, target - size) for size, target in zip(shape, output_shape)])
