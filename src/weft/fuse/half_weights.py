"""Fuse products with the casts of their weights from 16 bits: kernels convert them in registers."""

from __future__ import annotations

from dataclasses import replace

from weft.fuse.block_weights import join_maker
from weft.fuse.grouping import find_readers
from weft.ir.groups import FusedProgram, HeavyGroup, MapGroup
from weft.ir.half_weights import widens_weights
from weft.ir.target import Target


def fuse_half_weights(fused: FusedProgram, target: Target) -> FusedProgram:
    """Group products with the maps that widen their weights, if the target has kernels for them."""
    if not target.widens_weights:
        return fused
    makers = {group.results[0]: group for group in fused.groups if isinstance(group, MapGroup)}
    readers = find_readers(fused.program)
    joined: dict[int, HeavyGroup] = {}
    for group in fused.groups:
        if not isinstance(group, HeavyGroup) or group.block_weights is not None:
            continue
        for number, value in enumerate(group.sources):
            maker = makers.get(value)
            if maker is None or readers[value] != [group.heavy]:
                continue
            if widens_weights(group.heavy, maker.steps[0], fused.program.constants):
                sources = (*group.sources[:number], maker.operands[0], *group.sources[number + 1 :])
                joined[id(maker)] = joined[id(group)] = join_maker(maker, replace(group, sources=sources))
                break
    groups = [joined.get(id(g), g) for g in fused.groups if id(g) not in joined or not isinstance(g, MapGroup)]
    return replace(fused, groups=tuple(groups))
