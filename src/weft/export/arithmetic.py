"""Emit dims as 64-bit LLVM instructions that detect overflow and division by zero.

Only operations whose bounds allow a fault are checked. Bounds hold once the sizes were checked against theirs.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.ir.dims import Compound, Dim, Expr, Symbol, bounds

_SAFE = 2**62
CHECKED = {
    f"llvm.s{verb}.with.overflow.i64": "declare {{ i64, i1 }} @{}(i64, i64)".format(f"llvm.s{verb}.with.overflow.i64")
    for verb in ("add", "mul")
}


class SizeWriter:
    """Emits dims as straight-line code, each once. A fault is the name of an i1 value, or None."""

    def __init__(self, emit: Callable[[str], None], name: Callable[[], str]) -> None:
        """`emit` takes a line, `name` returns a new name."""
        self._emit, self._name = emit, name
        self.symbols: dict[str, str] = {}
        self._values: dict[Expr | Compound, str] = {}
        self._faults: dict[Expr | Compound, str | None] = {}

    def value(self, dim: Dim) -> str:
        if isinstance(dim, int):
            return str(dim)
        if dim not in self._values:
            self._values[dim], self._faults[dim] = self._sum(dim)
        return self._values[dim]

    def fault(self, dim: Dim) -> str | None:
        """Return the bit that is set if the value overflowed or was divided by zero."""
        self.value(dim)
        return None if isinstance(dim, int) else self._faults[dim]

    def assign(self, text: str) -> str:
        name = self._name()
        self._emit(f"{name} = {text}")
        return name

    def either(self, *bits: str | None) -> str | None:
        """Emit the disjunction of bits."""
        distinct = list(dict.fromkeys(bit for bit in bits if bit is not None))
        result = distinct[0] if distinct else None
        for bit in distinct[1:]:
            result = self.assign(f"or i1 {result}, {bit}")
        return result

    def largest(self, parts: list[str]) -> str:
        result = parts[0]
        for part in parts[1:]:
            more = self.assign(f"icmp sgt i64 {part}, {result}")
            result = self.assign(f"select i1 {more}, i64 {part}, i64 {result}")
        return result

    def _sum(self, dim: Expr) -> tuple[str, str | None]:
        total, fault = "", None
        for number, (monomial, coefficient) in enumerate(dim.terms):
            if not monomial:
                term, term_fault = str(coefficient), None
            else:
                term, term_fault = self._atom(monomial[0])
                for count, atom in enumerate(monomial[1:], start=2):
                    factor, factor_fault = self._atom(atom)
                    term, overflow = self._operation("mul", term, factor, Expr(((monomial[:count], 1),)))
                    term_fault = self.either(term_fault, factor_fault, overflow)
                if coefficient != 1:
                    term, overflow = self._operation("mul", term, str(coefficient), Expr(((monomial, coefficient),)))
                    term_fault = self.either(term_fault, overflow)
            fault = self.either(fault, term_fault)
            if number:
                total, overflow = self._operation("add", total, term, Expr(dim.terms[: number + 1]))
                fault = self.either(fault, overflow)
            else:
                total = term
        return total, fault

    def _operation(self, verb: str, one: str, other: str, result: Expr) -> tuple[str, str | None]:
        low, high = bounds(result)
        if low is not None and high is not None and low >= -_SAFE and high <= _SAFE:
            return self.assign(f"{verb} i64 {one}, {other}"), None
        pair = self.assign(f"call {{ i64, i1 }} @llvm.s{verb}.with.overflow.i64(i64 {one}, i64 {other})")
        value = self.assign(f"extractvalue {{ i64, i1 }} {pair}, 0")
        return value, self.assign(f"extractvalue {{ i64, i1 }} {pair}, 1")

    def _atom(self, atom: object) -> tuple[str, str | None]:
        if isinstance(atom, Symbol):
            return self.symbols[atom.name], None
        assert isinstance(atom, Compound)
        if atom not in self._values:
            self._values[atom], self._faults[atom] = self._compound(atom)
        return self._values[atom], self._faults[atom]

    def _compound(self, atom: Compound) -> tuple[str, str | None]:
        left, right = self.value(atom.left), self.value(atom.right)
        fault = self.either(self.fault(atom.left), self.fault(atom.right))
        if atom.operation in ("min", "max"):
            order = "slt" if atom.operation == "min" else "sgt"
            is_left = self.assign(f"icmp {order} i64 {left}, {right}")
            return self.assign(f"select i1 {is_left}, i64 {left}, i64 {right}"), fault
        right_low = bounds(atom.right)[0]
        if right_low is None or right_low <= 0:
            zero = self.assign(f"icmp eq i64 {right}, 0")
            fault = self.either(fault, zero)
            right = self.assign(f"select i1 {zero}, i64 1, i64 {right}")
        remainder = self.assign(f"srem i64 {left}, {right}")
        left_low = bounds(atom.left)[0]
        is_plain = right_low is not None and right_low > 0 and left_low is not None and left_low >= 0
        if atom.operation == "%":
            return (remainder if is_plain else self._round_down(remainder, right, remainder, right, "add")), fault
        quotient = self.assign(f"sdiv i64 {left}, {right}")
        return (quotient if is_plain else self._round_down(remainder, right, quotient, "1", "sub")), fault

    def _round_down(self, remainder: str, divisor: str, result: str, step: str, verb: str) -> str:
        """Correct a result that was rounded toward zero, if the remainder differs in sign from the divisor."""
        mixed = self.assign(f"xor i64 {remainder}, {divisor}")
        opposite = self.assign(f"icmp slt i64 {mixed}, 0")
        is_nonzero = self.assign(f"icmp ne i64 {remainder}, 0")
        wrong = self.assign(f"and i1 {opposite}, {is_nonzero}")
        moved = self.assign(f"{verb} i64 {result}, {step}")
        return self.assign(f"select i1 {wrong}, i64 {moved}, i64 {result}")
