"""The module in which onnxruntime defines its Python classes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from weft.compat.onnxruntime.binding import IOBinding as IOBinding
from weft.compat.onnxruntime.functions import copy_tensors as copy_tensors
from weft.compat.onnxruntime.providers import normalize_providers
from weft.compat.onnxruntime.session import InferenceSession as InferenceSession
from weft.compat.onnxruntime.session import InferenceSession as Session  # noqa: F401
from weft.compat.onnxruntime.unsupported import AdapterFormat as AdapterFormat
from weft.compat.onnxruntime.unsupported import ModelCompiler as ModelCompiler
from weft.compat.onnxruntime.unsupported import SparseTensor as SparseTensor
from weft.compat.onnxruntime.values import OrtDevice as OrtDevice
from weft.compat.onnxruntime.values import OrtDeviceVendorId as OrtDeviceVendorId
from weft.compat.onnxruntime.values import OrtValue as OrtValue


def get_ort_device_type(device_type: str) -> int:
    """Return the number of a kind of device, as the inner OrtDevice takes it."""
    OrtDevice.make(device_type, 0)  # checks the name
    return int(getattr(OrtDevice, device_type)())


def check_and_normalize_provider_args(
    providers: object, provider_options: object, available_provider_names: object
) -> tuple[list[str], list[dict[str, str]]]:
    """Return the names of the providers, and the options of each."""
    pairs = normalize_providers(providers, provider_options)
    if isinstance(providers, Sequence) and len(pairs) < len(providers):
        warnings.warn("Duplicate provider encountered, ignoring.", stacklevel=2)
    return [name for name, _ in pairs], [options for _, options in pairs]
