"""The values that op definitions compute with: `Tensor`, a value of the trace, and `Element`, one scalar of a map.

Both overload Python's operators. Operators on tensors broadcast and emit one map each; a function over elements,
passed to `elementwise` or `build`, becomes a single map. Python numbers take the dtype of the other operands.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, Union, cast

import numpy as np

from weft.errors import InvalidModelError
from weft.errors import OnlyAtRunError as OnlyAtRunError
from weft.ir import dims
from weft.ir.dims import Dim, Expr
from weft.ir.dtypes import DType
from weft.ir.program import Value
from weft.ir.scalar import Apply, Index, Literal, Load, Scalar
from weft.ir.types import Shape, Type
from weft.opset.type_rules import TypeRuleError, check_function

if TYPE_CHECKING:
    from weft.opset.trace import Trace

Number = Union[bool, int, float]
T = TypeVar("T", bound="_Operators")
current_trace: ContextVar[Trace] = ContextVar("current_trace")

_COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "is_nan", "is_inf"})


class NotStaticError(Exception):
    """An op needs a value that is known only at run time."""


class TracedValueError(TypeError):
    """A definition uses a traced tensor or element as if it held values."""

    def __init__(self, problem: str, hint: str | None = None) -> None:
        super().__init__(problem)
        self.hint = hint


_NUMPY_OPERATORS: dict[np.ufunc, Callable[..., Any]] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.true_divide: operator.truediv,
    np.remainder: operator.mod,
    np.less: operator.lt,
    np.less_equal: operator.le,
    np.greater: operator.gt,
    np.greater_equal: operator.ge,
}
"""numpy's operators, which Python calls where the left operand is a numpy scalar."""


class _Operators:
    """Python's operators, for tensors and elements."""

    __slots__ = ()

    def __add__(self: T, other: Any) -> T:
        return apply("add", self, other)

    def __radd__(self: T, other: Number | Expr) -> T:
        return apply("add", other, self)

    def __sub__(self: T, other: Any) -> T:
        return apply("subtract", self, other)

    def __rsub__(self: T, other: Number | Expr) -> T:
        return apply("subtract", other, self)

    def __mul__(self: T, other: Any) -> T:
        return apply("multiply", self, other)

    def __rmul__(self: T, other: Number | Expr) -> T:
        return apply("multiply", other, self)

    def __truediv__(self: T, other: Any) -> T:
        return apply("divide", self, other)

    def __rtruediv__(self: T, other: Number | Expr) -> T:
        return apply("divide", other, self)

    def __mod__(self: T, other: Any) -> T:
        return apply("remainder", self, other)

    def __pow__(self: T, other: Any) -> T:
        return apply("power", self, other)

    def __neg__(self: T) -> T:
        return apply("negate", self)

    def __lt__(self: T, other: Any) -> T:
        return apply("less", self, other)

    def __le__(self: T, other: Any) -> T:
        return apply("less_equal", self, other)

    def __gt__(self: T, other: Any) -> T:
        return apply("greater", self, other)

    def __ge__(self: T, other: Any) -> T:
        return apply("greater_equal", self, other)

    def __and__(self: T, other: Any) -> T:
        return apply("logical_and", self, other)

    def __or__(self: T, other: Any) -> T:
        return apply("logical_or", self, other)

    def __invert__(self: T) -> T:
        return apply("logical_not", self)

    def __bool__(self) -> bool:
        problem = f"{self._kind} is used as a condition (`if`, `and`, `or`, `not`, `a < b < c`), but has no value yet"
        hint = "choose with weft.opset.functions.where(condition, a, b), and combine conditions with & | ~"
        raise TracedValueError(problem, hint)

    @property
    def _kind(self) -> str:
        return f"a traced {type(self).__name__.lower()}"

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TracedValueError(f"numpy was called on {self._kind}, which has no values yet")

    def __array_function__(self, function: Callable[..., Any], *_: Any) -> Any:
        raise TracedValueError(f"numpy.{function.__name__} was called on {self._kind}, which has no values yet")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: Any, **_: Any) -> Any:
        operation = _NUMPY_OPERATORS.get(ufunc) if method == "__call__" else None
        if operation is None:
            raise TracedValueError(f"numpy.{ufunc.__name__} was called on {self._kind}, which has no values yet")
        for operand in operands:
            _check_no_array(operand)
        return operation(*(value.item() if _is_numpy_scalar(value) else value for value in operands))


