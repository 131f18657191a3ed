"""The C interface of a model: names, structures and errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from weft.errors import UnsupportedModelError
from weft.ir import dims
from weft.ir.dims import LARGEST_SIZE, Dim, Symbol
from weft.ir.dtypes import DType
from weft.ir.program import Guard, Value
from weft.ir.types import AnyType, TensorType
from weft.records import dataclass

OK, NULL_ARGUMENT, NOT_OPEN, NO_FILE, WRONG_LENGTH, WRONG_CONTENT = range(6)
NO_MEMORY, SMALL_WORKSPACE, BAD_INDEX, TOO_LARGE, NO_SENSE = range(6, 11)
FIRST_SIZE_ERROR = 100
"""Errors from here on are specific to the model: sizes out of range, then guards."""

COMMON_ERRORS = {
    OK: ("OK", "no error"),
    NULL_ARGUMENT: ("NULL_ARGUMENT", "a required pointer is NULL"),
    NOT_OPEN: ("NOT_OPEN", "the model has no weights: call the function that opens or binds them first"),
    NO_FILE: ("NO_FILE", "the weights file cannot be opened or read"),
    WRONG_LENGTH: ("WRONG_LENGTH", "the weights differ in length from those exported with this code"),
    WRONG_CONTENT: ("WRONG_CONTENT", "the weights differ from those exported with this code"),
    NO_MEMORY: ("NO_MEMORY", "not enough memory for the weights"),
    SMALL_WORKSPACE: ("SMALL_WORKSPACE", "the workspace has fewer bytes than the model needs for these sizes"),
    BAD_INDEX: ("BAD_INDEX", "invalid input data: an index is out of range"),
    TOO_LARGE: ("TOO_LARGE", "tensors of these sizes are too large to address"),
    NO_SENSE: ("NO_SENSE", "for these sizes, a dimension inside the model is negative or a division by zero occurs"),
}

_C_TYPES = {
    DType.float32: "float",
    DType.float64: "double",
    DType.float16: "uint16_t",
    DType.bfloat16: "uint16_t",
    DType.bool: "uint8_t",
    DType.int2: "int8_t",
    DType.int4: "int8_t",
    DType.uint2: "uint8_t",
    DType.uint4: "uint8_t",
    DType.complex64: "float",
    DType.complex128: "double",
}

_RESERVED = frozenset(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class co_await
    co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype default delete do
    double dynamic_cast else enum errno explicit export extern false float for friend goto if inline int linux long
    mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast stderr stdin stdout
    struct switch template this thread_local throw true try typedef typeid typename typeof union unix unsigned using
    virtual void volatile wchar_t while xor xor_eq NULL EOF
    """.split()
)


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output, and the member of a structure that points to it."""

    value: Value
    member: str
    dtype: DType
    shape: tuple[Dim, ...]

    @property
    def c_type(self) -> str:
        default = f"{self.dtype}_t" if self.dtype.is_integer else "uint8_t"
        return _C_TYPES.get(self.dtype, default)

    @property
    def label(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class SizeMember:
    """A dynamic size that the caller passes: its symbol, and its member of the structure of sizes."""

    symbol: Symbol
    member: str
    error: int

    @property
    def low(self) -> int:
        return max(self.symbol.low or 0, 0)

    @property
    def high(self) -> int:
        return min(LARGEST_SIZE if self.symbol.high is None else self.symbol.high, LARGEST_SIZE)


@dataclass(frozen=True, slots=True)
class Interface:
    """All names of one exported model; `name` is their prefix."""

    name: str
    sizes: tuple[SizeMember, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    guards: tuple[tuple[int, Guard], ...]  # with their errors
    inner_guards: tuple[tuple[int, Guard], ...] = ()  # checked only if a branch or loop runs
    observed: tuple[Symbol, ...] = ()  # sizes that the model computes
    size_inputs: tuple[Port, ...] = ()  # inputs that these depend on, which are passed with the sizes

    @property
    def errors(self) -> dict[int, str]:
        """The description of each error."""
        specific = {
            size.error: f"{size.symbol.name} is not within {size.low}..{size.high}, the range that this code supports"
            for size in self.sizes
        }
        for error, guard in (*self.guards, *self.inner_guards):
            node = f" (node {guard.origin})" if guard.origin else ""
            specific[error] = f"this code is for sizes with {guard} only{node}"
        return {**{error: text for error, (_, text) in COMMON_ERRORS.items()}, **specific}

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """All sizes that plans depend on, in the order in which plans receive them."""
        return (*(size.symbol for size in self.sizes), *self.observed)

    def find_error(self, guard: Guard) -> int:
        """Return the error for a broken guard."""
        return next(error for error, other in (*self.guards, *self.inner_guards) if _key(other) == _key(guard))


def make_interface(
    name: str,
    inputs: Sequence[tuple[str, Value]],
    outputs: Sequence[tuple[str, Value]],
    guards: Sequence[Guard],
    inner_guards: Iterable[Guard] = (),
    observed: tuple[Symbol, ...] = (),
    size_inputs: Sequence[Value] = (),
) -> Interface:
    """Choose the C names for a model's inputs and outputs."""
    symbols: dict[str, Symbol] = {}
    for label, value in inputs:
        for dim in _check_tensor(label, value).shape or ():
            symbols.update((symbol.name, symbol) for symbol in sorted(dims.symbols(dim), key=lambda s: s.name))
    first_inputs = [(label, value) for label, value in inputs if value in size_inputs]
    other_inputs = [(label, value) for label, value in inputs if value not in size_inputs]
    members = _unique_members([*symbols, *(label for label, _ in first_inputs)])
    sizes = tuple(
        SizeMember(symbol, member, FIRST_SIZE_ERROR + number)
        for number, (symbol, member) in enumerate(zip(symbols.values(), members))
    )
    distinct = {_key(guard): guard for guard in (*inner_guards, *guards)}
    outer = {_key(guard): None for guard in guards}
    first = FIRST_SIZE_ERROR + len(sizes)
    numbered = [(first + number, distinct[key]) for number, key in enumerate(outer)]
    inner = [(first + number, distinct[key]) for number, key in enumerate({**outer, **distinct}) if key not in outer]
    ports = _make_ports(other_inputs), _make_ports(outputs)
    size_ports = _make_ports(first_inputs, members[len(symbols) :])
    return Interface(name, sizes, *ports, tuple(numbered), tuple(inner), observed, size_ports)


