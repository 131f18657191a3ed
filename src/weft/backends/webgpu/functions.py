"""Scalar functions as WGSL expressions of their arguments' texts, each of which is used once."""

from __future__ import annotations

from collections.abc import Sequence

from weft.backends.numerics.elementary import ELEMENTARY
from weft.backends.webgpu.conversions import bitcast, cast, round_to_dtype
from weft.backends.webgpu.helpers import Helpers
from weft.backends.webgpu.wgsl_types import MINIFLOATS, kind_of
from weft.errors import InternalError
from weft.ir.dtypes import DType
from weft.ir.scalar import COMPARISONS

# by register kind: an expression, or the name of a helper function that takes all arguments
_COMPARISONS = {name: f"({{0}} {symbol} {{1}})" for name, symbol in COMPARISONS.items()}

_ARITHMETIC = {
    "add": "({0} + {1})",
    "subtract": "({0} - {1})",
    "multiply": "({0} * {1})",
    "negate": "(-{0})",
}

_FLOAT = {
    **_ARITHMETIC,
    **_COMPARISONS,
    "not_equal": "(!({0} == {1}))",  # naga's != is false for NaN
    "divide": "divide_{kind}",
    "remainder": "remainder_{kind}",
    "fmod": "fmod_{kind}",
    "minimum": "minimum_{kind}",
    "maximum": "maximum_{kind}",
    "absolute": "abs({0})",
    "sign": "sign_{kind}",
    "floor": "floor({0})",
    "ceil": "ceil({0})",
    "round_half_even": "round({0})",
    "truncate": "trunc({0})",
    "sqrt": "sqrt({0})",
    "fma": "fma({0}, {1}, {2})",
    "is_nan": "is_nan_{kind}",
    "is_inf": "is_inf_{kind}",
    **{name: f"{name}_{{kind}}" for name in ELEMENTARY},
}

_BITS = {
    "bit_and": "({0} & {1})",
    "bit_or": "({0} | {1})",
    "bit_xor": "({0} ^ {1})",
    "bit_not": "(~{0})",
}

_UNCHANGED = dict.fromkeys(("floor", "ceil", "round_half_even", "truncate"), "{0}")

_INTEGER = {
    **_ARITHMETIC,
    **_COMPARISONS,
    **_BITS,
    **_UNCHANGED,
    "fma": "({0} * {1} + {2})",
    "divide": "divide_{kind}",
    "remainder": "remainder_{kind}",
    "fmod": "fmod_{kind}",
    "power": "power_{kind}",
    "minimum": "min({0}, {1})",
    "maximum": "max({0}, {1})",
    "absolute": "abs({0})",
    "sign": "sign_{kind}",
    "shift_left": "shift_left_{kind}",
    "shift_right": "shift_right_{kind}",
}

_UNSIGNED = {**_INTEGER, "negate": "({zero} - {0})", "absolute": "{0}"}

_PAIR = {
    **_BITS,
    **_UNCHANGED,
    **{name: f"{name}_pair" for name in ("add", "subtract", "multiply", "negate", "fma", "shift_left")},
    **{
        name: f"{name}_{{kind}}"
        for name in ("divide", "remainder", "fmod", "power", "minimum", "maximum", "sign", "shift_right")
    },
    "absolute": "absolute_pair",
    "equal": "equal_pair",
    "not_equal": "any({0} != {1})",
    "less": "less_{kind}",
    "less_equal": "(!{use}({1}, {0}))",
    "greater": "{use}({1}, {0})",
    "greater_equal": "(!{use}({0}, {1}))",
}

_BOOL = {
    **_UNCHANGED,
    "add": "({0} | {1})",
    "multiply": "({0} & {1})",
    "logical_and": "({0} & {1})",
    "logical_or": "({0} | {1})",
    "logical_xor": "({0} != {1})",
    "logical_not": "(!{0})",
    "maximum": "({0} | {1})",
    "minimum": "({0} & {1})",
    "bit_and": "({0} & {1})",
    "bit_or": "({0} | {1})",
    "bit_xor": "({0} != {1})",
    "bit_not": "(!{0})",
    "absolute": "{0}",
    "sign": "{0}",
    "equal": "({0} == {1})",
    "not_equal": "({0} != {1})",
    "less": "((!{0}) & {1})",
    "less_equal": "((!{0}) | {1})",
    "greater": "({0} & (!{1}))",
    "greater_equal": "({0} | (!{1}))",
}