class Tensor(_Operators):
    """A value of the trace: a tensor, or a sequence, optional or map.

    `static_value` is its content where that is known while tracing, else None: an array of numbers, or an object array
    of dims for the integer tensors that shapes are computed with. `elements` are the elements of a sequence, or the
    content of an optional (empty if it has none), where they are known while tracing.
    """

    __slots__ = ("elements", "static_value", "trace", "value")

    def __init__(self, trace: Trace, value: Value, static_value: Any = None) -> None:
        self.trace: Trace = trace
        self.value: Value = value
        self.static_value: Any = static_value
        self.elements: tuple[Tensor, ...] | None = None

    @property
    def type(self) -> Type:
        return self.value.type

    @property
    def dtype(self) -> DType:
        if self.type.dtype is None:
            raise NotStaticError(f"{self.value.name or self.value} is {self.type}: its dtype is not known here")
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        if self.type.shape is None:
            raise NotStaticError(f"{self.value.name or self.value} is {self.type}: its shape is not known here")
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Dim:
        return dims.product(self.shape)

    def at(self, *indices: Element | Dim, checked: bool = False) -> Element:
        """Load the element at `indices`, one per dimension; see `Load` for indices outside the tensor."""
        if len(indices) != self.rank:
            raise InvalidModelError(f"{len(indices)} indices for a tensor of shape {self.shape}")
        return Element(Load(self.value.number, tuple(_as_index(i) for i in indices), self.dtype, checked))

    def __repr__(self) -> str:
        return f"Tensor({self.value}: {self.type})"


class Element(_Operators):
    """A scalar expression. Indices stay symbolic integers as long as they are combined with integers and dims only."""

    __slots__ = ("scalar",)

    def __init__(self, scalar: Scalar) -> None:
        self.scalar: Scalar = scalar

    @property
    def dtype(self) -> DType:
        return self.scalar.dtype

    def __floordiv__(self, other: Element | Dim) -> Element:
        a, b = _dim_of(self), _dim_of(other)
        if a is None or b is None:
            raise TypeError("// is for index arithmetic; data is divided with /")
        return Element(Index(dims.floordiv(a, b)))

    def __repr__(self) -> str:
        return f"Element({self.scalar})"


def apply(function: str, first: T | Number | Expr, *others: Any, dtype: DType | None = None) -> T:
    """Apply a scalar function to tensors (broadcasting), to elements, or to either mixed with Python numbers."""
    arguments = (first, *others)
    if any(isinstance(argument, Tensor) for argument in arguments):
        return cast("T", elementwise(lambda *elements: _apply(function, elements, dtype), *arguments))
    return cast("T", _apply(function, arguments, dtype))


def elementwise(function: Callable[..., Element], *arguments: Tensor | Number) -> Tensor:
    """Emit one map that computes `function` for every element of the broadcast arguments; numbers stay numbers."""
    shape = broadcast_shapes(*(argument.shape for argument in arguments if isinstance(argument, Tensor)))
    axes = [dims.axis(position, size) for position, size in enumerate(shape)]
    elements = [broadcast_load(argument, axes) if isinstance(argument, Tensor) else argument for argument in arguments]
    result = function(*elements)
    if not isinstance(result, Element):
        problem = f"the function given to elementwise returned {type(result).__name__}, not an element"
        raise TracedValueError(problem, "compute its result from its arguments; compare them with functions.equal")
    return emit_map(shape, result)


def build(shape: Sequence[Dim], function: Callable[..., Element | Number], dtype: DType | None = None) -> Tensor:
    """Emit a tensor of `shape` whose element at (i, j, ...) is `function(i, j, ...)`, each index an `Element`."""
    axes = [Element(Index(dims.axis(position, size))) for position, size in enumerate(shape)]
    result = function(*axes)
    if not isinstance(result, Element):
        if result is None or isinstance(result, (Tensor, np.ndarray)):
            problem = f"the function given to build returned {type(result).__name__}, not an element or a number"
            raise TracedValueError(problem, "take an element of a tensor with x.at(i, j, ...)")
        if dtype is None:
            raise TypeError("a number needs a dtype to fill a tensor")
        result = literal(result, dtype)
    return emit_map(tuple(shape), result if dtype is None else _apply("cast", (result,), dtype))


