"""Native sections whose sizes change from run to run, as in the turns of a loop: tapes for them without a new plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.backends.cpu.section import PreparedSection
from weft.plan.renewal import Renewal, check_renewal, find_renewal, varying_owners
from weft.threads import lock

if TYPE_CHECKING:
    from weft.backends.cpu.section import CpuSection

Key = tuple[int, ...]  # the sizes of a section's symbols
REMEMBERED = 256  # sets of sizes for which tapes are kept
MOST_BASES = 4  # plans that are renewed
MOST_FAILURES = 4  # after which a section is planned anew for all sizes


class SectionRenewals:
    """The plans of a section that can be renewed, and what came of it. Several threads may ask at once."""

    def __init__(self, section: CpuSection, noted: Key) -> None:
        """`noted` are sizes that it was planned for."""
        self.section = section
        self._known: dict[Key, PreparedSection] = {}
        self._bases: tuple[tuple[Renewal, PreparedSection], ...] = ()
        self._noted = noted
        self._varying: frozenset[str] = frozenset()
        self._failures = 0
        self._lock = lock()

    def find(self, key: Key) -> PreparedSection | None:
        """The section for sizes that it is not planned for; None where it must be."""
        found = self._known.get(key)
        if found is not None:
            return found
        for renewal, base in self._bases:
            numbers = renewal.numbers(key)
            if numbers is not None:
                check_renewal(self.section.section, renewal, self.section.constants, self._sizes(key))
                found = _renewed(renewal, base, numbers)
                if len(self._known) >= REMEMBERED:
                    self._known.clear()
                self._known[key] = found
                return found
        return None

    def note(self, key: Key) -> None:
        """These sizes were planned for, after others: what differs may differ again."""
        with self._lock:
            noted, self._noted = self._noted, key
            if noted == key or self._failures >= MOST_FAILURES:
                return
            symbols = self.section.symbols
            self._varying |= {name for name, old, new in zip(symbols, noted, key) if old != new}
            made = self._base(key, self._varying)
            if made is None:
                self._failures += 1
                return
            self._bases = (made, *self._bases[: MOST_BASES - 1])

    def _base(self, key: Key, varying: frozenset[str]) -> tuple[Renewal, PreparedSection] | None:
        """A plan with what renews it. What the model's inputs show is planned exactly: others can predict it."""
        section, sizes = self.section, self._sizes(key)
        roomy = varying_owners(section.section, varying)
        if roomy and not varying.isdisjoint(section.shown):
            return None
        prepared, plan = section.make_roomy(sizes, roomy)
        found = find_renewal(section.section, section.symbols, section.constants, plan, sizes, varying, roomy)
        return None if found is None else (found, prepared)

    def _sizes(self, key: Key) -> dict[str, int]:
        return dict(zip(self.section.symbols, key))


def _renewed(renewal: Renewal, base: PreparedSection, numbers: list[int]) -> PreparedSection:
    first = len(renewal.blocks)
    second = first + len(renewal.parameters)
    third = second + len(renewal.places)
    tape = base.tape.renewed(
        (renewal.blocks, numbers[:first]),
        (renewal.parameters, numbers[first:second]),
        (renewal.places, numbers[second:third]),
    )
    return base.renewed(tape, renewal.shapes(numbers[third:]))
