"""Helpers for instructions: intrinsics, and types and constants for both scalars and vectors."""

from __future__ import annotations

from collections.abc import Sequence

from weft.backends.llvm import assembly as ir
from weft.backends.llvm.builder import IRBuilder
from weft.backends.llvm.types import vector

Builder = IRBuilder
Value = ir.NamedValue
_SUFFIXES: dict[type[ir.Type], str] = {ir.HalfType: "f16", ir.FloatType: "f32", ir.DoubleType: "f64"}


def intrinsic(
    builder: Builder, name: str, overloads: Sequence[ir.Type], result: ir.Type, values: Sequence[Value]
) -> Value:
    full = ".".join([name, *map(suffix, overloads)])
    function = declare(builder, full, ir.FunctionType(result, [value.type for value in values]))
    return builder.call(function, values)


def declare(builder: Builder, name: str, signature: ir.FunctionType) -> ir.Function:
    function = builder.module.globals.get(name)
    return function if isinstance(function, ir.Function) else ir.Function(builder.module, signature, name)


def suffix(kind: ir.Type) -> str:
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{suffix(kind.element)}"
    if isinstance(kind, ir.IntType):
        return f"i{kind.width}"
    return _SUFFIXES[type(kind)]


def like(value: Value, element: ir.Type) -> ir.Type:
    """Return an element type, as a vector type if the value is a vector."""
    return vector(element, value.type.count) if isinstance(value.type, ir.VectorType) else element


def splat(kind: ir.Type, number: float) -> Value:
    return ir.Constant(kind, [number] * kind.count) if isinstance(kind, ir.VectorType) else ir.Constant(kind, number)
