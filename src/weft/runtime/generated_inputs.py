"""Generate random inputs for a model, of given sizes."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from weft.errors import InputError, WeftError
from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.ir.specs import TensorSpec
from weft.ir.specs import spec as make_spec
from weft.ir.types import OptionalType, SequenceType, TensorType
from weft.quantities import shorten
from weft.runtime.available_memory import memory_left

USUAL_RATE = 16_000  # samples per second of audio
_RATES = ("sr", "sample_rate", "sampling_rate", "samplerate")
RANDOM, ZEROS, ONES = "random", "zeros", "ones"


def generate_inputs(
    specs: Sequence[TensorSpec],
    sizes: Mapping[str, int],
    seed: int = 0,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, Any]:
    """Generate data for all inputs that are not optional; InputError if that is not possible for one.

    Dims without a size get size 1, sequences get one element. `shapes` override the shapes of single inputs.
    """
    random = np.random.default_rng(seed)
    inputs: dict[str, Any] = {}
    for spec in specs:
        user_shape = (shapes or {}).get(spec.name)
        match spec.type:
            case OptionalType():
                continue
            case SequenceType(element=TensorType() as element):
                inputs[spec.name] = [generate_input(_tensor_spec(spec.name, element, user_shape), sizes, random)]
            case TensorType() as type if user_shape is not None:
                inputs[spec.name] = generate_input(_tensor_spec(spec.name, type, user_shape), sizes, random)
            case _:
                inputs[spec.name] = generate_input(spec, sizes, random)
    return inputs


def _tensor_spec(name: str, type: TensorType, shape: tuple[int, ...] | None) -> TensorSpec:
    """Make a spec of a type, with this shape instead of its own if there is one."""
    return make_spec(name, type if shape is None else TensorType(type.dtype, shape))


class PlannedInputs(Protocol):
    """A model with its inputs, and a plan for typical sizes."""

    @property
    def inputs(self) -> Sequence[TensorSpec]: ...

    def plan(self) -> tuple[object, Mapping[str, int]]: ...


def usual_inputs(model: PlannedInputs) -> dict[str, Array]:
    """Generate inputs of typical sizes."""
    sizes: Mapping[str, int] = {}
    with suppress(WeftError):
        sizes = model.plan()[1]
    return generate_inputs(model.inputs, sizes)


def generate_input(
    spec: TensorSpec, sizes: Mapping[str, int], random: np.random.Generator, fill: str = RANDOM
) -> Array:
    """Generate an array for an input: random, zeros or ones."""
    if spec.element is None or spec.shape is None:
        problem = f"input {spec.name!r} has no fixed rank or is not a tensor, so no random data can be generated for it"
        raise InputError(problem, hint=f'pass data for it, or a shape: {{"{shorten(spec.name)}": (1, 3)}}')
    extents = tuple(dim if isinstance(dim, int) else sizes.get(dim, 1) for dim in spec.shape)
    try:
        if math.prod(extents) * max(spec.element.numpy.itemsize, 4) > _available_bytes():
            raise MemoryError
        if fill == RANDOM and _is_sample_rate(spec):
            return np.full(extents, USUAL_RATE).astype(spec.element.numpy)
        if fill == RANDOM:
            return _random_array(spec.element, extents, random)
        if spec.element is DType.string:
            return np.full(extents, "" if fill == ZEROS else "one", object)
        return np.full(extents, fill == ONES).astype(spec.element.numpy)
    except (MemoryError, ValueError, OverflowError) as error:
        problem = (
            f"input {spec.name!r}: there is not enough memory for random data of shape ({', '.join(map(str, extents))})"
        )
        raise InputError(problem, hint="pass smaller sizes") from error


def _is_sample_rate(spec: TensorSpec) -> bool:
    """Whether an input is a sample rate, of which models accept only a few."""
    is_wide_integer = spec.element in (DType.int32, DType.int64, DType.uint32, DType.uint64)
    return is_wide_integer and spec.name.lower() in _RATES and spec.shape in ((), (1,))


def _available_bytes() -> float:
    """Return the bytes that random data may take: more could make the system kill this process, or another."""
    left = memory_left()
    if left is None and hasattr(os, "sysconf"):
        with suppress(OSError, ValueError):
            left = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return math.inf if left is None else left


def _random_array(dtype: DType, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Generate standard normal floats, 8-bit integers over their range, and other integers 0 or 1, safe as indices."""
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
