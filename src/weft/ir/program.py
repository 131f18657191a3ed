"""The tensor program: a flat list of steps in SSA form, each one primitive applied to values.

Result types carry the shapes; a primitive holds only what its operands and results do not determine. A symbol is bound
by the first value with a dimension that is just this symbol: a program input, the result of a host step, or `Observe`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, Union

import numpy as np

from weft.ir.dims import Dim, Expr, product
from weft.ir.dtypes import DType
from weft.ir.scalar import Scalar
from weft.ir.types import Shape, TensorType, Type
from weft.quantities import format_plural
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Value:
    """One SSA value, identified by its number; `name` is the ONNX name, if there is one.

    `dtype` is that of a tensor, `shape`, `rank` and `nbytes` those of a tensor of known rank; other values have none.
    """

    number: int
    type: Type
    name: str = ""

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.type, TensorType)

    @property
    def has_shape(self) -> bool:
        """Whether this is a tensor of known rank."""
        return self.type.shape is not None

    @property
    def dtype(self) -> DType:
        if self.type.dtype is None:
            raise TypeError(f"{self} has no dtype: it is {self.type}")
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        if self.type.shape is None:
            raise TypeError(f"{self} has no shape: it is {self.type}")
        return self.type.shape

    @property
    def known_shape(self) -> Shape | None:
        """The shape of a tensor of known rank, None for all other values."""
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element in memory."""
        return self.dtype.numpy.itemsize

    @property
    def nbytes(self) -> Dim:
        return product(self.shape) * self.itemsize

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
    """An integer tensor of sizes; `values` are in row-major order."""

    values: tuple[Dim, ...]


# -- reductions and heavy work ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reduce:
    """Reduce along `axes`, which are removed from the shape. Kinds: sum, product, maximum, minimum."""

    kind: str
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ArgReduce:
    """int64 index of the maximum or minimum along `axis`, which is removed; ties give the first or `last` index."""

    kind: str
    axis: int
    last: bool


@dataclass(frozen=True, slots=True)
class Contract:
    """Sum of products over the labels missing from `output` (operands: left, right); labels name dimensions.

    Operands and result have one dtype; or the operands are uint8 or int8 and the result int32; or the result is float32
    and the operands are floats of 8 bits, or were rounded to float16 or bfloat16: one may be float32, which may be
    rounded too.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    output: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Convolve:
    """Cross-correlation of x [N, C, *S] with w [M, C/groups, *K]; `pads` are (before, after) per spatial axis.

    Transposed: its adjoint, with w [C, M/groups, *K]; `pads` then crop the result, whose shape the result type gives.
    The rules for dtypes are those of `Contract`.
    """

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[Dim, Dim], ...]
    groups: Dim
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Pool:
    """Reduce each window of x [N, C, *S]; padding is the neutral element.

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
    point in row-major order wins), add, multiply, minimum, maximum. Points outside the tensor raise an error if
    `checked`, and are ignored otherwise.

    `distinct`: the indices of no two points inside the tensor are equal, so that points need no order. The pass that
    sets it guarantees it for all runs; what follows from the indices alone (`ir/scatter_points.py`) needs no mark.

    `in_place`: the result is the memory of operand 0 itself, which is an input of the program, or the result of another
    such scatter, and has no other reader. Only `passes/hold_state.py` creates these.
    """

    domain: tuple[Dim, ...]
    indices: tuple[Scalar, ...]
    update: Scalar
    reduction: str
    checked: bool = True
    in_place: bool = False
    distinct: bool = False


@dataclass(frozen=True, slots=True)
class Random:
    """Counter-based random numbers: equal on all devices for a seed, new in each run without one.

    Kinds: uniform in [0, 1), normal with mean 0 and deviation 1.
    """

    kind: str
    seed: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """Run `body` `length` times. Operands: carries, sequences (sliced along axis 0), captures.

    The body maps carries, slices and captures to carries and outputs; results: last carries, stacked outputs.
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
    """A named host function, for strings, sequences and data-dependent sizes."""

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

    The body maps iteration number, condition, carries and captures to condition, carries and outputs; results: last
    carries, then outputs stacked along a new first axis.
    """

    body: TensorProgram
    carries: int


@dataclass(frozen=True, slots=True, eq=False)
class Late:
    """An op whose operand ranks or types are known only at run time, when it is traced and evaluated."""

    domain: str
    op: str
    version: int
    attributes: Mapping[str, Any]  # subgraphs among them as graphs
    present: tuple[bool, ...]  # which of the op's inputs are present; these are the first operands
    captures: tuple[str, ...] = ()  # the names in subgraphs of the operands after them


Primitive = Union[
    Map, Reshape, Concat, Dims, Reduce, ArgReduce, Contract, Convolve, Pool, Cumulate, Sort, Scatter, Random, Scan,
    Observe, Host, Branch, Loop, Late,
]  # fmt: skip

HOST_STEPS = (Observe, Host, Branch, Loop, Late)
ORIGINS = " + "  # separates the nodes of a fused step


@dataclass(frozen=True, slots=True)
class Step:
    primitive: Primitive
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    origin: str  # the ONNX node


def join_origins(origins: Iterable[str]) -> str:
    """Join the names of nodes into one text, without duplicates."""
    return ORIGINS.join(dict.fromkeys(part for origin in origins for part in origin.split(ORIGINS) if part))


def step_name(step: Step) -> str:
    """Return a readable name for the kind of a step."""
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
        sizes = f"{format_plural(len(self.inputs), 'input')}, {format_plural(len(self.outputs), 'output')}"
        return f"<tensor program: {sizes}, {format_plural(len(self.steps), 'step')}>"


def bodies(primitive: Primitive) -> tuple[TensorProgram, ...]:
    """Return the nested programs of a primitive."""
    match primitive:
        case Scan(body) | Loop(body):
            return (body,)
        case Branch(then, otherwise):
            return then, otherwise
        case _:
            return ()


def with_bodies(primitive: Primitive, change: Callable[[TensorProgram], TensorProgram]) -> Primitive:
    """Apply a function to the nested programs of a primitive, in the order of `bodies`."""
    match primitive:
        case Scan(body) | Loop(body):
            return replace(primitive, body=change(body))
        case Branch(then, otherwise):
            return Branch(change(then), change(otherwise))
        case _:
            return primitive


def lines(program: TensorProgram, indent: str = "") -> Iterator[str]:
    """Yield the lines of the program's text, one per step."""
    for value in program.inputs:
        yield f"{indent}input {value}: {value.type}  # {value.name}"
    for value, content in program.constants.items():
        yield f"{indent}constant {value}: {value.type} = {_format_constant(content)}  # {value.name}"
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
    """Format a step as one line."""
    results = ", ".join(f"{value}: {value.type}" for value in step.results)
    operands = ", ".join(map(str, step.operands))
    return f"{results} = {_format_primitive(step.primitive)}({operands})  # {step.origin}"


def _format_primitive(primitive: Primitive) -> str:
    name = type(primitive).__name__.lower()
    details = []
    for slot in primitive.__slots__:
        content = getattr(primitive, slot)
        if isinstance(content, TensorProgram):
            continue
        text = ", ".join(map(str, content)) if isinstance(content, tuple) else str(content)
        details.append(f"{slot}={text}" if slot != "expression" else text)
    return f"{name}{{{'; '.join(details)}}}" if details else name


def _format_constant(content: Any) -> str:
    if isinstance(content, np.ndarray):
        if content.size <= 8:
            return str(content.tolist())
        return f"<{content.size} elements>"
    return repr(content)[:80]
