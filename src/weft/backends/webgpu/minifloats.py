"""WGSL of floats of 16 bits and fewer: codes in the low bits of a word, f32 in registers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from weft.backends.numerics import minifloats
from weft.backends.numerics.formats import Format, get_format
from weft.backends.webgpu.helpers import split_functions
from weft.backends.webgpu.terms import Term, define_function
from weft.backends.webgpu.wgsl_types import MINIFLOATS

_HALF = Format(fraction=10, bias=15, sign=0x8000, largest=0x7BFF, too_large=0x7C00, nan=0x7E00, has_negative_zero=True)

# not by f32(f16(x)), which drivers simplify to x
_FLOAT16 = """
fn weft_round_float16(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let size = bits & 0x7fffffffu;
    let rounded = (bits + 0xfffu + ((bits >> 13u) & 1u)) & 0xffffe000u;
    let normal = select(rounded, (bits & 0x80000000u) | 0x7f800000u, size >= 0x477ff000u);
    let small = bitcast<u32>(round(x * 16777216.0) * 5.9604644775390625e-8);
    return bitcast<f32>(select(select(normal, small, size < 0x38800000u), bits, size >= 0x7f800000u));
}
"""

_ROUND = """
fn weft_round_{name}(x: f32) -> f32 {{
    return weft_load_{name}(weft_store_{name}(x));
}}
"""


@cache
def define_functions() -> dict[str, str]:
    formats = {str(dtype): get_format(dtype) for dtype in sorted(MINIFLOATS)} | {"float16": _HALF}
    bodies: dict[str, Callable[[Term], Term]] = {
        "load_bfloat16": minifloats.widen_bfloat16,
        "store_bfloat16": lambda x: minifloats.round_bfloat16(x).logical_shift_right(16),
        "round_bfloat16": lambda x: (minifloats.round_bfloat16(x) & 0xFFFF0000).as_float(),
    }
    for name, form in formats.items():
        bodies[f"load_{name}"] = partial(minifloats.widen, form=form)
        bodies[f"store_{name}"] = partial(minifloats.narrow, form=form)
    texts = [_FLOAT16, *(_ROUND.format(name=dtype) for dtype in sorted(MINIFLOATS))]
    for name, body in bodies.items():
        parameters = {"code": "u32"} if name.startswith("load") else {"x": "f32"}
        texts.append(define_function(name, parameters, "u32" if name.startswith("store") else "f32", body))
    return split_functions("".join(texts))
