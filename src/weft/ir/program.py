"""The tensor program: a flat list of steps in SSA form, each one primitive applied to values.

A step's result types carry the shapes; a primitive holds only what its operands and results do not say. A symbol in a
shape is bound by the first value whose type shows it alone: a program input, the result of a host step, or `Observe`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, Union

import numpy as np

from weft.ir.dims import Dim, Expr
from weft.ir.dtypes import DType
from weft.ir.scalar import Scalar
from weft.ir.types import Type
from weft.quantities import counted
from weft.records import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Value:
    """One SSA value. `name` is the ONNX name where there is one; the number identifies it."""

    number: int
    type: Type
    name: str = ""

    def __hash__(self) -> int:
        return self.number

    def __str__(self) -> str:
        return f"%{self.number}"


# -- data movement and elementwise work ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Map:
    """result[i0, i1, ...] = expression, over the result's shape."""

    expression: Scalar


@dataclass(frozen=True, slots=True)
class Reshape:
    """The same elements in row-major order under another shape."""


@dataclass(frozen=True, slots=True)
class Concat:
    axis: int


@dataclass(frozen=True, slots=True)
class Dims:
    """An integer tensor (row-major `values`) made of sizes."""

    values: tuple[Dim, ...]


# -- reductions and heavy work ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reduce:
    """Combine along `axes`, which vanish from the shape. Kinds: sum, product, maximum, minimum."""

    kind: str
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ArgReduce:
    """int64 position of the maximum or minimum along `axis`, which vanishes; ties: the first, or the last."""

    kind: str
    axis: int
    last: bool


@dataclass(frozen=True, slots=True)
class Contract:
    """Sum of products over the labels missing from `output` (operands: left, right); labels name dimensions.

    Operands and result are of one dtype; or one operand is uint8, the other int8, and the sums are int32; or one was
    rounded to bfloat16, the other of float32 may be too, and the sums are float32.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    output: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Convolve:
    """Cross-correlation of x [N, C, *S] with w [M, C/groups, *K]; `pads` are (before, after) per spatial axis.

    Transposed: its adjoint, with w [C, M/groups, *K]; `pads` then crop the result, whose shape the result type gives.
    The dtypes are as those of `Contract`.
    """

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[Dim, Dim], ...]
    groups: Dim
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Pool:
    """Combine each window of x [N, C, *S]; padding never wins a maximum and adds nothing to a sum.

    Kinds: maximum, sum, argmax (int64 row-major position within *S of the first maximum).
    """

    kind: str
    window: tuple[Dim, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[Dim, Dim], ...]


@dataclass(frozen=True, slots=True)
class Cumulate:
    """Running sum or product along `axis`; `exclusive` leaves the element itself out, `reverse` runs from the end."""

    kind: str
    axis: int
    exclusive: bool
    reverse: bool


@dataclass(frozen=True, slots=True)
class Sort:
    """The first `count` elements along `axis` in order, and their int64 positions; ties keep their order."""

    axis: int
    count: Dim
    descending: bool


@dataclass(frozen=True, slots=True)
class Scatter:
    """A copy of operand 0 in which, for each point of `domain`, the element at `indices` takes in `update`.

    `indices` and `update` are scalars over the domain's axes that load from the operands. Reductions: none (the last
    point in row-major order wins), add, multiply, minimum, maximum. Points outside the tensor are an error of the
    data with `checked`, and are left out without.
    """

    domain: tuple[Dim, ...]
    indices: tuple[Scalar, ...]
    update: Scalar
    reduction: str
    checked: bool = True


@dataclass(frozen=True, slots=True)
class Random:
    """Counter-based random numbers, the same on all devices for a seed; without a seed new ones in each run.

    Kinds: uniform in [0, 1), normal with mean 0 and deviation 1.
    """

    kind: str
    seed: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """Run `body` `length` times. Operands: carries, sequences (sliced along axis 0), captures.

    The body takes carries, slices, captures and gives carries, then outputs; results: last carries, stacked outputs.
    """

    body: TensorProgram
    carries: int
    sequences: int
    length: Dim


# -- host steps ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Observe:
    """Bind `symbols`, in row-major order, to the elements of an integer tensor. No result."""

    symbols: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Host:
    """A function of the host, by name: strings, sequences, sizes that depend on data."""

    function: str
    attributes: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """Run one of two programs. Operands: condition, captures of `then`, captures of `otherwise`."""

    then: TensorProgram
    otherwise: TensorProgram


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """Run `body` at most `trips` times while the condition holds. Operands: trips, condition, carries, captures.

    The body takes iteration number, condition, carries, captures and gives condition, carries, outputs; results:
    last carries, then outputs stacked along a new first axis.
    """

    body: TensorProgram
    carries: int


@dataclass(frozen=True, slots=True, eq=False)
class Late:
    """An op whose operands' ranks or types only the run reveals: it is traced and evaluated then."""

    domain: str
    op: str
    version: int
    attributes: Mapping[str, Any]  # subgraphs among them as graphs
    present: tuple[bool, ...]  # which of the op's inputs are given; the first operands are those
    captures: tuple[str, ...] = ()  # what subgraphs call the operands after them


