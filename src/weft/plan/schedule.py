"""Which tasks of a section run side by side: a list schedule from a cost model, the critical path first.

In: a section's tasks in an order that their data allows. Out: steps, each a few tasks that need nothing of each other.
A task whose blocks keep all threads busy is a step of its own; one that does not is joined by others that are ready,
where that takes less time than one after the other. Memory that a step uses is planned for the whole of it, so the
runner, which waits only for data, finds no reason to wait inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace
from math import inf

from weft.cost.launches import seconds
from weft.cost.roofline import Peak
from weft.ir.compiled import read_operands
from weft.ir.dims import Dim
from weft.ir.program import Value
from weft.ir.work import NativeSection, ScanTask, Task
from weft.records import dataclass

AHEAD = 16  # tasks of the order that are looked at for company
MOST_TOGETHER = 8
WORTH_JOINING = 1e-6  # seconds that a step must become shorter by
WORTH_PLANNING = 0.005  # of the time, that steps of several tasks must save
FLUID = 16  # blocks for each thread, from which on they are spread evenly


@dataclass(frozen=True, slots=True)
class TaskTime:
    """What a task takes: seconds of one thread, in so many equal parts. A scan keeps everything to itself."""

    seconds: float
    parts: int
    alone: bool = False


def side_by_side(
    section: NativeSection, order: Sequence[int], number: Callable[[Dim], int], peak: Peak, threads: int
) -> list[tuple[int, ...]]:
    """Steps for so many threads, of which `peak` is what one can do; one by one where there is little to gain."""
    loads = [_load(task, number, peak) for task in section.tasks]
    alone = [_makespan([task], loads, threads) for task in range(len(loads))]
    before = _before(section)
    tails = _tails(loads, before, order, threads)
    pending = list(order)
    done: set[int] = set()
    steps: list[tuple[int, ...]] = []
    times: list[float] = []
    while pending:
        step = [pending[0]]
        taken = alone[step[0]]
        ready = [task for task in pending[1:AHEAD] if before[task] <= done]
        for task in sorted(ready, key=lambda task: -tails[task]):
            if len(step) == MOST_TOGETHER:
                break
            together = sorted((*step, task), key=lambda task: -tails[task])
            needed = _makespan(together, loads, threads)
            if needed <= taken + alone[task] - WORTH_JOINING:
                step, taken = together, needed
        steps.append(tuple(step))
        times.append(taken)
        done.update(step)
        pending[:AHEAD] = [task for task in pending[:AHEAD] if task not in done]
    apart = sum(alone)
    gain = 1 - sum(times) / apart if apart else 0.0
    return steps if gain >= WORTH_PLANNING else [(task,) for task in order]


def _load(task: Task | ScanTask, number: Callable[[Dim], int], peak: Peak) -> TaskTime:
    if isinstance(task, ScanTask):
        return TaskTime(0.0, 1, alone=True)
    parts = max((number(launch.blocks) for launch in task.work.launches), default=1)
    return TaskTime(seconds(number(task.effort.flops), number(task.effort.bytes), peak), max(parts, 1))


def _before(section: NativeSection) -> list[set[int]]:
    """For each task, those that make what it reads."""
    makers: dict[Value, int] = {}
    before: list[set[int]] = []
    for task_number, task in enumerate(section.tasks):
        found: set[int] = set()
        for value in read_operands(task):
            while value not in makers and value in section.aliases:
                value = section.aliases[value]
            if value in makers:
                found.add(makers[value])
        before.append(found)
        makers.update((value, task_number) for value in task.results)
    return before


def _tails(loads: Sequence[TaskTime], before: Sequence[set[int]], order: Sequence[int], threads: int) -> list[float]:
    """How long it takes from the start of each task to the end, along the longest way."""
    tails = [load.seconds / min(load.parts, threads) for load in loads]
    longest = [0.0] * len(loads)
    for task in reversed(order):
        tails[task] += longest[task]
        for earlier in before[task]:
            longest[earlier] = max(longest[earlier], tails[task])
    return tails


def _makespan(step: Sequence[int], loads: Sequence[TaskTime], threads: int) -> float:
    """How long threads take for tasks side by side, each part given to whoever is free first; a scan has no company."""
    if len(step) > 1 and any(loads[task].alone for task in step):
        return inf
    if len(step) == 1 and loads[step[0]].parts >= FLUID * threads:
        return loads[step[0]].seconds / threads
    busy = [0.0] * threads
    for load in (loads[task] for task in step):
        if load.parts >= FLUID * threads:
            busy = [end + load.seconds / threads for end in busy]
            continue
        heapify(busy)
        for _ in range(load.parts):
            heapreplace(busy, busy[0] + load.seconds / load.parts)
    return max(busy)
