"""The reference as a device: every step by numpy, the oracle for all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.backends.device import NO_SIZES, Array, Backend, Compiled, Device, Driver, Runner, RunOptions
from weft.backends.reference.sizes import in_order
from weft.ir.program import TensorProgram
from weft.ir.tensors import DeviceTensor, host_tensor
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class InterpretedProgram:
    """A program that is run step by step."""

    program: TensorProgram

    def run(
        self,
        inputs: Sequence[Any],
        keep: Sequence[int] = (),  # noqa: ARG002
        sizes: Mapping[str, int] = NO_SIZES,
    ) -> list[Any]:
        from weft.backends.reference import interpret  # with all ops: "auto" looks at this device and leaves it

        return interpret.run(self.program, [in_order(content) for content in inputs], sizes)

    def shortcut(self, inputs: Sequence[Any]) -> None:  # noqa: ARG002
        return None

    def plan(self, sizes: Mapping[str, int]) -> None:  # noqa: ARG002
        return None


class ReferenceDriver(Driver):
    """Interprets programs as they are."""

    def start(self, program: Compiled, options: RunOptions) -> Runner:  # noqa: ARG002
        assert isinstance(program, TensorProgram)
        return InterpretedProgram(program)

    def place(self, array: Array) -> DeviceTensor:
        return host_tensor(array, self.name)


class ReferenceBackend(Backend):
    """The one device of its kind, which is always here."""

    name = "reference"

    def devices(self) -> list[Device]:
        return [Device(self.name, True, "numpy, one step at a time: exact and unhurried")]

    def driver(self, name: str) -> Driver:
        return ReferenceDriver(name)


DEVICE = ReferenceBackend()
