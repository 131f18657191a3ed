"""The devices that weft knows, which of them are here, and why others are not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Union

import numpy as np

from weft.backends.cpu import machine
from weft.backends.cpu.codegen import code_identity
from weft.backends.cpu.compile import compile_program
from weft.backends.cpu.executable import Executable
from weft.backends.cpu.peak import known_peak
from weft.backends.cpu.pool import MOST_THREADS
from weft.backends.cpu.recording import recorder
from weft.backends.reference import interpret
from weft.errors import (
    DeviceError,
    ExecutionError,
    InputError,
    OutOfMemoryError,
    UnsupportedModelError,
    WeftError,
    shown,
)
from weft.ir.compiled import CompiledProgram
from weft.ir.dtypes import DType, from_numpy
from weft.ir.program import TensorProgram
from weft.ir.record import RunRecord
from weft.ir.target import Peak, Target
from weft.ir.tensors import DeviceTensor, HostTensor
from weft.kernels.sections import divide
from weft.plan.program import ProgramPlan
from weft.runtime.memory import usual_sizes

if TYPE_CHECKING:  # what GPUs need comes in with the first use of one
    from weft.backends.webgpu.adapters import Adapter

Array = np.ndarray[Any, Any]
Shortcut = Callable[[Sequence[Any]], list[Any]]
Compiled = Union[TensorProgram, CompiledProgram]
Tell = Callable[[str, float], None]  # the stage, and how far it is

_GPUS = "webgpu"
_SOFTWARE = "software"
_GPU_FILES = ("dri/renderD*", "nvidia[0-9]*", "dxg", "kgsl-3d0", "mali0")  # under /dev on Linux, any GPU's


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


def devices() -> list[Device]:
    """Every device, best first."""
    real = [gpu for gpu in _gpus() if gpu.kind != _SOFTWARE]
    played = [gpu for gpu in _gpus() if gpu.kind == _SOFTWARE]
    return [_CUDA, *real, _CPU, *played, _REFERENCE]


def choose(name: str) -> Device:
    """The device that a name means, or the best one for "auto".

    "webgpu" is the best GPU, "webgpu:1" the one of that number, "webgpu:geforce" one with this in its name.
    """
    if not isinstance(name, str):
        hint = 'a device is chosen by its name, for instance device="cpu"; see weft.devices()'
        raise DeviceError(f"there is no device {shown(name)}", hint=hint)
    if name == "auto":
        return next(_automatic())
    kind, colon, wanted = name.partition(":")
    if kind == _GPUS and (wanted or not colon):
        return _gpu(wanted)
    for device in (_CPU, _REFERENCE, _CUDA):
        if device.name == name:
            if device.available:
                return device
            raise DeviceError(f"device {name!r} is not available: {device.description}", hint="see weft.devices()")
    names = ", ".join(dict.fromkeys(device.name for device in devices()))
    raise DeviceError(f"there is no device {name!r}", hint=f"weft knows {names}, and auto for the best one here")


def next_best(device: str) -> Device | None:
    """The device that "auto" would choose if this one, a GPU, were not here; None after one that cannot fail so."""
    if device.partition(":")[0] != _GPUS:
        return None
    rest = iter(_automatic())
    return next((following for found in rest if found.name == device for following in rest), None)


def _automatic() -> Iterator[Device]:
    """What "auto" may choose, best first. Where no GPU can be, none is looked for: that would take half a second."""
    if sys.platform != "linux" or any(True for name in _GPU_FILES for _ in Path("/dev").glob(name)):
        yield from (gpu for gpu in _gpus(usable=False) if gpu.available and gpu.kind != _SOFTWARE)
    yield _CPU


def to_device(array: Any, device: str = "auto") -> DeviceTensor:
    """A tensor with an array's elements, on a device: what `run` of models there takes without a copy from the host."""
    return engine(choose(device).name).place(placeable(array))


def placeable(array: Any) -> Array:
    """A new array of numbers; InputError where an array-like is none."""
    try:
        content = np.array(array)
    except (WeftError, MemoryError):
        raise
    except Exception as error:  # whatever a class of someone else's raises
        raise InputError(f"a {type(array).__name__} cannot be read as an array: {error}") from error
    try:
        if from_numpy(content.dtype) is not DType.string:
            return content if content.dtype.isnative else content.astype(content.dtype.newbyteorder("="))
    except UnsupportedModelError:
        pass
    raise InputError(
        f"an array of {content.dtype} has no form in a device's memory", hint="pass numbers of ONNX's types"
    )


