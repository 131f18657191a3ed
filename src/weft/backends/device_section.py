"""A native section loaded on a device: its constants, and a loaded plan for each set of sizes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from weft.backends.device import Shortcut
from weft.errors import ExecutionError
from weft.ir.compiled import section_constants, section_symbols
from weft.ir.dims import Expr
from weft.ir.program import Value
from weft.ir.work import NativeSection
from weft.plan.limits import MemoryBudget, check_fits
from weft.plan.plan import ALIGNMENT, Plan
from weft.plan.section_dims import SectionDims
from weft.threads import make_lock

REMEMBERED_PLANS = 64  # sets of sizes whose loaded plans a section keeps
FEW_SIZES = 2  # a section's dims are compiled after this many sets of sizes
REMEMBERED_LAUNCHES = 1 << 18  # of all these plans together
DevicePlan = TypeVar("DevicePlan")


class DeviceSection(ABC, Generic[DevicePlan]):
    """Plans and runs one native section for the sizes of each run. Several threads may call it at once."""

    alignment = ALIGNMENT  # bytes; every buffer of a launch starts at a multiple of it

    def __init__(
        self, section: NativeSection, constants: Mapping[Value, Any], budget: MemoryBudget, capacity: int
    ) -> None:
        """`capacity`: the bytes that the device has for a run, independent of the budget."""
        self.section = section
        self.budget = budget
        self.capacity = capacity
        self.symbols = section_symbols(section) if section.symbols is None else section.symbols
        self.constants = section_constants(section, constants)
        self._plans: OrderedDict[tuple[int, ...], DevicePlan] = OrderedDict()
        self._dims: SectionDims | None = None
        self._latest: DevicePlan | None = None  # the one used last
        self._lock = make_lock()

    @abstractmethod
    def run(self, inputs: Sequence[Any], sizes: Mapping[str, int], keep: frozenset[Value] = frozenset()) -> list[Any]:
        """Return the section's outputs; those in `keep` stay on the device if it has its own memory."""

    def bind(self, sizes: Mapping[str, int]) -> Shortcut | None:  # noqa: ARG002
        """Return a function that runs the section with these sizes; None if it needs others, or is not supported."""
        return None

    @abstractmethod
    def _build_plan(self, sizes: Mapping[str, int]) -> DevicePlan:
        """Plan the section for these sizes and load the plan on the device."""

    @abstractmethod
    def _count_launches(self, plan: DevicePlan) -> int:
        """Return the number of launches that a plan holds."""

    def load_plan(self, sizes: Mapping[str, int]) -> DevicePlan:
        """Return the loaded plan for these sizes; drops the least recently used ones."""
        key = tuple([sizes[name] for name in self.symbols])
        plan = self._plans.get(key)
        if plan is not None and plan is self._latest:
            return plan
        with self._lock:
            plan = self._plans.get(key)
            if plan is not None:
                self._plans.move_to_end(key)
                self._latest = plan
                return plan
            plan = self._latest = self._plans[key] = self._build_plan(sizes)
            launches = sum(map(self._count_launches, self._plans.values()))
            while len(self._plans) > 1 and (len(self._plans) > REMEMBERED_PLANS or launches > REMEMBERED_LAUNCHES):
                launches -= self._count_launches(self._plans.popitem(last=False)[1])
            return plan

    def make_plan(self, sizes: Mapping[str, int]) -> Plan:
        """Plan memory and launches for these sizes; OutOfMemoryError where they do not fit."""
        try:
            plan = self._plan(sizes)
        except ZeroDivisionError:  # by a size of 0: a program traced for these sizes may need no division
            raise
        except ArithmeticError as error:
            raise ExecutionError(f"sizes cannot be computed: {error}") from error
        check_fits(plan, self.budget, self.capacity)
        return plan

    def _plan(self, sizes: Mapping[str, int], steps: Sequence[Sequence[int]] | None = None) -> Plan:
        """Plan the section with its tasks one by one, or in these steps."""
        from weft.plan.sections import make_plan

        return make_plan(self.section, self.constants, sizes, steps, self.alignment, computed_dims=self.numbers(sizes))

    def numbers(self, sizes: Mapping[str, int]) -> Mapping[Expr, int] | None:
        """Evaluate all of the section's dims at once for these sizes; None before it has seen several sets."""
        if self._dims is None and len(self._plans) >= FEW_SIZES:
            self._dims = SectionDims(self.section, sizes)
        return None if self._dims is None else self._dims.numbers(sizes)
