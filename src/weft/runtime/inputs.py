"""Check the inputs of a run against the model, and turn them into arrays or tensors on its device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Union

import numpy as np
from numpy import ndarray

from weft.errors import DeviceError, InputError, WeftError, short_repr
from weft.ir.arrays import Array
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.specs import TensorSpec
from weft.ir.tensors import DeviceTensor, HostTensor
from weft.ir.types import MAX_DEPTH, MapType, OptionalType, SequenceType, TensorType, Type
from weft.runtime.array_likes import as_array, conversion_hint, onnx_dtype, reshape_hint

Tensor = Union[Array, DeviceTensor]
PlainShapes = tuple[tuple[int, ...], ...]  # of inputs that are arrays as declared, in order
_STRINGS, _STRING = np.dtype(object), {str}


Adopt = Callable[[Any], Union[DeviceTensor, None]]


class BoundInputs(NamedTuple):
    """Inputs ready to run. `clash` says which dim name has two sizes.

    Some exporters give unrelated dims the same name, so a clash need not be an error: the model may accept these
    shapes.
    """

    arrays: dict[str, Any]
    clash: str | None


class InputBinder:
    """Checks the inputs of one model, with a fast path for arrays of the declared dtypes."""

    def __init__(
        self, specs: Sequence[TensorSpec], optional: Sequence[TensorSpec], file: str, device: str, adopt: Adopt
    ) -> None:
        """`adopt` imports tensors of other libraries on the device."""
        self.specs: tuple[TensorSpec, ...] = tuple(specs)
        self.optional: tuple[TensorSpec, ...] = tuple(optional)
        self.file = file
        self.device = device
        self.adopt = adopt
        self._dtypes = [(spec.name, spec.dtype) for spec in specs]
        self._scalars = [number for number, spec in enumerate(specs) if spec.element and spec.shape == ()]
        self._fits: Callable[..., bool] | None = None  # whether shapes are as declared, once compiled

    def __call__(
        self, inputs: Mapping[str, Any], plain: Sequence[Tensor] | None, absent: Collection[str] = ()
    ) -> BoundInputs:
        """Check inputs and convert them to arrays (or tensors, lists, None, dicts) by name.

        `plain` is the result of the method `plain`; inputs that are `absent` are not bound.
        """
        if plain is not None and self._has_declared_shapes(plain):
            return BoundInputs({name: array for (name, _), array in zip(self._dtypes, plain)}, None)
        inputs = {name: self._adopt_tensor(name, content) for name, content in inputs.items() if name not in absent}
        specs = tuple(spec for spec in self.specs if spec.name not in absent) if absent else self.specs
        return bind_inputs(specs, self.optional, inputs, self.file, self.device)

    def _has_declared_shapes(self, plain: Sequence[Tensor]) -> bool:
        if self._fits is None:
            self._fits = compile_shape_check([spec.type.shape for spec in self.specs])
        return self._fits(*[array.shape for array in plain])

    def plain(self, inputs: Mapping[str, Any]) -> list[Tensor] | None:
        """Return the inputs in order if all are arrays, or tensors on the device, of the declared dtypes.

        Shapes are not checked.
        """
        if len(inputs) != len(self._dtypes):
            return None
        arrays: list[Tensor] = []
        for name, dtype in self._dtypes:
            array = inputs.get(name)
            if type(array) is not ndarray:
                array = self._find_tensor(array)
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

    def _adopt_tensor(self, name: str, content: Any) -> Any:
        if not is_elsewhere(content):
            return content
        try:
            tensor = self.adopt(content)
        except WeftError as error:
            raise type(error)(f"input {short_repr(name)}: {error.problem}", hint=error.hint, file=self.file) from None
        return content if tensor is None else tensor

    def _find_tensor(self, content: Any) -> Tensor | None:
        """Return a tensor that is on the device; None for anything else."""
        if not isinstance(content, DeviceTensor) and is_elsewhere(content):
            content = self.adopt(content)
        if not isinstance(content, DeviceTensor) or content.device != self.device or content.is_released:
            return None
        return content.array if isinstance(content, HostTensor) else content


def _are_strings(array: Tensor) -> bool:
    return isinstance(array, ndarray) and set(map(type, array.ravel().tolist())) <= _STRING


def is_elsewhere(content: Any) -> bool:
    """Whether this may be a tensor of another library on a device."""
    if isinstance(content, (np.ndarray, DeviceTensor, int, float, list, tuple, str)) or content is None:
        return False
    return hasattr(content, "__dlpack_device__") or hasattr(content, "__cuda_array_interface__")


def bind_inputs(
    specs: Sequence[TensorSpec], optional: Sequence[TensorSpec], inputs: Mapping[str, Any], file: str, device: str
) -> BoundInputs:
    """Check inputs and convert them to arrays (or tensors, lists, None, dicts) by name."""
    all_specs = {spec.name: spec for spec in (*specs, *optional)}
    for name in inputs:
        if name not in all_specs:
            takes = _list_specs(all_specs.values())
            raise InputError(f"the model has no input {short_repr(name)}", file=file, hint=f"it takes {takes}")
    for spec in specs:
        if spec.name not in inputs and not isinstance(spec.type, OptionalType):
            takes = _list_specs(all_specs.values())
            raise InputError(f"input {spec.name!r} is missing", file=file, hint=f"the model takes {takes}")
    arrays: dict[str, Any] = {}
    for spec in (*specs, *(spec for spec in optional if spec.name in inputs)):
        content = _on_device(inputs.get(spec.name), spec, file, device)
        arrays[spec.name] = _convert_input(spec.type, content, spec, file)
    return BoundInputs(arrays, _find_clash([spec for spec in (*specs, *optional) if spec.name in arrays], arrays))


def _list_specs(specs: Iterable[TensorSpec]) -> str:
    return ", ".join(map(str, specs)) or "no inputs"


def compile_shape_check(shapes: Sequence[Sequence[Dim] | None]) -> Callable[..., bool]:
    """Compile a function of the shapes of all inputs: whether they have these ranks, fixed sizes and equal dims."""
    names: dict[str, str] = {}  # of dims: the variable with their first size
    lines: list[str] = []
    tests: list[str] = []
    for number, shape in enumerate(shapes):
        if shape is None:
            continue
        sizes = []
        for axis, dim in enumerate(shape):
            size = f"d{number}_{axis}"
            sizes.append(size)
            first = str(dim) if isinstance(dim, int) else names.setdefault(str(dim), size)
            if first != size:
                tests.append(f"{size} == {first}")
        lines.append(f"[{', '.join(sizes)}] = s{number}")
    parameters = ", ".join(f"s{number}" for number in range(len(shapes)))
    body = "".join(f"        {line}\n" for line in (*lines, f"return {' and '.join(tests) or True}"))
    scope: dict[str, Any] = {}
    exec(f"def fits({parameters}):\n    try:\n{body}    except ValueError:\n        return False\n", {}, scope)
    fits: Callable[..., bool] = scope["fits"]
    return fits


def _find_clash(specs: Sequence[TensorSpec], arrays: Mapping[str, Any]) -> str | None:
    sizes: dict[str, tuple[int, int, str]] = {}
    for spec in specs:
        content = arrays[spec.name]
        if spec.type.shape is None or not has_shape(content):
            continue
        for axis, (dim, size) in enumerate(zip(spec.type.shape, content.shape)):
            other, at, name = sizes.setdefault(str(dim), (size, axis, spec.name))
            if other != size:
                first = f"{str(dim)!r} is {other} in dimension {at} of input {name!r}"
                return f"{first} but {size} in dimension {axis} of input {spec.name!r}"
    return None


def has_shape(content: Any) -> bool:
    """Whether an input is a tensor, on the host or on a device."""
    return isinstance(content, (np.ndarray, DeviceTensor))


def _on_device(content: Any, spec: TensorSpec, file: str, device: str, depth: int = 0) -> Any:
    """Unwrap host tensors and check that others are on the device; DeviceError if one is not.

    Sequences and optionals are on the host.
    """
    if isinstance(content, (list, tuple)):
        if depth == MAX_DEPTH:
            raise InputError(f"input {spec.name!r} is a list of lists, more than {MAX_DEPTH} deep", file=file)
        return [_on_device(item, spec, file, device, depth + 1) for item in content]
    if not isinstance(content, DeviceTensor):
        return content
    try:
        content.check_on(device)
    except DeviceError as error:
        raise type(error)(f"input {spec.name!r}: {error.problem}", hint=error.hint, file=file) from None
    if isinstance(content, HostTensor):
        return content.array
    return content.numpy() if spec.element is None else content


def _convert_input(type: Type, content: Any, spec: TensorSpec, file: str) -> Any:
    match type:
        case TensorType():
            return _convert_tensor(type, content, spec, file)
        case SequenceType(element):
            if not isinstance(content, (list, tuple)):
                raise InputError(f"input {spec.name!r} is a {type}: pass a list", file=file)
            return [_convert_input(element, item, spec, file) for item in content]
        case OptionalType(element):
            return None if content is None else _convert_input(element, content, spec, file)
        case MapType():
            key_type = str if type.key is DType.string else (int, np.integer)
            if not isinstance(content, dict) or not all(isinstance(key, key_type) for key in content):
                keys = "strings" if type.key is DType.string else "whole numbers"
                raise InputError(f"input {spec.name!r} is a {type}: pass a dict whose keys are {keys}", file=file)
            return {key: _convert_input(type.value, item, spec, file) for key, item in content.items()}
        case _:
            return content


def _convert_tensor(type: TensorType, content: Any, spec: TensorSpec, file: str) -> Tensor:
    what = f"input {spec.name!r}"
    array = content if isinstance(content, DeviceTensor) else as_array(content, type.dtype, what, file)
    actual = onnx_dtype(array, what, file)
    if actual is not type.dtype:
        hint = conversion_hint(content, type.dtype)
        raise InputError(f"{what} must be {type.dtype}, not {actual}", file=file, hint=hint)
    if type.shape is None:
        return array
    if type.shape == ():
        array = _as_scalar(array)
    if array.ndim != len(type.shape):
        problem = f"{what} must have {len(type.shape)} dimensions ({type}), not {array.ndim}: shape {array.shape}"
        raise InputError(problem, file=file, hint=reshape_hint(array, type.shape))
    for axis, (dim, size) in enumerate(zip(type.shape, array.shape)):
        if isinstance(dim, int) and dim != size:
            problem = f"{what} must have size {dim} in dimension {axis} ({type}), not {size}: shape {array.shape}"
            raise InputError(problem, file=file, hint=reshape_hint(array, type.shape) or _batch_hint(axis, dim))
    return array


def _as_scalar(tensor: Tensor) -> Tensor:
    """Drop the dimensions of a tensor with one element; return any other tensor unchanged."""
    if not tensor.shape or tensor.size != 1:
        return tensor
    return (tensor.numpy() if isinstance(tensor, DeviceTensor) else tensor).reshape(())


def _batch_hint(axis: int, size: int) -> str | None:
    """Say what to do if a file fixes the batch size to 1."""
    if axis != 0 or size != 1:
        return None
    return "this size is fixed in the file: run rows one by one, or export the model with a dynamic batch"
