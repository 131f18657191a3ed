"""Which groups are left to the host, and why."""

from __future__ import annotations

from weft.ir.dtypes import DType
from weft.ir.groups import Group, HostGroup, is_tensor
from weft.ir.program import (
    ArgReduce,
    Branch,
    Concat,
    Contract,
    Convolve,
    Cumulate,
    Dims,
    Host,
    Late,
    Loop,
    Map,
    Observe,
    Pool,
    Random,
    Reduce,
    Reshape,
    Scatter,
    Sort,
    Step,
)
from weft.ir.scalar import computed_dtypes
from weft.ir.target import Target
from weft.ir.types import TensorType

NATIVE_PRIMITIVES = (
    Map, Reshape, Concat, Dims, Reduce, ArgReduce, Contract, Convolve, Pool, Cumulate, Sort, Scatter,
    Random,
)  # fmt: skip
NATIVE_TYPES = frozenset(dtype for dtype in DType if dtype.is_integer or dtype.is_float or dtype is DType.bool)


def host_by_nature(step: Step) -> str | None:
    """What about a step only makes sense on the host, if anything."""
    match step.primitive:
        case Observe():
            return "its values become sizes"
        case Branch() | Loop():
            return "control flow; what is inside is compiled"
        case Host("refuse", attributes):
            return f"a body that raises an error if it runs: {dict(attributes)['problem']}"
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


def _is_native(group: Group, target: Target) -> bool:
    """Whether there are kernels for a group."""
    computed = frozenset().union(*map(computed_types, group.steps))
    if any(isinstance(step.primitive, Random) and step.primitive.seed is None for step in group.steps):
        return False
    if computed & target.missing_types or not computed <= NATIVE_TYPES:
        return False
    if isinstance(group.steps[0].primitive, Map) and len(group.operands) + 2 > target.most_buffers:
        return False
    return all(
        isinstance(step.primitive, NATIVE_PRIMITIVES) and all(map(is_tensor, (*step.operands, *step.results)))
        for step in group.steps
    )


def computed_types(step: Step) -> frozenset[DType]:
    """The types of what a step reads, writes and computes on the way."""
    found = {value.type.dtype for value in (*step.operands, *step.results) if isinstance(value.type, TensorType)}
    match step.primitive:
        case Map(expression):
            found.update(computed_dtypes(expression))
        case Random():
            found.add(DType.float64)
    return frozenset(found)


def host_group(group: Group, target: Target) -> HostGroup | None:
    """The group as one for the host; None where there are kernels for it."""
    if _is_native(group, target):
        return None
    reasons = [host_by_nature(step) for step in group.steps]
    reason = next((reason for reason in reasons if reason is not None), None)
    return HostGroup(group.steps, group.operands, group.results, reason or missing_kernel(group.steps[0]))
