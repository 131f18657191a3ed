"""The reference device: numpy runs every step. It is the oracle for all other devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.backends.device import NO_SIZES, Backend, Device, DeviceProgram, Driver, Executable, RunOptions
from weft.backends.reference.sizes import in_order
from weft.ir.arrays import Array
from weft.ir.program import TensorProgram
from weft.ir.tensors import DeviceTensor, host_tensor


class InterpretedExecutable(Executable):
    """A program that is interpreted step by step."""

    def run(
        self,
        inputs: Sequence[Any],
        keep: Sequence[int] = (),  # noqa: ARG002
        sizes: Mapping[str, int] = NO_SIZES,
    ) -> list[Any]:
        from weft.backends.reference import interpret  # imports all ops, which "auto" need not load

        assert isinstance(self.program, TensorProgram)
        return interpret.run(self.program, [in_order(content) for content in inputs], sizes)


class ReferenceDriver(Driver):
    """Interprets programs as they are."""

    def start(self, program: DeviceProgram, options: RunOptions) -> Executable:  # noqa: ARG002
        assert isinstance(program, TensorProgram)
        return InterpretedExecutable(program)

    def place(self, array: Array) -> DeviceTensor:
        return host_tensor(array, self.name)


class ReferenceBackend(Backend):
    """The one reference device, which is always available."""

    name = "reference"

    def devices(self) -> list[Device]:
        return [Device(self.name, True, "numpy, one step at a time: exact but slow")]

    def driver(self, name: str) -> Driver:
        return ReferenceDriver(name)


DEVICE = ReferenceBackend()
