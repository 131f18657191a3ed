"""Reorder steps so that host steps are adjacent, which leaves few sections for the device.

Steps are scheduled alternately: all ready steps for the device, then all ready steps for the host, and so on. A step
that uses a symbol comes after the host step that binds it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from weft.fuse.host import host_only_reason
from weft.ir.program import Step, TensorProgram
from weft.opset.trace import Evaluator
from weft.passes.dead_code import bound_symbols, step_symbols, type_symbols
from weft.passes.rewrite import everywhere


def group_host_steps(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """Reorder steps to minimise switches between host and device, including in bodies."""
    program = everywhere(group_host_steps, program, evaluator)
    on_host = [host_only_reason(step) is not None for step in program.steps]
    fewest = _count_switches(on_host)
    if fewest < 3:  # host, device, host at most: nothing to gain
        return program
    before = _find_dependencies(program)
    best: list[int] | None = None
    for first in (False, True):
        order = _alternate(on_host, before, first)
        switches = _count_switches([on_host[number] for number in order])
        if switches < fewest:
            best, fewest = order, switches
    return program if best is None else replace(program, steps=tuple(program.steps[number] for number in best))


def _count_switches(on_host: list[bool]) -> int:
    return sum(a != b for a, b in pairwise(on_host))


def _find_dependencies(program: TensorProgram) -> list[set[int]]:
    """For each step, the numbers of those that must come before it."""
    makers = {value: number for number, step in enumerate(program.steps) for value in step.results}
    bound: set[str] = set().union(*(type_symbols(value.type) for value in program.inputs))
    binders: dict[str, int] = {}
    dependencies: list[set[int]] = []
    for number, step in enumerate(program.steps):
        before = {makers[operand] for operand in step.operands if operand in makers}
        before |= {binders[name] for name in step_symbols(step) if name in binders}
        dependencies.append(before)
        for name in _bound_by_host(step) - bound:
            bound.add(name)
            binders[name] = number
    return dependencies


def _bound_by_host(step: Step) -> set[str]:
    return bound_symbols(step) if host_only_reason(step) is not None else set()


def _alternate(on_host: list[bool], before: list[set[int]], start: bool) -> list[int]:
    """Order step indices by alternating between host and device, each as far as dependencies allow."""
    scheduled: set[int] = set()
    order: list[int] = []
    pending = list(range(len(on_host)))
    host_turn = start
    while pending:
        blocked = []
        for number in pending:  # in topological order: one pass finds all ready steps
            if on_host[number] == host_turn and before[number] <= scheduled:
                scheduled.add(number)
                order.append(number)
            else:
                blocked.append(number)
        pending, host_turn = blocked, not host_turn
    return order