def _key(guard: Guard) -> tuple[Dim, Dim, bool]:
    """Return all of a guard but its origin."""
    return guard.left, guard.right, guard.at_least


def make_c_name(text: str) -> str:
    """Make a C identifier from a text."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII).strip("_") or "value"
    return f"{name}_" if name in _RESERVED else f"_{name}" if name[0].isdigit() else name


def _make_ports(named: Sequence[tuple[str, Value]], members: Sequence[str] | None = None) -> tuple[Port, ...]:
    members = _unique_members([label for label, _ in named]) if members is None else members
    types = [_check_tensor(label, value) for label, value in named]
    return tuple(
        Port(value, member, kind.dtype, kind.shape or ()) for (_, value), member, kind in zip(named, members, types)
    )


def check_tensors(named: Iterable[tuple[str, Value]]) -> None:
    """Raise UnsupportedModelError for an input or output that has no form in C."""
    for label, value in named:
        _check_tensor(label, value)


def _check_tensor(label: str, value: Value) -> TensorType:
    kind = value.type
    if kind.shape is None or kind.dtype is DType.string:
        unknown = isinstance(kind, AnyType) or (isinstance(kind, TensorType) and kind.shape is None)
        raise UnsupportedModelError(
            f"inputs and outputs of a C library must be numeric tensors of known rank; this is {kind}",
            value=label,
            hint="fix sizes with --shape dim=size, which may determine the rank"
            if unknown
            else "export a part of the model without it, or run the model from Python",
        )
    return kind


def _unique_members(labels: Iterable[str]) -> list[str]:
    members: list[str] = []
    for label in labels:
        stem = member = make_c_name(label)
        number = 1
        while member in members:
            number += 1
            member = f"{stem}_{number}"
        members.append(member)
    return members
