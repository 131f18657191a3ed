"""Tensors of a graph in the making, with the operators and the few methods that a numpy user reaches for first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Union

import numpy as np

from weft import ops
from weft.builder.arguments import as_array, as_dtype
from weft.builder.functions import blaming_the_caller
from weft.builder.handle import Handle
from weft.builder.indexing import index
from weft.builder.sizes import as_tensor
from weft.errors import GraphError, short_repr
from weft.ir.dims import Expr
from weft.ir.dtypes import DType
from weft.ir.types import Shape, TensorType
from weft.quantities import shorten

Axes = Union[int, Sequence[int], None]


class GraphTensor(Handle):
    """A tensor of a graph in the making; operators and methods add nodes to the graph.

    Numbers and arrays that meet it take its dtype. Integers are not divided with `/`, since ONNX cuts the result off.
    """

    __slots__ = ()
    __array_ufunc__ = None  # so that numpy leaves `array + tensor` to the tensor
    __hash__ = Handle.__hash__

    # -- what is known -----------------------------------------------------------------------------------------------

    @property
    @blaming_the_caller
    def dtype(self) -> DType:
        """The element type; compares equal to its name."""
        if not isinstance(self.type, TensorType):
            raise GraphError(f"the dtype of {self.name!r} is known only at run time ({self.type})")
        return self.type.dtype

    @property
    @blaming_the_caller
    def shape(self) -> Shape:
        """Sizes: ints, and symbols with an arithmetic of their own for those that only a run knows."""
        if not isinstance(self.type, TensorType) or self.type.shape is None:
            hint = "weft.ops.shape gives it as a tensor"
            raise GraphError(f"the shape of {self.name!r} is known only at run time ({self.type})", hint=hint)
        return self.type.shape

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"Tensor({shorten(self.name)}: {shorten(str(self.type), 120)})"

    @blaming_the_caller
    def __len__(self) -> int:
        size = self.shape[0] if self.shape else None
        if not isinstance(size, int):
            raise GraphError(f"{self.name!r} has no length that is known now ({self.type})")
        return size

    def __iter__(self) -> Iterator[GraphTensor]:
        return (self[number] for number in range(len(self)))

    @blaming_the_caller
    def __bool__(self) -> bool:
        hint = "use weft.ops.if_ or weft.ops.where, or & and | for `and` and `or`"
        raise GraphError(f"whether {self.name!r} is true is known only at run time", hint=hint)

    @blaming_the_caller
    def __array__(self, *_: Any, **__: Any) -> np.ndarray[Any, Any]:
        hint = "use functions of weft.ops instead of numpy's"
        raise GraphError(f"{self.name!r} has no elements before a run", hint=hint)

    def constant_like(self, value: Any, dtype: DType | None = None) -> GraphTensor:
        """A constant of the same graph; a tensor stays as it is, and a size that only a run knows is computed."""
        if isinstance(value, Handle):
            return value  # type: ignore[return-value]
        if isinstance(value, Expr):
            return as_tensor(self.draft, value, dtype or DType.int64)  # type: ignore[return-value]
        array = as_array(value, "an operand", dtype)
        return self.draft.initializer(self.draft.fresh_name("constant"), array)  # type: ignore[return-value]

    # -- operators ---------------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> GraphTensor:
        return ops.add(self, other)

    def __radd__(self, other: Any) -> GraphTensor:
        return ops.add(other, self)

    def __sub__(self, other: Any) -> GraphTensor:
        return ops.sub(self, other)

    def __rsub__(self, other: Any) -> GraphTensor:
        return ops.sub(other, self)

    def __mul__(self, other: Any) -> GraphTensor:
        return ops.mul(self, other)

    def __rmul__(self, other: Any) -> GraphTensor:
        return ops.mul(other, self)

    @blaming_the_caller
    def __truediv__(self, other: Any) -> GraphTensor:
        return ops.div(self._divided(), other)

    @blaming_the_caller
    def __rtruediv__(self, other: Any) -> GraphTensor:
        return ops.div(other, self._divided())

    def __floordiv__(self, other: Any) -> GraphTensor:
        return _floor_divide(self, self._peer(other))

    def __rfloordiv__(self, other: Any) -> GraphTensor:
        return _floor_divide(self._peer(other), self)

    def __mod__(self, other: Any) -> GraphTensor:
        return _remainder(self, self._peer(other))

    def __rmod__(self, other: Any) -> GraphTensor:
        return _remainder(self._peer(other), self)

    @blaming_the_caller
    def __pow__(self, other: Any) -> GraphTensor:
        return _power(self, self._peer(other), other)

    def __rpow__(self, other: Any) -> GraphTensor:
        return ops.pow(self._peer(other), self)

    def __matmul__(self, other: Any) -> GraphTensor:
        return ops.mat_mul(self, other)

    def __rmatmul__(self, other: Any) -> GraphTensor:
        return ops.mat_mul(other, self)

    def __neg__(self) -> GraphTensor:
        return ops.neg(self)

    def __pos__(self) -> GraphTensor:
        return self

    def __abs__(self) -> GraphTensor:
        return ops.abs(self)

    def __eq__(self, other: Any) -> GraphTensor:  # type: ignore[override]
        return ops.equal(self, other)

    def __ne__(self, other: Any) -> GraphTensor:  # type: ignore[override]
        return ops.not_(ops.equal(self, other))

    def __lt__(self, other: Any) -> GraphTensor:
        return ops.less(self, other)

    def __le__(self, other: Any) -> GraphTensor:
        return ops.less_or_equal(self, other)

    def __gt__(self, other: Any) -> GraphTensor:
        return ops.greater(self, other)

    def __ge__(self, other: Any) -> GraphTensor:
        return ops.greater_or_equal(self, other)

    def __and__(self, other: Any) -> GraphTensor:
        return ops.and_(self, other) if self._is_bool() else ops.bitwise_and(self, other)

    def __or__(self, other: Any) -> GraphTensor:
        return ops.or_(self, other) if self._is_bool() else ops.bitwise_or(self, other)

    def __xor__(self, other: Any) -> GraphTensor:
        return ops.xor(self, other) if self._is_bool() else ops.bitwise_xor(self, other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> GraphTensor:
        return ops.not_(self) if self._is_bool() else ops.bitwise_not(self)

    @blaming_the_caller
    def __getitem__(self, key: Any) -> GraphTensor:
        return index(self, key)

    def _is_bool(self) -> bool:
        return self.dtype is DType.bool

    def _peer(self, other: Any) -> GraphTensor:
        """What meets this tensor, as one of the same dtype."""
        return self.constant_like(other, self.dtype)

    def _divided(self) -> GraphTensor:
        if self.dtype.is_integer:
            hint = "use // to round down, weft.ops.div to cut off as ONNX does, or .astype('float32') first"
            raise GraphError(f"{self.name!r} is {self.type}: integers are not divided with /", hint=hint)
        return self

    def _accumulated(self) -> GraphTensor:
        """Widen integers to the type that numpy adds them up in."""
        if not (self.dtype.is_integer or self._is_bool()):
            return self
        wide = DType.uint64 if self.dtype.is_unsigned else DType.int64
        return self if self.dtype is wide else ops.cast(self, to=wide)

    # -- methods -----------------------------------------------------------------------------------------------------

    @blaming_the_caller
    def astype(self, dtype: DTypeLike) -> GraphTensor:
        """The elements as another type: a name, a numpy dtype, a Python type."""
        return ops.cast(self, to=as_dtype(dtype))

    @blaming_the_caller
    def reshape(self, *shape: Any) -> GraphTensor:
        """The elements in another shape, of which one size may be -1."""
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], (int, Expr)) else shape
        if isinstance(sizes, (list, tuple)) and any(isinstance(size, int) and size == 0 for size in sizes):
            return ops.reshape(self, sizes, allowzero=1)  # else a 0 would stand for the size that is there
        return ops.reshape(self, sizes)

    @blaming_the_caller
    def transpose(self, *axes: Any) -> GraphTensor:
        """The axes in another order; without one, reversed."""
        order = _axes(axes[0] if len(axes) == 1 and isinstance(axes[0], (list, tuple)) else axes)
        if not order:
            return ops.transpose(self)
        return ops.transpose(self, perm=[axis + self.ndim if axis < 0 else axis for axis in order])

    @property
    def T(self) -> GraphTensor:  # noqa: N802 - as numpy calls it
        """The axes reversed."""
        return ops.transpose(self)

    @blaming_the_caller
    def squeeze(self, axis: Axes = None) -> GraphTensor:
        """Without axes of size 1: all of them, or those named."""
        return ops.squeeze(self, axes=_axes(axis))

    @blaming_the_caller
    def sum(self, axis: Axes = None, keepdims: bool = False) -> GraphTensor:
        """The sum along an axis, several, or all; of narrow integers and flags in 64 bits, as in numpy."""
        return ops.reduce_sum(self._accumulated(), axes=_axes(axis), keepdims=keepdims)

    @blaming_the_caller
    def mean(self, axis: Axes = None, keepdims: bool = False) -> GraphTensor:
        """The mean along an axis, several, or all; of integers and flags a float32, computed in float64."""
        if not (self.dtype.is_integer or self._is_bool()):
            return ops.reduce_mean(self, axes=_axes(axis), keepdims=keepdims)
        wide = ops.cast(self, to=DType.float64)
        return ops.cast(ops.reduce_mean(wide, axes=_axes(axis), keepdims=keepdims), to=DType.float32)

    @blaming_the_caller
    def max(self, axis: Axes = None, keepdims: bool = False) -> GraphTensor:
        """The largest element along an axis, several, or all."""
        return ops.reduce_max(self, axes=_axes(axis), keepdims=keepdims)

    @blaming_the_caller
    def min(self, axis: Axes = None, keepdims: bool = False) -> GraphTensor:
        """The smallest element along an axis, several, or all."""
        return ops.reduce_min(self, axes=_axes(axis), keepdims=keepdims)

    @blaming_the_caller
    def prod(self, axis: Axes = None, keepdims: bool = False) -> GraphTensor:
        """The product along an axis, several, or all; of narrow integers and flags in 64 bits, as in numpy."""
        return ops.reduce_prod(self._accumulated(), axes=_axes(axis), keepdims=keepdims)


def _axes(given: Any) -> list[int] | None:
    """Axes as a list, if it is whole numbers that name them."""
    if given is None:
        return None
    numbers = list(given) if isinstance(given, (list, tuple, range, np.ndarray)) else [given]
    for number in numbers:
        if not isinstance(number, (int, np.integer)) or isinstance(number, bool):
            raise GraphError(f"an axis is a whole number, not {short_repr(number)}")
    return [int(number) for number in numbers]


def _floor_divide(a: GraphTensor, b: GraphTensor) -> GraphTensor:
    """The quotient rounded down, as Python has it: 1.0 // 0.1 is 9, and no step leaves the range of an integer."""
    if not a.dtype.is_float:
        quotient = ops.div(a, b)
        if a.dtype.is_unsigned:
            return quotient
        zero = a.constant_like(0, a.dtype)
        rounds_up = (ops.mod(a, b) != zero) & ((a < zero) ^ (b < zero))
        return quotient - ops.cast(rounds_up, to=a.dtype)
    zero = a.constant_like(0, a.dtype)
    rest = ops.mod(a, b, fmod=1)
    quotient = (a - rest) / b - ops.cast((rest != zero) & ((rest < zero) ^ (b < zero)), to=a.dtype)
    whole = ops.floor(quotient)
    whole = whole + ops.cast(quotient - whole > a.constant_like(0.5, a.dtype), to=a.dtype)
    return ops.where(b == zero, a / b, whole)


