"""Decide which groups run on the host, and why."""

from __future__ import annotations

from weft.ir.dtypes import DType
from weft.ir.groups import Group, HostGroup
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

NATIVE_PRIMITIVES = (
    Map, Reshape, Concat, Dims, Reduce, ArgReduce, Contract, Convolve, Pool, Cumulate, Sort, Scatter,
    Random,
)  # fmt: skip
NATIVE_TYPES = frozenset(dtype for dtype in DType if dtype.is_integer or dtype.is_float or dtype is DType.bool)


def host_only_reason(step: Step) -> str | None:
    """Return why a step can run only on the host, or None."""
    match step.primitive:
        case Observe():
            return "its values become sizes"
        case Branch() | Loop():
            return "control flow; its bodies are compiled"
        case Host("refuse", attributes):
            return f"a body that raises an error if it runs: {dict(attributes)['problem']}"
        case Host(function):
            return f"{function.replace('_', ' ')} has no fixed memory layout, or has data-dependent sizes"
        case Random(seed=None):
            return "new random numbers in every run"
        case Late():
            return "ranks or types are known only at run time"
    for value in (*step.operands, *step.results):
        if not value.is_tensor:
            return f"works on a {value.type}"
        if not value.has_shape:
            return f"the rank of {value.name or value} is known only at run time"
    return "works on strings" if DType.string in computed_types(step) else None


def explain_missing_kernel(step: Step) -> str:
    """Explain why there is no kernel for a step."""
    kind = type(step.primitive).__name__.lower()
    if not isinstance(step.primitive, NATIVE_PRIMITIVES):
        return f"there is no kernel for {kind}"
    values = (*step.operands, *step.results)
    dtypes = dict.fromkeys(value.dtype for value in values if value.is_tensor)
    unsupported = [dtype for dtype in dtypes if dtype not in NATIVE_TYPES]
    if unsupported:
        return f"there is no kernel for {kind} of {', '.join(map(str, unsupported))}"
    return f"the device does not compute {kind} of {', '.join(map(str, dtypes))}, or not with this many operands"


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
        isinstance(step.primitive, NATIVE_PRIMITIVES)
        and all(value.has_shape for value in (*step.operands, *step.results))
        for step in group.steps
    )


def computed_types(step: Step) -> frozenset[DType]:
    """Return the types of a step's operands, results and intermediate results."""
    dtypes = {value.dtype for value in (*step.operands, *step.results) if value.is_tensor}
    match step.primitive:
        case Map(expression):
            dtypes.update(computed_dtypes(expression))
        case Random():
            dtypes.add(DType.float64)
    return frozenset(dtypes)


def host_group(group: Group, target: Target) -> HostGroup | None:
    """Return a host group with the reason, or None if there are kernels for the group."""
    if _is_native(group, target):
        return None
    reasons = [host_only_reason(step) for step in group.steps]
    reason = next((reason for reason in reasons if reason is not None), None)
    return HostGroup(group.steps, group.operands, group.results, reason or explain_missing_kernel(group.steps[0]))
