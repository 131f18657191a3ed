"""Convolutions and pools whose results shall not have their channels as neighbours: as if they should, then turned.

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
Ended = Callable[[StoredTensor, Epilogue | None], Work | None]  # by a result and an epilogue
_FEWEST = 4  # channels that are worth it


def turning(build: Build) -> Build:
    """The same work with its result turned where that pays."""

    def work(convolution: Convolution, target: VectorTarget, tile: int | None) -> Work | None:
        def ended(result: StoredTensor, epilogue: Epilogue | None) -> Work | None:
            return build(replace(convolution, result=result, epilogue=epilogue), target, tile)

        return turned_work(ended, convolution.result, convolution.epilogue, 2, target)

    return work


def turned_work(
    build: Ended, result: StoredTensor, epilogue: Epilogue | None, operands: int, target: VectorTarget
) -> Work | None:
    """What `build` gives for a result, turned where that pays; the epilogue's operands come after so many others."""
    if not _pays(result):
        return build(result, epilogue)
    early = epilogue if epilogue is None or _reads_channels(epilogue, result) else None
    made = replace(result, layout=channels_last(len(result.shape)))
    if early is None and epilogue is not None:
        made = replace(made, dtype=_held_dtype(epilogue))
    work = build(made, early)
    return None if work is None else _turned(work, made, result, None if early else epilogue, operands, target)


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
    work: Work,
    made: StoredTensor,
    result: StoredTensor,
    epilogue: Epilogue | None,
    before: int,
    target: VectorTarget,
) -> Work:
    """The result of a work, as it was made, in the layout that is wanted, with what an epilogue makes of it."""
    space = Reference("workspace", len(work.workspaces))
    places = tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(result.shape))
    element: Scalar = Load(0, places, made.dtype)
    read = [made]
    moved = {Reference("operand", 0): space}
    if epilogue is not None:
        later = rebuild(epilogue.expression, lambda load: replace(load, operand=1 + load.operand))
        element = with_held(later, {AT_HAND: element})
        read += epilogue.operands
        moved |= {
            Reference("operand", 1 + number): Reference("operand", before + number)
            for number in range(len(epilogue.operands))
        }
    lanes = choose_lanes(target, (*computed_dtypes(element), result.dtype))
    turn = map_launch(element, read, result, lanes).rebound(moved)
    launches = (*(launch.rebound({Reference("result", 0): space}) for launch in work.launches), turn)
    spaces = (*work.workspaces, Workspace(made.dtype, dims.product(made.shape)))
    return replace(work, launches=launches, workspaces=spaces)
