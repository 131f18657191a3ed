"""Assign memory layouts to values.

Convolutions and pools work on contiguous channels; maps and concatenations follow their operands or readers. Everything
else, and all inputs and outputs, is row-major. If a reader needs another layout, kernels in between convert the value.
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
from weft.ir.types import Shape


def assign_layouts(fused: FusedProgram, _: Target) -> FusedProgram:
    """Assign layouts to the tensors of kernels; those that the host or the caller sees are row-major."""
    layouts: dict[Value, Layout] = {}
    for on_device, groups in stretches(fused.groups):
        if on_device:
            layouts |= _assign_section_layouts(fused.program, groups)
    return replace(fused, layouts=layouts)


def _assign_section_layouts(program: TensorProgram, groups: Sequence[Group]) -> dict[Value, Layout]:
    inputs, outputs = section_values(program, groups)
    constants = [value for group in groups for value in group.operands if value in program.constants]
    read_by_convolutions = _find_convolution_inputs(groups)
    layouts: dict[Value, Layout] = {value: row_major(len(value.known_shape or ())) for value in (*inputs, *constants)}
    fixed = {*layouts, *outputs}
    for group in groups:
        last = _produces_channels_last(group, layouts, read_by_convolutions)
        for value in group.results:
            channels = last and value not in fixed and value.rank >= 3 and _is_full(group, value)
            layouts[value] = channels_last(value.rank) if channels else row_major(value.rank)
    return layouts


def needed_layout(group: Group, value: Value, layouts: Mapping[Value, Layout]) -> Layout:
    """Return the layout in which a group needs one of its operands."""
    number = next(number for number, step in enumerate(group.steps) if value in step.operands)
    if number + 1 < len(group.steps) and isinstance(group.steps[number + 1].primitive, Convolve):
        return channels_last(value.rank)
    step = group.steps[number]
    match step.primitive:
        case Convolve() if value == step.operands[0]:
            return channels_last(value.rank)
        case Map() | Pool() | Concat() | Reduce() | ArgReduce():
            return layouts[value]
        case _:
            return row_major(value.rank)


def same_in_memory(a: Layout, b: Layout, shape: Shape) -> bool:
    """Whether two layouts differ only in axes of size 1."""
    first, second = ([axis for axis in layout.order if shape[axis] != 1] for layout in (a, b))
    return first == second


def _find_convolution_inputs(groups: Sequence[Group]) -> set[Value]:
    """Find the values that a convolution reads, directly or through maps that keep their axes."""
    read_by_convolutions: set[Value] = set()
    for group in reversed(groups):
        for step in reversed(group.steps):
            match step.primitive:
                case Convolve():
                    read_by_convolutions.add(step.operands[0])
                case Map() | Pool() | Concat() if step.results[0] in read_by_convolutions:
                    read_by_convolutions.update(value for value in step.operands if _keeps_axes(step, value))
    return read_by_convolutions


def _produces_channels_last(group: Group, layouts: dict[Value, Layout], read_by_convolutions: set[Value]) -> bool:
    first = group.steps[0]
    if isinstance(group, RowGroup):
        full = [value for value in group.operands if group.frame.is_full(value)]
        return bool(full) and all(layouts[value] != row_major(value.rank) for value in full)
    match first.primitive:
        case Convolve():
            return True
        case Pool():
            return layouts[first.operands[0]] != row_major(first.operands[0].rank)
        case Map() | Concat():
            if first.results[0] in read_by_convolutions:
                return True
            return any(
                _keeps_axes(first, value) and layouts[value] != row_major(value.rank) for value in first.operands
            )
        case _:
            return False


def _is_full(group: Group, value: Value) -> bool:
    """Whether a value of a row group has an element for each point of the domain."""
    return not isinstance(group, RowGroup) or group.frame.is_full(value)


def _keeps_axes(step: Step, value: Value) -> bool:
    """Whether each axis of a step's result depends only on the same axis of a value."""
    if value.rank != step.results[0].rank or value.rank < 3:
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