_TABLES = {
    "bool": _BOOL,
    "i32": _INTEGER,
    "i64": _INTEGER,
    "u32": _UNSIGNED,
    "u64": _UNSIGNED,
    "f32": _FLOAT,
    "f64": _FLOAT,
    "signed_pair": _PAIR,
    "unsigned_pair": {**_PAIR, "absolute": "{0}"},
}

# functions whose results need no rounding to the type of their arguments, except minifloats without NaN or -0
_NEVER_ROUNDED = frozenset(["minimum", "maximum", "sign", "floor", "ceil", "round_half_even", "truncate", "fmod"])
_FLOAT_NEVER_ROUNDED = _NEVER_ROUNDED | {"negate", "absolute"}
_INTEGER_NEVER_ROUNDED = _NEVER_ROUNDED | {"bit_and", "bit_or", "bit_xor", "remainder", "shift_right"}

_POWERS = {1.0: "{0}", 2.0: "power_2_{kind}", 3.0: "power_3_{kind}"}
_FLOAT_POWERS = {-1.0: "({one} / {0})", 0.5: "power_half_{kind}", -0.5: "power_minus_half_{kind}"}
_LARGEST_DIVISOR = 2.0**126  # Vulkan guarantees no accuracy of float32 quotients for larger divisors


def apply(
    helpers: Helpers,
    function: str,
    arguments: Sequence[str],
    dtypes: Sequence[DType],
    result: DType,
    constant: float | None = None,
) -> str:
    """Apply a function of `weft.ir.scalar.FUNCTIONS` or dot4; `constant` is the last argument if that is a literal."""
    if function == "cast":
        return cast(helpers, arguments[0], dtypes[0], result)
    if function == "bitcast":
        return bitcast(helpers, arguments[0], dtypes[0], result)
    if function == "select":
        return f"select({arguments[2]}, {arguments[1]}, {arguments[0]})"
    if function == "dot4":
        return f"{helpers.use('dot4')}({', '.join(arguments)})"
    dtype = dtypes[0]
    kind = kind_of(dtype, helpers.abilities)
    form = _find_shortcut(function, kind, dtype, constant) or _TABLES[kind].get(function)
    if function == "divide" and dtype is DType.float32 and not helpers.abilities.exact_division:
        form = "corrected_{kind}"
    if form is None:
        raise InternalError(f"no WGSL for {function} of {dtype}")
    text = _fill_form(helpers, form, kind, dtype, arguments)
    return round_to_dtype(helpers, text, dtype) if result is dtype and _needs_rounding(function, dtype) else text


def _find_shortcut(function: str, kind: str, dtype: DType, constant: float | None) -> str | None:
    """Find a shorter form, if the type or a constant last argument allows one."""
    if function == "divide" and dtype.is_float:
        if constant == 0:
            return None  # compilers evaluate a quotient of two literals, and reject NaN and infinity
        small = dtype.limits[1] <= _LARGEST_DIVISOR or (constant is not None and abs(constant) <= _LARGEST_DIVISOR)
        return "({0} / {1})" if kind == "f64" or small else None
    if function != "power" or constant is None or kind.endswith("pair"):
        return None
    return (_POWERS | _FLOAT_POWERS if dtype.is_float else _POWERS).get(constant)


def _fill_form(helpers: Helpers, form: str, kind: str, dtype: DType, arguments: Sequence[str]) -> str:
    if "(" in form or form == "{0}":
        use = helpers.use(f"less_{kind}") if "{use}" in form else ""
        zero, one = "0lu" if kind == "u64" else "0u", "1.0lf" if kind == "f64" else "1.0f"
        return form.format(*arguments, use=use, zero=zero, one=one)
    name = form.format(kind=kind)
    operands = list(arguments[: 1 if name.startswith("power_") and name != f"power_{kind}" else None])
    if name.startswith("shift") and not name.endswith("pair"):
        operands.append(f"{dtype.bits}u")
    return f"{helpers.use(name)}({', '.join(operands)})"


def _needs_rounding(function: str, dtype: DType) -> bool:
    if dtype in MINIFLOATS:
        return True
    return function not in (_FLOAT_NEVER_ROUNDED if dtype.is_float else _INTEGER_NEVER_ROUNDED)


DOT4 = """
fn weft_dot4(unsigned: i32, signed: i32, total: i32) -> i32 {
    // unsigned bytes less 128 are signed
    let bytes = bitcast<u32>(signed);
    let offset = dot4I8Packed(0x01010101u, bytes) * 128;
    return total + offset + dot4I8Packed(bitcast<u32>(unsigned) ^ 0x80808080u, bytes);
}
"""
