"""Outputs in the caller's arrays: check that they fit, and copy results that were not computed in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from weft.errors import InputError, UnsupportedModelError, WeftError, short_repr
from weft.ir.arrays import Array
from weft.ir.dtypes import DType, from_numpy
from weft.ir.specs import TensorSpec
from weft.ir.tensors import DeviceTensor
from weft.records import dataclass
from weft.runtime.foreign_tensors import as_numpy
from weft.runtime.inputs import Adopt, is_elsewhere

_OVERLAP_EFFORT = 10_000  # of numpy's search for shared bytes, after which arrays count as overlapping
_HINT = "pass a numpy array, or a tensor that shares its memory with one"


@dataclass(frozen=True, slots=True)
class Destinations:
    """Where outputs go: the objects that were passed, and the memory of each as a writable array."""

    targets: Mapping[str, Any]
    arrays: Mapping[str, Array]
    tensors: tuple[str, ...]  # names of targets on the device
    keep_names: tuple[str, ...]  # outputs that stay on the device: for `tensors`, or by `keep`
    file: str

    def fill(self, results: dict[str, Any]) -> dict[str, Any]:
        """Copy results to their targets; nothing is written unless all fit."""
        for name, array in self.arrays.items():
            _check_result(results[name], array, name, self.file)
        for name, array in self.arrays.items():
            if results[name] is not array:
                np.copyto(array, results[name], casting="no")
            results[name] = self.targets[name]
        for name in self.tensors:
            if not hasattr(results[name], "write_into"):
                problem = f"output {name!r} is not on the device that the tensor for it is on"
                raise InputError(problem, file=self.file, hint=_HINT)
            try:
                results[name].write_into(self.targets[name])
            except WeftError as error:
                raise error.at(file=self.file, value=name) from error.__cause__
            results[name] = self.targets[name]
        return results


def separate_arrays(
    into: Mapping[str, Any], names: Sequence[str], inputs: Iterable[Any], file: str
) -> dict[str, Array] | None:
    """Return the arrays by name if each is for an output and shares no memory; shapes and dtypes are not checked."""
    arrays = {name: _writable_array(content, name, file) for name, content in into.items()}
    for name, array in arrays.items():
        if name not in names:
            return None
        for content in inputs:
            if isinstance(content, np.ndarray) and np.may_share_memory(array, content):
                return None
    if len(arrays) > 1 and any(np.may_share_memory(left, right) for left, right in combinations(arrays.values(), 2)):
        return None
    return arrays


def check_destinations(
    into: Any, names: Sequence[str], keep_names: Sequence[str], outputs: Sequence[TensorSpec], file: str, adopt: Adopt
) -> Destinations:
    """Check `into` against the outputs of a run; `adopt` imports tensors of other libraries on the device."""
    if not isinstance(into, Mapping):
        hint = 'for instance run(inputs, into={"y": np.empty((8, 10), np.float32)})'
        problem = f"into must be a dict of arrays by the names of outputs, not a {type(into).__name__}"
        raise InputError(problem, file=file, hint=hint)
    arrays: dict[str, Array] = {}
    tensors: dict[str, DeviceTensor] = {}
    for name, content in into.items():
        if name not in names:
            hint = f"its outputs are {', '.join(map(str, names)) or 'nothing'}"
            raise InputError(f"into names {short_repr(name)}, which is not an output of this run", file=file, hint=hint)
        if name in keep_names:
            problem = f"output {name!r} is either kept on the device or written into an array, not both"
            raise InputError(problem, file=file, hint="leave it out of keep or of into")
        tensor = _adopt_tensor(content, name, file, adopt) if is_elsewhere(content) else None
        if tensor is None:
            arrays[name] = _writable_array(content, name, file)
        else:
            tensors[name] = tensor
    for spec in outputs:
        target = arrays.get(spec.name, tensors.get(spec.name))
        if target is not None:
            _check_declared(target, spec, file)
    for (first_name, first), (second_name, second) in combinations(arrays.items(), 2) if len(arrays) > 1 else ():
        if _overlap(first, second):
            problem = f"the arrays for outputs {first_name!r} and {second_name!r} share memory"
            raise InputError(problem, file=file, hint="pass separate arrays")
    return Destinations(into, arrays, tuple(tensors), (*keep_names, *tensors), file)


def _adopt_tensor(content: Any, name: str, file: str, adopt: Adopt) -> DeviceTensor | None:
    """Import a tensor of another library on the device; None for one on the host."""
    _check_no_gradient(content, f"the tensor for output {name!r}", file)
    try:
        tensor = adopt(content)
    except WeftError as error:
        raise error.at(file=file, value=name) from error.__cause__
    interface = getattr(content, "__cuda_array_interface__", None)
    if tensor is not None and isinstance(interface, Mapping) and interface["data"][1]:
        raise InputError(f"the tensor for output {name!r} may not be written to", file=file, hint="pass a copy of it")
    return tensor


def _check_no_gradient(content: Any, what: str, file: str) -> None:
    if getattr(content, "requires_grad", False) is True:
        raise InputError(f"{what} requires a gradient (requires_grad)", file=file, hint="pass tensor.detach()")


def _writable_array(content: Any, name: str, file: str) -> Array:
    """Return the memory of an array-like as a writable array."""
    if type(content) is np.ndarray and content.flags.writeable:
        return content
    what = f"the array for output {name!r}"
    if isinstance(content, np.ndarray):
        if isinstance(content, np.ma.MaskedArray):
            raise InputError(f"{what} is a masked array, which hides elements", file=file, hint="pass array.data")
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
    """Return the memory of another library's tensor; InputError if it can only be copied."""
    _check_no_gradient(content, what, file)
    if isinstance(content, (bytes, str, int, float, complex, list, tuple, dict, set, type(None))):
        raise InputError(f"{what} is a {type(content).__name__}, not an array", file=file, hint=_HINT)
    try:
        array, second_view = (
            np.asarray(content) if isinstance(content, memoryview) else as_numpy(content) for _ in "12"
        )
    except (WeftError, MemoryError):
        raise
    except Exception as error:  # any error of a foreign class
        problem = f"{what} is a {type(content).__name__} whose memory is not accessible: {error}"
        raise InputError(problem, file=file, hint=_HINT) from error
    if not isinstance(array, np.ndarray) or (array.nbytes and not np.may_share_memory(array, second_view)):
        problem = f"{what} is a {type(content).__name__}, whose memory cannot be shared"
        raise InputError(problem, file=file, hint=_HINT)
    return array


