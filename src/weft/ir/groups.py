"""Groups: the steps of a program that are fused into one kernel task, and the layouts of their values.

Fusion passes groups to the kernel templates. A group's `operands` come from outside and its `results` are used outside;
`inputs` are the operands in the order that its template expects, possibly with repetitions. In a `FusedProgram` every
step is in exactly one group, and groups are in topological order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import groupby
from typing import Union

from weft.ir.attention import Attention
from weft.ir.block_rows import BlockRows
from weft.ir.block_weights import BlockWeights
from weft.ir.dims import Dim
from weft.ir.layout import Layout, row_major
from weft.ir.program import Step, TensorProgram, Value, step_text
from weft.ir.rows import RowFrame
from weft.ir.scalar import Scalar
from weft.records import dataclass

Values = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class FusedMap:
    """A map that is applied where a heavy step reads or writes an element.

    Loads index `operands`. In an epilogue, the placeholder `ELEMENT` is the step's result.
    """

    expression: Scalar
    operands: Values


@dataclass(frozen=True, slots=True)
class StepGroup:
    """One step alone."""

    steps: tuple[Step]
    operands: Values
    results: Values

    @property
    def inputs(self) -> Values:
        return self.steps[0].operands


class MapGroup(StepGroup):
    """One map."""

    __slots__ = ()


class ReshapeGroup(StepGroup):
    """A reshape, whose result aliases its operand."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class HeavyGroup:
    """A contraction, convolution or pool with the map after it.

    With `channel_order`, a convolution reads channel `channel_order` of its input in place of channel i1. With
    `block_weights`, a map before a contraction dequantizes its weights; sources are the other operand and the numbers.
    With `block_rows`, another map multiplies the codes and scales of the other operand, which are sources in its place.
    """

    steps: tuple[Step, ...]
    operands: Values
    results: Values
    heavy: Step
    sources: Values  # what the heavy step reads: its operands, or the source of a map that only reorders channels
    epilogue: FusedMap | None
    channel_order: Dim | None = None
    block_weights: BlockWeights | None = None
    block_rows: BlockRows | None = None

    @property
    def inputs(self) -> Values:
        return (*self.sources, *(self.epilogue.operands if self.epilogue is not None else ()))


@dataclass(frozen=True, slots=True)
class ReduceGroup:
    """A reduction with the map that computes its elements and the map after it."""

    steps: tuple[Step, ...]
    operands: Values
    results: Values
    heavy: Step
    element: FusedMap
    epilogue: FusedMap | None

    @property
    def inputs(self) -> Values:
        return (*self.element.operands, *(self.epilogue.operands if self.epilogue is not None else ()))


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Maps and reductions along the same rows."""

    steps: tuple[Step, ...]
    operands: Values
    results: Values
    frame: RowFrame

    @property
    def inputs(self) -> Values:
        return self.operands


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """A softmax between two products; loads of the attention index `operands`."""

    steps: tuple[Step, ...]
    operands: Values
    results: Values
    attention: Attention

    @property
    def inputs(self) -> Values:
        return self.operands


@dataclass(frozen=True, slots=True, eq=False)
class ScanGroup:
    """A scan that runs on the device as a whole."""

    steps: tuple[Step]
    operands: Values
    results: Values
    body: FusedProgram


@dataclass(frozen=True, slots=True, eq=False)
class HostGroup:
    """Steps that run on the host, with the reason; `bodies` are their nested programs, in order."""

    steps: tuple[Step, ...]
    operands: Values
    results: Values
    reason: str
    bodies: tuple[FusedProgram, ...] = ()


KernelGroup = Union[StepGroup, HeavyGroup, ReduceGroup, RowGroup, AttentionGroup]
Group = Union[KernelGroup, ScanGroup, HostGroup]


@dataclass(frozen=True, slots=True)
class TransformedTiles:
    """Winograd tiles of a convolution, with `size` outputs along each axis, and the reason for them."""

    size: int
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class FusedProgram:
    """A program in groups; `layouts` has every tensor of kernels, `tiles` the results of Winograd convolutions."""

    program: TensorProgram
    groups: tuple[Group, ...]
    layouts: Mapping[Value, Layout] = field(default_factory=dict)
    tiles: Mapping[Value, TransformedTiles] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def stretches(groups: Sequence[Group]) -> list[tuple[bool, tuple[Group, ...]]]:
    """Split groups into runs on the device (True) and on the host."""
    runs = groupby(groups, lambda group: not isinstance(group, HostGroup))
    return [(on_device, tuple(members)) for on_device, members in runs]


def section_values(program: TensorProgram, groups: Sequence[Group]) -> tuple[Values, Values]:
    """Return the inputs (without constants) and outputs of consecutive groups."""
    steps = {id(step) for group in groups for step in group.steps}
    used_outside = set(program.outputs)
    for step in program.steps:
        if id(step) not in steps:
            used_outside.update(step.operands)
    results = dict.fromkeys(value for group in groups for value in group.results)
    operands = dict.fromkeys(value for group in groups for value in group.operands)
    inputs = tuple(value for value in operands if value not in results and value not in program.constants)
    return inputs, tuple(value for value in results if value in used_outside)


# -- printing ---------------------------------------------------------------------------------------------------------


def group_name(group: Group) -> str:
    """Return a readable name for the kind of a group."""
    match group:
        case HeavyGroup(heavy=heavy) | ReduceGroup(heavy=heavy):
            name = type(heavy.primitive).__name__.lower()
            number = group.steps.index(heavy)
            before, after = number > 0, len(group.steps) > number + 1
            return f"{name}{' with prologue' if before else ''}{' with epilogue' if after else ''}"
        case RowGroup():
            return "rows"
        case AttentionGroup() | ScanGroup() | HostGroup():
            return type(group).__name__.removesuffix("Group").lower()
        case _:
            return type(group.steps[0].primitive).__name__.lower()


def _lines(fused: FusedProgram, indent: str = "") -> Iterator[str]:
    number = 0
    for on_device, groups in stretches(fused.groups):
        inputs, outputs = section_values(fused.program, groups)
        yield f"{indent}{'device' if on_device else 'host'} ({_names(inputs)}) -> ({_names(outputs)})"
        for group in groups:
            yield f"{indent}  group {number}: {group_name(group)}{_notes(group, fused)}"
            number += 1
            for step in group.steps:
                yield f"{indent}    {step_text(step)}"
            for value in group.results:
                if value in fused.layouts and fused.layouts[value] != row_major(len(fused.layouts[value].order)):
                    yield f"{indent}    {value} has its axes in the order {fused.layouts[value].order}"
            for body in _bodies(group):
                yield f"{indent}    body:"
                yield from _lines(body, indent + "      ")


def _notes(group: Group, fused: FusedProgram) -> str:
    notes: list[str] = []
    match group:
        case HostGroup():
            notes.append(group.reason)
        case HeavyGroup():
            tiles = fused.tiles.get(group.heavy.results[0])
            notes += [f"transformed tiles of {tiles.size}: {tiles.reason}"] if tiles is not None else []
            notes += [f"channels in the order {group.channel_order}"] if group.channel_order is not None else []
        case RowGroup():
            notes.append(f"along the axes {', '.join(map(str, sorted(group.frame.reduced)))}")
    return "".join(f"; {note}" for note in notes)


def _bodies(group: Group) -> tuple[FusedProgram, ...]:
    match group:
        case ScanGroup():
            return (group.body,)
        case HostGroup():
            return group.bodies
        case _:
            return ()


def _names(values: Sequence[Value]) -> str:
    return ", ".join(map(str, values))
