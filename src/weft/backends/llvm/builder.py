"""The builder of LLVM instructions: each is appended to its block as a line of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from weft.backends.llvm.assembly import (
    Block,
    Constant,
    Function,
    FunctionType,
    IntType,
    LiteralStructType,
    Module,
    NamedValue,
    Phi,
    PointerType,
    Type,
    VectorType,
    VoidType,
)


def _typed(values: Sequence[NamedValue]) -> str:
    return ", ".join([f"{value.type.text} {value.name}" for value in values])


_BIT = IntType(1)
_ORDERS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


def _binary(operation: str) -> Callable[[IRBuilder, NamedValue, NamedValue], NamedValue]:
    def append(self: IRBuilder, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._value(a.type, f"{operation} {a.type.text} {a.name}, {b.name}")

    return append


def _conversion(operation: str) -> Callable[[IRBuilder, NamedValue, Type], NamedValue]:
    def append(self: IRBuilder, value: NamedValue, kind: Type) -> NamedValue:
        return self._value(kind, f"{operation} {value.type.text} {value.name} to {kind.text}")

    return append


class IRBuilder:
    """Appends instructions to a block."""

    def __init__(self, block: Block) -> None:
        self.block = block

    @property
    def function(self) -> Function:
        return self.block.function

    @property
    def module(self) -> Module:
        return self.block.function.module

    def position_at_end(self, block: Block) -> None:
        self.block = block

    def append_basic_block(self, name: str = "block") -> Block:
        return self.block.function.append_basic_block(name)

    def _value(self, kind: Type, text: str) -> NamedValue:
        block = self.block
        block.function.used = number = block.function.used + 1
        name = f"%v{number}"
        block.lines.append(f"{name} = {text}")
        return NamedValue(kind, name)

    def add(self, a: NamedValue, b: NamedValue, flags: Sequence[str] = ()) -> NamedValue:
        operation = " ".join(("add", *flags)) if flags else "add"
        return self._value(a.type, f"{operation} {a.type.text} {a.name}, {b.name}")

    sub = _binary("sub")
    mul = _binary("mul")
    sdiv = _binary("sdiv")
    udiv = _binary("udiv")
    srem = _binary("srem")
    urem = _binary("urem")
    and_ = _binary("and")
    or_ = _binary("or")
    xor = _binary("xor")
    shl = _binary("shl")
    lshr = _binary("lshr")
    ashr = _binary("ashr")
    fadd = _binary("fadd")
    fsub = _binary("fsub")
    fmul = _binary("fmul")
    fdiv = _binary("fdiv")
    frem = _binary("frem")

    def fneg(self, a: NamedValue) -> NamedValue:
        return self._value(a.type, f"fneg {a}")

    def neg(self, a: NamedValue) -> NamedValue:
        return self.sub(Constant(a.type, None), a)

    def not_(self, a: NamedValue) -> NamedValue:
        ones = [-1] * a.type.count if isinstance(a.type, VectorType) else -1
        return self.xor(a, Constant(a.type, ones))

    def icmp_signed(self, order: str, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._compare(f"icmp {_ORDERS[order] if order in ('==', '!=') else 's' + _ORDERS[order]}", a, b)

    def icmp_unsigned(self, order: str, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._compare(f"icmp {_ORDERS[order] if order in ('==', '!=') else 'u' + _ORDERS[order]}", a, b)

    def fcmp_ordered(self, order: str, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._compare(f"fcmp {'o' + _ORDERS[order] if order in _ORDERS else order}", a, b)

    def fcmp_unordered(self, order: str, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._compare(f"fcmp {'u' + _ORDERS[order] if order in _ORDERS else order}", a, b)

    def _compare(self, operation: str, a: NamedValue, b: NamedValue) -> NamedValue:
        kind = VectorType(_BIT, a.type.count) if isinstance(a.type, VectorType) else _BIT
        return self._value(kind, f"{operation} {a.type.text} {a.name}, {b.name}")

    def select(self, condition: NamedValue, yes: NamedValue, no: NamedValue) -> NamedValue:
        return self._value(yes.type, f"select {condition}, {yes}, {no}")

    trunc = _conversion("trunc")
    zext = _conversion("zext")
    sext = _conversion("sext")
    fptrunc = _conversion("fptrunc")
    fpext = _conversion("fpext")
    fptosi = _conversion("fptosi")
    fptoui = _conversion("fptoui")
    sitofp = _conversion("sitofp")
    uitofp = _conversion("uitofp")
    ptrtoint = _conversion("ptrtoint")
    _bitcast = _conversion("bitcast")

    def bitcast(self, value: NamedValue, kind: Type) -> NamedValue:
        return value if value.type == kind else self._bitcast(value, kind)

    def bfloat16_bits(self, _: NamedValue, /) -> NamedValue | None:
        """Round a float to bfloat16, as 16 bits; None if there is no instruction for it."""
        return None

    # -- vectors and structures --------------------------------------------------------------------------------------

    def insert_element(self, vector: NamedValue, element: NamedValue, index: NamedValue) -> NamedValue:
        return self._value(vector.type, f"insertelement {vector}, {element}, {index}")

    def extract_element(self, vector: NamedValue, index: NamedValue) -> NamedValue:
        assert isinstance(vector.type, VectorType)
        return self._value(vector.type.element, f"extractelement {vector}, {index}")

    def shuffle_vector(self, a: NamedValue, b: NamedValue, mask: NamedValue) -> NamedValue:
        assert isinstance(a.type, VectorType)
        assert isinstance(mask.type, VectorType)
        return self._value(VectorType(a.type.element, mask.type.count), f"shufflevector {a}, {b}, {mask}")

    def insert_value(self, structure: NamedValue, element: NamedValue, index: int) -> NamedValue:
        return self._value(structure.type, f"insertvalue {structure}, {element}, {index}")

    def extract_value(self, structure: NamedValue, index: int) -> NamedValue:
        assert isinstance(structure.type, LiteralStructType)
        return self._value(structure.type.elements[index], f"extractvalue {structure}, {index}")

    # -- memory ------------------------------------------------------------------------------------------------------

    def alloca(self, kind: Type, align: int) -> NamedValue:
        return self._value(PointerType(), f"alloca {kind.text}, align {align}")

    def load(self, address: NamedValue, typ: Type, align: int | None = None) -> NamedValue:
        aligned = "" if align is None else f", align {align}"
        return self._value(typ, f"load {typ.text}, {address.type.text} {address.name}{aligned}")

    def store(self, value: NamedValue, address: NamedValue, align: int | None = None) -> None:
        aligned = "" if align is None else f", align {align}"
        self.block.lines.append(f"store {value.type.text} {value.name}, {address.type.text} {address.name}{aligned}")

    def gep(self, base: NamedValue, indices: Sequence[NamedValue], source_etype: Type) -> NamedValue:
        """Compute an address, or a vector of addresses from a vector of indices."""
        counts = [index.type.count for index in indices if isinstance(index.type, VectorType)]
        kind = VectorType(base.type, counts[0]) if counts else base.type
        operands = _typed(indices)
        return self._value(kind, f"getelementptr {source_etype.text}, {base.type.text} {base.name}, {operands}")

    # -- calls -------------------------------------------------------------------------------------------------------

    def call(self, function: Function, values: Sequence[NamedValue], fastmath: Sequence[str] = ()) -> NamedValue:
        result = function.signature.result
        flags = "".join([f"{flag} " for flag in fastmath])
        text = f"call {flags}{result.text} {function.name}({_typed(values)})"
        if isinstance(result, VoidType):
            self.block.lines.append(text)
            return NamedValue(result, "")
        return self._value(result, text)

    def asm(
        self,
        signature: FunctionType,
        text: str,
        constraints: str,
        values: Sequence[NamedValue],
        effects: bool = False,
    ) -> NamedValue:
        """Append inline assembly; with `effects` it is neither moved nor removed."""
        operands = ", ".join(map(str, values))
        kind = "asm sideeffect" if effects else "asm"
        line = f'call {signature.result.text} {kind} "{text}", "{constraints}"({operands})'
        if isinstance(signature.result, VoidType):
            self.block.lines.append(line)
            return NamedValue(signature.result, "")
        return self._value(signature.result, line)

    # -- control -----------------------------------------------------------------------------------------------------

    def phi(self, kind: Type, name: str = "phi") -> Phi:
        function = self.block.function
        function.used += 1
        phi = Phi(kind, f"%{name}.{function.used}")
        self.block.lines.append(phi)
        return phi

    def branch(self, block: Block) -> None:
        self.block.lines.append(f"br label %{block.name}")

    def cbranch(self, condition: NamedValue, yes: Block, no: Block) -> None:
        self.block.lines.append(f"br {condition}, label %{yes.name}, label %{no.name}")

    def ret(self, value: NamedValue) -> None:
        self.block.lines.append(f"ret {value}")

    def ret_void(self) -> None:
        self.block.lines.append("ret void")

    @contextmanager
    def if_then(self, condition: NamedValue, unlikely: bool = False) -> Iterator[None]:
        """Run the instructions appended in the `with` block if the condition holds."""
        inside, after = self.append_basic_block("then"), self.append_basic_block("after")
        self.cbranch(condition, inside, after)
        if unlikely:
            self.block.lines[-1] = f"{self.block.lines[-1]}, !prof !0"
        self.position_at_end(inside)
        yield
        self.branch(after)
        self.position_at_end(after)
