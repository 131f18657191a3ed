"""Tensors of a graph under construction, with operators and the most common methods of numpy arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Union

import numpy as np

from weft import ops
from weft.builder.arguments import as_array, as_dtype
from weft.builder.functions import report_at_caller
from weft.builder.handle import Handle
from weft.builder.indexing import index
from weft.builder.sizes import as_tensor
from weft.errors import GraphError, short_repr
from weft.ir.arrays import Array
from weft.ir.dims import Expr
from weft.ir.dtypes import DType
from weft.ir.types import Shape, TensorType
from weft.quantities import shorten

Axes = Union[int, Sequence[int], None]


class GraphTensor(Handle):
    """A tensor of a graph under construction; operators and methods add nodes to the graph.

    Numbers and arrays in an expression with it take its dtype. `/` is an error for integers, because ONNX truncates.
    """

    __slots__ = ()
    __array_ufunc__ = None  # numpy leaves `array + tensor` to the tensor
    __hash__ = Handle.__hash__

    # -- properties --------------------------------------------------------------------------------------------------

    @property
    @report_at_caller
    def dtype(self) -> DType:
        """The element type; compares equal to its name."""
        if not isinstance(self.type, TensorType):
            raise GraphError(f"the dtype of {self.name!r} is known only at run time ({self.type})")
        return self.type.dtype

    @property
    @report_at_caller
    def shape(self) -> Shape:
        """The sizes: ints, and symbolic expressions for dynamic sizes."""
        if self.type.shape is None:
            hint = "weft.ops.shape returns it as a tensor"
            raise GraphError(f"the shape of {self.name!r} is known only at run time ({self.type})", hint=hint)
        return self.type.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"Tensor({shorten(self.name)}: {shorten(str(self.type), 120)})"

    @report_at_caller
    def __len__(self) -> int:
        size = self.shape[0] if self.shape else None
        if not isinstance(size, int):
            raise GraphError(f"the length of {self.name!r} is not known before a run ({self.type})")
        return size

    def __iter__(self) -> Iterator[GraphTensor]:
        return (self[number] for number in range(len(self)))

    @report_at_caller
    def __bool__(self) -> bool:
        hint = "use weft.ops.if_ or weft.ops.where, or & and | for `and` and `or`"
        raise GraphError(f"whether {self.name!r} is true is known only at run time", hint=hint)

    @report_at_caller
    def __array__(self, *_: Any, **__: Any) -> Array:
        hint = "use functions of weft.ops instead of numpy's"
        raise GraphError(f"{self.name!r} has no elements before a run", hint=hint)

    def constant_like(self, value: Any, dtype: DType | None = None) -> GraphTensor:
        """Convert a value to a tensor of the same graph: a constant, or nodes that compute a symbolic size."""
        if isinstance(value, Handle):
            handle = value
        elif isinstance(value, Expr):
            handle = as_tensor(self.draft, value, dtype or DType.int64)
        else:
            array = as_array(value, "an operand", dtype)
            handle = self.draft.initializer(self.draft.fresh_name("constant"), array)
        assert isinstance(handle, GraphTensor)
        return handle

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

    @report_at_caller
    def __truediv__(self, other: Any) -> GraphTensor:
        return ops.div(self._check_division(), other)

    @report_at_caller
    def __rtruediv__(self, other: Any) -> GraphTensor:
        return ops.div(other, self._check_division())

    def __floordiv__(self, other: Any) -> GraphTensor:
        return _floor_divide(self, self._as_operand(other))

    def __rfloordiv__(self, other: Any) -> GraphTensor:
        return _floor_divide(self._as_operand(other), self)

    def __mod__(self, other: Any) -> GraphTensor:
        return _remainder(self, self._as_operand(other))

    def __rmod__(self, other: Any) -> GraphTensor:
        return _remainder(self._as_operand(other), self)

    @report_at_caller
    def __pow__(self, other: Any) -> GraphTensor:
        return _power(self, self._as_operand(other), other)

    def __rpow__(self, other: Any) -> GraphTensor:
        return ops.pow(self._as_operand(other), self)

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

    @report_at_caller
    def __getitem__(self, key: Any) -> GraphTensor:
        return index(self, key)

    def _is_bool(self) -> bool:
        return self.dtype is DType.bool

    def _as_operand(self, other: Any) -> GraphTensor:
        """Convert the other operand to a tensor of the same dtype."""
        return self.constant_like(other, self.dtype)

    def _check_division(self) -> GraphTensor:
        if self.dtype.is_integer:
            hint = "use // to round down, weft.ops.div to truncate, or .astype('float32') first"
            raise GraphError(f"{self.name!r} is {self.type}: `/` does not divide integers", hint=hint)
        return self

    def _widen_integers(self) -> GraphTensor:
        """Cast integers and booleans to the type that numpy sums them in."""
        if not (self.dtype.is_integer or self._is_bool()):
            return self
        wide = DType.uint64 if self.dtype.is_unsigned else DType.int64
        return self if self.dtype is wide else ops.cast(self, to=wide)

    # -- methods -----------------------------------------------------------------------------------------------------

    @report_at_caller
    def astype(self, dtype: DTypeLike) -> GraphTensor:
        """Cast to a dtype: a name, a numpy dtype or a Python type."""
        return ops.cast(self, to=as_dtype(dtype))

    @report_at_caller
    def reshape(self, *shape: Any) -> GraphTensor:
        """Change the shape; one size may be -1."""
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], (int, Expr)) else shape
        if isinstance(sizes, (list, tuple)) and any(isinstance(size, int) and size == 0 for size in sizes):
            return ops.reshape(self, sizes, allowzero=1)  # otherwise 0 keeps the size of the input
        return ops.reshape(self, sizes)

    @report_at_caller
    def transpose(self, *axes: Any) -> GraphTensor:
        """Permute the axes; without arguments, reverse them."""
        order = _parse_axes(axes[0] if len(axes) == 1 and isinstance(axes[0], (list, tuple)) else axes)
        if not order:
            return ops.transpose(self)
        return ops.transpose(self, perm=[axis + self.ndim if axis < 0 else axis for axis in order])

    @property
    def T(self) -> GraphTensor:  # noqa: N802 - as numpy calls it
        """The tensor with its axes reversed."""
        return ops.transpose(self)

    @report_at_caller
    def squeeze(self, axis: Axes = None) -> GraphTensor:
        """Remove axes of size 1: all of them, or those in `axis`."""
        return ops.squeeze(self, axes=_parse_axes(axis))

    @report_at_caller
    def sum(self, axis: Axes = None, keepdims: bool = False) -> GraphTensor:
        """Sum along an axis, several, or all; integers and booleans are summed in 64 bits, as in numpy."""
        return ops.reduce_sum(self._widen_integers(), axes=_parse_axes(axis), keepdims=keepdims)

    @report_at_caller
    def mean(self, axis: Axes = None, keepdims: bool = False) -> GraphTensor:
        """Average along an axis, several, or all; for integers and booleans, a float32 computed in float64."""
        if not (self.dtype.is_integer or self._is_bool()):
            return ops.reduce_mean(self, axes=_parse_axes(axis), keepdims=keepdims)
        wide = ops.cast(self, to=DType.float64)
        return ops.cast(ops.reduce_mean(wide, axes=_parse_axes(axis), keepdims=keepdims), to=DType.float32)

    @report_at_caller
    def max(self, axis: Axes = None, keepdims: bool = False) -> GraphTensor:
        """Return the largest element along an axis, several, or all."""
        return ops.reduce_max(self, axes=_parse_axes(axis), keepdims=keepdims)

    @report_at_caller
    def min(self, axis: Axes = None, keepdims: bool = False) -> GraphTensor:
        """Return the smallest element along an axis, several, or all."""
        return ops.reduce_min(self, axes=_parse_axes(axis), keepdims=keepdims)

    @report_at_caller
    def prod(self, axis: Axes = None, keepdims: bool = False) -> GraphTensor:
        """Multiply along an axis, several, or all; integers and booleans are multiplied in 64 bits, as in numpy."""
        return ops.reduce_prod(self._widen_integers(), axes=_parse_axes(axis), keepdims=keepdims)


def _parse_axes(axis: Any) -> list[int] | None:
    """Convert axes to a list of integers."""
    if axis is None:
        return None
    axes = list(axis) if isinstance(axis, (list, tuple, range, np.ndarray)) else [axis]
    for number in axes:
        if not isinstance(number, (int, np.integer)) or isinstance(number, bool):
            raise GraphError(f"an axis must be an integer, not {short_repr(number)}")
    return [int(number) for number in axes]


def _floor_divide(a: GraphTensor, b: GraphTensor) -> GraphTensor:
    """Divide and round down as Python does: 1.0 // 0.1 is 9, and no intermediate integer overflows."""
    if not a.dtype.is_float:
        quotient = ops.div(a, b)
        if a.dtype.is_unsigned:
            return quotient
        zero = a.constant_like(0, a.dtype)
        rounds_up = (ops.mod(a, b) != zero) & ((a < zero) ^ (b < zero))
        return quotient - ops.cast(rounds_up, to=a.dtype)
    zero = a.constant_like(0, a.dtype)
    remainder = ops.mod(a, b, fmod=1)
    quotient = (a - remainder) / b - ops.cast((remainder != zero) & ((remainder < zero) ^ (b < zero)), to=a.dtype)
    floored = ops.floor(quotient)
    floored = floored + ops.cast(quotient - floored > a.constant_like(0.5, a.dtype), to=a.dtype)
    return ops.where(b == zero, a / b, floored)


