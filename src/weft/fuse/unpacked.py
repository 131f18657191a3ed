"""The stage that takes in weights of few bits: a product with the map that makes numbers of them becomes one group."""

from __future__ import annotations

from dataclasses import replace

from weft.fuse.grouping import readers_of
from weft.ir.groups import FusedProgram, Group, HeavyGroup, MapGroup
from weft.ir.program import Contract
from weft.ir.target import Target
from weft.ir.unpacking import unpacked_weights


def take_in_weights(fused: FusedProgram, target: Target) -> FusedProgram:
    """Products whose weights stay in few bits, where a target has kernels for them."""
    if not target.unpacks_weights:
        return fused
    makers = {group.results[0]: group for group in fused.groups if isinstance(group, MapGroup)}
    readers = readers_of(fused.program)
    joined: dict[int, Group] = {}
    for group in fused.groups:
        if not isinstance(group, HeavyGroup) or not isinstance(group.heavy.primitive, Contract):
            continue
        for place, value in enumerate(group.sources):
            maker = makers.get(value)
            if maker is None or len(readers[value]) > 1:
                continue
            weights = unpacked_weights(group.heavy, maker.steps[0], fused.program.constants)
            if weights is None:
                continue
            numbers = maker.steps[0].operands[weights.numbers]
            sources = (group.sources[1 - place], numbers)
            others = [operand for operand in group.operands if operand != value]
            operands = tuple(dict.fromkeys((*others, *maker.operands)))
            steps = (*maker.steps, *group.steps)
            joined[id(maker)] = joined[id(group)] = replace(
                group, steps=steps, operands=operands, sources=sources, unpacked=weights
            )
            break
    groups = [joined.get(id(g), g) for g in fused.groups if id(g) not in joined or not isinstance(g, MapGroup)]
    return replace(fused, groups=tuple(groups))
