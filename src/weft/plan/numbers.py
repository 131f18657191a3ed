"""The numbers of a plan as a table of operations on 64-bit integers, which native code evaluates in microseconds.

A slot holds a number: a constant, a size of the run, or the result of an operation on two earlier slots. Numbers that
no 64-bit integer holds, and divisions by zero, give `INVALID`, which spreads to everything computed from it. Checks say
which sizes the numbers are for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.ir.arrays import Array
from weft.ir.dims import Compound, Dim, Symbol
from weft.plan.plan import DefinedSize
from weft.records import dataclass

INVALID = -(1 << 63)
ADD, MULTIPLY, DIVIDE, REMAINDER, MINIMUM, MAXIMUM = range(6)
AT_LEAST, EQUAL, DIFFERENT, VALID = range(4)
_RELATIONS = {">=": AT_LEAST, "==": EQUAL, "!=": DIFFERENT}
_OPERATIONS = {"//": DIVIDE, "%": REMAINDER, "min": MINIMUM, "max": MAXIMUM}


@dataclass(frozen=True, slots=True, eq=False)
class NumberTable:
    """Operations in order: rows of an operation and the slots of its operands, whose results are the last slots.

    `values` has the constants, then zeros for sizes and results. A check compares the numbers in two slots, neither of
    which may be invalid, unless the number in a third slot is 0.
    """

    operations: Array  # int32 [n, 3]
    checks: Array  # int32 [n, 4]: relation, and three slots
    values: Array  # int64, by slot
    first_size: int
    first_result: int

    def start(self, sizes: Sequence[int]) -> Array:
        """Return the slots with constants and sizes filled in; OverflowError for a size beyond 64 bits."""
        values: Array = self.values.copy()
        values[self.first_size : self.first_result] = sizes
        return values

    def compute(self, values: Array) -> bool:
        """Evaluate all operations in Python, and return whether all checks hold; native code does the same."""
        operations = self.operations.tolist()
        slots = values.tolist()
        for number, (operation, left, right) in enumerate(operations, self.first_result):
            slots[number] = _evaluate(operation, slots[left], slots[right])
        values[:] = slots
        return all(
            not slots[unless] or _holds(relation, slots[left], slots[right])
            for relation, left, right, unless in self.checks.tolist()
        )


def _holds(relation: int, left: int, right: int) -> bool:
    if INVALID in (left, right):
        return False
    return {AT_LEAST: left >= right, EQUAL: left == right, DIFFERENT: left != right, VALID: True}[relation]


def _evaluate(operation: int, left: int, right: int) -> int:
    if INVALID in (left, right) or (right == 0 and operation in (DIVIDE, REMAINDER)):
        return INVALID
    match operation:
        case 0:
            result = left + right
        case 1:
            result = left * right
        case 2:
            result = left // right
        case 3:
            result = left % right
        case 4:
            result = min(left, right)
        case _:
            result = max(left, right)
    return result if -(1 << 63) < result < 1 << 63 else INVALID


class NumberTableBuilder:
    """Collects dims and assigns them slots. Slots are numbers that `build` and `resolve` turn into final ones."""

    def __init__(self, symbols: Sequence[str], definitions: Sequence[DefinedSize]) -> None:
        self._sizes = {name: number for number, name in enumerate(symbols)}
        self._constants: dict[int, int] = {}
        self._operations: list[tuple[int, int, int]] = []
        self._checks: dict[tuple[int, int, int, int], None] = {}
        self._slots: dict[object, int] = {}
        for definition in definitions:
            slots = [self.slot(part) for part in definition.parts]
            while len(slots) > 1:
                slots[:2] = [self._add(MAXIMUM, slots[0], slots[1])]
            self._slots["symbol", definition.name] = slots[0]

    # slots in the making: constants are -1, -2, ...; sizes 0, 1, ...; results follow the sizes

    def slot(self, dim: Dim) -> int:
        """Return the slot of a dim; KeyError for an unknown symbol."""
        if isinstance(dim, int):
            return -1 - self._constants.setdefault(dim, len(self._constants))
        slot = self._slots.get(dim)
        if slot is None:
            total: int | None = None
            for monomial, coefficient in dim.terms:
                term = self._term(monomial, coefficient)
                total = term if total is None else self._add(ADD, total, term)
            assert total is not None
            slot = self._slots[dim] = total
        return slot

    def slots(self, dims: Sequence[Dim]) -> list[int]:
        return [self.slot(dim) for dim in dims]

    def check(self, slot: int, relation: str, number: int) -> None:
        """Check the number in a slot: ">=", "==" or "!=" some number."""
        self._checks[_RELATIONS[relation], slot, self.slot(number), self.slot(1)] = None

    def check_valid(self, slots: Sequence[int], unless: int | None = None) -> None:
        """Check that the numbers in slots are valid, unless the one in another slot is 0."""
        always = self.slot(1) if unless is None else unless
        self._checks.update({(VALID, slot, slot, always): None for slot in slots})

    def build(self) -> NumberTable:
        operations = np.array([(op, 0, 0) for op, _, _ in self._operations], np.int32).reshape(-1, 3)
        operations[:, 1] = self.resolve([left for _, left, _ in self._operations])
        operations[:, 2] = self.resolve([right for _, _, right in self._operations])
        first_size = len(self._constants)
        first_result = first_size + len(self._sizes)
        values = np.zeros(first_result + len(operations), np.int64)
        values[:first_size] = [max(number, INVALID) if number < 1 << 63 else INVALID for number in self._constants]
        checks = np.array(list(self._checks), np.int32).reshape(-1, 4)
        for column in range(1, 4):
            checks[:, column] = self.resolve([check[column] for check in self._checks])
        is_known = (checks[:, 0] == VALID) & (checks[:, 1] < first_size) & (values[checks[:, 1]] != INVALID)
        checks = np.ascontiguousarray(checks[~is_known])
        return NumberTable(operations, checks, values, first_size, first_result)

    def resolve(self, slots: Sequence[int]) -> Array:
        """Return the final numbers of slots, once all dims are known."""
        numbers = np.array(slots, np.intp)
        return np.where(numbers < 0, -1 - numbers, numbers + len(self._constants))

    def _term(self, monomial: Sequence[object], coefficient: int) -> int:
        slot: int | None = None
        for atom in monomial:
            factor = self._atom(atom)
            slot = factor if slot is None else self._add(MULTIPLY, slot, factor)
        if slot is None:
            return self.slot(coefficient)
        return slot if coefficient == 1 else self._add(MULTIPLY, slot, self.slot(coefficient))

    def _atom(self, atom: object) -> int:
        if isinstance(atom, Symbol):
            defined = self._slots.get(("symbol", atom.name))
            return self._sizes[atom.name] if defined is None else defined
        assert isinstance(atom, Compound)
        slot = self._slots.get(atom)
        if slot is None:
            left, right = self.slot(atom.left), self.slot(atom.right)
            slot = self._slots[atom] = self._add(_OPERATIONS[atom.operation], left, right)
        return slot

    def _add(self, operation: int, left: int, right: int) -> int:
        key = (operation, left, right)
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = len(self._sizes) + len(self._operations)
            self._operations.append(key)
        return slot
