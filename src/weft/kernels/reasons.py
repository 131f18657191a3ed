"""Why a step is left to the host."""

from __future__ import annotations

from weft.ir.dtypes import DType
from weft.ir.program import Branch, Host, Late, Loop, Observe, Random, Step
from weft.ir.types import TensorType
from weft.kernels.select import NATIVE_PRIMITIVES, NATIVE_TYPES, computed_types


def host_by_nature(step: Step) -> str | None:
    """What about a step only makes sense on the host, if anything."""
    match step.primitive:
        case Observe():
            return "its values become sizes"
        case Branch() | Loop():
            return "control flow; what is inside is compiled"
        case Host(function):
            return f"{function.replace('_', ' ')} has no fixed form in memory, or sizes that depend on data"
        case Random(seed=None):
            return "new random numbers in every run"
        case Late():
            return "ranks or types that only the run reveals"
    for value in (*step.operands, *step.results):
        if not isinstance(value.type, TensorType):
            return f"works on a {value.type}"
        if value.type.shape is None:
            return f"the rank of {value.name or value} is known only in the run"
    return "works on strings" if DType.string in computed_types(step) else None


def missing_kernel(step: Step) -> str:
    """What there is no kernel for."""
    kind = type(step.primitive).__name__.lower()
    if not isinstance(step.primitive, NATIVE_PRIMITIVES):
        return f"there is no kernel for {kind}"
    types = [value.type for value in (*step.operands, *step.results)]
    dtypes = dict.fromkeys(type.dtype for type in types if isinstance(type, TensorType))
    lacking = [dtype for dtype in dtypes if dtype not in NATIVE_TYPES]
    if lacking:
        return f"there is no kernel for {kind} of {', '.join(map(str, lacking))}"
    return f"the device does not compute {kind} of {', '.join(map(str, dtypes))}, or not of so many operands"
