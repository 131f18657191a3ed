"""Sequences as Python lists, and optionals as their content or None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.errors import ExecutionError
from weft.ir.arrays import Array


def sequence_construct(*elements: Any) -> tuple[list[Any]]:
    return (list(map(_check_element, elements)),)


def sequence_insert(sequence: list[Any], element: Any, position: Array | None = None) -> tuple[list[Any]]:
    place = len(sequence) if position is None else _resolve_position(position, len(sequence), len(sequence) + 1)
    return ([*sequence[:place], _check_element(element), *sequence[place:]],)


def _check_element(element: Any) -> Any:
    """Refuse a nested sequence, whose size could double with each step."""
    if isinstance(element, list):
        raise ExecutionError("a sequence must contain tensors, not sequences")
    return element


def sequence_erase(sequence: list[Any], position: Array | None = None) -> tuple[list[Any]]:
    place = _resolve_position(np.int64(-1) if position is None else position, len(sequence), len(sequence))
    return ([*sequence[:place], *sequence[place + 1 :]],)


def sequence_at(sequence: list[Any], position: Array) -> tuple[Any]:
    return (sequence[_resolve_position(position, len(sequence), len(sequence))],)


def _resolve_position(position: Any, count: int, limit: int) -> int:
    number = int(np.asarray(position).item())
    place = number + count if number < 0 else number
    if not 0 <= place < limit:
        raise ExecutionError(f"position {number} is out of range for a sequence of {count} elements")
    return place


def sequence_length(sequence: list[Any]) -> tuple[Array]:
    return (np.asarray(len(sequence), np.int64),)


def concat_from_sequence(sequence: list[Array], *, axis: int, new_axis: bool) -> tuple[Array]:
    if not sequence:
        raise ExecutionError("an empty sequence cannot be concatenated")
    return (np.stack(sequence, axis) if new_axis else np.concatenate(sequence, axis),)


def split_to_sequence(x: Array, split: Array | None = None, *, axis: int, squeezed: bool) -> tuple[list[Array]]:
    total = x.shape[axis]
    if split is not None and split.ndim == 1:
        sizes = [int(size) for size in split]
        if sum(sizes) != total or min(sizes, default=0) < 0:
            raise ExecutionError(f"parts of sizes {sizes} do not add up to {total}")
    else:
        chunk = 1 if split is None else int(split.item())
        if chunk <= 0:
            raise ExecutionError(f"parts must have a positive size, not {chunk}")
        sizes = [min(chunk, total - start) for start in range(0, total, chunk)]
    parts = np.split(x, np.cumsum(sizes)[:-1], axis) if sizes else []
    return ([part.squeeze(axis) for part in parts] if squeezed else list(parts),)


def optional_construct(content: Any) -> tuple[Any]:
    return (content,)


def optional_has_element(content: Any) -> tuple[Array]:
    return (np.asarray(content is not None),)


def optional_get_element(content: Any) -> tuple[Any]:
    if content is None:
        raise ExecutionError("an empty optional has no element to get")
    return (content,)


SEQUENCES: dict[str, Callable[..., tuple[Any, ...]]] = {
    "sequence_construct": sequence_construct,
    "sequence_insert": sequence_insert,
    "sequence_erase": sequence_erase,
    "sequence_at": sequence_at,
    "sequence_length": sequence_length,
    "concat_from_sequence": concat_from_sequence,
    "split_to_sequence": split_to_sequence,
    "optional_construct": optional_construct,
    "optional_has_element": optional_has_element,
    "optional_get_element": optional_get_element,
}
