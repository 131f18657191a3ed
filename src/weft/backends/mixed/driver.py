"""Several devices as one: a program in pieces is started piece by piece, each by the driver of its device."""

from __future__ import annotations

from collections.abc import Sequence

from weft.backends.device import Array, Compiled, CompilingDriver, KeepingDriver, Recorder, Runner, RunOptions
from weft.errors import DeviceError
from weft.ir.mixed import MixedProgram
from weft.ir.tensors import DeviceTensor

JOINED = "+"  # between the names of devices that are one


class MixedDriver(KeepingDriver):
    """Runs programs whose pieces are for some of its devices. Tensors are kept on the primary one, the first."""

    def __init__(self, drivers: Sequence[CompilingDriver]) -> None:
        super().__init__(JOINED.join(driver.name for driver in drivers))
        self.drivers = tuple(drivers)
        self.primary = drivers[0]
        self.has_memory = self.primary.has_memory

    @property
    def home(self) -> str:
        return self.primary.name

    def identity(self) -> str:
        """All that compiled programs depend on beside weft itself, the decision what runs where aside."""
        return JOINED.join(f"{driver.name} {driver.identity()}" for driver in self.drivers)

    def start(self, program: Compiled, options: RunOptions) -> Runner:
        from weft.backends.mixed.runner import MixedRunner

        assert isinstance(program, MixedProgram)
        drivers = {driver.name: driver for driver in self.drivers}
        if len(program.pieces) == 1:
            (piece,) = program.pieces
            same = (program.inputs, program.outputs) == (piece.program.inputs, piece.program.outputs)
            if same and (piece.device == program.home or not drivers[piece.device].has_memory):
                return drivers[piece.device].start(piece.program, options)  # as if it were alone
        return MixedRunner(program, drivers, options)

    def place(self, array: Array) -> DeviceTensor:
        return self.primary.place(array)

    def record(self, program: Compiled, threads: int | None) -> Recorder:  # noqa: ARG002
        raise DeviceError(
            f"the kernels of a model on {self.name} cannot be timed one by one",
            hint=f"profile it on one device: device={self.primary.name!r}",
        )
