"""Results in arrays that the caller brings: which may be written to, by whom, and the copies where nobody could."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from weft.errors import InputError, UnsupportedModelError, WeftError, shown
from weft.ir.dtypes import DType, from_numpy
from weft.ir.specs import TensorSpec
from weft.ir.tensors import DeviceTensor
from weft.ir.types import TensorType
from weft.records import dataclass
from weft.runtime.foreign import as_numpy
from weft.runtime.inputs import Adopt, is_elsewhere

Array = np.ndarray[Any, Any]
_OVERLAP_EFFORT = 10_000  # of a search for a byte that two arrays share, after which they are held to share one
_HOW = "pass a numpy array, or a tensor that shares its memory with one"


@dataclass(frozen=True, slots=True)
class Destinations:
    """Where a caller wants outputs: what was passed, and the memory of each as an array that may be written to.

    `kept` are those that are wanted on the device: in tensors that another library has there, or as weft's own.
    """

    given: Mapping[str, Any]
    arrays: Mapping[str, Array]
    tensors: tuple[str, ...]  # on the device
    kept: tuple[str, ...]
    file: str

    def fill(self, results: dict[str, Any]) -> dict[str, Any]:
        """The results, those with a destination in it: nothing is written before all are known to fit."""
        for name, array in self.arrays.items():
            _check_result(results[name], array, name, self.file)
        for name, array in self.arrays.items():
            if results[name] is not array:
                np.copyto(array, results[name], casting="no")
            results[name] = self.given[name]
        for name in self.tensors:
            if not hasattr(results[name], "write_into"):
                problem = f"output {name!r} is not on the device that the tensor for it is on"
                raise InputError(problem, file=self.file, hint=_HOW)
            try:
                results[name].write_into(self.given[name])
            except WeftError as error:
                raise error.at(file=self.file, value=name) from error.__cause__
            results[name] = self.given[name]
        return results


def separate_arrays(
    into: Mapping[str, Any], names: Sequence[str], inputs: Iterable[Any], file: str
) -> dict[str, Array] | None:
    """The arrays by name, where each is for an output and has memory of its own; shapes and dtypes are not checked."""
    arrays = {name: _writable(content, name, file) for name, content in into.items()}
    for name, array in arrays.items():
        if name not in names:
            return None
        for content in inputs:
            if isinstance(content, np.ndarray) and np.may_share_memory(array, content):
                return None
    if len(arrays) > 1 and any(np.may_share_memory(one, other) for one, other in combinations(arrays.values(), 2)):
        return None
    return arrays


def destinations(
    into: Any, wanted: Sequence[str], kept: Sequence[str], outputs: Sequence[TensorSpec], file: str, adopt: Adopt
) -> Destinations:
    """What a caller passed as `into`, checked; InputError says what does not fit.

    `adopt` takes over what other libraries have on the device.
    """
    if not isinstance(into, Mapping):
        hint = 'for instance run(inputs, into={"y": np.empty((8, 10), np.float32)})'
        problem = f"into must be a dict of arrays by the names of outputs, not a {type(into).__name__}"
        raise InputError(problem, file=file, hint=hint)
    arrays: dict[str, Array] = {}
    tensors: dict[str, DeviceTensor] = {}
    for name, content in into.items():
        if name not in wanted:
            hint = f"it gives {', '.join(map(str, wanted)) or 'nothing'}"
            raise InputError(f"into names {shown(name)}, which this run does not give", file=file, hint=hint)
        if name in kept:
            problem = f"output {name!r} is either kept on the device or written into an array, not both"
            raise InputError(problem, file=file, hint="leave it out of keep or of into")
        found = _on_device(content, name, file, adopt) if is_elsewhere(content) else None
        if found is None:
            arrays[name] = _writable(content, name, file)
        else:
            tensors[name] = found
    for spec in outputs:
        place = arrays.get(spec.name, tensors.get(spec.name))
        if place is not None:
            _check_declared(place, spec, file)
    for (one, first), (other, second) in combinations(arrays.items(), 2) if len(arrays) > 1 else ():
        if _overlap(first, second):
            problem = f"the arrays for outputs {one!r} and {other!r} share memory"
            raise InputError(problem, file=file, hint="pass arrays that do not")
    return Destinations(into, arrays, tuple(tensors), (*kept, *tensors), file)


def _on_device(content: Any, name: str, file: str, adopt: Adopt) -> DeviceTensor | None:
    """A tensor that another library has on the device; None for one of the host's."""
    _check_not_trained(content, f"the tensor for output {name!r}", file)
    try:
        found = adopt(content)
    except WeftError as error:
        raise error.at(file=file, value=name) from error.__cause__
    about = getattr(content, "__cuda_array_interface__", None)
    if found is not None and isinstance(about, Mapping) and about["data"][1]:
        raise InputError(f"the tensor for output {name!r} may not be written to", file=file, hint="pass a copy of it")
    return found


