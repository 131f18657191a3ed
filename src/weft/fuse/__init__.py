"""Fusion (TensorProgram -> FusedProgram): group steps into kernels, leave some to the host, and choose layouts.

A stage takes a fused program and a target. Initially every step is a group of its own. The program is verified after
each stage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.fuse.block_weights import fuse_block_weights, multiplies_codes, separate_block_rows
from weft.fuse.byte_products import multiply_equal_signs
from weft.fuse.concats import inline_concats
from weft.fuse.float8_products import multiply_float8
from weft.fuse.grouping import OTHER_BUFFERS, group_attention, group_heavy, group_rows, single_group, split_wide
from weft.fuse.half_weights import fuse_half_weights
from weft.fuse.host import host_group
from weft.fuse.inline import inline_maps
from weft.fuse.layouts import assign_layouts
from weft.fuse.narrow import narrow_products
from weft.fuse.quantized import simplify_quantized
from weft.fuse.reshapes import move_maps_before_reshapes
from weft.fuse.round_operands import round_operands
from weft.fuse.verify import verify_groups
from weft.fuse.winograd import choose_tiles
from weft.ir.groups import FusedProgram, Group, HostGroup, ScanGroup
from weft.ir.program import Scan, Step, TensorProgram, bodies
from weft.ir.target import Target

Stage = Callable[[FusedProgram, Target], FusedProgram]
Observe = Callable[[str, FusedProgram], None]


def fuse(program: TensorProgram, target: Target, observe: Observe | None = None) -> FusedProgram:
    """Run all stages in order, and call `observe` with the name and result of each."""
    fused = FusedProgram(program, tuple(map(single_group, program.steps)))
    for stage in PIPELINE:
        fused = stage(fused, target)
        verify_groups(fused)
        if observe is not None:
            observe(stage.__name__, fused)
    return fused


def adapted(fused: FusedProgram, target: Target) -> FusedProgram:
    """Adapt groups of another target to this one, accurately enough to estimate their cost."""
    return choose_tiles(leave_to_host(replace(fused, tiles={}), target), target, trusting=True)


def fuse_maps(fused: FusedProgram, target: Target) -> FusedProgram:
    """Inline maps into the maps that read them, without duplicating much work."""
    program = move_maps_before_reshapes(fused.program, of_maps=not multiplies_codes(target))
    program, stored = separate_block_rows(program) if multiplies_codes(target) else (program, set())
    program = inline_maps(program, target.most_buffers - OTHER_BUFFERS, stored)
    program = simplify_quantized(program, target.fused_multiply_add)
    return FusedProgram(program, tuple(map(single_group, program.steps)))


def leave_to_host(fused: FusedProgram, target: Target) -> FusedProgram:
    """Turn scans into groups for the device, and steps without kernels into host groups; fuse their bodies."""
    groups: list[Group] = []
    for group in fused.groups:
        scan = _native_scan(group.steps[0], target)
        if scan is not None:
            groups.append(scan)
            continue
        on_host = host_group(group, target)
        if on_host is not None:
            fused_bodies = tuple(fuse(body, target) for step in group.steps for body in bodies(step.primitive))
            on_host = replace(on_host, bodies=fused_bodies)
        groups.append(group if on_host is None else on_host)
    return replace(fused, groups=tuple(groups))


def _native_scan(step: Step, target: Target) -> ScanGroup | None:
    """Return a scan as a group if its body runs entirely on the device and computes every output."""
    if not isinstance(step.primitive, Scan) or not all(value.has_shape for value in (*step.operands, *step.results)):
        return None
    body = fuse(step.primitive.body, target)
    if body.program.guards or not body.groups or any(isinstance(group, HostGroup) for group in body.groups):
        return None
    outputs = body.program.outputs
    stacked = outputs[step.primitive.carries :]
    computed = {value for group in body.groups for value in group.results}
    if not set(outputs) <= computed or len(set(stacked)) < len(stacked):
        return None
    return ScanGroup((step,), tuple(dict.fromkeys(step.operands)), step.results, body)


PIPELINE: tuple[Stage, ...] = (
    multiply_float8,
    multiply_equal_signs,
    narrow_products,
    inline_concats,
    fuse_maps,
    group_attention,
    group_rows,
    round_operands,
    group_heavy,
    split_wide,
    fuse_block_weights,
    fuse_half_weights,
    leave_to_host,
    choose_tiles,
    assign_layouts,
)
