"""A native section loaded on a device: its constants, its plan for all sizes, and device plans for some of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from weft.backends.device import DeviceProgram, Shortcut
from weft.errors import ExecutionError, InternalError
from weft.ir.compiled import section_constants, section_symbols
from weft.ir.program import Value
from weft.ir.verification import is_verifying
from weft.ir.work import NativeSection
from weft.plan.limits import MemoryBudget, check_fits, surely_fits
from weft.plan.plan import ALIGNMENT, Plan, SymbolicPlan
from weft.plan.plan_numbers import Compute, PlanNumbers, SizedNumbers, list_launches
from weft.threads import make_lock

REMEMBERED_PLANS = 64  # sets of sizes whose device plans a section keeps
MOST_VARIANTS = 16  # plans for different conditions on the sizes
UNKNOWN_SIZE = 64  # the reference size of a symbol that no input shows
DevicePlan = TypeVar("DevicePlan")


class DeviceSection(ABC, Generic[DevicePlan]):
    """Plans and runs one native section. Several threads may call it at once.

    The section is planned once for all sizes, or once for each class of sizes that its conditions distinguish. The
    plans depend on the program alone, not on sizes that ran before.
    """

    alignment = ALIGNMENT  # bytes; every buffer of a launch starts at a multiple of it
    remembered_launches = 1 << 18  # of all device plans together

    def __init__(
        self,
        section: NativeSection,
        constants: Mapping[Value, Any],
        budget: MemoryBudget,
        capacity: int,
        program: DeviceProgram,
    ) -> None:
        """`capacity`: the bytes that the device has for a run, independent of the budget.

        `program` is the whole program; usual sizes of its inputs determine the order of tasks and of memory.
        """
        self.section = section
        self.budget = budget
        self.capacity = capacity
        self.symbols = section_symbols(section) if section.symbols is None else section.symbols
        self.constants = section_constants(section, constants)
        self._program = program
        self._variants: list[PlanNumbers] = []
        self._plans: OrderedDict[tuple[int, ...], DevicePlan] = OrderedDict()
        self._launches_held = 0  # by these plans
        self._latest: DevicePlan | None = None  # the one used last
        self._lock = make_lock()

    @abstractmethod
    def run(self, inputs: Sequence[Any], sizes: Mapping[str, int], keep: frozenset[Value] = frozenset()) -> list[Any]:
        """Return the section's outputs; those in `keep` stay on the device if it has its own memory."""

    def bind(self, sizes: Mapping[str, int]) -> Shortcut | None:  # noqa: ARG002
        """Return a function that runs the section with these sizes; None if it needs others, or is not supported."""
        return None

    @abstractmethod
    def _load_numbers(self, slots: PlanNumbers, numbers: SizedNumbers) -> DevicePlan:
        """Load the launches of a plan, with its numbers for some sizes, on the device."""

    @abstractmethod
    def _count_launches(self, plan: DevicePlan) -> int:
        """Return the number of launches that a plan holds."""

    @abstractmethod
    def _compute(self) -> Compute:
        """Return the function that evaluates the numbers of plans."""

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
            slots, numbers = self._evaluate(sizes)
            if is_verifying():
                self._verify(slots, numbers, sizes)
            plan = self._latest = self._plans[key] = self._load_numbers(slots, numbers)
            self._launches_held += self._count_launches(plan)
            while len(self._plans) > 1 and (
                len(self._plans) > REMEMBERED_PLANS or self._launches_held > self.remembered_launches
            ):
                self._launches_held -= self._count_launches(self._plans.popitem(last=False)[1])
            return plan

    def make_plan(self, sizes: Mapping[str, int]) -> Plan:
        """Return the plan for these sizes with all details; OutOfMemoryError where they do not fit."""
        with self._lock:
            plan = self._find_variant(sizes).plan
        return self._check_plan(plan, sizes)

    def _evaluate(self, sizes: Mapping[str, int]) -> tuple[PlanNumbers, SizedNumbers]:
        """Return the numbers of the plan for these sizes."""
        for slots in self._variants:
            numbers = slots.evaluate(sizes)
            if numbers is not None:
                self._check_memory(slots.plan, numbers, sizes)
                return slots, numbers
        slots = self._find_variant(sizes)
        self._check_plan(slots.plan, sizes)
        numbers = slots.evaluate(sizes)
        if numbers is None:
            raise ExecutionError("sizes are too large for 64 bits", hint="check the sizes of the inputs")
        return slots, numbers

    def _check_memory(self, plan: SymbolicPlan, numbers: SizedNumbers, sizes: Mapping[str, int]) -> None:
        """Raise OutOfMemoryError unless a run fits; the details of the error need the whole plan."""
        if not surely_fits(numbers.arena_bytes, numbers.outputs, self.budget, self.capacity):
            self._check_plan(plan, sizes)

    def _check_plan(self, symbolic_plan: SymbolicPlan, sizes: Mapping[str, int]) -> Plan:
        try:
            plan = symbolic_plan.at(sizes)
        except ZeroDivisionError:  # by a size of 0: a program traced for these sizes may need no division
            raise
        except ArithmeticError as error:
            raise ExecutionError(f"sizes cannot be computed: {error}") from error
        check_fits(plan, self.budget, self.capacity)
        return plan

    def _verify(self, slots: PlanNumbers, numbers: SizedNumbers, sizes: Mapping[str, int]) -> None:
        """Verify the plan for these sizes, and that its numbers are those of the table."""
        from weft.plan.verify import verify_plan

        plan = slots.plan.at(sizes)
        verify_plan(self.section, plan, self.constants, sizes)
        launches = [launch for entry in plan.launches for launch in list_launches(entry)]
        places = [place.offset for launch in launches for place in launch.buffers]
        parameters = [parameter for launch in launches for parameter in launch.parameters]
        is_equal = (
            numbers.blocks.tolist() == [launch.blocks for launch in launches]
            and numbers.parameters.tolist() == parameters
            and numbers.offsets.tolist() == places
            and numbers.arena_bytes == plan.arena_bytes
            and numbers.outputs == plan.outputs
        )
        if not is_equal:
            raise InternalError(f"the numbers of a plan are wrong for {dict(sizes)}")

    def _find_variant(self, sizes: Mapping[str, int]) -> PlanNumbers:
        """Return the plan whose conditions these sizes meet."""
        for slots in self._variants:
            if slots.plan.fits(sizes):
                return slots
        slots = PlanNumbers(self._plan_section(sizes), self.symbols, self._compute())
        self._variants.insert(0, slots)
        del self._variants[MOST_VARIANTS:]
        return slots

    def _plan_section(self, sizes: Mapping[str, int]) -> SymbolicPlan:
        """Plan the section for these sizes and all others that meet the same conditions."""
        from weft.plan.sections import plan_section

        return plan_section(self.section, self.constants, sizes, self._find_references(), alignment=self.alignment)

    def _find_references(self) -> list[dict[str, int]]:
        """Return the sizes for which the order of tasks and of memory is chosen."""
        from weft.plan.usual_sizes import reference_sizes

        references = reference_sizes(self._program.inputs, self._program.guards)
        return [{name: sizes.get(name, UNKNOWN_SIZE) for name in self.symbols} for sizes in references]
