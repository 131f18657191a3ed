"""Convert the arguments of a call to tensors of the graph and to ONNX attributes.

Arrays, numbers and lists become constants. They take the dtype of the tensors that must have the same type by the op's
schema; otherwise a Python float is a float32 and an int an int64, if the schema allows it. A conversion never loses
information: 0.5 for an integer or 300 for a uint8 is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np

from weft.builder.draft import Draft
from weft.builder.handle import Handle
from weft.builder.sizes import as_tensor, has_sizes
from weft.errors import GraphError, InvalidModelError, WeftError, short_repr
from weft.frontend.schemas import InputRule, input_rules
from weft.ir.arrays import Array
from weft.ir.dims import Expr
from weft.ir.dtypes import DType, from_number, from_numpy
from weft.ir.graph import Attribute
from weft.ir.types import MapType, OptionalType, SequenceType, TensorType
from weft.opset.registry import AttributeParameter, Definition

_LARGEST_FLOAT = DType.float32.limits[1]  # of an attribute
_PREFERRED = tuple(sorted(DType, key=lambda dtype: dtype not in (DType.float32, DType.int64, DType.int32)))


def as_dtype(value: Any) -> DType:
    """Return the element type for a name, a numpy dtype, a Python type or an ONNX number."""
    try:
        if value is None:
            raise TypeError("numpy reads None as float64")
        if isinstance(value, DType):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return from_number(value)
        if isinstance(value, str) and value in DType.__members__:
            return DType(value)
        return from_numpy(np.dtype(value)) if value is not str else DType.string
    except Exception:  # numpy and foreign classes may raise anything
        names = ", ".join(str(dtype) for dtype in DType)
        raise GraphError(f"{short_repr(value)} is not a dtype of weft", hint=f"use one of {names}") from None


def as_array(value: Any, label: str, dtype: DType | None = None) -> Array:
    """Copy a value to an array of a dtype; by default Python floats become float32 and ints int64."""
    array = _exact_array(value, label)
    return convert_array(array, _default_dtype(value, array) if dtype is None else dtype, label)


def _exact_array(value: Any, label: str) -> Array:
    """Copy a value to an array without rounding: Python floats become float64."""
    try:
        array = np.array(value)
    except WeftError:
        raise
    except Exception as error:  # foreign classes may raise anything
        raise GraphError(f"{label} cannot be converted to an array: {error}") from None
    if array.dtype.kind in "USO" and not all(isinstance(each, str) for each in array.reshape(-1).tolist()):
        raise GraphError(f"{label} holds {short_repr(value)}, which is neither a number nor a string")
    return array.astype(from_numpy(array.dtype).numpy, copy=False)


def _default_dtype(value: Any, array: Array) -> DType:
    """Return the dtype of a constant that no other input and no schema decides."""
    if not _has_dtype(value):
        return {"f": DType.float32, "i": DType.int64}.get(array.dtype.kind, from_numpy(array.dtype))
    return from_numpy(array.dtype)


def as_inputs(draft: Draft, definition: Definition, arguments: Sequence[Any]) -> list[Handle | None]:
    """Convert the inputs of a node to tensors: arrays become constants, symbolic sizes become nodes."""
    rules = input_rules(definition.domain, definition.name, draft.version(definition.domain))
    arguments = [
        as_tensor(draft, each) if isinstance(each, (list, tuple)) and has_sizes(each) else each for each in arguments
    ]
    arrays = [_as_constant(each, _describe_input(definition, number)) for number, each in enumerate(arguments)]
    inputs: list[Handle | None] = []
    for number, (each, array) in enumerate(zip(arguments, arrays)):
        if array is None:
            inputs.append(each)
            continue
        dtype = _choose_dtype(rules, arguments, arrays, number)
        if isinstance(each, Expr):
            inputs.append(as_tensor(draft, each, dtype))
        else:
            content = _convert_operand(array, dtype, _describe_input(definition, number))
            inputs.append(draft.initializer(draft.fresh_name("constant"), content))
    _check_types(definition, rules, inputs)
    return inputs


def as_attribute(definition: Definition, parameter: AttributeParameter, value: Any) -> Attribute:
    """Convert a value to the form that the graph stores for this attribute."""
    match parameter.annotation:
        case "ElementType":
            return 0 if isinstance(value, int) and value == 0 else as_dtype(value).number
        case "tuple[int, ...]" | "tuple[float, ...]" | "tuple[str, ...]" if isinstance(
            value, (list, tuple, np.ndarray)
        ):
            elements: list[Any] = [_as_scalar(each, parameter.annotation[6:-6]) for each in value]
            wrong = [each for each, scalar in zip(value, elements) if scalar is None]
            if not wrong:
                return tuple(elements)
            problem = f"must be {parameter.annotation}, but it has {short_repr(wrong[0])}"
            raise GraphError(f"{definition.name}: attribute {parameter.name!r} {problem}")
        case "np.ndarray[Any, Any]" | "Array":
            return as_array(value, f"attribute {parameter.name}")
        case "Any" if callable(value) or isinstance(value, (TensorType, SequenceType, OptionalType, MapType)):
            attribute: Attribute = value  # a function becomes a graph later
            return attribute
    scalar = _as_scalar(value, parameter.annotation)
    if scalar is not None:
        return scalar
    expected = "a function or a type" if parameter.annotation == "Any" else parameter.annotation
    raise GraphError(f"{definition.name}: attribute {parameter.name!r} must be {expected}, not {short_repr(value)}")


def _as_scalar(value: Any, kind: str) -> int | float | str | None:
    """Convert to the Python number or string of an attribute; None if the value is of another kind or out of range."""
    if isinstance(value, np.generic):
        value = value.item()
    if kind == "int" and isinstance(value, int) and -(2**63) <= value < 2**63:
        return int(value)
    if kind == "float" and isinstance(value, (int, float)) and (abs(value) <= _LARGEST_FLOAT or not isfinite(value)):
        return float(value)
    return value if kind == "str" and isinstance(value, str) else None


def _check_types(definition: Definition, rules: Sequence[InputRule], inputs: Sequence[Handle | None]) -> None:
    """Raise InvalidModelError if the op's schema does not allow the types of these inputs."""
    bound: dict[str, tuple[DType, str]] = {}
    for number, dtype in enumerate(map(_tensor_dtype, inputs)):
        if dtype is None or not rules:
            continue
        rule, label = rules[min(number, len(rules) - 1)], _describe_input(definition, number)
        if rule.dtypes and dtype not in rule.dtypes:
            allowed = ", ".join(sorted(rule.dtypes))
            raise InvalidModelError(f"{label} cannot be {dtype}", hint=f"cast it with tensor.astype(...) to {allowed}")
        first, at = bound.setdefault(rule.variable or label, (dtype, label))
        if dtype is not first:
            problem = f"{at} is {first} and {label} {dtype}, but both must have the same type"
            raise InvalidModelError(problem, hint="cast one of them with tensor.astype(...)")