def _check_declared(array: Array | DeviceTensor, spec: TensorSpec, file: str) -> None:
    if spec.type.dtype is None:
        problem = f"output {spec.name!r} is a {spec.type}, which an array cannot hold"
        raise InputError(problem, file=file, hint="leave it out of into")
    _check_dtype(array, spec.type.dtype, spec.name, file)
    shape = spec.shape
    if shape is not None and (len(shape) != array.ndim or any(map(_are_different, shape, array.shape))):
        problem = f"output {spec.name!r} has shape ({', '.join(map(str, shape))}), the array for it {array.shape}"
        raise InputError(problem, file=file)


def _are_different(declared: int | str, size: int) -> bool:
    return declared != size and not isinstance(declared, str)


def _check_result(result: Any, array: Array, name: str, file: str) -> None:
    if result is array:
        return
    if not isinstance(result, np.ndarray):
        problem = f"output {name!r} is a {type(result).__name__}, which an array cannot hold"
        raise InputError(problem, file=file, hint="leave it out of into")
    _check_dtype(array, from_numpy(result.dtype), name, file)
    if result.shape != array.shape:
        problem = f"output {name!r} has shape {result.shape}, the array for it {array.shape}"
        raise InputError(problem, file=file, hint="pass one of exactly the result's shape, for these inputs")


def _check_dtype(array: Array | DeviceTensor, dtype: DType, name: str, file: str) -> None:
    """Raise InputError unless an array has the dtype of the result; strings are Python objects."""
    if array.dtype == dtype.numpy:
        return
    try:
        actual: object = from_numpy(array.dtype) if array.dtype.isnative else array.dtype
    except UnsupportedModelError:
        actual = array.dtype
    hint = f"pass one with dtype={'object' if dtype is DType.string else dtype}"
    raise InputError(f"output {name!r} is {dtype}, the array for it {actual}", file=file, hint=hint)


def _overlap(left: Array, right: Array) -> bool:
    try:
        return np.shares_memory(left, right, max_work=_OVERLAP_EFFORT)  # type: ignore[arg-type]
    except RuntimeError:  # too hard to tell
        return True
