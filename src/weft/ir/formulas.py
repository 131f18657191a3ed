"""Compile guards to Python functions, to check them for many sets of sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.ir import dims
from weft.ir.dims import Compound, Dim, Expr, Symbol
from weft.ir.program import Guard

Check = Callable[[Mapping[str, int]], int]


class FormulaWriter:
    """Writes dims as Python expressions; each compound subexpression gets a variable and is computed once."""

    def __init__(self, symbol: Callable[[str], str]) -> None:
        """`symbol` returns the text for a symbol's name."""
        self.symbol = symbol
        self.lines: list[str] = []
        self._names: dict[Expr | Compound, str] = {}

    def __call__(self, dim: Dim) -> str:
        if isinstance(dim, int):
            return f"({dim})"
        if dim not in self._names:
            self._names[dim] = self._assign(" + ".join(self._term(*term) for term in dim.terms))
        return self._names[dim]

    def define(self, function: str, parameters: str, result: str) -> Callable[..., Any]:
        """Define a function whose body is the lines written so far."""
        body = "".join(f"    {line}\n" for line in (*self.lines, f"return {result}"))
        scope: dict[str, Any] = {}
        exec(f"def {function}({parameters}):\n{body}", {"min": min, "max": max}, scope)
        compiled: Callable[..., Any] = scope[function]
        return compiled

    def _term(self, monomial: Sequence[Any], times: int) -> str:
        factors = [self._atom(atom) for atom in monomial]
        return " * ".join(factors if times == 1 and factors else [f"({times})", *factors])

    def _atom(self, atom: Any) -> str:
        if isinstance(atom, Symbol):
            return self.symbol(atom.name)
        assert isinstance(atom, Compound)
        if atom not in self._names:
            left, right = self(atom.left), self(atom.right)
            prefix = atom.operation in ("min", "max")
            text = f"{atom.operation}({left}, {right})" if prefix else f"{left} {atom.operation} {right}"
            self._names[atom] = self._assign(text)
        return self._names[atom]

    def _assign(self, text: str) -> str:
        if text.isidentifier() or (text.startswith("(") and text[1:-1].lstrip("-").isdigit()):
            return text
        self.lines.append(f"t{len(self.lines)} = {text}")
        return f"t{len(self.lines) - 1}"


def compile_guards(guards: Sequence[Guard]) -> Check:
    """Compile guards to a function that returns the index of the first one that sizes break, or -1.

    It raises KeyError for a missing size.
    """
    names = sorted(
        {symbol.name for guard in guards for side in (guard.left, guard.right) for symbol in dims.symbols(side)}
    )
    texts = {name: f"s{number}" for number, name in enumerate(names)}
    write = FormulaWriter(texts.__getitem__)
    write.lines += [f"{text} = sizes[{name!r}]" for name, text in texts.items()]
    for number, guard in enumerate(guards):
        left, right = write(guard.left), write(guard.right)
        write.lines.append(f"if {left} {'<' if guard.at_least else '!='} {right}: return {number}")
    return write.define("check", "sizes", "-1")