def _as_constant(argument: Any, label: str) -> Array | None:
    """Convert an argument that becomes a constant, None for others; a symbolic size is represented by an int64 0."""
    if argument is None or isinstance(argument, Handle):
        return None
    return np.zeros((), np.int64) if isinstance(argument, Expr) else _exact_array(argument, label)


def _choose_dtype(
    rules: Sequence[InputRule], arguments: Sequence[Any], arrays: Sequence[Array | None], number: int
) -> DType:
    """Choose the dtype of the constant at `number`."""
    array = arrays[number]
    assert array is not None
    if not rules:
        return _choose_dtype_without_schema(_default_dtype(arguments[number], array), arguments, number)
    rule = rules[min(number, len(rules) - 1)]
    peers = [position for position in range(len(arguments)) if _must_share_type(rules, position, number)]
    for tensor_dtype in (_tensor_dtype(arguments[position]) for position in peers):
        if tensor_dtype is not None:
            return tensor_dtype
    constants = [(arguments[at], content) for at in peers if (content := arrays[at]) is not None]
    explicit = [_default_dtype(*each) for each in constants if _has_dtype(each[0])]
    defaults = [_default_dtype(*each) for each in constants]
    default = (explicit or [dtype for dtype in defaults if dtype.is_float] or defaults)[0]
    if default in rule.dtypes or not rule.dtypes:
        return default
    kind = (default.is_float, default.is_integer)
    same_kind = (dtype for dtype in _PREFERRED if (dtype.is_float, dtype.is_integer) == kind)
    return next((dtype for dtype in same_kind if dtype in rule.dtypes), default)


def _choose_dtype_without_schema(default: DType, arguments: Sequence[Any], number: int) -> DType:
    """Choose the dtype of the first float tensor for a float without an explicit narrow dtype."""
    floats = [dtype for dtype in map(_tensor_dtype, arguments) if dtype is not None and dtype.is_float]
    return floats[0] if floats and default.is_float and not _has_narrow_dtype(arguments[number]) else default


def _must_share_type(rules: Sequence[InputRule], position: int, number: int) -> bool:
    """Whether two inputs must have the same type."""
    variable = rules[min(position, len(rules) - 1)].variable
    return position == number or (variable != "" and variable == rules[min(number, len(rules) - 1)].variable)


def convert_array(array: Array, dtype: DType, label: str) -> Array:
    """Convert an array to a dtype; raise GraphError if that cannot represent its elements."""
    if from_numpy(array.dtype) is not dtype:
        if DType.string in (dtype, from_numpy(array.dtype)) or (array.dtype.kind == "c" and not dtype.is_complex):
            raise GraphError(f"{label} must be {dtype}, not {from_numpy(array.dtype)}")
        with np.errstate(all="ignore"):
            result = array.astype(dtype.numpy)
            rounds = dtype.is_float or dtype.is_complex
            fits = np.isfinite(result) | ~np.isfinite(array) if rounds else result.astype(array.dtype) == array
        wraps = dtype.is_integer and array.size and not _is_within(array, *dtype.limits)
        if not np.all(fits) or wraps:
            raise GraphError(f"{label} must be {dtype}, which cannot represent {short_repr(array.tolist())}")
        array = result
    array.flags.writeable = False
    return array


def _is_within(array: Array, low: float, high: float) -> bool:
    """Whether all elements of an array without NaN lie in a range."""
    return bool(array.dtype.kind == "b" or low <= array.min().item() <= array.max().item() <= high)


def _convert_operand(array: Array, dtype: DType, label: str) -> Array:
    """Convert a constant to a dtype; booleans and numbers are never converted to each other."""
    actual = from_numpy(array.dtype)
    if (actual is DType.bool) != (dtype is DType.bool):
        raise GraphError(f"{label} must be {dtype}, not {actual}", hint="cast one of them")
    return convert_array(array, dtype, label)


def _tensor_dtype(value: Any) -> DType | None:
    """Return the dtype of a tensor; None for other values and where it is unknown."""
    return value.type.dtype if isinstance(value, Handle) and isinstance(value.type, TensorType) else None


def _has_dtype(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic))


def _has_narrow_dtype(value: Any) -> bool:
    return _has_dtype(value) and value.dtype != np.float64


def _describe_input(definition: Definition, number: int) -> str:
    name = definition.inputs[number].name if number < len(definition.inputs) else str(number)
    return f"input {name!r} of {definition.name}"
