"""The stage that assigns layouts: which order of axes each value is stored in.

Convolutions and pools work on channels as neighbours; maps and concats follow what they read, or what reads them.
Everything else, and all that the world outside sees, is row-major. Where a reader needs another layout than its value
has, the work between them converts it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.ir import dims
from weft.ir.groups import FusedProgram, Group, RowGroup, section_values, stretches
from weft.ir.layout import Layout, channels_last, row_major
from weft.ir.program import ArgReduce, Concat, Convolve, Map, Pool, Reduce, Step, TensorProgram, Value
from weft.ir.scalar import Index, Load, walk
from weft.ir.target import Target
from weft.ir.types import Shape, TensorType


def assign_layouts(fused: FusedProgram, _: Target) -> FusedProgram:
    """The layout of every tensor that kernels read or make; what the host or the world outside sees is row-major."""
    layouts: dict[Value, Layout] = {}
    for on_device, groups in stretches(fused.groups):
        if on_device:
            layouts |= _section_layouts(fused.program, groups)
    return replace(fused, layouts=layouts)


def _section_layouts(program: TensorProgram, groups: Sequence[Group]) -> dict[Value, Layout]:
    inputs, outputs = section_values(program, groups)
    constants = [value for group in groups for value in group.operands if value in program.constants]
    wanted = _wanted_last(groups)
    layouts: dict[Value, Layout] = {value: row_major(rank(value)) for value in (*inputs, *constants)}
    fixed = {*layouts, *outputs}
    for group in groups:
        last = _makes_channels_last(group, layouts, wanted)
        for value in group.results:
            channels = last and value not in fixed and rank(value) >= 3 and _has_all_axes(group, value)
            layouts[value] = channels_last(rank(value)) if channels else row_major(rank(value))
    return layouts


def needed_layout(group: Group, value: Value, layouts: Mapping[Value, Layout]) -> Layout:
    """The layout in which a group must find one of its operands."""
    number = next(number for number, step in enumerate(group.steps) if value in step.operands)
    if number + 1 < len(group.steps) and isinstance(group.steps[number + 1].primitive, Convolve):
        return channels_last(rank(value))
    step = group.steps[number]
    match step.primitive:
        case Convolve() if value == step.operands[0]:
            return channels_last(rank(value))
        case Map() | Pool() | Concat() | Reduce() | ArgReduce():
            return layouts[value]
        case _:
            return row_major(rank(value))


def same_in_memory(a: Layout, b: Layout, shape: Shape) -> bool:
    """Whether two layouts differ only in axes of size 1."""
    first, second = ([axis for axis in layout.order if shape[axis] != 1] for layout in (a, b))
    return first == second


def rank(value: Value) -> int:
    return len(value.type.shape or ()) if isinstance(value.type, TensorType) else 0


def _wanted_last(groups: Sequence[Group]) -> set[Value]:
    """Values that a convolution reads, directly or through maps that keep their axes."""
    wanted: set[Value] = set()
    for group in reversed(groups):
        for step in reversed(group.steps):
            match step.primitive:
                case Convolve():
                    wanted.add(step.operands[0])
                case Map() | Pool() | Concat() if step.results[0] in wanted:
                    wanted.update(value for value in step.operands if _keeps_axes(step, value))
    return wanted


def _makes_channels_last(group: Group, layouts: dict[Value, Layout], wanted: set[Value]) -> bool:
    first = group.steps[0]
    if isinstance(group, RowGroup):
        full = [value for value in group.operands if group.frame.is_full(value)]
        return bool(full) and all(layouts[value] != row_major(rank(value)) for value in full)
    match first.primitive:
        case Convolve():
            return True
        case Pool():
            return layouts[first.operands[0]] != row_major(rank(first.operands[0]))
        case Map() | Concat():
            if first.results[0] in wanted:
                return True
            return any(
                _keeps_axes(first, value) and layouts[value] != row_major(rank(value)) for value in first.operands
            )
        case _:
            return False


def _has_all_axes(group: Group, value: Value) -> bool:
    """Whether a value of a row group is more than a number for each row."""
    return not isinstance(group, RowGroup) or group.frame.is_full(value)


def _keeps_axes(step: Step, value: Value) -> bool:
    """Whether a step reads a value at the place that it writes, axis by axis."""
    if rank(value) != rank(step.results[0]) or rank(value) < 3:
        return False
    if not isinstance(step.primitive, Map):
        return True
    position = step.operands.index(value)
    for node in walk(step.primitive.expression):
        if isinstance(node, Load) and node.operand == position:
            for axis, index in enumerate(node.indices):
                if not isinstance(index, Index):
                    return False
                used = {atom.position for atom in dims.atoms(index.value) if isinstance(atom, dims.Axis)}
                if not used <= {axis}:
                    return False
    return True