class Runner(Protocol):
    """A program on a device. Several threads may call it at once."""

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for these inputs; GuardError where the program does not apply to their sizes."""
        ...

    def shortcut(self, inputs: Sequence[Any]) -> Shortcut | None:
        """What runs on row-major arrays of the dtypes and shapes of these, which ran before, with the least overhead.

        All its results are new arrays. None where there is no such way.
        """
        ...

    def plan(self, sizes: Mapping[str, int]) -> ProgramPlan | None:
        """The memory of a run with these sizes, None where it is not planned; GuardError as for `run`."""
        ...


class Keeper(Protocol):
    """A runner on a device that has memory of its own."""

    def run(self, inputs: Sequence[Any], keep: Sequence[int] = ()) -> list[Any]:
        """Inputs may be tensors there; outputs whose numbers are in `keep` stay there, if they were computed there."""
        ...


@dataclass(frozen=True, slots=True)
class Recorder:
    """A program on a device that tells when each of its launches ran; one run at a time."""

    run: Callable[[Sequence[Any]], RunRecord]
    threads: int
    machine: Peak  # of so many threads


@dataclass(frozen=True, slots=True)
class Wishes:
    """Of runs: how many threads, how many bytes at most, and what is to give way, memory or time."""

    threads: int | None = None
    limit: int | None = None
    prefer: str = "memory"


@dataclass(frozen=True, slots=True)
class Engine:
    """What a device does with a program: make what runs there, a value, and run it.

    `compile` takes the precision and whether code may be cached, and tells how far it is; `start` takes what its users
    ask of runs; `place` makes a tensor there of an array that nobody else has.
    """

    compile: Callable[[TensorProgram, str, bool, Tell], Compiled]
    start: Callable[[Compiled, Wishes], Runner]
    identity: Callable[[], str] | None  # of what compiled programs depend on; None: they are not worth keeping
    place: Callable[[Array], DeviceTensor]
    has_memory: bool = False  # of its own, where runners can leave their outputs
    record: Callable[[Compiled, int | None], Recorder] | None = None  # None: it cannot time its kernels


def engine(name: str) -> Engine:
    """What runs programs on a device that `choose` gave."""
    kind, _, wanted = name.partition(":")
    return _gpu_engine(wanted) if kind == _GPUS else _ENGINES[name]


# -- the host --------------------------------------------------------------------------------------------------------

_CUDA = Device("cuda", False, "NVIDIA GPUs: not in this version of weft")
_CPU = Device("cpu", True, f"native code through LLVM, for {machine.host().processor}")
_REFERENCE = Device("reference", True, "numpy, one step at a time: exact and unhurried")


@dataclass(frozen=True, slots=True)
class _Interpreted:
    program: TensorProgram

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        return interpret.run(self.program, [interpret.in_order(content) for content in inputs])

    def shortcut(self, inputs: Sequence[Any]) -> None:  # noqa: ARG002
        return None

    def plan(self, sizes: Mapping[str, int]) -> None:  # noqa: ARG002
        return None


def _run_reference(program: Compiled, wishes: Wishes) -> Runner:  # noqa: ARG001
    assert isinstance(program, TensorProgram)
    return _Interpreted(program)


def _compile_for_cpu(program: TensorProgram, precision: str, cache: bool, tell: Tell) -> Compiled:
    target = replace(machine.host().target, transformed_products=precision != "strict")
    sections = divide(program, target, partial(tell, "building kernels"))
    return compile_program(program, sections, cache, partial(tell, "generating code"))


def _run_on_cpu(program: Compiled, wishes: Wishes) -> Runner:
    assert isinstance(program, CompiledProgram)
    threads = min(wishes.threads or machine.usable_cores(), MOST_THREADS)
    return Executable(program, threads, limit=wishes.limit, may_grow=wishes.prefer == "speed")


def _record_on_cpu(program: Compiled, threads: int | None) -> Recorder:
    assert isinstance(program, CompiledProgram)
    count = min(threads or machine.usable_cores(), MOST_THREADS)
    return Recorder(recorder(program, count), count, known_peak(count))


def _keep_on_host(device: str, array: Array) -> DeviceTensor:
    return HostTensor(np.ascontiguousarray(array).reshape(array.shape), device)


_ENGINES: dict[str, Engine] = {
    "cpu": Engine(_compile_for_cpu, _run_on_cpu, code_identity, partial(_keep_on_host, "cpu"), record=_record_on_cpu),
    "reference": Engine(lambda program, *_: program, _run_reference, None, partial(_keep_on_host, "reference")),
}


# -- GPUs ------------------------------------------------------------------------------------------------------------


def _gpus(usable: bool = True) -> list[Device]:
    """Those that WebGPU reaches, best first, or why there are none; unless `usable`, by this process or its parent."""
    from weft.backends.webgpu.adapters import INSTALL, adapters, check_process, is_installed

    if not is_installed():
        return [Device(_GPUS, False, f"any GPU, through the package wgpu, which is not installed: {INSTALL}")]
    try:
        found = adapters()
        if usable:
            check_process()
    except WeftError as error:
        return [Device(_GPUS, False, error.problem)]
    return [_described(adapter) for adapter in found] or [Device(_GPUS, False, "any GPU: wgpu finds none here")]


def _gpu(wanted: str) -> Device:
    from weft.backends.webgpu.adapters import INSTALL, check_process, find_adapter, is_installed

    if not is_installed():
        raise DeviceError(f"device {_GPUS!r} is not available: the package wgpu is not installed", hint=INSTALL)
    check_process()
    return _described(find_adapter(wanted))


def _described(adapter: Adapter) -> Device:
    what = f"{adapter.name}, through {adapter.backend}"
    if adapter.is_software:
        what += ": a program that plays a GPU, used only if named"
    limits = {name: value for name, value in asdict(adapter.limits).items() if type(value) is int}
    features = tuple(sorted(adapter.features))
    return Device(adapter.device, True, what, adapter.kind, adapter.driver, features, limits)


def _gpu_engine(wanted: str) -> Engine:
    return Engine(
        partial(_compile_for_gpu, wanted),
        partial(_run_on_gpu, wanted),
        partial(_gpu_identity, wanted),
        partial(_keep_on_gpu, wanted),
        has_memory=True,
        record=partial(_record_on_gpu, wanted),
    )


def _gpu_target(wanted: str, precision: str) -> tuple[Target, Adapter]:
    from weft.backends.webgpu.adapters import check_process, find_adapter
    from weft.backends.webgpu.targets import target_of

    check_process()
    adapter = find_adapter(wanted)
    target = target_of(adapter.limits, adapter.abilities)
    exact = precision == "strict"
    return replace(target, transformed_products=target.transformed_products and not exact), adapter


def _gpu_identity(wanted: str) -> str:
    target, adapter = _gpu_target(wanted, "")
    return f"{_GPUS} {target} {adapter.abilities} {adapter.limits}"


def _compile_for_gpu(wanted: str, program: TensorProgram, precision: str, cache: bool, tell: Tell) -> Compiled:  # noqa: ARG001
    from weft.backends.webgpu.compile import compile_program as compile_shaders

    target, adapter = _gpu_target(wanted, precision)
    sections = divide(program, target, partial(tell, "building kernels"))
    telling = partial(tell, "writing shaders")
    return compile_shaders(program, sections, adapter.abilities, adapter.limits.max_subgroup, telling)


def _run_on_gpu(wanted: str, program: Compiled, wishes: Wishes) -> Runner:
    from weft.backends.webgpu.executable import Executable as GpuExecutable
    from weft.backends.webgpu.gpu import open_gpu

    assert isinstance(program, CompiledProgram)
    executable = GpuExecutable(program, open_gpu(wanted), wishes.limit)
    full: OutOfMemoryError | None = None
    for sizes in usual_sizes(program.inputs, program.guards, {}):
        try:
            executable.compile(sizes)
            return executable
        except OutOfMemoryError as error:
            full = error
        except (interpret.GuardError, ArithmeticError, ExecutionError):
            continue  # sizes that make no sense for this model
    if full is not None:  # not even small inputs fit
        raise full
    return executable


def _record_on_gpu(wanted: str, program: Compiled, threads: int | None) -> Recorder:  # noqa: ARG001
    from weft.backends.webgpu.gpu import open_gpu
    from weft.backends.webgpu.peak import known_peak as gpu_peak
    from weft.backends.webgpu.recording import recorder as gpu_recorder

    assert isinstance(program, CompiledProgram)
    gpu = open_gpu(wanted)
    return Recorder(gpu_recorder(program, gpu), 1, gpu_peak(gpu))


def _keep_on_gpu(wanted: str, array: Array) -> DeviceTensor:
    from weft.backends.webgpu.gpu import open_gpu
    from weft.backends.webgpu.tensor import upload

    return upload(open_gpu(wanted), array)
