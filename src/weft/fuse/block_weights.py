"""Fuse products with the maps that dequantize their block-quantized weights."""

from __future__ import annotations

from dataclasses import replace

from weft.fuse.grouping import find_readers
from weft.ir.block_weights import match_block_weights
from weft.ir.groups import FusedProgram, Group, HeavyGroup, MapGroup
from weft.ir.program import Contract
from weft.ir.target import Target


def fuse_block_weights(fused: FusedProgram, target: Target) -> FusedProgram:
    """Group products with the maps that dequantize their weights, if the target has kernels for them."""
    if not target.unpacks_weights:
        return fused
    makers = {group.results[0]: group for group in fused.groups if isinstance(group, MapGroup)}
    readers = find_readers(fused.program)
    joined: dict[int, Group] = {}
    for group in fused.groups:
        if not isinstance(group, HeavyGroup) or not isinstance(group.heavy.primitive, Contract):
            continue
        for source_index, value in enumerate(group.sources):
            maker = makers.get(value)
            if maker is None or len(readers[value]) > 1:
                continue
            weights = match_block_weights(group.heavy, maker.steps[0], fused.program.constants)
            if weights is None:
                continue
            numbers = maker.steps[0].operands[weights.numbers]
            sources = (group.sources[1 - source_index], numbers)
            others = [operand for operand in group.operands if operand != value]
            operands = tuple(dict.fromkeys((*others, *maker.operands)))
            steps = (*maker.steps, *group.steps)
            joined[id(maker)] = joined[id(group)] = replace(
                group, steps=steps, operands=operands, sources=sources, block_weights=weights
            )
            break
    groups = [joined.get(id(g), g) for g in fused.groups if id(g) not in joined or not isinstance(g, MapGroup)]
    return replace(fused, groups=tuple(groups))
