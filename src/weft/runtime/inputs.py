"""Check what a caller passes in against what the model takes, and turn it into arrays, or tensors on its device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Union

import numpy as np
from numpy import ndarray

from weft.errors import DeviceError, InputError, WeftError, shown
from weft.ir.dtypes import DType
from weft.ir.specs import TensorSpec
from weft.ir.tensors import DeviceTensor, HostTensor
from weft.ir.types import DEEPEST, MapType, OptionalType, SequenceType, TensorType, Type
from weft.runtime.array_likes import as_array, conversion, fitting_view, onnx_dtype

Array = np.ndarray[Any, Any]
Tensor = Union[Array, DeviceTensor]
PlainShapes = tuple[tuple[int, ...], ...]  # of inputs that are arrays as declared, in order
REMEMBERED_SHAPES = 256  # sets of them
_STRINGS, _STRING = np.dtype(object), {str}


Adopt = Callable[[Any], Union[DeviceTensor, None]]


class BoundInputs(NamedTuple):
    """Inputs ready to run. `clash` says where one dim name stands for two sizes.

    Some exporters give unrelated dims the same name, so a clash need not be an error: the model runs if it makes sense
    for these very shapes.
    """

    arrays: dict[str, Any]
    clash: str | None


class InputBinder:
    """Checks the inputs of one model: quickly where they are arrays of shapes that were checked before."""

    def __init__(
        self, specs: Sequence[TensorSpec], optional: Sequence[TensorSpec], file: str, device: str, adopt: Adopt
    ) -> None:
        """`adopt` takes over what other libraries have on the device."""
        self.specs: tuple[TensorSpec, ...] = tuple(specs)
        self.optional: tuple[TensorSpec, ...] = tuple(optional)
        self.file = file
        self.device = device
        self.adopt = adopt
        self._dtypes = [(spec.name, _array_dtype(spec)) for spec in specs]
        self._scalars = [number for number, spec in enumerate(specs) if spec.element and spec.shape == ()]
        self._fitting: set[PlainShapes | None] = set()

    def __call__(
        self, given: Mapping[str, Any], plain: Sequence[Tensor] | None, absent: Collection[str] = ()
    ) -> BoundInputs:
        """The inputs by name as arrays (or tensors, lists, None, dicts), checked; InputError says what does not fit.

        `plain` is what the method of this name gave; inputs that are `absent` are not bound.
        """
        shapes = None if plain is None else tuple([array.shape for array in plain])
        if plain is not None and shapes in self._fitting:
            return BoundInputs({name: array for (name, _), array in zip(self._dtypes, plain)}, None)
        given = {name: self._adopted(name, content) for name, content in given.items() if name not in absent}
        specs = tuple(spec for spec in self.specs if spec.name not in absent) if absent else self.specs
        bound = bind_inputs(specs, self.optional, given, self.file, self.device)
        if shapes is not None and bound.clash is None:
            if len(self._fitting) >= REMEMBERED_SHAPES:
                self._fitting.clear()
            self._fitting.add(shapes)
        return bound

    def plain(self, given: Mapping[str, Any]) -> list[Tensor] | None:
        """The inputs in order where all are arrays, or tensors on the device, of the declared dtypes.

        Their shapes are not checked.
        """
        if len(given) != len(self._dtypes):
            return None
        arrays: list[Tensor] = []
        for name, dtype in self._dtypes:
            array = given.get(name)
            if type(array) is not ndarray:
                array = self._usable(array)
                if array is None:
                    return None
            if array.dtype is not dtype and (dtype is None or array.dtype != dtype):  # numpy: float64 == None
                return None
            if dtype is _STRINGS and not _are_strings(array):
                return None
            arrays.append(array)
        for number in self._scalars:
            arrays[number] = _as_scalar(arrays[number])
        return arrays

    def _adopted(self, name: str, content: Any) -> Any:
        if not is_elsewhere(content):
            return content
        try:
            found = self.adopt(content)
        except WeftError as error:
            raise type(error)(f"input {shown(name)}: {error.problem}", hint=error.hint, file=self.file) from None
        return content if found is None else found

    def _usable(self, content: Any) -> Tensor | None:
        """A tensor that is on the device."""
        if not isinstance(content, DeviceTensor) and is_elsewhere(content):
            content = self.adopt(content)
        if not isinstance(content, DeviceTensor) or content.device != self.device or content.is_released:
            return None
        return content.array if isinstance(content, HostTensor) else content


def _are_strings(array: Tensor) -> bool:
    return isinstance(array, ndarray) and set(map(type, array.ravel().tolist())) <= _STRING


def is_elsewhere(content: Any) -> bool:
    """Whether it may be a tensor that another library has on a device."""
    if isinstance(content, (np.ndarray, DeviceTensor, int, float, list, tuple, str)) or content is None:
        return False
    return hasattr(content, "__dlpack_device__") or hasattr(content, "__cuda_array_interface__")


def _array_dtype(spec: TensorSpec) -> np.dtype[Any] | None:
    """What an array must have to need no conversion; None where it may always need one."""
    return spec.type.dtype.numpy if isinstance(spec.type, TensorType) else None


def bind_inputs(
    specs: Sequence[TensorSpec], optional: Sequence[TensorSpec], given: Mapping[str, Any], file: str, device: str
) -> BoundInputs:
    """The inputs by name as arrays (or tensors, lists, None, dicts), checked; InputError says what does not fit."""
    known = {spec.name: spec for spec in (*specs, *optional)}
    takes = ", ".join(map(str, known.values())) or "no inputs"
    for name in given:
        if name not in known:
            raise InputError(f"the model has no input {shown(name)}", file=file, hint=f"it takes {takes}")
    for spec in specs:
        if spec.name not in given and not isinstance(spec.type, OptionalType):
            raise InputError(f"input {spec.name!r} is missing", file=file, hint=f"the model takes {takes}")
    arrays: dict[str, Any] = {}
    for spec in (*specs, *(spec for spec in optional if spec.name in given)):
        content = _on_device(given.get(spec.name), spec, file, device)
        arrays[spec.name] = _convert(spec.type, content, spec, file)
    return BoundInputs(arrays, _find_clash([spec for spec in (*specs, *optional) if spec.name in arrays], arrays))


def _find_clash(specs: Sequence[TensorSpec], arrays: Mapping[str, Any]) -> str | None:
    sizes: dict[str, tuple[int, str]] = {}
    for spec in specs:
        content = arrays[spec.name]
        if not isinstance(spec.type, TensorType) or spec.type.shape is None or not has_shape(content):
            continue
        for axis, (dim, size) in enumerate(zip(spec.type.shape, content.shape)):
            other, where = sizes.setdefault(str(dim), (size, f"dimension {axis} of input {spec.name!r}"))
            if other != size:
                return f"{str(dim)!r} is {other} in {where} but {size} in dimension {axis} of input {spec.name!r}"
    return None


def has_shape(content: Any) -> bool:
    """Whether an input is a tensor, here or on a device."""
    return isinstance(content, (np.ndarray, DeviceTensor))


def _on_device(content: Any, spec: TensorSpec, file: str, device: str, depth: int = 0) -> Any:
    """The content, or the array in it; DeviceError for a tensor that is not on the device, or no longer.

    Sequences and optionals are the host's.
    """
    if isinstance(content, (list, tuple)):
        if depth == DEEPEST:
            raise InputError(f"input {spec.name!r} is a list of lists, more than {DEEPEST} deep", file=file)
        return [_on_device(item, spec, file, device, depth + 1) for item in content]
    if not isinstance(content, DeviceTensor):
        return content
    try:
        content.check_on(device)
    except DeviceError as error:
        raise type(error)(f"input {spec.name!r}: {error.problem}", hint=error.hint, file=file) from None
    if isinstance(content, HostTensor):
        return content.array
    return content if isinstance(spec.type, TensorType) else content.numpy()


def _convert(type: Type, content: Any, spec: TensorSpec, file: str) -> Any:
    match type:
        case TensorType():
            return _tensor(type, content, spec, file)
        case SequenceType(element):
            if not isinstance(content, (list, tuple)):
                raise InputError(f"input {spec.name!r} is a {type}: pass a list", file=file)
            return [_convert(element, item, spec, file) for item in content]
        case OptionalType(element):
            return None if content is None else _convert(element, content, spec, file)
        case MapType():
            wanted = str if type.key is DType.string else (int, np.integer)
            if not isinstance(content, dict) or not all(isinstance(key, wanted) for key in content):
                keys = "strings" if type.key is DType.string else "whole numbers"
                raise InputError(f"input {spec.name!r} is a {type}: pass a dict whose keys are {keys}", file=file)
            return {key: _convert(type.value, item, spec, file) for key, item in content.items()}
        case _:
            return content


def _tensor(type: TensorType, content: Any, spec: TensorSpec, file: str) -> Tensor:
    what = f"input {spec.name!r}"
    array = content if isinstance(content, DeviceTensor) else as_array(content, type.dtype, what, file)
    found = onnx_dtype(array, what, file)
    if found is not type.dtype:
        hint = conversion(content, type.dtype)
        raise InputError(f"{what} must be {type.dtype}, not {found}", file=file, hint=hint)
    if type.shape is None:
        return array
    if type.shape == ():
        array = _as_scalar(array)
    if array.ndim != len(type.shape):
        problem = f"{what} must have {len(type.shape)} dimensions ({type}), not {array.ndim}: shape {array.shape}"
        raise InputError(problem, file=file, hint=fitting_view(array, type.shape))
    for axis, (dim, size) in enumerate(zip(type.shape, array.shape)):
        if isinstance(dim, int) and dim != size:
            problem = f"{what} must have size {dim} in dimension {axis} ({type}), not {size}: shape {array.shape}"
            raise InputError(problem, file=file, hint=fitting_view(array, type.shape) or _batch_hint(axis, dim))
    return array


def _as_scalar(tensor: Tensor) -> Tensor:
    """Drop the dimensions of a tensor with one element; return any other tensor unchanged."""
    if not tensor.shape or tensor.size != 1:
        return tensor
    return (tensor.numpy() if isinstance(tensor, DeviceTensor) else tensor).reshape(())


def _batch_hint(axis: int, size: int) -> str | None:
    """What to do where a file takes one row at a time."""
    if axis != 0 or size != 1:
        return None
    return "this size is fixed in the file: run rows one by one, or export the model with a dynamic batch"
