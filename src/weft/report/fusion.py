"""The works that nodes are fused into: by which template, on host or device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weft.ir.dims import Dim, evaluate, symbols
from weft.ir.program import step_name
from weft.ir.work import HostSection, NativeSection, ScanTask, Section, Task
from weft.records import dataclass
from weft.runtime.profile import joined_names, node_names, plain_name

ON_HOST = "host"


@dataclass(frozen=True, slots=True)
class FusedNodes:
    """Nodes that run as one work; `flops` and `bytes` are lower bounds, None where they depend on data."""

    name: str
    nodes: tuple[str, ...]
    device: str
    launches: int
    template: str = ""
    reason: str = ""
    flops: float | None = None
    bytes: float | None = None


def list_fused_nodes(sections: Sequence[Section], sizes: Mapping[str, int], device: str) -> Iterator[FusedNodes]:
    """Yield all works in execution order, those in bodies of control flow included."""
    for section in sections:
        match section:
            case NativeSection(tasks):
                for task in tasks:
                    if isinstance(task, ScanTask):
                        yield from list_fused_nodes((task.body,), sizes, device)
                    else:
                        yield _describe_task(task, sizes, device)
            case HostSection(steps, bodies):
                for step in steps:
                    yield FusedNodes(step_name(step), node_names(step.origin), ON_HOST, 1)
                for body in bodies:
                    yield from list_fused_nodes(body, sizes, device)


def _describe_task(task: Task, sizes: Mapping[str, int], device: str) -> FusedNodes:
    names = dict.fromkeys(plain_name(launch.kernel.name) for launch in task.work.launches)
    return FusedNodes(
        name=joined_names(list(names)) or task.template,
        nodes=node_names(task.origin),
        device=device,
        launches=len(task.work.launches),
        template=task.template,
        reason=task.reason,
        flops=evaluate_dim(task.effort.flops, sizes),
        bytes=evaluate_dim(task.effort.bytes, sizes),
    )


def evaluate_dim(amount: Dim, sizes: Mapping[str, int]) -> int | None:
    """Evaluate an amount for these sizes; None if it depends on others or divides by 0."""
    if isinstance(amount, int):
        return amount
    if not {symbol.name for symbol in symbols(amount)} <= set(sizes):
        return None
    try:
        return evaluate(amount, sizes)
    except ArithmeticError:
        return None
