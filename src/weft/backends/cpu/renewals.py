"""Tapes for new sizes without a new plan, for native sections whose sizes change from run to run, as in a loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.backends.cpu.section import CpuPlan
from weft.plan.renewal import Renewal, check_renewal, find_renewal, varying_owners
from weft.threads import make_lock

if TYPE_CHECKING:
    from weft.backends.cpu.section import CpuSection

Key = tuple[int, ...]  # the sizes of a section's symbols
REMEMBERED = 256  # sets of sizes whose tapes are kept
MOST_BASES = 4  # plans to renew from
MOST_FAILURES = 4  # after this many failed renewals, the section is planned anew for all sizes


class SectionRenewals:
    """The plans of a section that can be renewed for other sizes. Several threads may call it at once."""

    def __init__(self, section: CpuSection, planned: Key) -> None:
        """`planned` are the sizes of its first plan."""
        self.section = section
        self._renewed: dict[Key, CpuPlan] = {}
        self._bases: tuple[tuple[Renewal, CpuPlan], ...] = ()
        self._last_planned = planned
        self._varying: frozenset[str] = frozenset()
        self._failures = 0
        self._lock = make_lock()

    def find(self, key: Key) -> CpuPlan | None:
        """Return a renewed plan for these sizes; None where the section needs a new one."""
        plan = self._renewed.get(key)
        if plan is not None:
            return plan
        for renewal, base in self._bases:
            numbers = renewal.numbers(key)
            if numbers is not None:
                check_renewal(self.section.section, renewal, self.section.constants, self._sizes(key))
                plan = _renew_plan(renewal, base, numbers)
                if len(self._renewed) >= REMEMBERED:
                    self._renewed.clear()
                self._renewed[key] = plan
                return plan
        return None

    def note(self, key: Key) -> None:
        """Prepare to renew a new plan: symbols that changed since the last plan are expected to change again."""
        with self._lock:
            previous, self._last_planned = self._last_planned, key
            if previous == key or self._failures >= MOST_FAILURES:
                return
            symbols = self.section.symbols
            self._varying |= {name for name, old, new in zip(symbols, previous, key) if old != new}
            base = self._build_base(key, self._varying)
            if base is None:
                self._failures += 1
                return
            self._bases = (base, *self._bases[: MOST_BASES - 1])

    def _build_base(self, key: Key, varying: frozenset[str]) -> tuple[Renewal, CpuPlan] | None:
        """Plan the section with a renewal, or return None.

        Sizes that the model's inputs determine get no room to grow: `Model.memory` predicts the exact arena for them.
        """
        section, sizes = self.section, self._sizes(key)
        roomy = varying_owners(section.section, varying)
        if roomy and not varying.isdisjoint(section.input_symbols):
            return None
        cpu_plan, plan = section.make_roomy(sizes, roomy)
        renewal = find_renewal(section.section, section.symbols, section.constants, plan, sizes, varying, roomy)
        return None if renewal is None else (renewal, cpu_plan)

    def _sizes(self, key: Key) -> dict[str, int]:
        return dict(zip(self.section.symbols, key))


def _renew_plan(renewal: Renewal, base: CpuPlan, numbers: list[int]) -> CpuPlan:
    first = len(renewal.blocks)
    second = first + len(renewal.parameters)
    third = second + len(renewal.places)
    tape = base.tape.renewed(
        (renewal.blocks, numbers[:first]),
        (renewal.parameters, numbers[first:second]),
        (renewal.places, numbers[second:third]),
    )
    return base.renewed(tape, renewal.shapes(numbers[third:]))
