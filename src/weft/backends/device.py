"""The device contract: what a backend folder, or an installed package, implements so that models run on its devices.

Each backend exports one `Backend` as DEVICE. It lists the devices of its kind as `Device` records and returns the
`Driver` of each. A driver compiles programs for its device, loads them as `Executable`s and allocates tensors there.
This module does not depend on any implementation: `runtime/devices.py` has the list, and packages register theirs under
the entry point group `weft.devices`.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, Union

from weft.errors import DeviceError
from weft.ir.arrays import Array
from weft.quantities import shorten
from weft.records import dataclass
from weft.tables import Table

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from weft.cost.roofline import Peak
    from weft.ir.compiled import CompiledProgram
    from weft.ir.kernel import Kernel
    from weft.ir.program import TensorProgram
    from weft.ir.run_record import RunRecord
    from weft.ir.target import Choices, Target
    from weft.ir.tensors import DeviceTensor
    from weft.ir.work import Section, Work
    from weft.plan.program import ProgramPlan

DeviceProgram = Union["TensorProgram", "CompiledProgram"]  # interpreted, or compiled
Progress = Callable[[str, float], None]  # receives the stage and its completed fraction
NO_SIZES: Mapping[str, int] = MappingProxyType({})
NATIVE = "native"  # the target for the device itself
_LONGEST_DESCRIPTION = 100
SOFTWARE = "software"  # the kind of a software rasteriser (llvmpipe)


@dataclass(frozen=True, slots=True)
class Device:
    """A device that models can run on. `name` is the device name for `weft.load`.

    The `kind` of a GPU is discrete, integrated, software (a software rasteriser) or other; `driver`, `features` and
    `limits` are as the GPU reports them.
    """

    name: str
    available: bool
    description: str  # of the device, or why it is not available
    kind: str = ""
    driver: str = ""
    features: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __repr__(self) -> str:
        """Leave out features and limits, which are long lists."""
        kind = f", kind={self.kind!r}" * bool(self.kind)
        description = shorten(self.description, _LONGEST_DESCRIPTION)
        return f"Device(name={self.name!r}, available={self.available}, description={description!r}{kind})"

    def _repr_html_(self) -> str:
        return device_table([self]).html()


def device_table(devices: Sequence[Device]) -> Table:
    """Build the table of devices shown in a notebook or as text."""
    rows = [(device.name, "yes" if device.available else "no", device.description) for device in devices]
    return Table(rows, ("device", "available", "description"))


class Standing(IntEnum):
    """The priority of a device for "auto", best first."""

    ACCELERATOR = 0  # tried first; if one fails, the next best device takes over
    HOST = 1  # used if there is no accelerator
    NAMED = 2  # used only by name


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of an executable: number of threads, memory limit in bytes, and whether arenas may grow for speed.

    `late` compiles and loads programs that can be traced only during a run.
    """

    threads: int | None = None
    memory_limit: int | None = None
    may_grow: bool = False
    late: Callable[[TensorProgram], Executable] | None = None


class Shortcut(Protocol):
    """Runs a program on inputs that are known to fit it. `into` may offer an array, or None, for each output.

    An offered array that is used is the result itself; the caller has checked that it overlaps no other array of the
    run.
    """

    def __call__(self, inputs: Sequence[Any], into: Sequence[Array | None] = ()) -> list[Any]: ...


class Executable(ABC):
    """A program loaded on a device. Several threads may call it at once."""

    def __init__(self, program: DeviceProgram) -> None:
        self.program = program
        self.input_names = tuple([value.name for value in program.inputs])

    @abstractmethod
    def run(self, inputs: Sequence[Any], keep: Sequence[int] = (), sizes: Mapping[str, int] = NO_SIZES) -> list[Any]:
        """Return the outputs for these inputs; GuardError where the program does not apply to their sizes.

        If the device has its own memory, inputs may be tensors there, and the outputs numbered in `keep` stay there if
        they were computed there. For a program that is part of another, `sizes` are the sizes that the outer program
        knows, which may not follow from the inputs' shapes.
        """

    def shortcut(self, inputs: Sequence[Any]) -> Shortcut | None:  # noqa: ARG002
        """Return a function with little overhead for row-major arrays of the dtypes and shapes of these inputs.

        The inputs have been run before. All its results are new arrays, or those offered for them. None: use `run`.
        """
        return None

    def plan(self, sizes: Mapping[str, int]) -> ProgramPlan | None:  # noqa: ARG002
        """Plan the memory of a run with these sizes; None on a device that plans none; GuardError as for `run`."""
        return None


