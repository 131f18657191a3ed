"""Compute symbolic sizes with nodes, from the shapes of tensors that have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import numpy as np

from weft.builder.draft import Draft
from weft.builder.handle import Handle
from weft.builder.naming import function_names
from weft.errors import GraphError, short_repr
from weft.ir import dims
from weft.ir.dims import Axis, Expr, Symbol
from weft.ir.dtypes import DType
from weft.ir.graph import Attribute

_HOW_TO_JOIN = "weft.ops.concat joins tensors of any type"

SizeLike = Union[int, Expr, Handle]


def has_sizes(value: Any) -> bool:
    """Whether a value is a symbolic size, or a list with symbolic sizes or tensors."""
    if isinstance(value, (list, tuple)):
        return any(isinstance(each, (Expr, Handle)) for each in value)
    return isinstance(value, Expr)


def as_tensor(draft: Draft, size: SizeLike | Sequence[SizeLike], dtype: DType = DType.int64) -> Handle:
    """Compute a size as a scalar, or a list of sizes as a vector of int64."""
    writer = _SizeWriter(draft)
    if isinstance(size, (list, tuple)):
        parts = [writer.vector(each) for each in size]
        return parts[0] if len(parts) == 1 else writer.node("concat", *parts, axis=0)
    assert isinstance(size, (int, Expr))
    scalar = writer.node("reshape", writer.vector(size), writer.constant([]))
    return scalar if dtype is DType.int64 else writer.node("cast", scalar, to=dtype.number)


class _SizeWriter:
    """Adds the nodes that compute sizes, each as a vector of one int64."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    def vector(self, size: SizeLike) -> Handle:
        if isinstance(size, Handle):
            return self._from_tensor(size)
        if isinstance(size, Expr):
            computed = dims.fold(size, self._find_symbol, self._functions())
            return computed.handle if isinstance(computed, _Size) else self.constant([computed])
        if not isinstance(size, (int, np.integer)):
            raise GraphError(
                f"a list with sizes or tensors must hold integers, not {short_repr(size)}", hint=_HOW_TO_JOIN
            )
        return self.constant([int(size)])

    def node(self, name: str, *inputs: Handle, **attributes: Attribute) -> Handle:
        definition = self.draft.definition("", function_names("")[name])
        return self.draft.add(definition, inputs, attributes, 1, self.draft.fresh_name(name))[0]

    def constant(self, numbers: Sequence[int]) -> Handle:
        return self.draft.initializer(self.draft.fresh_name("constant"), np.array(numbers, np.int64))

    def _from_tensor(self, tensor: Handle) -> Handle:
        """Convert a tensor of one integer."""
        self.draft.check(tensor)
        if tensor.type.dtype is None or not tensor.type.dtype.is_integer:
            problem = f"{tensor.name!r} is {tensor.type}, but a list with sizes or tensors must hold integers"
            raise GraphError(problem, hint=_HOW_TO_JOIN)
        shaped = self.node("reshape", tensor, self.constant([1]))
        return self.node("cast", shaped, to=DType.int64.number)

    def _find_symbol(self, atom: Symbol | Axis) -> _Size:
        """Read a symbolic size from the shape of a tensor that has it."""
        source = self.draft.find_size(atom) if isinstance(atom, Symbol) else None
        if source is None:
            problem = f"no tensor that may be used here has the size {atom}"
            raise GraphError(problem, hint="take the size from the shape of a tensor of this graph")
        tensor, axis = source
        return _Size(self, self.node("gather", self.node("shape", tensor), self.constant([axis]), axis=0))

    def _functions(self) -> Mapping[str, Callable[[Any, Any], Any]]:
        return {
            "//": self._floor_divide,
            "%": lambda a, b: self._size("mod", a, b),
            "min": lambda a, b: self._size("min", a, b),
            "max": lambda a, b: self._size("max", a, b),
        }

    def _floor_divide(self, a: _Size | int, b: _Size | int) -> _Size:
        """Divide and round down; integer division in ONNX rounds toward zero."""
        remainder = self._size("mod", a, b)
        return self._size("div", self._size("sub", a, remainder), b)

    def _size(self, name: str, a: _Size | int, b: _Size | int) -> _Size:
        handles = [each.handle if isinstance(each, _Size) else self.constant([each]) for each in (a, b)]
        return _Size(self, self.node(name, *handles))


class _Size:
    """A size computed by nodes, with the arithmetic that `dims.fold` needs."""

    def __init__(self, writer: _SizeWriter, handle: Handle) -> None:
        self.writer = writer
        self.handle = handle

    def __add__(self, other: _Size | int) -> _Size:
        return self.writer._size("add", self, other)

    def __mul__(self, other: _Size | int) -> _Size:
        return self.writer._size("mul", self, other)

    __radd__ = __add__
    __rmul__ = __mul__
