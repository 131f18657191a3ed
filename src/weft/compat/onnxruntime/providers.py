"""Execution providers: what onnxruntime calls the ways to run a model, and weft's devices that stand for them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from weft.errors import DeviceError, FallbackWarning
from weft.records import dataclass
from weft.runtime import environment

CPU = "CPUExecutionProvider"
HOST = "cpu"
AUTO = "auto"
_DEVICES = {  # all that onnxruntime knows, in its order; None: none of weft's devices is for that
    "NvTensorRTRTXExecutionProvider": "cuda",
    "TensorrtExecutionProvider": "cuda",
    "CUDAExecutionProvider": "cuda",
    "MIGraphXExecutionProvider": "webgpu",
    "OpenVINOExecutionProvider": "cpu",
    "DnnlExecutionProvider": "cpu",
    "VitisAIExecutionProvider": None,
    "QNNExecutionProvider": None,
    "NnapiExecutionProvider": None,
    "VSINPUExecutionProvider": None,
    "JsExecutionProvider": "webgpu",
    "CoreMLExecutionProvider": "webgpu",
    "WebNNExecutionProvider": "webgpu",
    "WebGpuExecutionProvider": "webgpu",
    "XnnpackExecutionProvider": "cpu",
    "CANNExecutionProvider": None,
    "AzureExecutionProvider": None,
    "DmlExecutionProvider": "webgpu",
    "ROCMExecutionProvider": "webgpu",
    "ArmNNExecutionProvider": "cpu",
    "ACLExecutionProvider": "cpu",
    "RknpuExecutionProvider": None,
    "TvmExecutionProvider": "cpu",
    CPU: HOST,
}
_OF_A_DEVICE = {"cuda": "CUDAExecutionProvider", "webgpu": "WebGpuExecutionProvider"}  # as get_available_providers says
_OF_A_SYSTEM = {"win32": "DmlExecutionProvider", "darwin": "CoreMLExecutionProvider"}  # what programs look for there


@dataclass(frozen=True, slots=True)
class ProviderChoice:
    """The providers that can serve a session, with their options and devices, and the devices to try, in order.

    `absent` are providers that were asked for and cannot.
    """

    places: Mapping[str, str]
    options: Mapping[str, dict[str, str]]
    devices: tuple[str, ...]
    absent: tuple[str, ...]

    def serving(self, device: str) -> list[str]:
        """The providers of a session whose model is on a device: those before it have failed."""
        if self.devices == (AUTO,):
            return [name for kind, name in _OF_A_DEVICE.items() if kind == device.partition(":")[0]] + [CPU]
        failed = self.devices[: self.devices.index(device)] if device in self.devices else ()
        return [name for name, place in self.places.items() if place not in failed]


def get_all_providers() -> list[str]:
    """Every provider that onnxruntime could have been built with."""
    return list(_DEVICES)


def get_available_providers() -> list[str]:
    """What can serve here, the best first and the CPU last."""
    from weft.runtime.devices import automatic

    kinds = dict.fromkeys(device.name.partition(":")[0] for device in automatic())
    found = [name for kind, name in _OF_A_DEVICE.items() if kind in kinds]
    usual = _OF_A_SYSTEM.get(sys.platform)
    if usual is not None and _DEVICES[usual] in kinds:
        found.append(usual)
    return [*found, CPU]


def get_device() -> str:
    """What sort of device is here."""
    return "CPU" if get_available_providers() == [CPU] else "GPU"


def stated(providers: Any, options: Any) -> list[tuple[str, dict[str, str]]]:
    """The providers that were named, with their options as texts.

    ValueError where they make no sense, RuntimeError for an unknown name.
    """
    pairs = normalize_providers(providers, options)
    for name, _ in pairs:
        if name not in _DEVICES:
            raise RuntimeError(f"Unknown Provider Type: {name}")
    return pairs


def normalize_providers(providers: Any, options: Any) -> list[tuple[str, dict[str, str]]]:
    """Pair names of providers, known or not, with their options; the first of equal names counts."""
    if providers is None:
        return []
    if not isinstance(providers, Sequence):
        raise ValueError("'providers' should be a sequence.")
    if options is not None:
        if not isinstance(options, Sequence):
            raise ValueError("'provider_options' should be a sequence.")
        if len(providers) != len(options):
            raise ValueError("'providers' and 'provider_options' should be the same length if both are given.")
        if not all(isinstance(name, str) for name in providers):
            raise ValueError("Only string values for 'providers' are supported if 'provider_options' is given.")
        if not all(isinstance(entry, Mapping) for entry in options):
            raise ValueError("'provider_options' values must be dicts.")
        pairs = list(zip(providers, options))
    else:
        pairs = [_pair(entry) for entry in providers]
    found: dict[str, dict[str, str]] = {}
    for name, entries in pairs:
        found.setdefault(name, {str(key): str(value) for key, value in entries.items()})
    return list(found.items())


def _pair(entry: Any) -> tuple[str, Mapping[Any, Any]]:
    match entry:
        case str():
            return entry, {}
        case (str() as name, Mapping() as options):
            return name, options
    raise ValueError("'providers' values must be either strings or (string, dict) tuples.")


def chosen(asked: Sequence[tuple[str, dict[str, str]]]) -> ProviderChoice:
    """What serves of what was asked for. Each that does not is said, and the next takes over; the CPU is the last."""
    from weft.runtime.devices import choose

    places: dict[str, str] = {}
    absent: list[str] = []
    options: dict[str, dict[str, str]] = {}
    for name, entries in asked:
        kind = _DEVICES[name]
        try:
            if kind is None:
                raise DeviceError("weft has no device for that")
            number = entries.get("device_id")
            places[name] = choose(kind if number is None or kind == HOST else f"{kind}:{number}").name
        except DeviceError as error:
            if name != "AzureExecutionProvider":  # which onnxruntime itself lists everywhere, and packages pass on
                absent.append(name)
                rest = [other for other, _ in asked if other not in (*absent, *places)] or [CPU]
                text = f"{name} was asked for and is not used: {error.problem}; next is {rest[0]}"
                warnings.warn(text, FallbackWarning, stacklevel=3)
            continue
        options[name] = entries if kind != HOST else {}
    places.setdefault(CPU, HOST)
    options.setdefault(CPU, {})
    devices = tuple(dict.fromkeys(places.values())) if asked or not _environment_chooses() else (AUTO,)
    return ProviderChoice(places, options, devices, tuple(absent))


def _environment_chooses() -> bool:
    """Whether who started the process said where models run: that is for those that name no provider."""
    return any(environment.text_of(variable) for variable in (environment.DEVICE, environment.CHAIN))
