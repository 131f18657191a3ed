"""Sizes as tensors: symbolic dims, which only a run knows, computed by nodes from the shapes that have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import numpy as np

from weft.builder.draft import Draft
from weft.builder.handle import Handle
from weft.builder.naming import names_of
from weft.errors import GraphError, short_repr
from weft.ir import dims
from weft.ir.dims import Axis, Expr, Symbol
from weft.ir.dtypes import DType
from weft.ir.graph import Attribute
from weft.ir.types import TensorType

_HOW_TO_JOIN = "weft.ops.concat joins tensors of any type"

SizeLike = Union[int, Expr, Handle]


def has_sizes(given: Any) -> bool:
    """Whether it is a size that only a run knows, or a list with one, or with tensors."""
    if isinstance(given, (list, tuple)):
        return any(isinstance(each, (Expr, Handle)) for each in given)
    return isinstance(given, Expr)


def as_tensor(draft: Draft, given: SizeLike | Sequence[SizeLike], dtype: DType = DType.int64) -> Handle:
    """A size as a scalar of some type, or a list of them as a vector of int64."""
    writer = _Writer(draft)
    if isinstance(given, (list, tuple)):
        parts = [writer.vector(each) for each in given]
        return parts[0] if len(parts) == 1 else writer.node("concat", *parts, axis=0)
    assert isinstance(given, (int, Expr))
    scalar = writer.node("reshape", writer.vector(given), writer.constant([]))
    return scalar if dtype is DType.int64 else writer.node("cast", scalar, to=dtype.number)


class _Writer:
    """Adds the nodes that compute sizes; all of them are vectors of one int64."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    def vector(self, given: SizeLike) -> Handle:
        if isinstance(given, Handle):
            return self._from_tensor(given)
        if isinstance(given, Expr):
            computed = dims.fold(given, self._leaf, self._functions())
            return computed.handle if isinstance(computed, _Size) else self.constant([computed])
        if not isinstance(given, (int, np.integer)):
            raise GraphError(
                f"a list with sizes or tensors in it holds integers, not {short_repr(given)}", hint=_HOW_TO_JOIN
            )
        return self.constant([int(given)])

    def node(self, name: str, *inputs: Handle, **attributes: Attribute) -> Handle:
        definition = self.draft.definition("", names_of("")[name])
        return self.draft.add(definition, inputs, attributes, 1, self.draft.fresh_name(name))[0]

    def constant(self, numbers: Sequence[int]) -> Handle:
        return self.draft.initializer(self.draft.fresh_name("constant"), np.array(numbers, np.int64))

    def _from_tensor(self, given: Handle) -> Handle:
        """A tensor of one integer among sizes."""
        self.draft.check(given)
        if not isinstance(given.type, TensorType) or not given.type.dtype.is_integer:
            problem = f"{given.name!r} is {given.type}, but a list with sizes or tensors in it holds integers"
            raise GraphError(problem, hint=_HOW_TO_JOIN)
        shaped = self.node("reshape", given, self.constant([1]))
        return self.node("cast", shaped, to=DType.int64.number)

    def _leaf(self, atom: Symbol | Axis) -> _Size:
        """The size of that name, from a tensor here that has it."""
        found = self.draft.find_size(atom) if isinstance(atom, Symbol) else None
        if found is None:
            raise GraphError(f"no tensor that can be seen here has the size {atom}", hint="take it from one's shape")
        tensor, axis = found
        return _Size(self, self.node("gather", self.node("shape", tensor), self.constant([axis]), axis=0))

    def _functions(self) -> Mapping[str, Callable[[Any, Any], Any]]:
        return {
            "//": self._floor_divide,
            "%": lambda a, b: self._size("mod", a, b),
            "min": lambda a, b: self._size("min", a, b),
            "max": lambda a, b: self._size("max", a, b),
        }

    def _floor_divide(self, a: _Size | int, b: _Size | int) -> _Size:
        """The quotient rounded down: division of integers in ONNX rounds toward zero."""
        rest = self._size("mod", a, b)
        return self._size("div", self._size("sub", a, rest), b)

    def _size(self, name: str, a: _Size | int, b: _Size | int) -> _Size:
        handles = [each.handle if isinstance(each, _Size) else self.constant([each]) for each in (a, b)]
        return _Size(self, self.node(name, *handles))


class _Size:
    """A size that nodes compute, with the arithmetic that `dims.fold` uses."""

    def __init__(self, writer: _Writer, handle: Handle) -> None:
        self.writer = writer
        self.handle = handle

    def __add__(self, other: _Size | int) -> _Size:
        return self.writer._size("add", self, other)

    def __mul__(self, other: _Size | int) -> _Size:
        return self.writer._size("mul", self, other)

    __radd__ = __add__
    __rmul__ = __mul__
