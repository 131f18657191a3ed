"""Steps for the host next to each other: what runs between them becomes few stretches of work for the device.

Steps are taken in turns: all that are ready and for the device, then all that are for the host, and so on. Sizes that a
step is the first to show are known only after it, so whoever mentions them comes later.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from weft.fuse.host import host_by_nature
from weft.ir.program import Step, TensorProgram
from weft.opset.trace import Evaluator
from weft.passes.drop import bound_symbols, step_symbols, type_symbols
from weft.passes.rewrite import everywhere


def gather_host_steps(program: TensorProgram, evaluator: Evaluator) -> TensorProgram:
    """The same steps in an order with as few changes between host and device, in bodies too."""
    program = everywhere(gather_host_steps, program, evaluator)
    on_host = [host_by_nature(step) is not None for step in program.steps]
    fewest = _changes(on_host)
    if fewest < 3:  # host, device, host at most: nothing can be gathered
        return program
    before = _dependencies(program)
    best: list[int] | None = None
    for first in (False, True):
        order = _in_turns(on_host, before, first)
        changes = _changes([on_host[number] for number in order])
        if changes < fewest:
            best, fewest = order, changes
    return program if best is None else replace(program, steps=tuple(program.steps[number] for number in best))


def _changes(on_host: list[bool]) -> int:
    return sum(one != other for one, other in pairwise(on_host))


def _dependencies(program: TensorProgram) -> list[set[int]]:
    """For each step, the numbers of those that must come before it."""
    makers = {value: number for number, step in enumerate(program.steps) for value in step.results}
    shown: set[str] = set().union(*(type_symbols(value.type) for value in program.inputs))
    binders: dict[str, int] = {}
    found: list[set[int]] = []
    for number, step in enumerate(program.steps):
        before = {makers[operand] for operand in step.operands if operand in makers}
        before |= {binders[name] for name in step_symbols(step) if name in binders}
        found.append(before)
        for name in _first_shown(step) - shown:
            shown.add(name)
            binders[name] = number
    return found


def _first_shown(step: Step) -> set[str]:
    return bound_symbols(step) if host_by_nature(step) is not None else set()


def _in_turns(on_host: list[bool], before: list[set[int]], start: bool) -> list[int]:
    """Numbers of steps: those for the host and those for the device in turns, each as far as the data allows."""
    done: set[int] = set()
    order: list[int] = []
    left = list(range(len(on_host)))
    turn = start
    while left:
        waiting = []
        for number in left:  # in the given order, which the data allows: one pass finds all that are ready
            if on_host[number] == turn and before[number] <= done:
                done.add(number)
                order.append(number)
            else:
                waiting.append(number)
        left, turn = waiting, not turn
    return order
