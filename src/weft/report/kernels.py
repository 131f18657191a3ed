"""A model's kernels: from which nodes each came, by which template and why, what it costs, how often it is launched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weft.ir.dims import Dim, evaluate, symbols
from weft.ir.kernel import Kernel
from weft.ir.work import HostSection, Launch, NativeSection, ScanTask, Section, Task
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class KernelUse:
    """`flops` and `bytes` are its part of what its tasks have to do at least, for the given sizes; None: unknown."""

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


def kernel_uses(sections: Sequence[Section], sizes: Mapping[str, int]) -> list[KernelUse]:
    """Every kernel once, in the order in which they are first launched."""
    found: dict[str, list[tuple[Task | None, Launch]]] = {}
    for task, launch in _launches(sections):
        found.setdefault(launch.kernel.name, []).append((task, launch))
    return [_use(uses, sizes) for uses in found.values()]


def _use(uses: Sequence[tuple[Task | None, Launch]], sizes: Mapping[str, int]) -> KernelUse:
    tasks = list({id(task): task for task, _ in uses if task is not None}.values())
    shares = [len(task.work.launches) for task in tasks]
    flops = [known_number(task.effort.flops, sizes) for task in tasks]
    moved = [known_number(task.effort.bytes, sizes) for task in tasks]
    return KernelUse(
        uses[0][1].kernel,
        tasks[0].template if tasks else "carry",
        tasks[0].reason if tasks else "the values that an iteration of a scan hands to the next",
        tuple(dict.fromkeys(task.origin for task in tasks)),
        len(uses),
        _sum(flops, shares),
        _sum(moved, shares),
    )


def _sum(amounts: Sequence[int | None], shares: Sequence[int]) -> int | None:
    """The launches of a task share what it costs evenly."""
    known = [amount // share for amount, share in zip(amounts, shares) if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def known_number(amount: Dim, sizes: Mapping[str, int]) -> int | None:
    """What an amount is for these sizes; None where it depends on others, or means nothing for these."""
    if isinstance(amount, int):
        return amount
    if not {symbol.name for symbol in symbols(amount)} <= set(sizes):
        return None
    try:
        return evaluate(amount, sizes)
    except ArithmeticError:
        return None


def _launches(sections: Sequence[Section]) -> Iterator[tuple[Task | None, Launch]]:
    for section in sections:
        match section:
            case NativeSection(tasks):
                for task in tasks:
                    if isinstance(task, ScanTask):
                        yield from _launches((task.body,))
                        yield from ((None, launch) for work in task.copies for launch in work.launches)
                    else:
                        yield from ((task, launch) for launch in task.work.launches)
            case HostSection(_, bodies):
                for body in bodies:
                    yield from _launches(body)
