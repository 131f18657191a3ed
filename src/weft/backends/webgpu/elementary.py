"""exp, log, tanh, erf, power, sin and their like as polynomials in WGSL, for f32 and f64.

The builtins of WGSL may be off by many units in the last place; these are off by a few over the whole range, and
special values follow C99. One algorithm serves both widths, with polynomials of its own for each.
"""

from __future__ import annotations

from weft.backends.webgpu import exponentials, power, trigonometry

ELEMENTARY = frozenset("exp log log1p sinh cosh tanh asinh acosh atanh erf power sin cos tan asin acos atan".split())


def functions(bits: int) -> dict[str, str]:
    """The helper functions of floats of so many bits."""
    return exponentials.functions(bits) | trigonometry.functions(bits) | power.functions(bits)
