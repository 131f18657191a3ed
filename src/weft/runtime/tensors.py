"""`weft.to_device`: copy arrays to a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.errors import InputError, UnsupportedModelError, WeftError
from weft.ir.arrays import Array
from weft.ir.dtypes import DType, from_numpy
from weft.ir.tensors import DeviceTensor
from weft.runtime.devices import driver
from weft.runtime.foreign_tensors import as_numpy, is_foreign
from weft.runtime.policy import route


def to_device(array: Any, device: str = "auto") -> DeviceTensor:
    """Copy an array to a device, where runs of models take it without another copy."""
    return driver(route(device).devices[0]).place(placeable(array))


def placeable(array: Any) -> Array:
    """Copy an array-like into a numpy array; InputError if a device cannot hold it."""
    try:
        content = np.array(as_numpy(array) if is_foreign(array) else array)
    except (WeftError, MemoryError):
        raise
    except Exception as error:  # any error of a foreign class
        raise InputError(f"a {type(array).__name__} cannot be read as an array: {error}") from error
    try:
        if from_numpy(content.dtype) is not DType.string:
            return content if content.dtype.isnative else content.astype(content.dtype.newbyteorder("="))
    except UnsupportedModelError:
        pass
    raise InputError(f"a device cannot hold an array of {content.dtype}", hint="pass an array of an ONNX type")
