"""Arrays on their way to a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.errors import InputError, UnsupportedModelError, WeftError
from weft.ir.dtypes import DType, from_numpy
from weft.ir.tensors import DeviceTensor
from weft.runtime.devices import driver
from weft.runtime.foreign import as_numpy, is_foreign
from weft.runtime.policy import route

Array = np.ndarray[Any, Any]


def to_device(array: Any, device: str = "auto") -> DeviceTensor:
    """A tensor with an array's elements, on a device: what `run` of models there takes without a copy from the host."""
    return driver(route(device).devices[0]).place(placeable(array))


def placeable(array: Any) -> Array:
    """A new array of numbers; InputError where an array-like is none."""
    try:
        content = np.array(as_numpy(array) if is_foreign(array) else array)
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
