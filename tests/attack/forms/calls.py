"""Forms in which the model is the same, and loaded, fed or asked in another way: the same bits come out."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from attack.forms.sample import Array, Form, Results, Sample, replace_values, run_once, with_model

import weft

CACHE = "WEFT_CACHE"


def option(**options: Any) -> Form:
    """Loaded with options."""
    return lambda sample: replace(sample, call=partial(run_once, **options))


# -- memory --------------------------------------------------------------------------------------------------------


def odd_arrays(sample: Sample) -> Sample | None:
    """Inputs lie in memory in other ways."""
    return replace(sample, call=_run_on_odd_arrays) if sample.tensors else None


def _run_on_odd_arrays(sample: Sample, device: str) -> Results:
    model = weft.load(sample.model, device=device)
    plain: Results = model.run(sample.inputs)
    for change in (strided, backward, fortran, read_only, swapped, unaligned, repeated, Foreign):
        inputs = {name: change(value) if name in sample.tensors else value for name, value in sample.inputs.items()}
        _check_same(plain, model.run(inputs), f"from {change.__name__.lower()} arrays")
    return plain


def _check_same(expected: Results, actual: Results, when: str) -> None:
    for name, value in expected.items():
        if not same_bits(actual[name], value):
            raise DifferentError(f"{name!r} has other bits {when}")


class DifferentError(Exception):
    """The same model gave two results for the same inputs."""


def strided(array: Array) -> Array:
    """Every second element of a larger array, along all axes."""
    larger = np.zeros([2 * size + 1 for size in array.shape], array.dtype)
    view = larger[(..., *(slice(1, None, 2) for _ in array.shape))]
    view[...] = array
    return view


def backward(array: Array) -> Array:
    """With negative strides."""
    return np.flip(np.ascontiguousarray(np.flip(array)).reshape(array.shape)) if array.ndim else array


def fortran(array: Array) -> Array:
    return np.asfortranarray(array).reshape(array.shape)


def read_only(array: Array) -> Array:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def swapped(array: Array) -> Array:
    """With the other order of bytes."""
    if array.dtype.isbuiltin != 1 or array.dtype.itemsize == 1 or array.dtype == object:
        return array
    return array.astype(array.dtype.newbyteorder())


def unaligned(array: Array) -> Array:
    """At an odd address."""
    if array.dtype == object or not array.size:
        return array
    memory = np.zeros(array.nbytes + 1, np.uint8)
    memory[1:] = np.frombuffer(array.tobytes(), np.uint8)
    return np.frombuffer(memory.data, array.dtype, offset=1).reshape(array.shape)


def repeated(array: Array) -> Array:
    """A view whose rows are all the same memory where its rows are equal."""
    if not array.ndim or not array.size or array.dtype == object:
        return array
    first = array[:1]
    if first.tobytes() * array.shape[0] != array.tobytes():
        return array
    return np.broadcast_to(first, array.shape)


class Foreign:
    """An object that is no array, but gives one."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return self._array if dtype is None else self._array.astype(dtype)


# -- asking --------------------------------------------------------------------------------------------------------


def asked_otherwise(sample: Sample) -> Sample | None:
    """Run again, for outputs in another order, twice, one at a time; earlier results stay as they were."""
    return replace(sample, call=_ask_otherwise)


def _ask_otherwise(sample: Sample, device: str) -> Results:
    model = weft.load(sample.model, device=device)
    plain: Results = model.run(sample.inputs)
    before = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in plain.items()}
    names = list(sample.expected)[::-1]
    _check_same(before, model.run(sample.inputs), "in a second run")
    _check_same(before, model.run(sample.inputs, outputs=[*names, names[0]]), "when asked for backward")
    _check_same(before, plain, "after another run")
    return plain


def asked_one_by_one(sample: Sample) -> Sample | None:
    """Outputs are wanted one at a time, the last one first."""
    return replace(sample, call=_ask_one_by_one) if len(sample.expected) > 1 else None


def _ask_one_by_one(sample: Sample, device: str) -> Results:
    model = weft.load(sample.model, device=device)
    results: Results = {}
    for name in reversed(list(sample.expected)):
        results.update(model.run(sample.inputs, outputs=[name]))
    return results


def turned_outputs(sample: Sample) -> Sample | None:
    """The model has its outputs in another order."""
    if len(sample.model.graph.output) < 2:
        return None
    result = with_model(sample)
    replace_values(result.model.graph.output, list(result.model.graph.output)[::-1])
    return result


def kept_on_device(sample: Sample) -> Sample | None:
    """Inputs are on the device, and outputs stay there."""
    return replace(sample, call=_keep)


def _keep(sample: Sample, device: str) -> Results:
    model = weft.load(sample.model, device=device)
    placed = {
        name: model.to_device(value) if isinstance(value, np.ndarray) and value.dtype != object else value
        for name, value in sample.inputs.items()
    }
    results = model.run(placed, keep=True)
    return {name: value.numpy() if hasattr(value, "numpy") else value for name, value in results.items()}


def cached(sample: Sample) -> Sample | None:
    """The first load writes into an empty cache, the second reads from it."""
    return replace(sample, call=_load_twice)


def _load_twice(sample: Sample, device: str) -> Results:
    before = os.environ.get(CACHE)
    with tempfile.TemporaryDirectory(prefix="weft-attack-") as folder:
        os.environ[CACHE] = folder
        try:
            cold = run_once(sample, device)
            warm = run_once(sample, device)
        finally:
            if before is None:
                del os.environ[CACHE]
            else:
                os.environ[CACHE] = before
    _check_same(cold, warm, "from the cache")
    return warm


def same_bits(left: Any, right: Any) -> bool:
    """Whether two results are the same to the last bit."""
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        if left.shape != right.shape or left.dtype != right.dtype:
            return False
        return bool((left == right).all()) if left.dtype == object else left.tobytes() == right.tobytes()
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same_bits, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_bits(left[key], right[key]) for key in left)
    return bool(left == right)
