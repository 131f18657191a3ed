"""Write the lines of a shader's main function, with index arithmetic hoisted out of loops.

An index is computed once, in the outermost block where all its variables are defined: divisions cost more than a
register, and not all drivers hoist them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field

from weft.errors import InternalError
from weft.ir import dims
from weft.ir.dims import Atom, Compound, Dim, Expr, Symbol
from weft.records import dataclass

FLOOR_DIV = """fn floor_div(dividend: i32, divisor: i32) -> i32 {
  // on u32: what drivers make of negative operands differs
  let a = select(dividend, -dividend, divisor < 0);
  let b = u32(select(divisor, -divisor, divisor < 0));
  return select(i32(u32(a) / b), -1 - i32(u32(-1 - a) / b), a < 0);
}
fn floor_mod(a: i32, b: i32) -> i32 {
  return a - floor_div(a, b) * b;
}"""


@dataclass(slots=True)
class _Block:
    """Lines between braces, with the variables defined there and the names of computed indices."""

    names: set[str]
    indent: str
    lines: list[str] = field(default_factory=list)
    indices: dict[Dim, str] = field(default_factory=dict)


class Writer:
    """Writes lines to nested blocks; the innermost is the last."""

    def __init__(self) -> None:
        self.blocks = [_Block(set(), "  ")]
        self.floors = False  # whether floor_div or floor_mod are used
        self._count = 0

    @property
    def lines(self) -> list[str]:
        return self.blocks[0].lines

    def line(self, text: str) -> None:
        block = self.blocks[-1]
        block.lines.append(block.indent + text)

    def fresh(self, kind: str, value: str, depth: int = -1) -> str:
        """Define a new name for a value in the block at a depth."""
        name = f"t{self._count}"
        self._count += 1
        block = self.blocks[depth]
        block.lines.append(f"{block.indent}let {name}: {kind} = {value};")
        return name

    @contextmanager
    def inside(self, *names: str) -> Iterator[list[str]]:
        """Collect the lines written in the `with` block as a block that defines these variables."""
        block = _Block(set(names), self.blocks[-1].indent + "  ")
        self.blocks.append(block)
        yield block.lines
        self.blocks.pop()

    def block(self, head: str, lines: list[str], end: str = "}") -> None:
        """Write lines between braces."""
        self.line(f"{head} {{")
        self.blocks[-1].lines += lines
        if end:
            self.line(end)

    def name(self, name: str, value: Dim) -> None:
        """Define a variable of the kernel in the current block."""
        self.line(f"let v_{name}: i32 = {self.integer(value)};")
        self.blocks[-1].names.add(name)

    # -- index arithmetic --------------------------------------------------------------------------------------------

    def integer(self, value: Dim) -> str:
        """Write index arithmetic as an i32: a number, or a name."""
        if isinstance(value, int):
            return str(value) if value != -(2**31) else "(-2147483647 - 1)"
        depth = self._depth(value)
        indices = self.blocks[depth].indices
        if value not in indices:
            text = self._sum(value, depth)
            is_simple = text.replace("_", "").replace(".", "").isalnum()
            indices[value] = text if is_simple else self.fresh("i32", text, depth)
        return indices[value]

    def _depth(self, value: Expr) -> int:
        """Return the depth of the outermost block where all variables are defined."""
        needed = {symbol.name for symbol in dims.symbols(value)}
        for depth in range(len(self.blocks) - 1, 0, -1):
            if needed & self.blocks[depth].names:
                return depth
        return 0

    def _sum(self, value: Expr, depth: int) -> str:
        outer: Dim = 0
        terms: list[str] = []
        for monomial, coefficient in value.terms:
            term = Expr(((monomial, coefficient),)) if monomial else coefficient
            if isinstance(term, Expr) and len(value.terms) > 1 and self._depth(term) < depth:
                outer = outer + term
            else:
                terms.append(self._term(monomial, coefficient))
        if outer != 0:
            terms.insert(0, self.integer(outer))
        return " + ".join(terms)

    def _term(self, monomial: tuple[Atom, ...], coefficient: int) -> str:
        factors = [self.atom(atom) for atom in monomial]
        if coefficient != 1 or not factors:
            factors.append(f"({coefficient})" if coefficient < 0 else str(coefficient))
        return " * ".join(factors)

    def atom(self, atom: Atom) -> str:
        """Write a variable, or the name of a compound."""
        match atom:
            case Symbol(name):
                return f"v_{name}"
            case Compound(operation, left, right):
                alone = Expr((((atom,), 1),))
                depth = self._depth(alone)
                indices = self.blocks[depth].indices
                if alone not in indices:
                    indices[alone] = self.fresh("i32", self._compound(operation, left, right), depth)
                return indices[alone]
        raise InternalError(f"no code for {atom}")

    def _compound(self, operation: str, left: Dim, right: Dim) -> str:
        a, b = self.integer(left), self.integer(right)
        if operation in ("min", "max"):
            return f"{operation}({a}, {b})"
        if dims.is_at_least(left, 0) and dims.is_at_least(right, 1):
            return f"i32(u32({a}) {'/' if operation == '//' else '%'} u32({b}))"
        self.floors = True
        return f"{'floor_div' if operation == '//' else 'floor_mod'}({a}, {b})"
