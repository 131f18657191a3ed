"""Convolutions whose results are not to have their channels as neighbours: computed as if they were, then turned.

Vectors are of channels. Written to where their elements lie far apart, each would be as many writes as it has elements,
and transformed tiles would not do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.fuse.layouts import same_in_memory
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.layout import channels_last
from weft.ir.scalar import AT_HAND, Held, Index, Load, Scalar, computed_dtypes, rebuild, walk, with_held
from weft.ir.target import VectorTarget
from weft.kernels.build.convolution import CHANNEL, Convolution
from weft.kernels.build.loop_nest import choose_lanes
from weft.kernels.lower.tensors import Epilogue, Reference, StoredTensor, Work, Workspace
from weft.kernels.vector.maps import map_launch

Build = Callable[[Convolution, VectorTarget, int | None], Work | None]
_FEWEST = 4  # channels that are worth it
_PRODUCT_OPERANDS = 2


def turning(build: Build) -> Build:
    """The same work with its result turned where that pays."""

    def work(convolution: Convolution, target: VectorTarget, tile: int | None) -> Work | None:
        last = channels_last(len(convolution.result.shape))
        if not _pays(convolution.result):
            return build(convolution, target, tile)
        epilogue = convolution.epilogue
        early = epilogue if epilogue is None or _reads_channels(epilogue, convolution.result) else None
        made = replace(convolution.result, layout=last)
        if early is None and epilogue is not None:
            made = replace(made, dtype=_held_dtype(epilogue))
        inner = build(replace(convolution, result=made, epilogue=early), target, tile)
        if inner is None:
            return None
        return _turned(inner, made, convolution.result, None if early is epilogue else epilogue, target)

    return work


def _pays(result: StoredTensor) -> bool:
    last, channels = channels_last(len(result.shape)), result.shape[CHANNEL]
    if len(result.shape) <= 2 or same_in_memory(result.layout, last, result.shape):
        return False
    return not isinstance(channels, int) or channels >= _FEWEST


def _reads_channels(epilogue: Epilogue, result: StoredTensor) -> bool:
    """Whether what an epilogue reads for each element, if anything, has its channels as neighbours."""
    last = channels_last(len(result.shape))
    whole = [number for number, operand in enumerate(epilogue.operands) if operand.shape == result.shape]
    return all(same_in_memory(epilogue.operands[number].layout, last, result.shape) for number in whole)


def _held_dtype(epilogue: Epilogue) -> DType:
    """Of the element that an epilogue takes."""
    return next(node.dtype for node in walk(epilogue.expression) if isinstance(node, Held))


def _turned(
    work: Work, made: StoredTensor, result: StoredTensor, epilogue: Epilogue | None, target: VectorTarget
) -> Work:
    """The result of a work, as it was made, in the layout that is wanted, with what an epilogue makes of it."""
    space = Reference("workspace", len(work.workspaces))
    places = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(result.shape))
    element: Scalar = Load(0, places, made.dtype)
    operands = [made]
    moved = {Reference("operand", 0): space}
    if epilogue is not None:
        later = rebuild(epilogue.expression, lambda load: replace(load, operand=1 + load.operand))
        element = with_held(later, {AT_HAND: element})
        operands += epilogue.operands
        moved |= {
            Reference("operand", 1 + number): Reference("operand", _PRODUCT_OPERANDS + number)
            for number in range(len(epilogue.operands))
        }
    lanes = choose_lanes(target, (*computed_dtypes(element), result.dtype))
    turn = map_launch(element, operands, result, lanes).rebound(moved)
    launches = (*(launch.rebound({Reference("result", 0): space}) for launch in work.launches), turn)
    spaces = (*work.workspaces, Workspace(made.dtype, dims.product(made.shape)))
    return replace(work, launches=launches, workspaces=spaces)
