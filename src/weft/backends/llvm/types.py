"""LLVM types of each element type, in registers and in memory."""

from __future__ import annotations

from weft.backends.llvm import assembly as ir
from weft.errors import UnsupportedModelError
from weft.ir.dtypes import DType
from weft.records import dataclass

INT64 = ir.IntType(64)
INT32 = ir.IntType(32)
BIT = ir.IntType(1)
POINTER = ir.PointerType()


@dataclass(frozen=True, slots=True)
class ElementForm:
    register: ir.Type
    memory: ir.Type
    bytes: int


MINIFLOATS = frozenset(dtype for dtype in DType if dtype.is_float and dtype.bits <= 8)
SMALL_INTEGERS = frozenset(dtype for dtype in DType if dtype.is_integer and dtype.bits < 8)  # one byte per element

ELEMENT: dict[DType, ElementForm] = {
    DType.float32: ElementForm(ir.FloatType(), ir.FloatType(), 4),
    DType.float64: ElementForm(ir.DoubleType(), ir.DoubleType(), 8),
    DType.float16: ElementForm(ir.HalfType(), ir.HalfType(), 2),
    DType.bfloat16: ElementForm(ir.FloatType(), ir.IntType(16), 2),
    DType.bool: ElementForm(BIT, ir.IntType(8), 1),
    **{
        dtype: ElementForm(ir.IntType(max(dtype.bits, 8)), ir.IntType(max(dtype.bits, 8)), max(dtype.bits, 8) // 8)
        for dtype in DType
        if dtype.is_integer
    },
    **{dtype: ElementForm(ir.FloatType(), ir.IntType(8), 1) for dtype in MINIFLOATS},
}


def register_type(dtype: DType) -> ir.Type:
    return _element(dtype).register


def memory_type(dtype: DType) -> ir.Type:
    return _element(dtype).memory


def element_bytes(dtype: DType) -> int:
    return _element(dtype).bytes


def vector(element: ir.Type, lanes: int) -> ir.VectorType:
    return ir.VectorType(element, lanes)


def _element(dtype: DType) -> ElementForm:
    if dtype not in ELEMENT:
        raise UnsupportedModelError(f"compiled code does not support elements of type {dtype}")
    return ELEMENT[dtype]