Primitive = Union[
    Map, Reshape, Concat, Dims, Reduce, ArgReduce, Contract, Convolve, Pool, Cumulate, Sort, Scatter, Random, Scan,
    Observe, Host, Branch, Loop, Late,
]  # fmt: skip

HOST_STEPS = (Observe, Host, Branch, Loop, Late)
ORIGINS = " + "  # between the nodes that a fused step came from


@dataclass(frozen=True, slots=True)
class Step:
    primitive: Primitive
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    origin: str  # the ONNX node that it came from


def join_origins(origins: Iterable[str]) -> str:
    """The nodes that something came from as one text, each once."""
    return ORIGINS.join(dict.fromkeys(part for origin in origins for part in origin.split(ORIGINS) if part))


def step_name(step: Step) -> str:
    """What kind of step it is, for people."""
    match step.primitive:
        case Host(function):
            return function
        case Late(_, op):
            return f"{op}, traced late"
        case _:
            return type(step.primitive).__name__.lower()


@dataclass(frozen=True, slots=True)
class Guard:
    """An assumption of the trace about sizes: left == right (or, for `at_least`, left >= right)."""

    left: Dim
    right: Dim
    origin: str
    at_least: bool = False

    def __str__(self) -> str:
        return f"{self.left} {'>=' if self.at_least else '=='} {self.right}"


@dataclass(frozen=True, slots=True, eq=False)
class TensorProgram:
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    steps: tuple[Step, ...]
    constants: Mapping[Value, Any] = field(default_factory=dict)  # arrays; lists and None for sequences, optionals
    guards: tuple[Guard, ...] = ()

    def __str__(self) -> str:
        return "\n".join(lines(self))

    def __repr__(self) -> str:
        sizes = f"{counted(len(self.inputs), 'input')}, {counted(len(self.outputs), 'output')}"
        return f"<tensor program: {sizes}, {counted(len(self.steps), 'step')}>"


def bodies(primitive: Primitive) -> tuple[TensorProgram, ...]:
    """The programs inside a primitive."""
    match primitive:
        case Scan(body) | Loop(body):
            return (body,)
        case Branch(then, otherwise):
            return then, otherwise
        case _:
            return ()


def with_bodies(primitive: Primitive, change: Callable[[TensorProgram], TensorProgram]) -> Primitive:
    """The primitive with the programs inside it changed, in the order of `bodies`."""
    match primitive:
        case Scan(body) | Loop(body):
            return replace(primitive, body=change(body))
        case Branch(then, otherwise):
            return Branch(change(then), change(otherwise))
        case _:
            return primitive


def lines(program: TensorProgram, indent: str = "") -> Iterator[str]:
    """The program as text, one step a line."""
    for value in program.inputs:
        yield f"{indent}input {value}: {value.type}  # {value.name}"
    for value, content in program.constants.items():
        yield f"{indent}constant {value}: {value.type} = {_summary(content)}  # {value.name}"
    for guard in program.guards:
        yield f"{indent}guard {guard}  # {guard.origin}"
    for step in program.steps:
        yield f"{indent}{step_text(step)}"
        for body in bodies(step.primitive):
            yield f"{indent}  body:"
            yield from lines(body, indent + "    ")
    for value in program.outputs:
        yield f"{indent}output {value}: {value.type}  # {value.name}"


def step_text(step: Step) -> str:
    """A step as a line."""
    results = ", ".join(f"{value}: {value.type}" for value in step.results)
    operands = ", ".join(map(str, step.operands))
    return f"{results} = {_describe(step.primitive)}({operands})  # {step.origin}"


def _describe(primitive: Primitive) -> str:
    name = type(primitive).__name__.lower()
    details = []
    for slot in primitive.__slots__:
        content = getattr(primitive, slot)
        if isinstance(content, TensorProgram):
            continue
        text = ", ".join(map(str, content)) if isinstance(content, tuple) else str(content)
        details.append(f"{slot}={text}" if slot != "expression" else text)
    return f"{name}{{{'; '.join(details)}}}" if details else name


def _summary(content: Any) -> str:
    if isinstance(content, np.ndarray):
        if content.size <= 8:
            return str(content.tolist())
        return f"<{content.size} elements>"
    return repr(content)[:80]


def tensor_dtype(value: Value) -> DType:
    """The element type of a tensor value; TypeError for others."""
    dtype = getattr(value.type, "dtype", None)
    if dtype is None:
        raise TypeError(f"{value} is a {value.type}, not a tensor")
    return dtype  # type: ignore[no-any-return]
