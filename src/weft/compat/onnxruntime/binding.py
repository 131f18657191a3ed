"""IOBinding: inputs and outputs that are named once and used in many runs, in memory of the caller's where given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from weft.compat.onnxruntime.exceptions import refusal
from weft.compat.onnxruntime.naming import COLLECTION, STATE, known_as
from weft.compat.onnxruntime.values import (
    HOST,
    OrtDevice,
    OrtValue,
    OrtValueVector,
    array_at,
    element_dtype,
    made,
    on_host,
    weft_device,
)

if TYPE_CHECKING:
    from weft.compat.onnxruntime.served import ServedModel
    from weft.compat.onnxruntime.session import InferenceSession


BoundRun = Callable[[Mapping[str, Any], list[str], list[str], Mapping[str, Any]], dict[str, Any]]
"""Takes inputs, names of outputs, those to keep on the device, and arrays for some; gives outputs by name."""


class BorrowedMemory:
    """Memory of the caller's on a CUDA device, as weft takes such memory from other libraries."""

    def __init__(self, address: int, dtype: np.dtype[Any], shape: Sequence[int]) -> None:
        self.__cuda_array_interface__ = {
            "shape": tuple(shape),
            "typestr": dtype.str,
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


@known_as(COLLECTION)
class IOBinding:
    """What a session's runs read and write."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session._weft
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, OrtValue | BorrowedMemory | str] = {}  # where to, or the device that it stays on
        self.results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        if not isinstance(arr_on_cpu, np.ndarray):
            raise RuntimeError("Unable to create OrtValue from the given python object")
        self._bind(name, arr_on_cpu)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        device = weft_device(device_type, device_id)
        if device is None:
            self._bind(name, array_at(buffer_ptr, element_dtype(element_type), shape))
        elif device.partition(":")[0] == "cuda":
            self._bind(name, BorrowedMemory(buffer_ptr, element_dtype(element_type), shape))
        else:
            raise refusal("IOBinding.bind_input", f"memory on {device_type!r} cannot be named by its address")

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        self._bind(name, ortvalue.content)

    def bind_output(
        self,
        name: str,
        device_type: str = HOST,
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        device = weft_device(device_type, device_id)
        if buffer_ptr is None:
            self.outputs[name] = device or HOST
            return
        if element_type is None or shape is None:
            raise ValueError("`element_type` and `shape` are to be provided if pre-allocated memory is provided")
        dtype = element_dtype(element_type)
        if device is None:
            self.outputs[name] = made(array_at(buffer_ptr, dtype, shape))
        elif device.partition(":")[0] == "cuda":
            self.outputs[name] = BorrowedMemory(buffer_ptr, dtype, shape)
        else:
            hint = "bind the output without buffer_ptr: get_outputs() gives it on the device"
            raise refusal("IOBinding.bind_output", f"memory on {device_type!r} cannot be named by its address", hint)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self.outputs[name] = ortvalue._ortvalue

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last run, in the order in which they were bound."""
        return list(self.results)

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        return OrtValueVector(self.results)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Arrays that later runs leave alone, whatever memory is bound."""
        bound = {id(target) for target in self.outputs.values()}
        copies = [on_host(value.content) for value in self.results]
        return [copy.copy() if id(value) in bound else copy for value, copy in zip(self.results, copies)]

    @property
    def _iobinding(self) -> SessionIOBinding:
        """The same binding as onnxruntime's inner class: both share what is bound."""
        inner = SessionIOBinding.__new__(SessionIOBinding)
        inner.__dict__ = self.__dict__
        return inner

    def clear_binding_inputs(self) -> None:
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        self.outputs.clear()
        self.results = []

    def synchronize_inputs(self) -> None:
        """Nothing is to be waited for: a run orders itself after what it reads."""

    def synchronize_outputs(self) -> None:
        """Nothing is to be waited for: whoever reads an output gets it when it is there."""

    def is_of(self, served: ServedModel) -> bool:
        """Tell whether it was made for the session of a model."""
        return self._session is served

    def _bind(self, name: str, content: Any) -> None:
        if not self._session.takes(name):
            raise RuntimeError(f"Failed to find NodeArg with name: {name} in the def list")
        self.inputs[name] = content


@known_as(STATE)
class SessionIOBinding(IOBinding):
    """onnxruntime's inner class, which takes an OrtDevice where the public one takes a name and a number."""

    def bind_input(self, name: str, *arguments: Any) -> None:
        """Bind an array, or memory: its device, element type, shape and address."""
        if len(arguments) == 1:
            self.bind_cpu_input(name, *arguments)
        else:
            device, element_type, shape, address = arguments
            super().bind_input(name, device.name, device.device_id(), element_type, shape, address)

    def bind_output(self, name: str, device: OrtDevice, *memory: Any) -> None:  # type: ignore[override]
        """Bind an output to a device, or to memory there: its element type, shape and address."""
        super().bind_output(name, device.name, device.device_id(), *memory)

    def get_outputs(self) -> OrtValueVector:
        return self.get_outputs_as_ortvaluevector()


def run_bound(binding: IOBinding, run: BoundRun) -> None:
    """Run with what is bound."""
    if not binding.outputs:
        raise RuntimeError("Error in execution: At least one output should be requested.")
    into = {name: target.content for name, target in binding.outputs.items() if _is_array(target)}
    kept = [name for name, target in binding.outputs.items() if target != HOST and name not in into]
    results = run(binding.inputs, list(binding.outputs), kept, into)
    binding.results = [_delivered(results[name], target) for name, target in binding.outputs.items()]


def _is_array(target: Any) -> TypeGuard[OrtValue]:
    return isinstance(target, OrtValue) and isinstance(target.content, np.ndarray)


def _delivered(result: Any, target: OrtValue | BorrowedMemory | str) -> OrtValue:
    match target:
        case BorrowedMemory():
            result.write_into(target)
        case OrtValue() if result is not target.content:
            target.take(result)
            return target
        case OrtValue():
            return target
    return made(result)