def _check_not_trained(content: Any, what: str, file: str) -> None:
    if getattr(content, "requires_grad", False) is True:
        raise InputError(f"{what} is being trained (requires_grad)", file=file, hint="pass tensor.detach()")


def _writable(content: Any, name: str, file: str) -> Array:
    """The memory of an array-like as an array."""
    if type(content) is np.ndarray and content.flags.writeable:
        return content
    what = f"the array for output {name!r}"
    if isinstance(content, np.ndarray):
        if isinstance(content, np.ma.MaskedArray):
            raise InputError(f"{what} is a masked one, which hides elements", file=file, hint="pass array.data")
        array = content.view(np.ndarray)
    elif isinstance(content, DeviceTensor):
        hint = "keep= leaves an output on the device, as a tensor of its own"
        raise InputError(
            f"output {name!r} cannot be written into {content!r}, which never changes", file=file, hint=hint
        )
    else:
        array = _shared_array(content, what, file)
    if not array.flags.writeable:
        raise InputError(f"{what} may not be written to", file=file, hint="pass a copy of it")
    return array


def _shared_array(content: Any, what: str, file: str) -> Array:
    """The memory of another library's tensor; one that gives a copy each time it is asked is of no use."""
    _check_not_trained(content, what, file)
    if isinstance(content, (bytes, str, int, float, complex, list, tuple, dict, set, type(None))):
        raise InputError(f"{what} is a {type(content).__name__}, not an array", file=file, hint=_HOW)
    try:
        array, again = (np.asarray(content) if isinstance(content, memoryview) else as_numpy(content) for _ in "12")
    except (WeftError, MemoryError):
        raise
    except Exception as error:  # whatever a class of someone else's raises
        problem = f"{what} is a {type(content).__name__} whose memory cannot be reached: {error}"
        raise InputError(problem, file=file, hint=_HOW) from error
    if not isinstance(array, np.ndarray) or (array.nbytes and not np.may_share_memory(array, again)):
        raise InputError(f"{what} is a {type(content).__name__}, which gives only copies", file=file, hint=_HOW)
    return array


def _check_declared(array: Array | DeviceTensor, spec: TensorSpec, file: str) -> None:
    if not isinstance(spec.type, TensorType):
        problem = f"output {spec.name!r} is a {spec.type}, which no array holds"
        raise InputError(problem, file=file, hint="leave it out of into")
    _check_dtype(array, spec.type.dtype, spec.name, file)
    shape = spec.shape
    if shape is not None and (len(shape) != array.ndim or any(map(_differ, shape, array.shape))):
        problem = f"output {spec.name!r} has shape ({', '.join(map(str, shape))}), the array for it {array.shape}"
        raise InputError(problem, file=file)


def _differ(declared: int | str, size: int) -> bool:
    return declared != size and not isinstance(declared, str)


def _check_result(result: Any, array: Array, name: str, file: str) -> None:
    if result is array:
        return
    if not isinstance(result, np.ndarray):
        problem = f"output {name!r} came out as a {type(result).__name__}, which no array holds"
        raise InputError(problem, file=file, hint="leave it out of into")
    _check_dtype(array, from_numpy(result.dtype), name, file)
    if result.shape != array.shape:
        problem = f"output {name!r} has shape {result.shape}, the array for it {array.shape}"
        raise InputError(problem, file=file, hint="pass one of exactly the result's shape, for these inputs")


def _check_dtype(array: Array | DeviceTensor, dtype: DType, name: str, file: str) -> None:
    """That an array holds elements as results do; strings are Python's."""
    if array.dtype == dtype.numpy:
        return
    try:
        found: object = from_numpy(array.dtype) if array.dtype.isnative else array.dtype
    except UnsupportedModelError:
        found = array.dtype
    hint = f"pass one with dtype={'object' if dtype is DType.string else dtype}"
    raise InputError(f"output {name!r} is {dtype}, the array for it {found}", file=file, hint=hint)


def _overlap(one: Array, other: Array) -> bool:
    try:
        return np.shares_memory(one, other, max_work=_OVERLAP_EFFORT)  # type: ignore[arg-type]
    except RuntimeError:  # too hard to tell
        return True
