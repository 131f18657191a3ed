"""IOBinding: inputs and outputs that are bound once and used in many runs, optionally in the caller's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from weft.compat.onnxruntime.dlpack import view_memory
from weft.compat.onnxruntime.exceptions import unsupported_error
from weft.compat.onnxruntime.naming import COLLECTION, STATE, set_module
from weft.compat.onnxruntime.values import (
    OrtDevice,
    OrtValue,
    OrtValueVector,
    element_dtype,
    find_weft_device,
    make_ortvalue,
    to_host,
)
from weft.runtime.devices import HOST

if TYPE_CHECKING:
    from weft.compat.onnxruntime.session import InferenceSession
    from weft.compat.onnxruntime.session_model import SessionModel


BoundRun = Callable[[Mapping[str, Any], list[str], list[str], Mapping[str, Any]], dict[str, Any]]
"""(inputs, names of outputs, names of those to keep on the device, arrays to write into) -> outputs by name."""


class BorrowedMemory:
    """The caller's memory on a CUDA device, with the interface by which libraries share such memory."""

    def __init__(self, address: int, dtype: np.dtype[Any], shape: Sequence[int]) -> None:
        self.__cuda_array_interface__ = {
            "shape": tuple(shape),
            "typestr": dtype.str,
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


@set_module(COLLECTION)
class IOBinding:
    """The inputs and outputs of a session's runs."""

    def __init__(self, session: InferenceSession) -> None:
        self._model = session._weft
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, OrtValue | BorrowedMemory | str] = {}  # memory to write to, or the name of a device
        self.results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        if not isinstance(arr_on_cpu, np.ndarray):
            raise RuntimeError("Unable to create OrtValue from the given python object")
        self._bind(name, arr_on_cpu)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        device = find_weft_device(device_type, device_id)
        if device is None:
            self._bind(name, view_memory(buffer_ptr, element_dtype(element_type), tuple(shape)))
        elif device.partition(":")[0] == "cuda":
            self._bind(name, BorrowedMemory(buffer_ptr, element_dtype(element_type), shape))
        else:
            raise unsupported_error("IOBinding.bind_input", f"memory on {device_type!r} has no address")

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
        device = find_weft_device(device_type, device_id)
        if buffer_ptr is None:
            self.outputs[name] = device or HOST
            return
        if element_type is None or shape is None:
            raise ValueError("`element_type` and `shape` are to be provided if pre-allocated memory is provided")
        dtype = element_dtype(element_type)
        if device is None:
            self.outputs[name] = make_ortvalue(view_memory(buffer_ptr, dtype, tuple(shape)))
        elif device.partition(":")[0] == "cuda":
            self.outputs[name] = BorrowedMemory(buffer_ptr, dtype, shape)
        else:
            hint = "bind the output without buffer_ptr: get_outputs() returns it on the device"
            raise unsupported_error("IOBinding.bind_output", f"memory on {device_type!r} has no address", hint)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self.outputs[name] = ortvalue._ortvalue

    def get_outputs(self) -> list[OrtValue]:
        """Return the outputs of the last run, in the order in which they were bound."""
        return list(self.results)

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        return OrtValueVector(self.results)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return the outputs as arrays that later runs do not overwrite."""
        bound = {id(target) for target in self.outputs.values()}
        copies = [to_host(value.content) for value in self.results]
        return [copy.copy() if id(value) in bound else copy for value, copy in zip(self.results, copies)]

    @property
    def _iobinding(self) -> SessionIOBinding:
        """The same binding as an instance of onnxruntime's inner class; both share their state."""
        inner = SessionIOBinding.__new__(SessionIOBinding)
        inner.__dict__ = self.__dict__
        return inner

    def clear_binding_inputs(self) -> None:
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        self.outputs.clear()
        self.results = []

    def synchronize_inputs(self) -> None:
        """Do nothing: runs wait for their inputs."""

    def synchronize_outputs(self) -> None:
        """Do nothing: reading an output waits for it."""

    def belongs_to(self, model: SessionModel) -> bool:
        """Whether the binding is for this model's session."""
        return self._model is model

    def _bind(self, name: str, content: Any) -> None:
        if not self._model.has_input(name):
            raise RuntimeError(f"Failed to find NodeArg with name: {name} in the def list")
        self.inputs[name] = content


@set_module(STATE)
class SessionIOBinding(IOBinding):
    """onnxruntime's inner class, which takes an OrtDevice instead of a name and a number."""

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


def run_binding(binding: IOBinding, run: BoundRun) -> None:
    """Run with the bound inputs and outputs."""
    if not binding.outputs:
        raise RuntimeError("Error in execution: At least one output should be requested.")
    into = {name: target.content for name, target in binding.outputs.items() if _is_on_host(target)}
    on_device = [name for name, target in binding.outputs.items() if target != HOST and name not in into]
    results = run(binding.inputs, list(binding.outputs), on_device, into)
    binding.results = [_deliver(results[name], target) for name, target in binding.outputs.items()]


def _is_on_host(target: Any) -> TypeGuard[OrtValue]:
    return isinstance(target, OrtValue) and isinstance(target.content, np.ndarray)


def _deliver(result: Any, target: OrtValue | BorrowedMemory | str) -> OrtValue:
    """Write an output to its bound memory, if it has any, and return it as a value."""
    if isinstance(target, OrtValue):
        if result is not target.content:
            target.assign(result)
        return target
    if isinstance(target, BorrowedMemory):
        result.write_into(target)
    return make_ortvalue(result)
