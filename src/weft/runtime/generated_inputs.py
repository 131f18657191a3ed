"""Inputs that are made up to fit a model: what is run where nobody gives data, and only the time matters."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from weft.errors import InputError, WeftError
from weft.ir.dtypes import DType
from weft.ir.specs import TensorSpec, spec
from weft.ir.types import OptionalType, SequenceType, TensorType
from weft.quantities import shortened
from weft.runtime.available_memory import memory_left

Array = np.ndarray[Any, Any]
USUAL_RATE = 16_000  # of sound, per second
_RATES = ("sr", "sample_rate", "sampling_rate", "samplerate")
RANDOM, ZEROS, ONES = "random", "zeros", "ones"


def generate_inputs(
    specs: Sequence[TensorSpec],
    sizes: Mapping[str, int],
    seed: int = 0,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, Any]:
    """Random data for all inputs that are not optional; dims without a size are 1. InputError where none fits.

    `shapes` are those of inputs that have one of their own; a sequence has one element.
    """
    random = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for each in specs:
        whole = (shapes or {}).get(each.name)
        match each.type:
            case OptionalType():
                continue
            case SequenceType(element=TensorType() as element):
                found[each.name] = [made_up(_tensor(each.name, element, whole), sizes, random)]
            case TensorType() as type if whole is not None:
                found[each.name] = made_up(_tensor(each.name, type, whole), sizes, random)
            case _:
                found[each.name] = made_up(each, sizes, random)
    return found


def _tensor(name: str, type: TensorType, shape: tuple[int, ...] | None) -> TensorSpec:
    """A tensor of a type, with a shape of its own where there is one."""
    return spec(name, type if shape is None else TensorType(type.dtype, shape))


class PlannedInputs(Protocol):
    """A model that knows what it takes, and which sizes are usual for it."""

    @property
    def inputs(self) -> Sequence[TensorSpec]: ...

    def plan(self) -> tuple[object, Mapping[str, int]]: ...


def usual_inputs(model: PlannedInputs) -> dict[str, Array]:
    """Random arrays of usual sizes."""
    sizes: Mapping[str, int] = {}
    with suppress(WeftError):
        sizes = model.plan()[1]
    return generate_inputs(model.inputs, sizes)


def made_up(spec: TensorSpec, sizes: Mapping[str, int], random: np.random.Generator, fill: str = RANDOM) -> Array:
    """An array for an input: random, or of zeros or ones."""
    if spec.element is None or spec.shape is None:
        problem = f"input {spec.name!r} has no fixed rank or is not a tensor, so no data can be made up for it"
        raise InputError(problem, hint=f'give data for it, or a shape: {{"{shortened(spec.name)}": (1, 3)}}')
    extents = tuple(dim if isinstance(dim, int) else sizes.get(dim, 1) for dim in spec.shape)
    try:
        if math.prod(extents) * max(spec.element.numpy.itemsize, 4) > _room():
            raise MemoryError
        if fill == RANDOM and _is_sample_rate(spec):
            return np.full(extents, USUAL_RATE).astype(spec.element.numpy)
        if fill == RANDOM:
            return _random(spec.element, extents, random)
        if spec.element is DType.string:
            return np.full(extents, "" if fill == ZEROS else "one", object)
        return np.full(extents, fill == ONES).astype(spec.element.numpy)
    except (MemoryError, ValueError, OverflowError) as error:
        problem = f"input {spec.name!r}: there is no room for made-up data of shape ({', '.join(map(str, extents))})"
        raise InputError(problem, hint="give smaller sizes") from error


def _is_sample_rate(spec: TensorSpec) -> bool:
    """Whether an input is the rate of sound, which models know but two of."""
    wide = spec.element in (DType.int32, DType.int64, DType.uint32, DType.uint64)
    return wide and spec.name.lower() in _RATES and spec.shape in ((), (1,))


def _room() -> float:
    """Bytes that made-up data may take: asking for more could end this process, or another."""
    left = memory_left()
    if left is None and hasattr(os, "sysconf"):
        with suppress(OSError, ValueError):
            left = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return math.inf if left is None else left


def _random(dtype: DType, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Standard normal floats; 8-bit integers over their range; other integers 0 or 1, which are safe as indices."""
    if dtype is DType.string:
        return np.asarray(random.choice(["a", "b", "c"], shape), object)
    if dtype.is_complex:
        return (random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(dtype.numpy)
    if dtype in (DType.int8, DType.uint8):
        limits = np.iinfo(dtype.numpy)
        return random.integers(limits.min, limits.max + 1, shape).astype(dtype.numpy)
    if dtype.is_float:
        return np.asarray(random.standard_normal(shape, np.float32)).astype(dtype.numpy)
    return np.asarray(random.integers(0, 2, shape)).astype(dtype.numpy)