@dataclass(frozen=True, slots=True)
class Recorder:
    """A program loaded on a device that records when each launch ran; one run at a time."""

    run: Callable[[Sequence[Any]], RunRecord]
    threads: int


@dataclass(frozen=True, slots=True)
class Listing:
    """A kernel's source in one language, for display; `lexer` is the language's name for syntax highlighters."""

    title: str
    lexer: str
    suffix: str  # of a file
    text: str


class Driver(ABC):
    """Runs programs on one device and allocates tensors there. A plain `Driver` interprets `TensorProgram`s."""

    has_memory = False  # whether the device has its own memory, where executables can leave outputs

    def __init__(self, name: str) -> None:
        self.name = name  # of the device

    @property
    def home(self) -> str:
        """The name of the device whose memory holds its tensors."""
        return self.name

    @abstractmethod
    def start(self, program: DeviceProgram, options: RunOptions) -> Executable:
        """Load a program on the device."""

    def check_precision(self, precision: str) -> None:  # noqa: B027
        """Raise DeviceError if the device refuses a precision.

        A device without narrower arithmetic computes in float32 instead of refusing.
        """

    @abstractmethod
    def place(self, array: Array) -> DeviceTensor:
        """Move an array to the device; the caller must not use the array afterwards."""

    def adopt(self, content: object) -> DeviceTensor | None:  # noqa: ARG002
        """Wrap another library's tensor on the device without copying; None for any other object."""
        return None

    def follow(self, stream: int) -> None:  # noqa: ARG002
        """Order later runs after the work queued on another library's stream; DeviceError without streams."""
        raise DeviceError(f"device {self.name!r} has no streams", hint="leave out `stream`")

    def lead(self, stream: int) -> None:  # noqa: ARG002
        """Order later work on another library's stream after the runs started so far."""
        raise DeviceError(f"device {self.name!r} has no streams", hint="leave out `stream`")

    def record(self, program: DeviceProgram, threads: int | None) -> Recorder:  # noqa: ARG002
        """Load a compiled program so that its launches are timed; DeviceError where the device cannot do that."""
        raise DeviceError(f"device {self.name!r} cannot time its kernels one by one", hint="choose another device")

    def calibrate(self, threads: int) -> Peak:  # noqa: ARG002
        """Measure the peak rates of this many threads; DeviceError where the device cannot be measured."""
        raise DeviceError(f"device {self.name!r} cannot be measured", hint="choose another device")


class LoadingDriver(Driver):
    """A driver that loads compiled programs, which may come from a file or from weft's cache."""

    @abstractmethod
    def identity(self) -> str:
        """Return everything that compiled code depends on besides weft itself.

        A foreign device includes its name and version.
        """

    def needs(self) -> Mapping[str, Any]:
        """Return, as plain data, what a machine must have to run programs compiled here."""
        return {"identity": self.identity()}

    def lack(self, needs: Mapping[str, Any]) -> str | None:
        """Name what this machine lacks to run a program with these needs; None if it lacks nothing."""
        return None if needs.get("identity") == self.identity() else "another device, driver or version of its compiler"

    def rank(self, needs: Mapping[str, Any]) -> int:  # noqa: ARG002
        """Rank a program with these needs by how much of the device it uses; the highest of several is run."""
        return 0

    def support(self) -> Mapping[str, bytes]:
        """Return the code that all programs share, by the digest of its source."""
        return {}

    def take_support(self, code: Mapping[str, Callable[[], bytes]]) -> None:
        """Use shared code from a file where its digest matches; called before a program is loaded."""


