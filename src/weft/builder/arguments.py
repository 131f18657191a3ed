"""What callers give for inputs and attributes, as tensors of the graph and as values of ONNX attributes.

Arrays, numbers and lists become constants. They take the dtype of the tensors that the op's schema wants to be of the
same type; else a Python float is a float32, an int an int64, where the schema allows that. Numbers are never made
less than they are: 0.5 for an integer, 300 for a uint8 are errors.
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


def as_dtype(given: Any) -> DType:
    """The element type that a name, a numpy dtype, a Python type or an ONNX number means."""
    try:
        if given is None:
            raise TypeError("numpy would take it for float64")
        if isinstance(given, DType):
            return given
        if isinstance(given, int) and not isinstance(given, bool):
            return from_number(given)
        if isinstance(given, str) and given in DType.__members__:
            return DType(given)
        return from_numpy(np.dtype(given)) if given is not str else DType.string
    except Exception:  # numpy's, or that of a class of someone else's
        known = ", ".join(str(dtype) for dtype in DType)
        raise GraphError(f"{short_repr(given)} is no dtype that weft knows", hint=f"use one of {known}") from None


def as_array(given: Any, what: str, dtype: DType | None = None) -> Array:
    """A private copy as an array of some dtype; without one, Python's floats become float32 and ints int64."""
    array = _exact_array(given, what)
    return converted(array, _own_dtype(given, array) if dtype is None else dtype, what)


def _exact_array(given: Any, what: str) -> Array:
    """A private copy as an array that holds numbers as they are; Python's floats have 64 bits."""
    try:
        array = np.array(given)
    except WeftError:
        raise
    except Exception as error:  # whatever comes of a class of someone else's
        raise GraphError(f"{what} is no array: {error}") from None
    if array.dtype.kind in "USO" and not all(isinstance(each, str) for each in array.reshape(-1).tolist()):
        raise GraphError(f"{what} holds {short_repr(given)}, which is neither a number nor a text")
    return array.astype(from_numpy(array.dtype).numpy, copy=False)


def _own_dtype(given: Any, array: Array) -> DType:
    """The dtype that something has where nothing else decides it."""
    if not _has_dtype(given):
        return {"f": DType.float32, "i": DType.int64}.get(array.dtype.kind, from_numpy(array.dtype))
    return from_numpy(array.dtype)


def as_inputs(draft: Draft, definition: Definition, given: Sequence[Any]) -> list[Handle | None]:
    """The inputs of a node as tensors; what is none yet becomes a constant, a size that only a run knows some nodes."""
    rules = input_rules(definition.domain, definition.name, draft.version(definition.domain))
    given = [as_tensor(draft, each) if isinstance(each, (list, tuple)) and has_sizes(each) else each for each in given]
    arrays = [_content(each, _label(definition, number)) for number, each in enumerate(given)]
    inputs: list[Handle | None] = []
    for number, (each, array) in enumerate(zip(given, arrays)):
        if array is None:
            inputs.append(each)
            continue
        dtype = _wanted(rules, given, arrays, number)
        if isinstance(each, Expr):
            inputs.append(as_tensor(draft, each, dtype))
        else:
            content = _operand(array, dtype, _label(definition, number))
            inputs.append(draft.initializer(draft.fresh_name("constant"), content))
    _check_types(definition, rules, inputs)
    return inputs


def as_attribute(definition: Definition, parameter: AttributeParameter, given: Any) -> Attribute:
    """The value of an attribute in the one form that the graph has for it."""
    match parameter.annotation:
        case "ElementType":
            return 0 if isinstance(given, int) and given == 0 else as_dtype(given).number
        case "tuple[int, ...]" | "tuple[float, ...]" | "tuple[str, ...]" if isinstance(
            given, (list, tuple, np.ndarray)
        ):
            elements: list[Any] = [_plain(each, parameter.annotation[6:-6]) for each in given]
            wrong = [each for each, plain in zip(given, elements) if plain is None]
            if not wrong:
                return tuple(elements)
            found = f"but it has {short_repr(wrong[0])}"
            raise GraphError(f"{definition.name}: attribute {parameter.name!r} must be {parameter.annotation}, {found}")
        case "np.ndarray[Any, Any]" | "Array":
            return as_array(given, f"attribute {parameter.name}")
        case "Any" if callable(given) or isinstance(given, (TensorType, SequenceType, OptionalType, MapType)):
            attribute: Attribute = given  # of which a function is to become a graph
            return attribute
    plain = _plain(given, parameter.annotation)
    if plain is not None:
        return plain
    wanted = "a function or a type" if parameter.annotation == "Any" else parameter.annotation
    raise GraphError(f"{definition.name}: attribute {parameter.name!r} must be {wanted}, not {short_repr(given)}")


def _plain(given: Any, kind: str) -> int | float | str | None:
    """A number or text as a file can hold it; None if it is no such thing."""
    if isinstance(given, np.generic):
        given = given.item()
    if kind == "int" and isinstance(given, int) and -(2**63) <= given < 2**63:
        return int(given)
    if kind == "float" and isinstance(given, (int, float)) and (abs(given) <= _LARGEST_FLOAT or not isfinite(given)):
        return float(given)
    return given if kind == "str" and isinstance(given, str) else None


