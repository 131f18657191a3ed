"""A native section at run time, whatever runs it: its constants, and what was prepared for each set of sizes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from weft.backends.device import Shortcut
from weft.errors import ExecutionError
from weft.ir.compiled import section_constants, section_symbols
from weft.ir.dims import Expr
from weft.ir.program import Value
from weft.ir.work import NativeSection
from weft.plan.limits import MemoryBudget, check_fits
from weft.plan.plan import ALIGNMENT, Plan
from weft.plan.section_dims import SectionDims
from weft.threads import lock

Array = np.ndarray[Any, Any]
REMEMBERED_PLANS = 64  # sets of sizes for which a section keeps what it prepared
FEW_SIZES = 2  # after which a section's dims are compiled
REMEMBERED_LAUNCHES = 1 << 18  # in all of them together
Prepared = TypeVar("Prepared")


class PlannedSection(ABC, Generic[Prepared]):
    """Plans one native section for the sizes that it meets. Several threads may ask for that at once."""

    alignment = ALIGNMENT  # bytes that what launches work on starts at a multiple of

    def __init__(
        self, section: NativeSection, constants: Mapping[Value, Any], budget: MemoryBudget, capacity: int
    ) -> None:
        """`capacity`: the bytes that there are for a run, whatever the budget says."""
        self.section = section
        self.budget = budget
        self.capacity = capacity
        self.symbols = section_symbols(section) if section.symbols is None else section.symbols
        self.constants = section_constants(section, constants)
        self._plans: OrderedDict[tuple[int, ...], Prepared] = OrderedDict()
        self._dims: SectionDims | None = None
        self._latest: Prepared | None = None  # the one used last
        self._lock = lock()

    def direct(self, sizes: Mapping[str, int]) -> Shortcut | None:  # noqa: ARG002
        """What runs on arrays with these sizes, the only ones that it depends on; None where there is no such way."""
        return None

    @abstractmethod
    def _prepare(self, sizes: Mapping[str, int]) -> Prepared:
        """What runs the section for given sizes."""

    @abstractmethod
    def _launches_in(self, prepared: Prepared) -> int:
        """How many launches it keeps."""

    def prepared(self, sizes: Mapping[str, int]) -> Prepared:
        """The section for given sizes; of those prepared before, the ones used least recently are dropped."""
        key = tuple([sizes[name] for name in self.symbols])
        found = self._plans.get(key)
        if found is not None and found is self._latest:
            return found
        with self._lock:
            found = self._plans.get(key)
            if found is not None:
                self._plans.move_to_end(key)
                self._latest = found
                return found
            found = self._latest = self._plans[key] = self._prepare(sizes)
            launches = sum(map(self._launches_in, self._plans.values()))
            while len(self._plans) > 1 and (len(self._plans) > REMEMBERED_PLANS or launches > REMEMBERED_LAUNCHES):
                launches -= self._launches_in(self._plans.popitem(last=False)[1])
            return found

    def make_plan(self, sizes: Mapping[str, int]) -> Plan:
        """Memory and launches for given sizes; OutOfMemoryError where there is not so much."""
        try:
            plan = self._plan(sizes)
        except ZeroDivisionError:  # by a size that is 0: a program for these very sizes may do without it
            raise
        except ArithmeticError as error:
            raise ExecutionError(f"sizes cannot be computed: {error}") from error
        check_fits(plan, self.budget, self.capacity)
        return plan

    def _plan(self, sizes: Mapping[str, int], steps: Sequence[Sequence[int]] | None = None) -> Plan:
        """A plan in which tasks run one by one, or in these steps."""
        from weft.plan.sections import make_plan

        return make_plan(self.section, self.constants, sizes, steps, self.alignment, known=self.numbers(sizes))

    def numbers(self, sizes: Mapping[str, int]) -> Mapping[Expr, int] | None:
        """What the section's dims are for given sizes, where it has met so many that they are computed all at once."""
        if self._dims is None and len(self._plans) >= FEW_SIZES:
            self._dims = SectionDims(self.section, sizes)
        return None if self._dims is None else self._dims.numbers(sizes)