class Compilation:
    """A compilation in progress. `take` receives each work as soon as it is built; `finish` returns the program.

    Leaving its `with` block by an exception cancels what is not compiled yet.
    """

    def __init__(self, compile: Callable[[TensorProgram, Sequence[Section]], CompiledProgram]) -> None:
        """`compile` does everything in `finish`, for devices that cannot start earlier."""
        self._compile = compile

    def launches(self, target: Target) -> dict[Any, Any] | None:  # noqa: ARG002
        """Return the launches that earlier compilations built for a target, by the calls of their builders."""
        return None

    def take(self, work: Work) -> None:
        """Start to compile the kernels of a work while others are built."""

    def finish(self, program: TensorProgram, sections: Sequence[Section]) -> CompiledProgram:
        """Return the program with its code, which may still be compiling: a run waits for it."""
        return self._compile(program, sections)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Release the threads that compile."""


class CompilingDriver(LoadingDriver):
    """A driver that compiles programs for its device."""

    def prepare(self) -> None:
        """Start to read what the next compilation needs, while its model is traced."""

    @abstractmethod
    def target(self, precision: str) -> Target:
        """Return the target that kernels are built for."""

    def for_target(self, name: str) -> CompilingDriver:
        """Return a driver that compiles for another target and runs nothing; DeviceError for an unknown name."""
        if name != NATIVE:
            raise DeviceError(f"device {self.name!r} has no target {name!r}", hint=f"it has {NATIVE}")
        return self

    @abstractmethod
    def compile(
        self, program: TensorProgram, sections: Sequence[Section], cache: bool, progress: Progress
    ) -> CompiledProgram:
        """Compile the kernels of a program's sections; `cache`: whether code may be cached on disk."""

    def begin(self, cache: bool, progress: Progress) -> Compilation:
        """Begin a compilation before its kernels are built."""
        return Compilation(lambda program, sections: self.compile(program, sections, cache, progress))

    def listings(self, kernel: Kernel) -> Sequence[Listing]:  # noqa: ARG002
        """Return a kernel's source in each language that it is compiled through."""
        return ()


class TunableDriver(CompilingDriver):
    """A driver whose kernels can be tuned: its target carries the choices, by default those in the cache."""

    @property
    @abstractmethod
    def hardware(self) -> str:
        """The kind of hardware that choices hold for."""

    @abstractmethod
    def with_choices(self, choices: Choices) -> TunableDriver:
        """Return the driver with these choices only."""


class Backend(ABC):
    """One kind of device: lists the devices on this machine and returns the driver of each."""

    name: str  # the prefix of its device names, followed by a colon if there are several

    @abstractmethod
    def devices(self) -> list[Device]:
        """List the devices, best first, or one unavailable device that says why; raises nothing."""

    @abstractmethod
    def driver(self, name: str) -> Driver:
        """Return the driver of a device, by a name from `find`."""

    def standing(self, device: Device) -> Standing:  # noqa: ARG002
        """Return the priority of a device; by default it is used only by name."""
        return Standing.NAMED

    def find(self, suffix: str) -> Device | None:
        """Find the device `name:suffix`, or `name` without a suffix; None or DeviceError if there is none."""
        name = f"{self.name}:{suffix}" if suffix else self.name
        return next((device for device in self.devices() if device.name == name), None)

    def automatic(self) -> list[Device]:
        """List the devices that "auto" may choose, best first; a backend without any need not search."""
        devices = self.devices()
        return [device for device in devices if device.available and self.standing(device) is not Standing.NAMED]


_RENAMED = {"Runner": "Executable", "KeepingDriver": "LoadingDriver", "Compiled": "DeviceProgram"}


def __getattr__(name: str) -> Any:
    """Keep the former names of the contract working in installed packages."""
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message = f"weft.backends.device.{name} is deprecated: use {_RENAMED[name]}"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return globals()[_RENAMED[name]]
