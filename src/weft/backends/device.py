"""The contract of a device: what a backend's folder, or an installed package, brings so that models run on it.

Each folder exports one `Backend` as DEVICE. It finds the devices of its kind and describes each as a `Device`, and it
gives the `Driver` of one: what compiles programs for it, starts them, and holds tensors there. Nothing here knows an
implementer; `runtime/devices.py` has the list, to which packages add theirs by the entry point group `weft.devices`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, Union

import numpy as np

from weft.errors import DeviceError
from weft.quantities import shortened
from weft.records import dataclass
from weft.tables import ShownTable

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from weft.cost.roofline import Peak
    from weft.ir.compiled import CompiledProgram
    from weft.ir.kernel import Kernel
    from weft.ir.program import TensorProgram
    from weft.ir.record import RunRecord
    from weft.ir.target import Choices, Target
    from weft.ir.tensors import DeviceTensor
    from weft.ir.work import Section, Work
    from weft.plan.program import ProgramPlan

Array = np.ndarray[Any, Any]
Compiled = Union["TensorProgram", "CompiledProgram"]
Progress = Callable[[str, float], None]  # hears of the stage, and how far it is
NO_SIZES: Mapping[str, int] = MappingProxyType({})
NATIVE = "native"  # the target that is the device itself
_LONGEST_DESCRIPTION = 100
SOFTWARE = "software"  # the kind of a GPU that a program plays


@dataclass(frozen=True, slots=True)
class Device:
    """What models can run on. `name` is what `weft.load` takes.

    Of a GPU, `kind` is discrete, integrated, software (a program that plays a GPU) or other; `driver`, `features` and
    `limits` are what it tells of itself.
    """

    name: str
    available: bool
    description: str  # what it is, or why it is not available
    kind: str = ""
    driver: str = ""
    features: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __repr__(self) -> str:
        """What it is; features and limits are long lists."""
        kind = f", kind={self.kind!r}" * bool(self.kind)
        description = shortened(self.description, _LONGEST_DESCRIPTION)
        return f"Device(name={self.name!r}, available={self.available}, description={description!r}{kind})"

    def _repr_html_(self) -> str:
        return device_table([self]).html()


def device_table(devices: Sequence[Device]) -> ShownTable:
    """What people see of several, in a notebook or as text."""
    rows = [(device.name, "yes" if device.available else "no", device.description) for device in devices]
    return ShownTable(rows, ("device", "here", "what it is"))


class Standing(IntEnum):
    """Where a device stands among others, best first."""

    ACCELERATOR = 0  # what "auto" takes first; where one fails, the next best device takes over
    HOST = 1  # what "auto" takes otherwise
    NAMED = 2  # used only if it is named


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Of runs: how many threads, how many bytes at most, and whether memory may be spent on speed.

    `late` compiles, and makes ready to run, what only a run can trace.
    """

    threads: int | None = None
    memory_limit: int | None = None
    may_grow: bool = False
    late: Callable[[TensorProgram], Runner] | None = None


class Shortcut(Protocol):
    """Runs a program on inputs that are known to fit it. `into` may offer an array for an output, or None.

    One that is used is the result itself: whoever offers it has checked that nothing else of the run lies there.
    """

    def __call__(self, inputs: Sequence[Any], into: Sequence[Array | None] = ()) -> list[Any]: ...


class Runner(Protocol):
    """A program on a device. Several threads may call it at once."""

    def run(self, inputs: Sequence[Any], keep: Sequence[int] = (), sizes: Mapping[str, int] = NO_SIZES) -> list[Any]:
        """The outputs for these inputs; GuardError where the program does not apply to their sizes.

        Where the device has memory of its own, inputs may be tensors there, and outputs whose numbers are in `keep`
        stay there if they were computed there. `sizes` are those that are known around the program, where it is a part
        of another: its inputs need not show them.
        """
        ...

    def shortcut(self, inputs: Sequence[Any]) -> Shortcut | None:
        """What runs on row-major arrays of the dtypes and shapes of these, which ran before, with the least overhead.

        All its results are new arrays, or those that it is offered. None where there is no such way.
        """
        ...

    def plan(self, sizes: Mapping[str, int]) -> ProgramPlan | None:
        """The memory of a run with these sizes, None where it is not planned; GuardError as for `run`."""
        ...


@dataclass(frozen=True, slots=True)
class Recorder:
    """A program on a device that tells when each of its launches ran; one run at a time."""

    run: Callable[[Sequence[Any]], RunRecord]
    threads: int


@dataclass(frozen=True, slots=True)
class Listing:
    """A kernel's code in some language, for people; `lexer` is what syntax highlighters call the language."""

    title: str
    lexer: str
    suffix: str  # of a file
    text: str


