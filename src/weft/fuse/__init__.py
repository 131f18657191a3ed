"""TensorProgram -> FusedProgram: which steps become one piece of work, which the host does, how values lie in memory.

A stage is a function of a fused program and a target; the first one finds every step alone in its group. The program
is verified after each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.fuse.concats import join_concats
from weft.fuse.grouping import OTHER_BUFFERS, group_attention, group_heavy, group_rows, single_group, split_wide
from weft.fuse.host import host_group
from weft.fuse.inline import inline_maps
from weft.fuse.layouts import assign_layouts
from weft.fuse.narrow import narrow_products
from weft.fuse.quantized import simplify_quantized
from weft.fuse.unpacked import take_in_weights
from weft.fuse.verify import verify_groups
from weft.fuse.winograd import choose_tiles
from weft.ir.groups import FusedProgram, Group, HostGroup, ScanGroup, is_tensor
from weft.ir.program import Scan, Step, TensorProgram, bodies
from weft.ir.target import Target

Stage = Callable[[FusedProgram, Target], FusedProgram]
Observe = Callable[[str, FusedProgram], None]


def fuse(program: TensorProgram, target: Target, observe: Observe | None = None) -> FusedProgram:
    """Run all stages in order; `observe` is called with the name and the result of each."""
    fused = FusedProgram(program, tuple(map(single_group, program.steps)))
    for stage in PIPELINE:
        fused = stage(fused, target)
        verify_groups(fused)
        if observe is not None:
            observe(stage.__name__, fused)
    return fused


def adapted(fused: FusedProgram, target: Target) -> FusedProgram:
    """Groups that were made for another target, about as this one would have them: good enough to tell their cost."""
    return choose_tiles(leave_to_host(replace(fused, tiles={}), target), target, trusting=True)


def fuse_maps(fused: FusedProgram, target: Target) -> FusedProgram:
    """Maps inside the maps that read them, as far as that multiplies no work."""
    program = inline_maps(fused.program, target.most_buffers - OTHER_BUFFERS)
    program = simplify_quantized(program, target.fused_multiply_add)
    return FusedProgram(program, tuple(map(single_group, program.steps)))


def leave_to_host(fused: FusedProgram, target: Target) -> FusedProgram:
    """Scans that the device does as a whole, and what only the host can do, with the programs inside fused as well."""
    groups: list[Group] = []
    for group in fused.groups:
        scan = _native_scan(group.steps[0], target)
        if scan is not None:
            groups.append(scan)
            continue
        on_host = host_group(group, target)
        if on_host is not None:
            inside = tuple(fuse(body, target) for step in group.steps for body in bodies(step.primitive))
            on_host = replace(on_host, bodies=inside)
        groups.append(group if on_host is None else on_host)
    return replace(fused, groups=tuple(groups))


def _native_scan(step: Step, target: Target) -> ScanGroup | None:
    """A scan, if its body is for the device alone and makes every output."""
    if not isinstance(step.primitive, Scan) or not all(map(is_tensor, (*step.operands, *step.results))):
        return None
    body = fuse(step.primitive.body, target)
    if body.program.guards or not body.groups or any(isinstance(group, HostGroup) for group in body.groups):
        return None
    outputs = body.program.outputs
    stacked = outputs[step.primitive.carries :]
    made = {value for group in body.groups for value in group.results}
    if not set(outputs) <= made or len(set(stacked)) < len(stacked):
        return None
    return ScanGroup((step,), tuple(dict.fromkeys(step.operands)), step.results, body)


PIPELINE: tuple[Stage, ...] = (
    narrow_products,
    join_concats,
    fuse_maps,
    group_attention,
    group_rows,
    group_heavy,
    split_wide,
    take_in_weights,
    leave_to_host,
    choose_tiles,
    assign_layouts,
)