def _check_types(definition: Definition, rules: Sequence[InputRule], inputs: Sequence[Handle | None]) -> None:
    """That the schema, without which there is no valid file, allows the types of these inputs."""
    bound: dict[str, tuple[DType, str]] = {}
    for number, dtype in enumerate(map(_dtype, inputs)):
        if dtype is None or not rules:
            continue
        rule, label = rules[min(number, len(rules) - 1)], _label(definition, number)
        if rule.dtypes and dtype not in rule.dtypes:
            allowed = ", ".join(sorted(rule.dtypes))
            raise InvalidModelError(f"{label} cannot be {dtype}", hint=f"tensor.astype(...) makes it one of {allowed}")
        first, at = bound.setdefault(rule.variable or label, (dtype, label))
        if dtype is not first:
            hint = "tensor.astype(...) makes another type of one"
            raise InvalidModelError(f"{at} is {first} and {label} {dtype}, but both must be of one type", hint=hint)


def _content(given: Any, label: str) -> Array | None:
    """What becomes a constant; any integer stands for a size."""
    if given is None or isinstance(given, Handle):
        return None
    return np.zeros((), np.int64) if isinstance(given, Expr) else _exact_array(given, label)


def _wanted(rules: Sequence[InputRule], given: Sequence[Any], arrays: Sequence[Array | None], number: int) -> DType:
    """The dtype that the constant at `number` should have."""
    array = arrays[number]
    assert array is not None
    if not rules:
        return _wanted_without_rules(_own_dtype(given[number], array), given, number)
    rule = rules[min(number, len(rules) - 1)]
    peers = [position for position in range(len(given)) if _same_type(rules, position, number)]
    for known in (_dtype(given[position]) for position in peers):
        if known is not None:
            return known
    constants = [(given[at], content) for at in peers if (content := arrays[at]) is not None]
    explicit = [_own_dtype(*each) for each in constants if _has_dtype(each[0])]
    plain = [_own_dtype(*each) for each in constants]
    own = (explicit or [dtype for dtype in plain if dtype.is_float] or plain)[0]
    if own in rule.dtypes or not rule.dtypes:
        return own
    same_kind = ((dtype.is_float, dtype.is_integer) == (own.is_float, own.is_integer) for dtype in _PREFERRED)
    return next((dtype for dtype, fits in zip(_PREFERRED, same_kind) if fits and dtype in rule.dtypes), own)


def _wanted_without_rules(own: DType, given: Sequence[Any], number: int) -> DType:
    """What no schema tells of: numbers of no dtype in particular take that of the first tensor of floats."""
    floats = [dtype for dtype in map(_dtype, given) if dtype is not None and dtype.is_float]
    return floats[0] if floats and own.is_float and not _has_narrow_dtype(given[number]) else own


def _same_type(rules: Sequence[InputRule], position: int, number: int) -> bool:
    """Whether two inputs must be of one type."""
    variable = rules[min(position, len(rules) - 1)].variable
    return position == number or (variable != "" and variable == rules[min(number, len(rules) - 1)].variable)


def converted(array: Array, dtype: DType, label: str) -> Array:
    """The array as another dtype, if that can hold what it holds."""
    if from_numpy(array.dtype) is not dtype:
        if DType.string in (dtype, from_numpy(array.dtype)) or (array.dtype.kind == "c" and not dtype.is_complex):
            raise GraphError(f"{label} should be {dtype}, not {from_numpy(array.dtype)}")
        with np.errstate(all="ignore"):
            result = array.astype(dtype.numpy)
            rounds = dtype.is_float or dtype.is_complex
            kept = np.isfinite(result) | ~np.isfinite(array) if rounds else result.astype(array.dtype) == array
        wraps = dtype.is_integer and array.size and not _is_within(array, *dtype.limits)
        if not np.all(kept) or wraps:
            raise GraphError(f"{label} should be {dtype}, which cannot hold {short_repr(array.tolist())}")
        array = result
    array.flags.writeable = False
    return array


def _is_within(array: Array, low: float, high: float) -> bool:
    """Whether the numbers of an array that holds no NaN lie between two others."""
    return bool(array.dtype.kind == "b" or low <= array.min().item() <= array.max().item() <= high)


def _operand(array: Array, dtype: DType, label: str) -> Array:
    """A constant for an op that wants this dtype: flags are no numbers to it."""
    own = from_numpy(array.dtype)
    if (own is DType.bool) != (dtype is DType.bool):
        raise GraphError(f"{label} should be {dtype}, not {own}", hint="cast one of them")
    return converted(array, dtype, label)


def _dtype(given: Any) -> DType | None:
    """The dtype of a tensor, if it is one and that is known."""
    return given.type.dtype if isinstance(given, Handle) and isinstance(given.type, TensorType) else None


def _has_dtype(given: Any) -> bool:
    return isinstance(given, (np.ndarray, np.generic))


def _has_narrow_dtype(given: Any) -> bool:
    return _has_dtype(given) and given.dtype != np.float64


def _label(definition: Definition, number: int) -> str:
    name = definition.inputs[number].name if number < len(definition.inputs) else str(number)
    return f"input {name!r} of {definition.name}"
