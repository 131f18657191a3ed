"""onnxruntime's execution providers, and the weft device for each."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from weft.errors import DeviceError, FallbackWarning
from weft.records import dataclass
from weft.runtime import devices, environment

CPU = "CPUExecutionProvider"
AUTO = "auto"
_DEVICES = {  # all of onnxruntime's providers, in its order -> weft's kind of device, if there is one
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
    CPU: devices.HOST,
}
_PROVIDER_BY_DEVICE = {"cuda": "CUDAExecutionProvider", "webgpu": "WebGpuExecutionProvider"}
_PROVIDER_BY_PLATFORM = {"win32": "DmlExecutionProvider", "darwin": "CoreMLExecutionProvider"}


@dataclass(frozen=True, slots=True)
class ProviderChoice:
    """The providers of a session: `device_names` and `options` by provider, and the devices to try, in order.

    `absent` are the requested providers that are not available.
    """

    device_names: Mapping[str, str]
    options: Mapping[str, dict[str, str]]
    devices: tuple[str, ...]
    absent: tuple[str, ...]

    def active_providers(self, device: str) -> list[str]:
        """Return the providers of a session whose model runs on a device: the devices before it have failed."""
        if self.devices == (AUTO,):
            return [name for kind, name in _PROVIDER_BY_DEVICE.items() if kind == device.partition(":")[0]] + [CPU]
        failed = self.devices[: self.devices.index(device)] if device in self.devices else ()
        return [name for name, device_name in self.device_names.items() if device_name not in failed]


def get_all_providers() -> list[str]:
    """Return all providers of onnxruntime."""
    return list(_DEVICES)


def get_available_providers() -> list[str]:
    """Return the available providers, the best first and the CPU last."""
    kinds = dict.fromkeys(device.name.partition(":")[0] for device in devices.automatic())
    available = [name for kind, name in _PROVIDER_BY_DEVICE.items() if kind in kinds]
    platform_provider = _PROVIDER_BY_PLATFORM.get(sys.platform)
    if platform_provider is not None and _DEVICES[platform_provider] in kinds:
        available.append(platform_provider)
    return [*available, CPU]


def get_device() -> str:
    """Return "GPU" if there is one, "CPU" otherwise."""
    return "CPU" if get_available_providers() == [CPU] else "GPU"


def parse_providers(providers: Any, options: Any) -> list[tuple[str, dict[str, str]]]:
    """Return the requested providers, each with its options.

    Raise ValueError for arguments of the wrong form, RuntimeError for an unknown provider.
    """
    pairs = normalize_providers(providers, options)
    for name, _ in pairs:
        if name not in _DEVICES:
            raise RuntimeError(f"Unknown Provider Type: {name}")
    return pairs


def normalize_providers(providers: Any, options: Any) -> list[tuple[str, dict[str, str]]]:
    """Pair names of providers, known or not, with their options as strings; of equal names, keep the first."""
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
        pairs = [_to_pair(entry) for entry in providers]
    normalized: dict[str, dict[str, str]] = {}
    for name, entries in pairs:
        normalized.setdefault(name, {str(key): str(value) for key, value in entries.items()})
    return list(normalized.items())


def _to_pair(entry: Any) -> tuple[str, Mapping[Any, Any]]:
    match entry:
        case str():
            return entry, {}
        case (str() as name, Mapping() as options):
            return name, options
    raise ValueError("'providers' values must be either strings or (string, dict) tuples.")


def choose_providers(requested: Sequence[tuple[str, dict[str, str]]]) -> ProviderChoice:
    """Choose the available ones of the requested providers, and the CPU as the last. Warn for each of the others."""
    device_names: dict[str, str] = {}
    absent: list[str] = []
    options: dict[str, dict[str, str]] = {}
    for name, entries in requested:
        kind = _DEVICES[name]
        try:
            if kind is None:
                raise DeviceError("weft has no device for it")
            number = entries.get("device_id")
            device_names[name] = devices.choose(
                kind if number is None or kind == devices.HOST else f"{kind}:{number}"
            ).name
        except DeviceError as error:
            if name != "AzureExecutionProvider":  # onnxruntime lists it everywhere, and packages pass the list on
                absent.append(name)
                others = [other for other, _ in requested if other not in (*absent, *device_names)] or [CPU]
                text = f"{name} is not available: {error.problem}; trying {others[0]}"
                warnings.warn(text, FallbackWarning, stacklevel=3)
            continue
        options[name] = entries if kind != devices.HOST else {}
    device_names.setdefault(CPU, devices.HOST)
    options.setdefault(CPU, {})
    is_automatic = not requested and _has_device_variable()
    order = (AUTO,) if is_automatic else tuple(dict.fromkeys(device_names.values()))
    return ProviderChoice(device_names, options, order, tuple(absent))


def _has_device_variable() -> bool:
    """Whether the environment names a device, which applies to sessions without providers."""
    return any(environment.text_of(variable) for variable in (environment.DEVICE, environment.CHAIN))