def broadcast_load(tensor: Tensor, axes: Sequence[Dim]) -> Element:
    """Load the element of `tensor` that numpy's broadcasting pairs with the output position `axes`."""
    aligned = axes[len(axes) - tensor.rank :]
    indices = tuple(Index(0 if size == 1 else axis) for size, axis in zip(tensor.shape, aligned))
    return Element(Load(tensor.value.number, indices, tensor.dtype))


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Broadcast shapes. Sizes that may differ are assumed equal, and the assumption is recorded as a guard."""
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(_broadcast_dims(sizes) for sizes in zip(*padded))


def literal(value: Number | str | complex, dtype: DType) -> Element:
    """Build a constant element."""
    if isinstance(value, np.generic):
        value = value.item()
    if dtype.is_integer and isinstance(value, float):
        if value != int(value):
            raise InvalidModelError(f"{value} is no {dtype}")
        value = int(value)
    elif dtype.is_float and isinstance(value, (int, bool)):
        value = float(value)
    return Element(Literal(value, dtype))


def index(value: Dim) -> Element:
    """Convert a size or an index to an int64 element."""
    return Element(Index(value))


def emit_map(shape: Shape, element: Element) -> Tensor:
    """Emit the map that computes `element` over `shape`."""
    return current_trace.get().emit_map(shape, element.scalar)


def _apply(function: str, arguments: Sequence[Any], dtype: DType | None) -> Element:
    folded = _fold_indices(function, arguments)
    if folded is not None:
        return folded
    operands = arguments[1:] if function == "select" else arguments
    first = next((operand for operand in operands if isinstance(operand, Element)), None)
    if first is None:
        raise TypeError(f"{function} needs at least one element among {arguments}")
    common = first.dtype
    if function == "cast" and common is dtype:
        return first
    elements = [_as_element(argument, common) for argument in arguments]
    checked = elements[1:] if function == "select" else elements
    if any(element.dtype is not common for element in checked):
        dtypes = ", ".join(str(element.dtype) for element in checked)
        raise TypeRuleError(f"{function} of mixed types: {dtypes}")
    if function == "select" and elements[0].dtype is not DType.bool:
        raise TypeRuleError(f"select of {elements[0].dtype}")
    check_function(function, common)
    result = dtype or (DType.bool if function in _COMPARISONS else common)
    return Element(Apply(function, tuple(element.scalar for element in elements), result))


def _fold_indices(function: str, arguments: Sequence[Any]) -> Element | None:
    """Compute index arithmetic as a symbolic integer; None where an operand is not one."""
    operation = _INDEX_ARITHMETIC.get(function)
    if operation is None or not any(isinstance(a, Element) and isinstance(a.scalar, Index) for a in arguments):
        return None
    operands = [_dim_of(argument) for argument in arguments]
    if any(operand is None for operand in operands):
        return None
    return Element(Index(operation(*operands)))


_INDEX_ARITHMETIC: dict[str, Callable[..., Dim]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "remainder": dims.mod,
    "minimum": dims.minimum,
    "maximum": dims.maximum,
    "negate": lambda a: -a,
}


def _dim_of(value: Any) -> Dim | None:
    if isinstance(value, Element):
        return value.scalar.value if isinstance(value.scalar, Index) else None
    if isinstance(value, Expr) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    return None


def _as_index(value: Element | Dim) -> Scalar:
    if isinstance(value, Element):
        if value.dtype is DType.int64:
            return value.scalar
        if not value.dtype.is_integer:
            raise InvalidModelError(f"indices must be integers, not {value.dtype}")
        return Apply("cast", (value.scalar,), DType.int64)
    return Index(value)


def _as_element(value: Any, dtype: DType) -> Element:
    if isinstance(value, Element):
        return value
    if isinstance(value, Expr):
        scalar: Scalar = Index(value)
        return Element(scalar if dtype is DType.int64 else Apply("cast", (scalar,), dtype))
    _check_no_array(value)
    return literal(value.item() if isinstance(value, np.ndarray) else value, dtype)


def _check_no_array(value: Any) -> None:
    if isinstance(value, np.ndarray) and value.ndim:
        problem = f"a numpy array of shape {value.shape} is combined with traced values"
        raise TracedValueError(problem, "make it a tensor first, with weft.opset.language.constant(array)")


def _is_numpy_scalar(value: Any) -> bool:
    return isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0)


def _broadcast_dims(sizes: Sequence[Dim]) -> Dim:
    others = [size for size in sizes if size != 1]
    if not others:
        return 1
    fixed = [size for size in others if isinstance(size, int)]
    plain = [size for size in others if dims.as_symbol(size) is not None]
    result = (*fixed, *plain, *others)[0]
    for size in others:
        certain = all(isinstance(dim, int) or dims.is_at_least(dim, 2) for dim in (result, size))
        current_trace.get().assume_equal(result, size, "shapes that broadcast together", certain=certain)
    return result
