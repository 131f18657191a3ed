"""Tapes filled in from plan templates, for native sections that run with ever new sizes: far faster than planning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.backends.cpu.peak import assumed_peak
from weft.backends.cpu.section import CpuPlan
from weft.backends.cpu.tape import SpreadLaunch, Tape
from weft.cost.many_launches import LaunchArrays
from weft.errors import ExecutionError, InternalError, OutOfMemoryError
from weft.ir.dim_evaluator import DimEvaluator
from weft.ir.verification import is_verifying
from weft.ir.work import ScanTask
from weft.plan.limits import check_fits
from weft.plan.plan import Plan
from weft.plan.schedule import side_by_side
from weft.plan.template import Filled, Order, PlanTemplate, SectionOrders, make_template
from weft.records import dataclass

if TYPE_CHECKING:
    from weft.backends.cpu.section import CpuSection

Key = tuple[int, ...]  # the sizes of a section's symbols
MOST_TEMPLATES = 4
MOST_MISSES = 6  # after this many more misses than hits, the section is planned anew for all sizes


@dataclass(frozen=True, slots=True, eq=False)
class _TemplateEntry:
    """A template, and the tape of the plan that it was made from."""

    order: Order
    template: PlanTemplate
    tape: Tape


class SectionTemplates:
    """The plan templates of a section. Callers hold the section's lock."""

    def __init__(self, section: CpuSection, key: Key) -> None:
        self.section = section
        self._entries: tuple[_TemplateEntry, ...] = ()
        self._misses = 0
        self._orders: SectionOrders | None = None
        self._order: tuple[Key, Order | None] = (key, None)  # the one computed last
        if not any(isinstance(task, ScanTask) for task in section.section.tasks):
            try:
                sizes = dict(zip(section.symbols, key))
                self._orders = SectionOrders(section.section, section.symbols, section.constants, sizes)
            except (ArithmeticError, KeyError):
                return

    @property
    def is_of_use(self) -> bool:
        return self._orders is not None and self._misses < MOST_MISSES

    def find(self, key: Key) -> CpuPlan | None:
        """Fill in a plan for these sizes; None where the section has to be planned."""
        order = self._choose_order(key)
        for entry in self._entries:
            if entry.order == order and self._has_same_steps(entry, key):
                filled = entry.template.fill(key)
                plan = None if filled is None else self._fill_plan(entry, filled)
                if plan is not None:
                    self._misses -= 1
                    if is_verifying():
                        self._verify(key, plan)
                    return plan
        self._misses += 1
        return None

    def note(self, key: Key, plan: Plan, tape: Tape) -> None:
        """Make a template of the plan for these sizes."""
        order = self._choose_order(key)
        if order is None:
            return
        section = self.section
        sizes = dict(zip(section.symbols, key))
        try:
            template = make_template(
                section.section,
                section.symbols,
                section.constants,
                sizes,
                plan,
                order,
                section.alignment,
                lambda lean: self._choose_steps(lean, key),
                may_grow=section.budget.may_grow,
            )
        except (ArithmeticError, KeyError):
            return
        if template is not None:
            self._entries = (_TemplateEntry(order, template, tape), *self._entries[: MOST_TEMPLATES - 1])

    def _choose_order(self, key: Key) -> Order | None:
        if self._order[0] != key or self._order[1] is None:
            assert self._orders is not None
            self._order = key, self._orders.choose(key)
        return self._order[1]

    def _choose_steps(self, lean: Sequence[int], key: Key) -> list[tuple[int, ...]]:
        section = self.section
        if section.threads == 1:
            return [(task,) for task in lean]
        sizes = dict(zip(section.symbols, key))
        number = DimEvaluator(sizes, section.numbers(sizes))
        return side_by_side(section.section, lean, number, assumed_peak(), section.threads)

    def _has_same_steps(self, entry: _TemplateEntry, key: Key) -> bool:
        choice = entry.template.choice
        return self.section.threads == 1 or self._choose_steps(choice.lean, key) == choice.steps

    def _fill_plan(self, entry: _TemplateEntry, filled: Filled) -> CpuPlan | None:
        section = self.section
        plan = Plan((), filled.arena_bytes, filled.outputs, (), (), 0, 0, ())
        try:
            check_fits(plan, section.budget, section.capacity)
        except (ExecutionError, OutOfMemoryError):
            return None
        times = LaunchArrays(filled.blocks, filled.flops, filled.bytes, assumed_peak())
        threads = section.threads if times.is_worth_waking else 1
        spread = _spread_launches(filled, times, entry.template.waits(filled)) if threads > 1 else []
        tape = entry.tape.filled(filled.blocks, filled.parameters, filled.offsets, times.blocks_between_checks, spread)
        blocks = times.may_block
        count = len(section.section.inputs)
        return CpuPlan(tape, plan, count, section.arenas, threads, blocks or times.is_long, blocks)

    def _verify(self, key: Key, filled: CpuPlan) -> None:
        """Raise InternalError if a filled plan differs from a new one for these sizes."""
        plan = self.section.make_plan(dict(zip(self.section.symbols, key)))
        exact = self.section.make_tape(plan)
        if filled.arena_bytes != plan.arena_bytes or not filled.tape.does_the_same(exact):
            raise InternalError(f"a template differs from the plan for {dict(zip(self.section.symbols, key))}")


def _spread_launches(filled: Filled, times: LaunchArrays, after: Sequence[set[int]]) -> list[SpreadLaunch]:
    numbers = zip(filled.blocks.tolist(), times.worth_sharing.tolist(), after, times.find_sequences(after))
    return [SpreadLaunch(blocks, blocks if shared else 1, before, joined) for blocks, shared, before, joined in numbers]
