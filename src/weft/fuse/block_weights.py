"""Fuse products with the maps of their block-quantized weights, and of rows rounded in the same blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft.fuse.grouping import find_readers
from weft.ir.block_rows import BlockRows, match_block_rows
from weft.ir.block_weights import match_block_weights
from weft.ir.groups import FusedProgram, HeavyGroup, MapGroup
from weft.ir.program import Contract, Step, TensorProgram, Value
from weft.ir.target import Target, VectorTarget


def multiplies_codes(target: Target) -> bool:
    """Whether a target multiplies the codes of rows and weights, rather than the floats that they stand for."""
    return isinstance(target, VectorTarget) and target.unpacks_weights and target.dot_product_8


def separate_block_rows(program: TensorProgram) -> tuple[TensorProgram, set[Value]]:
    """Give every product of rows and weights in blocks its own map of the rows, which can then join its group.

    Also return the codes and scales, which are to be stored: several products may read them.
    """
    makers = {step.results[0]: step for step in program.steps if step.results}
    number = max(
        (value.number for value in (*program.inputs, *program.constants, *makers)),
        default=0,
    )
    stored: set[Value] = set()
    steps: list[Step] = []
    for step in program.steps:
        for place, rows in _find_block_rows(step, makers, program):
            number += 1
            source = makers[step.operands[place]]
            copy = Value(number, source.results[0].type)
            steps.append(replace(source, results=(copy,)))
            operands = (*step.operands[:place], copy, *step.operands[place + 1 :])
            step = replace(step, operands=operands)
            stored |= {rows.codes, rows.scales}
        steps.append(step)
    return (replace(program, steps=tuple(steps)) if stored else program), stored


def _find_block_rows(step: Step, makers: dict[Value, Step], program: TensorProgram) -> Iterator[tuple[int, BlockRows]]:
    """Yield the place and the form of a product's rows, if its weights have the same blocks."""
    if not isinstance(step.primitive, Contract) or len(step.operands) != 2:
        return
    for place in (0, 1):
        rows_maker, maker = (makers.get(step.operands[number]) for number in (place, 1 - place))
        if rows_maker is None or maker is None:
            continue
        rows = match_block_rows(rows_maker)
        weights = None if rows is None else match_block_weights(step, maker, program.constants)
        if rows is not None and weights is not None and weights.block == rows.block:
            yield place, rows
            return


def fuse_block_weights(fused: FusedProgram, target: Target) -> FusedProgram:
    """Group products with the maps that dequantize their weights, if the target has kernels for them."""
    if not target.unpacks_weights:
        return fused
    makers = {group.results[0]: group for group in fused.groups if isinstance(group, MapGroup)}
    readers = find_readers(fused.program)
    joined: dict[int, HeavyGroup] = {}
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
            left = group.sources[1 - source_index]
            larger = join_maker(maker, replace(group, sources=(left, numbers), block_weights=weights))
            joined[id(maker)] = joined[id(group)] = larger
            rows_maker = makers.get(left)
            rows = None if rows_maker is None else match_block_rows(rows_maker.steps[0])
            if (
                rows_maker is not None
                and rows is not None
                and rows.block == weights.block
                and readers[left] == [group.heavy]
                and multiplies_codes(target)
            ):
                sources = (rows.codes, rows.scales, numbers)
                larger = join_maker(rows_maker, replace(larger, sources=sources, block_rows=rows))
                joined[id(maker)] = joined[id(group)] = joined[id(rows_maker)] = larger
            break
    groups = [joined.get(id(g), g) for g in fused.groups if id(g) not in joined or not isinstance(g, MapGroup)]
    return replace(fused, groups=tuple(groups))


def join_maker(maker: MapGroup, group: HeavyGroup) -> HeavyGroup:
    """Add a map, whose result only the group reads, to its group."""
    others = [operand for operand in group.operands if operand not in maker.results]
    operands = tuple(dict.fromkeys((*others, *maker.operands)))
    return replace(group, steps=(*maker.steps, *group.steps), operands=operands)