def _remainder(a: GraphTensor, b: GraphTensor) -> GraphTensor:
    """Return the remainder with the sign of the divisor, as in Python; ONNX does that for integers only."""
    if not a.dtype.is_float:
        return ops.mod(a, b)
    remainder = ops.mod(a, b, fmod=1)
    zero = a.constant_like(0, a.dtype)
    return ops.where((remainder != zero) & ((remainder < zero) ^ (b < zero)), remainder + b, remainder)


def _power(base: GraphTensor, exponent: GraphTensor, argument: Any) -> GraphTensor:
    """Return a power; raise GraphError if an integer has a constant negative exponent, as numpy does."""
    if base.dtype.is_integer and not isinstance(argument, (Handle, Expr)) and np.any(np.asarray(argument) < 0):
        hint = "cast the base with .astype('float32')"
        raise GraphError(f"{base.name!r} is {base.type}: integers have no negative powers", hint=hint)
    return ops.pow(base, exponent)


Tensor = GraphTensor
ArrayLike = Union[Array, "np.generic", bool, int, float, str, Sequence["ArrayLike"]]
TensorLike = Union[GraphTensor, Expr, ArrayLike, Sequence["TensorLike"]]
"""What functions accept as an input: a tensor, or a value that becomes a constant."""
DTypeLike = Union[DType, str, int, type, "np.dtype[Any]"]
