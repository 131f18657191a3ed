"""Terms whose operations build WGSL text, and functions made of them."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

from weft.backends.numerics import terms
from weft.backends.numerics.terms import Operand
from weft.backends.webgpu import helpers
from weft.records import dataclass

_ATOM, _UNARY, _PRODUCT, _SUM, _OTHER = range(5)  # how tightly the outermost operator of a text binds
_ARITHMETIC = {"add": ("+", _SUM), "subtract": ("-", _SUM), "multiply": ("*", _PRODUCT), "divide": ("/", _PRODUCT)}
_BITWISE = {"and": "&", "or": "|", "xor": "^", "shift_left": "<<", "shift_right": ">>", "logical_shift_right": ">>"}
_COMPARISONS = frozenset(("<", "<=", ">", ">=", "=="))
_BUILTINS = {"fma": "fma", "absolute": "abs", "square_root": "sqrt", "truncate": "trunc"}


@dataclass(frozen=True, slots=True, eq=False)
class Term(terms.Term):
    """An expression of a kind (bool, u32, u64, f32, f64); `names` has the `let` declarations of its function."""

    names: dict[str, str]
    kind: str
    text: str
    rank: int = _ATOM

    @property
    def bits(self) -> int:
        return int(self.kind[1:])

    def constant(self, number: int | float) -> Term:
        return self.make(self.kind, *_literal(number, self.kind))

    def let(self, name: str, /) -> Term:
        unique = name
        while unique in self.names:
            unique += "_"
        self.names[unique] = self.text
        return self.make(self.kind, unique)

    def apply(self, operation: str, *operands: Operand) -> Term:
        if operation == "select":
            sample = next(operand for operand in operands if isinstance(operand, Term))
            yes, no = (sample._operand(operand) for operand in operands)
            return self.make(sample.kind, f"select({no.text}, {yes.text}, {self.text})")
        if "shift" in operation:
            (count,) = operands
            return self.make(self.kind, f"{self._below(_PRODUCT)} {_BITWISE[operation]} {count}u", _OTHER)
        others = [self._operand(operand) for operand in operands]
        if operation in _ARITHMETIC:
            symbol, rank = _ARITHMETIC[operation]
            return self.make(self.kind, f"{self._below(rank + 1)} {symbol} {others[0]._below(rank)}", rank)
        if operation in _BITWISE:
            text = f"{self._below(_PRODUCT)} {_BITWISE[operation]} {others[0]._below(_PRODUCT)}"
            return self.make(self.kind, text, _OTHER)
        if operation in _COMPARISONS:
            return self.make("bool", f"{self._below(_OTHER)} {operation} {others[0]._below(_OTHER)}", _OTHER)
        match operation:
            case "negate":
                return self.make(self.kind, f"-{self._below(_UNARY)}", _UNARY)
            case "not":
                return self.make(self.kind, f"{'!' if self.kind == 'bool' else '~'}{self._below(_UNARY)}", _UNARY)
            case "as_integer":
                return self.make(f"u{self.bits}", f"bitcast<u{self.bits}>({self.text})")
            case "as_float":
                return self.make(f"f{self.bits}", f"bitcast<f{self.bits}>({self.text})")
            case "to_float":
                return self.make(f"f{self.bits}", f"f{self.bits}({self.text})")
            case "to_integer":
                return self.make("u32", f"u32({self.text})")
            case "widen":
                return self.make("f64", f"f64({self.text})")
            case "narrow":
                return self.make("f32", f"f32({self.text})")
            case "differs":  # naga's own != is false for NaN
                return (self < others[0]) | (self > others[0])
            case "is_nan":  # by its bits, since compilers may assume that there is no NaN
                return (self.as_integer() & self._sign - 1) > (1 << self.bits - 1) - (1 << self.fraction)
            case "is_odd":
                return self.make("bool", f"({(self & 1).text}) != 0u", _OTHER)
            case "is_negative":
                return self.as_integer() > self._sign - 1
            case "nearest_multiple":
                (unit,) = operands
                assert isinstance(unit, float)
                return self.make(f"u{self.bits}", f"u{self.bits}(round({(self * (1 / unit)).text}))")
            case "with_sign":
                return self.call("with_sign", *others)
        arguments = ", ".join(term.text for term in (self, *others))
        return self.make(self.kind, f"{_BUILTINS[operation]}({arguments})")

    def call(self, function: str, *arguments: Term) -> Term:
        """Call a helper function of this kind with this term and others."""
        texts = ", ".join(term.text for term in (self, *arguments))
        return self.make(self.kind, f"weft_{function}_{self.kind}({texts})")

    def make(self, kind: str, text: str, rank: int = _ATOM) -> Term:
        """Create another term of the same function."""
        return Term(self.names, kind, text, rank)

    @property
    def _sign(self) -> int:
        return 1 << self.bits - 1

    def _operand(self, operand: Operand) -> Term:
        if isinstance(operand, terms.Term):
            assert isinstance(operand, Term)
            return operand
        return self.constant(operand)

    def _below(self, rank: int) -> str:
        """Return the text, in parentheses unless it binds more tightly than operators of a rank."""
        return self.text if self.rank < rank else f"({self.text})"


def _literal(value: int | float, kind: str) -> tuple[str, int]:
    """Return a constant's text and how tightly it binds; floats are abstract literals."""
    if kind[0] == "u":
        suffix = "u" if kind == "u32" else "lu"
        return (f"{value:#x}{suffix}" if value > 0xFFFF else f"{value}{suffix}"), _ATOM
    if math.isfinite(value):
        return helpers.number(value), _UNARY if value < 0 else _ATOM
    form = {"f32": ("<f", "<I"), "f64": ("<d", "<Q")}[kind]
    (bits,) = struct.unpack(form[1], struct.pack(form[0], value))
    return f"weft_make_{kind}({_literal(bits, f'u{kind[1:]}')[0]})", _ATOM


def define_function(name: str, parameters: Mapping[str, str], result: str, body: Callable[..., Any]) -> str:
    """Write a function with a body of terms; parameters are kinds by name."""
    names = dict.fromkeys(parameters, "")
    value: Term = body(*(Term(names, kind, name) for name, kind in parameters.items()))
    lets = [f"    let {local} = {text};\n" for local, text in names.items() if local not in parameters]
    signature = ", ".join(f"{parameter}: {kind}" for parameter, kind in parameters.items())
    return f"\nfn weft_{name}({signature}) -> {result} {{\n{''.join(lets)}    return {value.text};\n}}\n"
