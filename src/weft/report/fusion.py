"""What a model's nodes become: which are one piece of work together, by which template, on host or device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weft.ir.program import step_name
from weft.ir.work import HostSection, NativeSection, ScanTask, Section, Task
from weft.records import dataclass
from weft.report.kernels import known_number
from weft.runtime.profile import joined_names, node_names, plain_name

ON_HOST = "host"


@dataclass(frozen=True, slots=True)
class FusedNodes:
    """Nodes that are done together; `flops` and `bytes` are the least that takes, None where a run decides it."""

    name: str
    nodes: tuple[str, ...]
    device: str
    launches: int
    template: str = ""
    reason: str = ""
    flops: float | None = None
    bytes: float | None = None


def fused_nodes(sections: Sequence[Section], sizes: Mapping[str, int], device: str) -> Iterator[FusedNodes]:
    """All pieces of work, those inside of control flow too, in the order in which they are first done."""
    for section in sections:
        match section:
            case NativeSection(tasks):
                for task in tasks:
                    if isinstance(task, ScanTask):
                        yield from fused_nodes((task.body,), sizes, device)
                    else:
                        yield _fused(task, sizes, device)
            case HostSection(steps, bodies):
                for step in steps:
                    yield FusedNodes(step_name(step), node_names(step.origin), ON_HOST, 1)
                for body in bodies:
                    yield from fused_nodes(body, sizes, device)


def _fused(task: Task, sizes: Mapping[str, int], device: str) -> FusedNodes:
    names = dict.fromkeys(plain_name(launch.kernel.name) for launch in task.work.launches)
    return FusedNodes(
        name=joined_names(list(names)) or task.template,
        nodes=node_names(task.origin),
        device=device,
        launches=len(task.work.launches),
        template=task.template,
        reason=task.reason,
        flops=known_number(task.effort.flops, sizes),
        bytes=known_number(task.effort.bytes, sizes),
    )
