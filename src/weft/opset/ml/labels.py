"""Labels and categories: lookups in tables of numbers and strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.errors import InvalidModelError
from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.ir.types import TensorType
from weft.opset.functions import cast, equal, is_nan, where
from weft.opset.language import Element, Tensor, build, constant, elementwise, gather, host, index, reduce
from weft.opset.ml.domain import op
from weft.opset.registry import require


def make_table(entries: Any, dtype: DType) -> Tensor:
    """Create a constant row of numbers or strings."""
    array = np.empty(len(entries), dtype.numpy)
    array[:] = list(entries)
    return constant(array)


def find_positions(x: Tensor, keys: Tensor) -> Tensor:
    """Find, for each element of x, the position of the last key equal to it, or -1; NaN equals NaN here."""
    require(x.dtype is keys.dtype, f"elements of {x.dtype} are looked up among keys of {keys.dtype}")
    if x.dtype is DType.string:
        return host("text_positions", [x, keys], [TensorType(DType.int64, x.shape)])[0]

    def candidate(*i: Element) -> Element:
        value, key = x.at(*i[:-1]), keys.at(i[-1])
        same = equal(value, key)
        same = same | (is_nan(value) & is_nan(key)) if x.dtype.is_float else same
        return where(same, i[-1], -1)

    return reduce("maximum", build((*x.shape, keys.shape[0]), candidate), [x.rank])


def look_up(x: Tensor, keys: Tensor, values: Sequence[Any], default: Any, dtype: DType) -> Tensor:
    """Look up the value of each element's key; elements without a key get `default`, the last entry of the table."""
    require(len(values) == keys.shape[0], f"{keys.shape[0]} keys have {len(values)} values")
    return gather(make_table([*values, default], dtype), find_positions(x, keys), 0)


@op("CategoryMapper")
def category_mapper(
    x: Tensor,
    *,
    cats_int64s: tuple[int, ...] = (),
    cats_strings: tuple[str, ...] = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Tensor:
    if x.dtype is DType.string:
        return look_up(x, make_table(cats_strings, DType.string), cats_int64s, default_int64, DType.int64)
    return look_up(x, make_table(cats_int64s, DType.int64), cats_strings, default_string, DType.string)


@op("LabelEncoder")
def label_encoder_1(
    x: Tensor, *, classes_strings: tuple[str, ...] = (), default_int64: int = -1, default_string: str = "_Unused"
) -> Tensor:
    numbers = range(len(classes_strings))
    return category_mapper(
        x,
        cats_int64s=tuple(numbers),
        cats_strings=classes_strings,
        default_int64=default_int64,
        default_string=default_string,
    )


@op("LabelEncoder", since=2)
def label_encoder(
    x: Tensor,
    *,
    keys_strings: tuple[str, ...] | None = None,
    keys_int64s: tuple[int, ...] | None = None,
    keys_floats: tuple[float, ...] | None = None,
    keys_tensor: Array | None = None,
    values_strings: tuple[str, ...] | None = None,
    values_int64s: tuple[int, ...] | None = None,
    values_floats: tuple[float, ...] | None = None,
    values_tensor: Array | None = None,
    default_string: str = "_Unused",
    default_int64: int = -1,
    default_float: float = -0.0,
    default_tensor: Array | None = None,
) -> Tensor:
    keys, _ = _choose_list("keys", keys_strings, keys_int64s, keys_floats, keys_tensor)
    values, dtype = _choose_list("values", values_strings, values_int64s, values_floats, values_tensor)
    if default_tensor is not None:
        default = default_tensor.reshape(-1)[0]
    elif dtype is DType.string:
        default = default_string
    else:
        default = default_float if dtype.is_float else default_int64
    return look_up(x, make_table(keys, x.dtype), values, default, dtype)


def _choose_list(role: str, strings: Any, integers: Any, floats: Any, tensor: Array | None) -> tuple[Any, DType]:
    """Return the list that is not None, and the type of its elements."""
    if tensor is not None:
        flat = constant(tensor.reshape(-1))
        return flat.static_value, flat.dtype
    for entries, dtype in ((strings, DType.string), (integers, DType.int64), (floats, DType.float32)):
        if entries is not None:
            return entries, dtype
    raise InvalidModelError(f"a label encoder without {role}")


@op("OneHotEncoder")
def one_hot_encoder(
    x: Tensor,
    *,
    cats_int64s: tuple[int, ...] | None = None,
    cats_strings: tuple[str, ...] | None = None,
    zeros: int = 1,
) -> Tensor:
    if x.dtype is DType.string:
        require(cats_strings is not None, "strings are encoded with cats_strings")
        position = find_positions(x, make_table(cats_strings or (), DType.string))
    else:
        require(cats_int64s is not None, "numbers are encoded with cats_int64s")
        position = find_positions(cast(x, DType.int64), make_table(cats_int64s or (), DType.int64))
        if x.dtype.is_float:
            position = elementwise(lambda v, p: where(is_nan(v), -1, p), x, position)
    count = len(cats_strings or cats_int64s or ())
    if not zeros:  # an unknown category must fail: its position, -1, is outside this table
        categories = constant(np.arange(count))
        position = build(position.shape, lambda *i: categories.at(position.at(*i), checked=True))
    return build((*x.shape, count), lambda *i: cast(equal(position.at(*i[:-1]), i[-1]), DType.float32))


def class_labels(integers: Sequence[int] | None, strings: Sequence[str] | None) -> Tensor | None:
    """Return the labels of a classifier, if it has any."""
    if strings:
        return make_table(strings, DType.string)
    return make_table(integers, DType.int64) if integers else None


def choose_label(labels: Tensor | None, position: Tensor) -> Tensor:
    """Return the label at each position, or the position itself if there are no labels."""
    return position if labels is None else gather(labels, position, 0)


def place_if(condition: Element) -> Element:
    """Return 1 where the condition holds, else 0: the place of the positive of two labels."""
    return where(condition, index(1), index(0))
