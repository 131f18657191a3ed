"""Schedule a section's tasks in parallel: a list schedule from a cost model, the critical path first.

In: a section's tasks in a topological order. Out: steps of tasks that are independent of each other. A task whose
blocks keep all threads busy is a step of its own; others are joined by ready tasks if that takes less time than one
after the other. Memory is planned for a whole step, so no task of a step waits for another.
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

AHEAD = 16  # next tasks of the order that may join a step
MOST_TOGETHER = 8
WORTH_JOINING = 1e-6  # seconds that joining must save
WORTH_PLANNING = 0.005  # fraction of the time that parallel steps must save
FLUID = 16  # blocks per thread from which on threads are assumed to share them evenly


@dataclass(frozen=True, slots=True)
class TaskTime:
    """The time of a task: `seconds` on one thread, which `parts` threads can share evenly. A scan must run `alone`."""

    seconds: float
    parts: int
    alone: bool = False


def side_by_side(
    section: NativeSection, order: Sequence[int], number: Callable[[Dim], int], peak: Peak, threads: int
) -> list[tuple[int, ...]]:
    """Group tasks into parallel steps for threads with this peak each; if little is gained, one task per step."""
    loads = [_estimate_time(task, number, peak) for task in section.tasks]
    alone = [_makespan([task], loads, threads) for task in range(len(loads))]
    before = _find_producers(section)
    tails = _critical_paths(loads, before, order, threads)
    pending = list(order)
    done: set[int] = set()
    steps: list[tuple[int, ...]] = []
    times: list[float] = []
    while pending:
        step = [pending[0]]
        duration = alone[step[0]]
        ready = [task for task in pending[1:AHEAD] if before[task] <= done]
        for task in sorted(ready, key=lambda task: -tails[task]):
            if len(step) == MOST_TOGETHER:
                break
            together = sorted((*step, task), key=lambda task: -tails[task])
            needed = _makespan(together, loads, threads)
            if needed <= duration + alone[task] - WORTH_JOINING:
                step, duration = together, needed
        steps.append(tuple(step))
        times.append(duration)
        done.update(step)
        pending[:AHEAD] = [task for task in pending[:AHEAD] if task not in done]
    serial = sum(alone)
    gain = 1 - sum(times) / serial if serial else 0.0
    return steps if gain >= WORTH_PLANNING else [(task,) for task in order]


def _estimate_time(task: Task | ScanTask, number: Callable[[Dim], int], peak: Peak) -> TaskTime:
    if isinstance(task, ScanTask):
        return TaskTime(0.0, 1, alone=True)
    parts = max((number(launch.blocks) for launch in task.work.launches), default=1)
    return TaskTime(seconds(number(task.effort.flops), number(task.effort.bytes), peak), max(parts, 1))


def _find_producers(section: NativeSection) -> list[set[int]]:
    """Find for each task those that compute its operands."""
    makers: dict[Value, int] = {}
    before: list[set[int]] = []
    for task_number, task in enumerate(section.tasks):
        producers: set[int] = set()
        for value in read_operands(task):
            while value not in makers and value in section.aliases:
                value = section.aliases[value]
            if value in makers:
                producers.add(makers[value])
        before.append(producers)
        makers.update((value, task_number) for value in task.results)
    return before


def _critical_paths(
    loads: Sequence[TaskTime], before: Sequence[set[int]], order: Sequence[int], threads: int
) -> list[float]:
    """Compute the time from the start of each task to the end, along the critical path."""
    tails = [load.seconds / min(load.parts, threads) for load in loads]
    longest = [0.0] * len(loads)
    for task in reversed(order):
        tails[task] += longest[task]
        for earlier in before[task]:
            longest[earlier] = max(longest[earlier], tails[task])
    return tails


def _makespan(step: Sequence[int], loads: Sequence[TaskTime], threads: int) -> float:
    """Estimate the time of parallel tasks, each part taken by the first free thread; a scan must be alone."""
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
