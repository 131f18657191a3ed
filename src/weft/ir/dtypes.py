"""Element types: the ONNX ones, with the numpy dtype that holds each."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Any

import numpy as np

from weft.errors import UnsupportedModelError

_Bool = bool  # inside the enum, `bool` is one of its members


class DType(str, Enum):
    """An ONNX element type. Compares equal to its name: `DType.float32 == "float32"`."""

    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"
    float64 = "float64"
    float8e4m3fn = "float8e4m3fn"
    float8e4m3fnuz = "float8e4m3fnuz"
    float8e5m2 = "float8e5m2"
    float8e5m2fnuz = "float8e5m2fnuz"
    float8e8m0 = "float8e8m0"
    float6e2m3 = "float6e2m3"
    float6e3m2 = "float6e3m2"
    float4e2m1 = "float4e2m1"
    int2 = "int2"
    int4 = "int4"
    int8 = "int8"
    int16 = "int16"
    int32 = "int32"
    int64 = "int64"
    uint2 = "uint2"
    uint4 = "uint4"
    uint8 = "uint8"
    uint16 = "uint16"
    uint32 = "uint32"
    uint64 = "uint64"
    bool = "bool"
    complex64 = "complex64"
    complex128 = "complex128"
    string = "string"

    __str__ = str.__str__
    __hash__ = str.__hash__  # C implementation; equal to the name's hash

    is_float: _Bool
    is_signed: _Bool
    is_unsigned: _Bool
    is_integer: _Bool
    is_complex: _Bool

    def __init__(self, name: str) -> None:
        self.is_float = name.startswith(("float", "bfloat"))
        self.is_signed = name.startswith("int")
        self.is_unsigned = name.startswith("uint")
        self.is_integer = self.is_signed or self.is_unsigned
        self.is_complex = name.startswith("complex")

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype of an array of this type; strings are object arrays of `str`."""
        return _NUMPY[self]

    @property
    def bits(self) -> int:
        """Bits of one element in an ONNX file; strings have none."""
        return _BITS[self]

    @property
    def number(self) -> int:
        """The number of this type in ONNX files."""
        return _NUMBERS[self]

    @property
    def limits(self) -> tuple[float, float]:
        """The smallest and the largest finite number, as ints for integer types."""
        import ml_dtypes

        describe: Any = ml_dtypes.iinfo if self.is_integer else ml_dtypes.finfo
        info = describe(self.numpy)
        return (int(info.min), int(info.max)) if self.is_integer else (float(info.min), float(info.max))


_NARROW = {  # names in ml_dtypes, which is imported only when needed since that is slow
    DType.bfloat16: "bfloat16",
    DType.float8e4m3fn: "float8_e4m3fn",
    DType.float8e4m3fnuz: "float8_e4m3fnuz",
    DType.float8e5m2: "float8_e5m2",
    DType.float8e5m2fnuz: "float8_e5m2fnuz",
    DType.float8e8m0: "float8_e8m0fnu",
    DType.float6e2m3: "float6_e2m3fn",
    DType.float6e3m2: "float6_e3m2fn",
    DType.float4e2m1: "float4_e2m1fn",
    DType.int2: "int2",
    DType.int4: "int4",
    DType.uint2: "uint2",
    DType.uint4: "uint4",
}


class _NumpyTypes(dict[DType, "np.dtype[Any]"]):
    """Maps to numpy dtypes; those of ml_dtypes are added on first use."""

    def __missing__(self, dtype: DType) -> np.dtype[Any]:
        self.add_narrow()
        return self[dtype]

    def add_narrow(self) -> None:
        import ml_dtypes

        for narrow, name in _NARROW.items():
            self[narrow] = np.dtype(getattr(ml_dtypes, name))
            _FROM_NUMPY[self[narrow]] = narrow


_NUMPY = _NumpyTypes({DType.string: np.dtype(object)})
_NUMPY |= {plain: np.dtype(plain.value) for plain in DType if plain not in _NARROW and plain is not DType.string}

_PACKED_BITS = {
    DType.float6e2m3: 6,
    DType.float6e3m2: 6,
    DType.float4e2m1: 4,
    DType.int4: 4,
    DType.uint4: 4,
    DType.int2: 2,
    DType.uint2: 2,
}
_BITS = {dtype: numpy.itemsize * 8 for dtype, numpy in _NUMPY.items()} | {DType.string: 0, DType.bfloat16: 16}
_BITS |= {dtype: _PACKED_BITS.get(dtype, 8) for dtype in _NARROW if dtype is not DType.bfloat16}

_ONNX_ORDER = (
    "float32 uint8 int8 uint16 int16 int32 int64 string bool float16 float64 uint32 uint64 complex64 complex128 "
    "bfloat16 float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz uint4 int4 float4e2m1 float8e8m0 uint2 int2 "
    "float6e2m3 float6e3m2"
)
_FROM_NUMBER = {number: DType(name) for number, name in enumerate(_ONNX_ORDER.split(), start=1)}
_NUMBERS = {dtype: number for number, dtype in _FROM_NUMBER.items()}

_FROM_NUMPY = {numpy: dtype for dtype, numpy in _NUMPY.items()}


def from_numpy(dtype: np.dtype[Any]) -> DType:
    """Return the DType of a numpy array's elements; object and unicode arrays hold strings."""
    if dtype.kind in "OUST":
        return DType.string
    result = _FROM_NUMPY.get(dtype.newbyteorder("="))
    if result is None and "ml_dtypes" in sys.modules:  # such an array cannot exist without it
        _NUMPY.add_narrow()
        result = _FROM_NUMPY.get(dtype.newbyteorder("="))
    if result is None:
        raise UnsupportedModelError(f"numpy dtype {dtype} has no ONNX counterpart")
    return result


def from_number(number: int) -> DType:
    """Return the DType with this number in ONNX files."""
    result = _FROM_NUMBER.get(number)
    if result is None:
        raise UnsupportedModelError(f"unknown ONNX element type number {number}")
    return result
