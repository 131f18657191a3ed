"""The kernels of a model: their nodes, template, cost and number of launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weft.ir.dims import Dim, evaluate, symbols
from weft.ir.kernel import Kernel
from weft.ir.work import HostSection, Launch, NativeSection, ScanTask, Section, Task
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class KernelUse:
    """A kernel; `flops` and `bytes` are its share of the lower bounds of its tasks, None if unknown."""

    kernel: Kernel
    template: str
    reason: str
    nodes: tuple[str, ...]
    launches: int
    flops: int | None
    bytes: int | None

    @property
    def name(self) -> str:
        return self.kernel.name


def collect_kernel_uses(sections: Sequence[Section], sizes: Mapping[str, int]) -> list[KernelUse]:
    """Return every kernel once, in the order of first launches; costs are for these sizes."""
    launches: dict[str, list[tuple[Task | None, Launch]]] = {}
    for task, launch in _walk_launches(sections):
        launches.setdefault(launch.kernel.name, []).append((task, launch))
    return [_summarize_uses(uses, sizes) for uses in launches.values()]


def _summarize_uses(uses: Sequence[tuple[Task | None, Launch]], sizes: Mapping[str, int]) -> KernelUse:
    tasks = list({id(task): task for task, _ in uses if task is not None}.values())
    shares = [len(task.work.launches) for task in tasks]
    flops = [evaluate_dim(task.effort.flops, sizes) for task in tasks]
    moved = [evaluate_dim(task.effort.bytes, sizes) for task in tasks]
    return KernelUse(
        uses[0][1].kernel,
        tasks[0].template if tasks else "carry",
        tasks[0].reason if tasks else "copies the state of a scan from one iteration to the next",
        tuple(dict.fromkeys(task.origin for task in tasks)),
        len(uses),
        _sum_shares(flops, shares),
        _sum_shares(moved, shares),
    )


def _sum_shares(amounts: Sequence[int | None], shares: Sequence[int]) -> int | None:
    """Sum the cost per launch: the launches of a task share its cost evenly."""
    costs = [amount // share for amount, share in zip(amounts, shares) if amount is not None]
    return sum(costs) if len(costs) == len(amounts) else None


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


def _walk_launches(sections: Sequence[Section]) -> Iterator[tuple[Task | None, Launch]]:
    for section in sections:
        match section:
            case NativeSection(tasks):
                for task in tasks:
                    if isinstance(task, ScanTask):
                        yield from _walk_launches((task.body,))
                        yield from ((None, launch) for work in task.copies for launch in work.launches)
                    else:
                        yield from ((task, launch) for launch in task.work.launches)
            case HostSection(_, bodies):
                for body in bodies:
                    yield from _walk_launches(body)
