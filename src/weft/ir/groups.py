"""Groups: which steps of a program become one piece of work, in which parts, and how their values lie in memory.

This is what fusion hands to the kernels. A group's `operands` come from outside and its `results` are seen outside;
`inputs` are the operands in the order in which its template counts them, which may name one twice. A `FusedProgram`
holds every step in exactly one group, and groups in an order that the data allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import groupby
from typing import Union

from weft.ir.attention import Attention
from weft.ir.dims import Dim
from weft.ir.layout import Layout, row_major
from weft.ir.program import Step, TensorProgram, Value, step_text
from weft.ir.rows import RowFrame
from weft.ir.scalar import Scalar
from weft.ir.types import TensorType
from weft.ir.unpacking import BlockWeights
from weft.records import dataclass

Values = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class FusedMap:
    """A map that is done where a heavy step reads or writes an element.

    Loads count `operands`. After a step, the element is what is at hand (`AT_HAND`).
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
    """A reshape: another shape for the same memory."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class HeavyGroup:
    """A contraction, convolution or pool with the map after it.

    With `channel_order`, a convolution reads channel `channel_order` of its input where it takes channel i1. With
    `unpacked`, a map before a contraction makes its weights of constants; sources are the other operand and numbers.
    """

    steps: tuple[Step, ...]
    operands: Values
    results: Values
    heavy: Step
    sources: Values  # what the heavy step reads: its operands, or what a map before it only puts in another order
    epilogue: FusedMap | None
    channel_order: Dim | None = None
    unpacked: BlockWeights | None = None

    @property
    def inputs(self) -> Values:
        return (*self.sources, *(self.epilogue.operands if self.epilogue is not None else ()))


@dataclass(frozen=True, slots=True)
class ReduceGroup:
    """A reduction of the elements that a map before it gives, with the map after it."""

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
    """A softmax between two products; loads of the attention count `operands`."""

    steps: tuple[Step, ...]
    operands: Values
    results: Values
    attention: Attention

    @property
    def inputs(self) -> Values:
        return self.operands


@dataclass(frozen=True, slots=True, eq=False)
class ScanGroup:
    """A scan whose body the device does as a whole, iteration after iteration."""

    steps: tuple[Step]
    operands: Values
    results: Values
    body: FusedProgram


@dataclass(frozen=True, slots=True, eq=False)
class HostGroup:
    """Steps that the host does, and why; `bodies` are the programs inside them, in order."""

    steps: tuple[Step, ...]
    operands: Values
    results: Values
    reason: str
    bodies: tuple[FusedProgram, ...] = ()


KernelGroup = Union[StepGroup, HeavyGroup, ReduceGroup, RowGroup, AttentionGroup]
Group = Union[KernelGroup, ScanGroup, HostGroup]


@dataclass(frozen=True, slots=True)
class TransformedTiles:
    """That a convolution is computed on transformed tiles of `size` outputs along an axis, and why."""

    size: int
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class FusedProgram:
    """`layouts` has every tensor that kernels read or make, `tiles` what convolutions make on transformed tiles."""

    program: TensorProgram
    groups: tuple[Group, ...]
    layouts: Mapping[Value, Layout] = field(default_factory=dict)
    tiles: Mapping[Value, TransformedTiles] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def stretches(groups: Sequence[Group]) -> list[tuple[bool, tuple[Group, ...]]]:
    """Groups that follow each other on the device (True) or on the host."""
    parts = groupby(groups, lambda group: not isinstance(group, HostGroup))
    return [(on_device, tuple(members)) for on_device, members in parts]


def section_values(program: TensorProgram, groups: Sequence[Group]) -> tuple[Values, Values]:
    """What a stretch of groups reads from outside, constants aside, and what of its results others see."""
    own = {id(step) for group in groups for step in group.steps}
    seen = set(program.outputs)
    for step in program.steps:
        if id(step) not in own:
            seen.update(step.operands)
    made = dict.fromkeys(value for group in groups for value in group.results)
    given = dict.fromkeys(value for group in groups for value in group.operands)
    inputs = tuple(value for value in given if value not in made and value not in program.constants)
    return inputs, tuple(value for value in made if value in seen)


# -- as text ---------------------------------------------------------------------------------------------------------


def group_name(group: Group) -> str:
    """What kind of group it is, for people."""
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


def is_tensor(value: Value) -> bool:
    """Whether it is a tensor of known rank."""
    return isinstance(value.type, TensorType) and value.type.shape is not None