class Driver(ABC):
    """One device at work: runs programs and holds tensors. One that is no more than this runs programs as they are."""

    has_memory = False  # of its own, where runners can leave their outputs

    def __init__(self, name: str) -> None:
        self.name = name  # of the device

    @property
    def home(self) -> str:
        """The device that its tensors are on."""
        return self.name

    @abstractmethod
    def start(self, program: Compiled, options: RunOptions) -> Runner:
        """What runs a program."""

    def check_precision(self, precision: str) -> None:  # noqa: B027
        """Raise DeviceError where it takes no model in a precision; one that has nothing narrower computes as in
        float32.
        """

    @abstractmethod
    def place(self, array: Array) -> DeviceTensor:
        """A tensor on the device with the elements of an array that nobody else has."""

    def adopt(self, content: object) -> DeviceTensor | None:  # noqa: ARG002
        """A tensor that another library has on the device, in place; None for what is none."""
        return None

    def follow(self, stream: int) -> None:  # noqa: ARG002
        """What runs from now on sees what another library's stream was given before; DeviceError without streams."""
        raise DeviceError(f"device {self.name!r} has no streams", hint="leave out `stream`")

    def lead(self, stream: int) -> None:  # noqa: ARG002
        """What another library's stream is given from now on sees the results of runs before."""
        raise DeviceError(f"device {self.name!r} has no streams", hint="leave out `stream`")

    def record(self, program: Compiled, threads: int | None) -> Recorder:  # noqa: ARG002
        """What runs a compiled program and times its launches; DeviceError where that cannot be done."""
        raise DeviceError(f"device {self.name!r} cannot time its kernels one by one", hint="choose another device")

    def calibrate(self, threads: int) -> Peak:  # noqa: ARG002
        """What so many threads were measured to do at most; DeviceError where that cannot be done."""
        raise DeviceError(f"device {self.name!r} cannot be measured", hint="choose another device")


class KeepingDriver(Driver):
    """A driver that runs compiled programs. Those are values, which can be kept on disk and started again."""

    @abstractmethod
    def identity(self) -> str:
        """All that compiled programs depend on beside weft itself; of a foreign device, its name and version too."""

    def needs(self) -> Mapping[str, Any]:
        """What a machine must have to run what is compiled here, as plain data; of most devices, the very same."""
        return {"identity": self.identity()}

    def lack(self, needs: Mapping[str, Any]) -> str | None:
        """What this machine does not have of that; None where it has all."""
        return None if needs.get("identity") == self.identity() else "another device, driver or version of its compiler"

    def rank(self, needs: Mapping[str, Any]) -> int:  # noqa: ARG002
        """How much of the device is made use of by what needs that: of several programs, the one with most is run."""
        return 0

    def support(self) -> Mapping[str, bytes]:
        """Code that programs need beside their own, by the name of what it is made from."""
        return {}

    def take_support(self, code: Mapping[str, Callable[[], bytes]]) -> None:
        """Use such code from elsewhere where it is what would be compiled here, before a program is started."""


class Compilation:
    """A program on its way to code. `take` hears of each work as soon as it is built; `finish` gives the program.

    An exception that leaves a `with` around it gives up what is not compiled yet.
    """

    def __init__(self, compile: Callable[[TensorProgram, Sequence[Section]], CompiledProgram]) -> None:
        """`compile` does it all at the end, for devices that begin with nothing before."""
        self._compile = compile

    def take(self, work: Work) -> None:
        """Compile the kernels of a work while others are built."""

    def finish(self, program: TensorProgram, sections: Sequence[Section]) -> CompiledProgram:
        """The program with its code, which may still be compiled: who runs it waits."""
        return self._compile(program, sections)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Let go of what compiles."""


class CompilingDriver(KeepingDriver):
    """A driver of one device that compiles programs for it."""

    @abstractmethod
    def target(self, precision: str) -> Target:
        """What kernels are built for."""

    def for_target(self, name: str) -> CompilingDriver:
        """What compiles for devices of another sort, by name, and runs nothing; DeviceError where there is none."""
        if name != NATIVE:
            raise DeviceError(f"device {self.name!r} has no target {name!r}", hint=f"it has {NATIVE}")
        return self

    @abstractmethod
    def compile(
        self, program: TensorProgram, sections: Sequence[Section], cache: bool, progress: Progress
    ) -> CompiledProgram:
        """The program with the code of its sections' kernels; `cache`: whether code may be kept on disk."""

    def begin(self, cache: bool, progress: Progress) -> Compilation:
        """A compilation whose kernels are yet to be built."""
        return Compilation(lambda program, sections: self.compile(program, sections, cache, progress))

    def listings(self, kernel: Kernel) -> Sequence[Listing]:  # noqa: ARG002
        """The code of a kernel in each language on its way to the device."""
        return ()


class TunableDriver(CompilingDriver):
    """One whose kernels can be chosen by measurement: its target has choices, those that are kept unless others are
    given.
    """

    @property
    @abstractmethod
    def hardware(self) -> str:
        """The kind of hardware that choices hold for, as a text."""

    @abstractmethod
    def with_choices(self, choices: Choices) -> TunableDriver:
        """The driver with these choices, and no others."""


class Backend(ABC):
    """One kind of device: which of them are here, and the driver of each."""

    name: str  # what names of its devices begin with, before a colon if one follows

    @abstractmethod
    def devices(self) -> list[Device]:
        """Those that are here, best first, or one that is not available and why; no exception."""

    @abstractmethod
    def driver(self, name: str) -> Driver:
        """What runs programs on the device of this name, which `find` gave."""

    def standing(self, device: Device) -> Standing:  # noqa: ARG002
        """Where one of its devices stands among all; those that do not say otherwise are used only if named."""
        return Standing.NAMED

    def find(self, wanted: str) -> Device | None:
        """The device that the name means, or name:wanted; None where there is none, or DeviceError with the reason."""
        name = f"{self.name}:{wanted}" if wanted else self.name
        return next((device for device in self.devices() if device.name == name), None)

    def automatic(self) -> list[Device]:
        """Those that "auto" may choose, best first; where none can be, they need not be looked for."""
        found = self.devices()
        return [device for device in found if device.available and self.standing(device) is not Standing.NAMED]