def _remainder(a: GraphTensor, b: GraphTensor) -> GraphTensor:
    """The remainder with the sign of the divisor, as Python has it; ONNX has it so for integers alone."""
    if not a.dtype.is_float:
        return ops.mod(a, b)
    rest = ops.mod(a, b, fmod=1)
    zero = a.constant_like(0, a.dtype)
    return ops.where((rest != zero) & ((rest < zero) ^ (b < zero)), rest + b, rest)


def _power(base: GraphTensor, exponent: GraphTensor, given: Any) -> GraphTensor:
    """A power; GraphError where integers have a constant negative exponent, as in numpy."""
    if base.dtype.is_integer and not isinstance(given, (Handle, Expr)) and np.any(np.asarray(given) < 0):
        hint = "take the power of .astype('float32')"
        raise GraphError(f"{base.name!r} is {base.type}: integers have no negative powers", hint=hint)
    return ops.pow(base, exponent)


Tensor = GraphTensor
ArrayLike = Union["np.ndarray[Any, Any]", "np.generic", bool, int, float, str, Sequence["ArrayLike"]]
TensorLike = Union[GraphTensor, Expr, ArrayLike, Sequence["TensorLike"]]
"""What functions take for an input: a tensor, or what becomes a constant."""
DTypeLike = Union[DType, str, int, type, "np.dtype[Any]"]
