"""Dims as functions of Python: what is computed again and again with other sizes is compiled once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.ir import dims
from weft.ir.dims import Compound, Dim, Expr, Symbol
from weft.ir.program import Guard

Check = Callable[[Mapping[str, int]], int]


class FormulaWriter:
    """Writes dims as expressions of Python; whatever has parts gets a name, and is computed once."""

    def __init__(self, symbol: Callable[[str], str], fixed: Callable[[Expr], int | None] = lambda _: None) -> None:
        """`symbol` gives the text for a symbol of some name, `fixed` the value of a dim that is known now."""
        self.symbol, self.fixed = symbol, fixed
        self.lines: list[str] = []
        self._written: dict[Expr | Compound, str] = {}

    def __call__(self, dim: Dim) -> str:
        if isinstance(dim, int):
            return f"({dim})"
        if dim not in self._written:
            known = self.fixed(dim)
            terms = " + ".join(self._term(*term) for term in dim.terms) if known is None else f"({known})"
            self._written[dim] = self._named(terms)
        return self._written[dim]

    def define(self, function: str, parameters: str, result: str) -> Callable[..., Any]:
        """The function that all this is the body of."""
        body = "".join(f"    {line}\n" for line in (*self.lines, f"return {result}"))
        scope: dict[str, Any] = {}
        exec(f"def {function}({parameters}):\n{body}", {"min": min, "max": max}, scope)
        made: Callable[..., Any] = scope[function]
        return made

    def _term(self, monomial: Sequence[Any], times: int) -> str:
        factors = [self._atom(atom) for atom in monomial]
        return " * ".join(factors if times == 1 and factors else [f"({times})", *factors])

    def _atom(self, atom: Any) -> str:
        if isinstance(atom, Symbol):
            return self.symbol(atom.name)
        assert isinstance(atom, Compound)
        if atom not in self._written:
            left, right = self(atom.left), self(atom.right)
            prefix = atom.operation in ("min", "max")
            text = f"{atom.operation}({left}, {right})" if prefix else f"{left} {atom.operation} {right}"
            self._written[atom] = self._named(text)
        return self._written[atom]

    def _named(self, text: str) -> str:
        if text.isidentifier() or (text.startswith("(") and text[1:-1].lstrip("-").isdigit()):
            return text
        self.lines.append(f"t{len(self.lines)} = {text}")
        return f"t{len(self.lines) - 1}"


def compile_dims(wanted: Sequence[Expr]) -> Callable[[Mapping[str, int]], list[int]]:
    """The values of dims for sizes by name, all at once; KeyError where one has no size."""
    names = sorted({symbol.name for dim in wanted for symbol in _of(dim)})
    texts = {name: f"s{number}" for number, name in enumerate(names)}
    write = FormulaWriter(texts.__getitem__)
    write.lines += [f"{text} = sizes[{name!r}]" for name, text in texts.items()]
    return write.define("numbers", "sizes", f"[{', '.join([write(dim) for dim in wanted])}]")


def compile_guards(guards: Sequence[Guard]) -> Check:
    """The number of the first guard that sizes, by name, break; -1: all hold. KeyError where one has no size."""
    names = sorted({symbol.name for guard in guards for side in (guard.left, guard.right) for symbol in _of(side)})
    texts = {name: f"s{number}" for number, name in enumerate(names)}
    write = FormulaWriter(texts.__getitem__)
    write.lines += [f"{text} = sizes[{name!r}]" for name, text in texts.items()]
    for number, guard in enumerate(guards):
        left, right = write(guard.left), write(guard.right)
        write.lines.append(f"if {left} {'<' if guard.at_least else '!='} {right}: return {number}")
    return write.define("check", "sizes", "-1")


def _of(dim: Dim) -> frozenset[Symbol]:
    return dims.symbols(dim)
