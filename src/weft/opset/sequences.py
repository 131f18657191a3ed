"""Sequences and optionals.

A sequence is a list on the host. Where the trace has its elements (`Tensor.elements`), they are used directly, so that
splitting into a sequence and taking elements of it needs no host step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.errors import InvalidModelError
from weft.ir.dims import Dim
from weft.ir.dtypes import DType, from_number
from weft.ir.graph import Graph, subgraphs
from weft.ir.types import AnyType, OptionalType, SequenceType, Shape, TensorType, Type
from weft.opset.flow import join_types
from weft.opset.language import (
    Tensor,
    concat,
    constant,
    fresh_symbol,
    host,
    slice_axis,
    squeeze,
    stack,
)
from weft.opset.registry import REQUIRED, ElementType, normalize_axis, op, require
from weft.opset.tensor import current_trace

UNROLLED_PARTS = 256  # splitting into more parts than this is left to the host


# -- creating sequences ---------------------------------------------------------------------------------------------


def construct(elements: Sequence[Tensor], empty: Type | None = None) -> Tensor:
    """Create a sequence of tensors; `empty` is the element type if there are none."""
    if not elements:
        return empty_sequence(empty or AnyType())
    for element in elements:
        _require_tensor(element)
    type = SequenceType(_common_type(elements))
    sequence = host("sequence_construct", elements, [type])[0]
    sequence.elements = None if current_trace.get().eager else tuple(elements)
    return sequence


def empty_sequence(element: Type) -> Tensor:
    sequence = current_trace.get().constant([], SequenceType(element))
    sequence.elements = ()
    return sequence


def _common_type(elements: Sequence[Tensor]) -> Type:
    """Return a type that holds all elements; sizes that differ become dynamic."""
    common, loose = elements[0].type, set[Dim]()
    for element in elements[1:]:
        common = join_types(common, element.type, current_trace.get(), loose)
    return common


def _element_type(sequence: Tensor) -> Type:
    """Return the type of one element: its dynamic sizes may differ from those of others."""
    element = sequence.type.element if isinstance(sequence.type, SequenceType) else AnyType()
    if element.shape is not None:
        return TensorType(element.dtype, tuple(_make_dynamic(size) for size in element.shape))
    return element


def _make_dynamic(size: Dim) -> Dim:
    return size if isinstance(size, int) else fresh_symbol("size")


@op("SequenceConstruct", since=11)
def sequence_construct(*inputs: Tensor) -> Tensor:
    require(bool(inputs), "a sequence is constructed from at least one tensor")
    return construct(inputs)


@op("SequenceEmpty", since=11)
def sequence_empty(*, dtype: ElementType = 1) -> Tensor:
    return empty_sequence(TensorType(from_number(dtype), None))


@op("SequenceInsert", since=11)
def sequence_insert(sequence: Tensor, element: Tensor, position: Tensor | None = None) -> Tensor:
    _require_sequence(sequence)
    if sequence.elements is not None and (position is None or position.static_value is not None):
        count = len(sequence.elements)
        number = count if position is None else _resolve_position(position, count, count + 1)
        return construct([*sequence.elements[:number], element, *sequence.elements[number:]])
    _require_tensor(element)
    type = sequence.type.element if isinstance(sequence.type, SequenceType) else AnyType()
    operands = [sequence, element] if position is None else [sequence, element, position]
    joined = join_types(type, element.type, current_trace.get(), set())
    return host("sequence_insert", operands, [SequenceType(joined)])[0]


def _require_tensor(element: Tensor) -> None:
    nested = isinstance(element.type, (SequenceType, OptionalType))
    require(not nested, f"a sequence is made of tensors, not of a {element.type}")


def _require_sequence(sequence: Tensor) -> None:
    require(isinstance(sequence.type, (SequenceType, AnyType)), f"a sequence is needed, not {sequence.type}")


@op("SequenceErase", since=11)
def sequence_erase(sequence: Tensor, position: Tensor | None = None) -> Tensor:
    if sequence.elements is not None and (position is None or position.static_value is not None):
        count = len(sequence.elements)
        number = _resolve_position(position, count, count) if position is not None else count - 1
        require(count > 0, "nothing can be erased from an empty sequence")
        empty = sequence.type.element if isinstance(sequence.type, SequenceType) else None
        return construct([*sequence.elements[:number], *sequence.elements[number + 1 :]], empty)
    operands = [sequence] if position is None else [sequence, position]
    return host("sequence_erase", operands, [sequence.type])[0]


def _resolve_position(position: Tensor, count: int, limit: int) -> int:
    """Check a static position and count it from the front of a sequence of `count` elements."""
    number = int(position.static_value.item())
    place = number + count if number < 0 else number
    if not 0 <= place < limit:
        raise InvalidModelError(f"position {number} is out of range for a sequence of {count} elements")
    return place


# -- elements of sequences -------------------------------------------------------------------------------------------


@op("SequenceAt", since=11)
def sequence_at(sequence: Tensor, position: Tensor) -> Tensor:
    _require_sequence(sequence)
    if sequence.elements is not None and position.static_value is not None:
        count = len(sequence.elements)
        return sequence.elements[_resolve_position(position, count, count)]
    return host("sequence_at", [sequence, position], [_element_type(sequence)])[0]


@op("SequenceLength", since=11)
def sequence_length(sequence: Tensor) -> Tensor:
    if sequence.elements is not None:
        return constant(np.int64(len(sequence.elements)))
    return host("sequence_length", [sequence], [TensorType(DType.int64, ())])[0]


@op("ConcatFromSequence", since=11)
def concat_from_sequence(sequence: Tensor, *, axis: int = REQUIRED, new_axis: int = 0) -> Tensor:
    if sequence.elements:
        return stack(sequence.elements, axis) if new_axis else concat(sequence.elements, axis)
    element = _element_type(sequence)
    type: Type = AnyType()
    if element.dtype is not None:
        shape = None if element.shape is None else _concat_shape(element.shape, axis, bool(new_axis))
        type = TensorType(element.dtype, shape)
    return host("concat_from_sequence", [sequence], [type], axis=axis, new_axis=bool(new_axis))[0]


def _concat_shape(element: Shape, axis: int, new_axis: bool) -> Shape:
    if new_axis:
        position = normalize_axis(axis, len(element) + 1)
        return (*element[:position], fresh_symbol("count"), *element[position:])
    position = normalize_axis(axis, len(element))
    return (*element[:position], fresh_symbol("size"), *element[position + 1 :])


@op("SplitToSequence", since=11)
def split_to_sequence(x: Tensor, split: Tensor | None = None, *, axis: int = 0, keepdims: int = 1) -> Tensor:
    axis = normalize_axis(axis, x.rank)
    sizes = _part_sizes(x.shape[axis], split)
    squeezed = split is None and not keepdims
    if sizes is None or len(sizes) > UNROLLED_PARTS:
        part: Dim = 1 if split is None else fresh_symbol("size")
        shape = (*x.shape[:axis], *(() if squeezed else (part,)), *x.shape[axis + 1 :])
        operands = [x] if split is None else [x, split]
        type = SequenceType(TensorType(x.dtype, shape))
        return host("split_to_sequence", operands, [type], axis=axis, squeezed=squeezed)[0]
    parts, start = [], 0
    for size in sizes:
        part_of = slice_axis(x, axis, start, size)
        parts.append(squeeze(part_of, [axis]) if squeezed else part_of)
        start += size
    require(x.shape[axis] == start, f"parts of sizes {sizes} do not add up to {x.shape[axis]}")
    return construct(parts, TensorType(x.dtype, None))


def _part_sizes(total: Dim, split: Tensor | None) -> list[int] | None:
    """Return the sizes of the parts if they are static and at most UNROLLED_PARTS."""
    if not isinstance(total, int) or (split is not None and split.static_value is None):
        return None
    if split is not None and split.rank == 1:
        sizes = current_trace.get().observe(split, "split")
        plain = [size for size in sizes if isinstance(size, int)]
        return plain if len(plain) == len(sizes) else None
    chunk: Any = 1 if split is None else current_trace.get().observe(split, "split")[0]
    if not isinstance(chunk, int):
        return None
    require(chunk > 0, f"parts must have a positive size, not {chunk}")
    if total > chunk * UNROLLED_PARTS:
        return None
    return [min(chunk, total - start) for start in range(0, total, chunk)]


# -- optionals -------------------------------------------------------------------------------------------------------


@op("Optional", since=15)
def optional(x: Tensor | None = None, *, type: Any = None) -> Tensor:
    if x is None:
        require(type is not None, "an empty optional needs its type")
        empty = current_trace.get().constant(None, OptionalType(type))
        empty.elements = ()
        return empty
    if current_trace.get().eager:
        return x
    wrapped = host("optional_construct", [x], [OptionalType(x.type)])[0]
    wrapped.elements = (x,)
    return wrapped


@op("OptionalHasElement", since=15)
def optional_has_element(x: Tensor | None = None) -> Tensor:
    if x is None:
        return constant(np.bool_(False))
    match x.type:
        case OptionalType() if x.elements is not None:
            return constant(np.bool_(len(x.elements) > 0))
        case TensorType() | SequenceType():
            return constant(np.bool_(True))
        case _:
            return host("optional_has_element", [x], [TensorType(DType.bool, ())])[0]


def find_optional_inputs(graph: Graph) -> frozenset[str]:
    """Return the inputs that a model tests with OptionalHasElement, so that a run may omit them."""
    tested: set[str] = set()
    pending = [graph]
    while pending:
        for node in pending.pop().nodes:
            pending.extend(subgraphs(node))
            if node.op == "OptionalHasElement" and not node.domain:
                tested.update(node.inputs)
    return frozenset(value.name for value in graph.inputs if value.name in tested)


@op("OptionalGetElement", since=15)
def optional_get_element(x: Tensor) -> Tensor:
    match x.type:
        case OptionalType(element):
            if x.elements:
                return x.elements[0]
            require(x.elements is None, "an empty optional has no element to get")
            return host("optional_get_element", [x], [element])[0]
        case AnyType():
            return host("optional_get_element", [x], [AnyType()])[0]
        case _:
            return x
