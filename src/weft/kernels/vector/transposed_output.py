"""Compute channels-last and then transpose, for convolutions and pools whose result has another layout.

Vectors run along the channels: written with a stride, each would be as many writes as it has elements. Winograd
requires channels-last output. If a convolution has so few channels that most lanes are idle, a map applies its
epilogue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.cost.expressions import cost
from weft.fuse.layouts import same_in_memory
from weft.ir.dtypes import DType
from weft.ir.layout import channels_last
from weft.ir.scalar import (
    Load,
    Placeholder,
    identity_indices,
    walk,
)
from weft.ir.target import VectorTarget
from weft.kernels.build.convolution import CHANNEL, Convolution
from weft.kernels.build.epilogue import LONG
from weft.kernels.build.loop_nest import choose_lanes
from weft.kernels.lower.tensors import Epilogue, StoredTensor, Work
from weft.kernels.vector.maps import append_map

Build = Callable[[Convolution, VectorTarget, int | None], Work | None]
OutputBuilder = Callable[[StoredTensor, Epilogue | None], Work | None]  # takes a result and an epilogue
_MIN_CHANNELS = 4  # for a transposition to pay
_IDLE_LANES = 4  # lanes per channel from which on a map applies a long epilogue


def allow_transposed_output(build: Build) -> Build:
    """Wrap a builder to transpose its output where that pays."""

    def work(convolution: Convolution, target: VectorTarget, tile: int | None) -> Work | None:
        def build_output(result: StoredTensor, epilogue: Epilogue | None) -> Work | None:
            sums = result if epilogue is None else replace(result, dtype=_input_dtype(epilogue))
            if epilogue is None or cost(epilogue.expression) <= LONG or not _has_idle_lanes(sums, target):
                return build(replace(convolution, result=result, epilogue=epilogue), target, tile)
            work = build(replace(convolution, result=sums, epilogue=None), target, tile)
            element = Load(0, identity_indices(result.shape), sums.dtype)
            return None if work is None else append_map(work, element, sums, result, epilogue, 2, target)

        return build_transposed_output(build_output, convolution.result, convolution.epilogue, 2, target)

    return work


def build_transposed_output(
    build: OutputBuilder, result: StoredTensor, epilogue: Epilogue | None, operands: int, target: VectorTarget
) -> Work | None:
    """Build the work, with its output transposed where that pays; the epilogue's operands come after `operands` others.

    The epilogue is applied before the transposition, unless it reads a tensor of the result's shape that is not
    channels-last.
    """
    if not _should_transpose(result):
        return build(result, epilogue)
    fused_epilogue = epilogue if epilogue is None or _reads_channels_last(epilogue, result) else None
    output = replace(result, layout=channels_last(len(result.shape)))
    if fused_epilogue is None and epilogue is not None:
        output = replace(output, dtype=_input_dtype(epilogue))
    work = build(output, fused_epilogue)
    if work is None:
        return None
    element = Load(0, identity_indices(result.shape), output.dtype)
    return append_map(work, element, output, result, None if fused_epilogue else epilogue, operands, target)


def _has_idle_lanes(sums: StoredTensor, target: VectorTarget) -> bool:
    channels = sums.shape[CHANNEL]
    return isinstance(channels, int) and channels * _IDLE_LANES <= choose_lanes(target, [sums.dtype])


def _should_transpose(result: StoredTensor) -> bool:
    last, channels = channels_last(len(result.shape)), result.shape[CHANNEL]
    if len(result.shape) <= 2 or same_in_memory(result.layout, last, result.shape):
        return False
    return not isinstance(channels, int) or channels >= _MIN_CHANNELS


def _reads_channels_last(epilogue: Epilogue, result: StoredTensor) -> bool:
    """Return whether all operands of an epilogue with the result's shape are channels-last."""
    last = channels_last(len(result.shape))
    full_operands = [number for number, operand in enumerate(epilogue.operands) if operand.shape == result.shape]
    return all(same_in_memory(epilogue.operands[number].layout, last, result.shape) for number in full_operands)


def _input_dtype(epilogue: Epilogue) -> DType:
    """Return the dtype of the element that an epilogue reads."""
    return next(node.dtype for node in walk(epilogue.expression) if isinstance(node, Placeholder))
