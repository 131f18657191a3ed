"""Share the constants of two programs of a model: packed weights that are equal are kept once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from weft.ir.arrays import Array
from weft.ir.compiled import CompiledProgram
from weft.ir.packing import Constant, Packing, load_constant
from weft.ir.work import HostSection, NativeSection, ScanTask, Section, Task, Work, all_works

FEWEST_BYTES = 4096  # of a constant that is worth comparing
COMPARED_FIRST = 1024  # elements that reject most candidates


def share_constants(program: CompiledProgram, other: CompiledProgram) -> CompiledProgram:
    """Replace the constants of a program, which is not used afterwards, by equal ones of another in memory."""
    shared = _SharedConstants(other)
    constants = {value: shared.find(content) for value, content in program.constants.items()}
    return replace(program, constants=constants, sections=tuple(map(shared.change_section, program.sections)))


class _SharedConstants:
    def __init__(self, program: CompiledProgram) -> None:
        self._arrays: dict[tuple[tuple[int, ...], np.dtype[Any]], list[Constant]] = {}
        for constant in _list_constants(program):
            if constant.nbytes >= FEWEST_BYTES:
                self._arrays.setdefault((constant.shape, constant.dtype), []).append(constant)
        self._works: dict[int, Work] = {}

    def find(self, constant: Any) -> Any:
        """Return an equal constant of the other program, or this one."""
        if not isinstance(constant, (np.ndarray, Packing)):
            return constant
        candidates = self._arrays.get((constant.shape, constant.dtype))
        if not candidates or any(constant is candidate for candidate in candidates):
            return constant
        array = load_constant(constant)
        for number, candidate in enumerate(candidates):
            if _are_equal(array, load_constant(candidate)):
                candidates.append(candidates.pop(number))  # the layers of both programs are in the same order
                if isinstance(constant, Packing):
                    constant.discard()
                return load_constant(candidate)
        return constant

    def change_section(self, section: Section) -> Section:
        if isinstance(section, HostSection):
            bodies = tuple(tuple(map(self.change_section, body)) for body in section.bodies)
            return replace(section, bodies=bodies)
        return self._change_native(section)

    def _change_native(self, section: NativeSection) -> NativeSection:
        return replace(section, tasks=tuple(map(self._change_task, section.tasks)))

    def _change_task(self, task: Task | ScanTask) -> Task | ScanTask:
        if isinstance(task, ScanTask):
            return replace(task, body=self._change_native(task.body))
        return replace(task, work=self._change_work(task.work)) if task.work.constants else task

    def _change_work(self, work: Work) -> Work:
        if id(work) not in self._works:
            self._works[id(work)] = replace(work, constants=tuple(map(self.find, work.constants)))
        return self._works[id(work)]


def _list_constants(program: CompiledProgram) -> Iterator[Constant]:
    yield from (content for content in program.constants.values() if isinstance(content, np.ndarray))
    pending = list(program.sections)
    while pending:
        section = pending.pop(0)
        if isinstance(section, HostSection):
            pending += [inner for body in section.bodies for inner in body]
            continue
        for work in all_works(section):
            yield from work.constants


def _are_equal(left: Array, right: Array) -> bool:
    """Whether two arrays of one shape and dtype have the same bytes."""
    if left is right:
        return True
    first, second = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (left, right))
    part = COMPARED_FIRST * left.itemsize
    return np.array_equal(first[:part], second[:part]) and np.array_equal(first, second)
