"""LLVM assembly: types, values, and a builder that writes each instruction down as a line of text.

The names are those of `llvmlite.ir`, of which this is the part that kernels need. Kernels have tens of thousands of
instructions, and a line is all that becomes of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

# -- types -----------------------------------------------------------------------------------------------------------


class Type:
    """A type is its text. Calling one with a number gives a constant."""

    __slots__ = ("text",)
    text: str

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Type) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __call__(self, number: Any) -> Constant:
        return Constant(self, number)


class IntType(Type):
    """Constants of one are made once: index arithmetic asks for the same few again and again."""

    __slots__ = ("constants", "width")
    MOST = 4096  # constants that are kept

    def __init__(self, width: int) -> None:
        self.width = width
        self.text = f"i{width}"
        self.constants: dict[int, Constant] = {}

    def __call__(self, number: Any) -> Constant:
        found = self.constants.get(number)
        if found is None:
            found = Constant(self, number)
            if len(self.constants) < self.MOST:
                self.constants[number] = found
        return found


class _Named(Type):
    __slots__ = ()
    NAME = ""

    def __init__(self) -> None:
        self.text = self.NAME


class HalfType(_Named):
    __slots__ = ()
    NAME = "half"


class BFloatType(_Named):
    __slots__ = ()
    NAME = "bfloat"


class FloatType(_Named):
    __slots__ = ()
    NAME = "float"


class DoubleType(_Named):
    __slots__ = ()
    NAME = "double"


class VoidType(_Named):
    __slots__ = ()
    NAME = "void"


class PointerType(Type):
    """An address, in one of the spaces that GPUs have several of."""

    __slots__ = ()

    def __init__(self, space: int = 0) -> None:
        self.text = f"ptr addrspace({space})" if space else "ptr"


class VectorType(Type):
    __slots__ = ("count", "element")

    def __init__(self, element: Type, count: int) -> None:
        self.element, self.count = element, count
        self.text = f"<{count} x {element.text}>"


class ArrayType(Type):
    __slots__ = ("count", "element")

    def __init__(self, element: Type, count: int) -> None:
        self.element, self.count = element, count
        self.text = f"[{count} x {element.text}]"


class LiteralStructType(Type):
    __slots__ = ("elements",)

    def __init__(self, elements: Sequence[Type]) -> None:
        self.elements = tuple(elements)
        self.text = f"{{ {', '.join(element.text for element in elements)} }}"


class FunctionType:
    __slots__ = ("arguments", "result")

    def __init__(self, result: Type, arguments: Sequence[Type]) -> None:
        self.result, self.arguments = result, tuple(arguments)


# -- values ----------------------------------------------------------------------------------------------------------


class NamedValue:
    """Something with a type and a name that instructions can use."""

    __slots__ = ("name", "type")

    def __init__(self, type: Type, name: str) -> None:
        self.type, self.name = type, name

    def __str__(self) -> str:
        return f"{self.type.text} {self.name}"


class _Undefined:
    pass


Undefined = _Undefined()


class Constant(NamedValue):
    """A number, a list of them for a vector or an array, None for zero, or `Undefined`."""

    __slots__ = ("constant",)

    def __init__(self, type: Type, constant: Any) -> None:
        self.type, self.constant = type, constant
        self.name = _constant_text(type, constant)


def _constant_text(kind: Type, constant: Any) -> str:
    if constant is None:
        return "zeroinitializer" if isinstance(kind, (VectorType, ArrayType, LiteralStructType)) else _zero(kind)
    if constant is Undefined:
        return "undef"
    if isinstance(kind, VectorType):
        first = constant[0]
        if constant.count(first) == len(constant):
            return f"splat ({kind.element.text} {_number_text(kind.element, first)})"
        return f"<{_list_text(kind.element, constant)}>"
    if isinstance(kind, ArrayType):
        return f"[{_list_text(kind.element, constant)}]"
    return _number_text(kind, constant)


def _list_text(element: Type, numbers: Sequence[Any]) -> str:
    return ", ".join(f"{element.text} {_number_text(element, number)}" for number in numbers)


def _zero(kind: Type) -> str:
    return "null" if isinstance(kind, PointerType) else _number_text(kind, 0)


def _number_text(kind: Type, number: Any) -> str:
    if isinstance(kind, IntType):
        return str(int(number)) if kind.width > 1 else "true" if number else "false"
    return _float_text(kind.text, struct.pack("<d", float(number)))


@cache
def _float_text(kind: str, double: bytes) -> str:
    """In hexadecimal, exactly; narrower types are given as the double of the same value."""
    (number,) = struct.unpack("<d", double)
    if kind == HalfType.NAME:
        return f"0xH{struct.unpack('<H', struct.pack('<e', number))[0]:04X}"
    if kind == FloatType.NAME:
        number = _as_single(number)
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


def _as_single(number: float) -> float:
    try:
        (single,) = struct.unpack("<f", struct.pack("<f", number))
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")
    return float(single)


class Phi(NamedValue):
    """A value that depends on the block that control came from."""

    __slots__ = ("incoming",)

    def __init__(self, type: Type, name: str) -> None:
        super().__init__(type, name)
        self.incoming: list[tuple[NamedValue, Block]] = []

    def add_incoming(self, value: NamedValue, block: Block) -> None:
        self.incoming.append((value, block))

    def line(self) -> str:
        pairs = ", ".join(f"[ {value.name}, %{block.name} ]" for value, block in self.incoming)
        return f"{self.name} = phi {self.type.text} {pairs}"


class Argument(NamedValue):
    __slots__ = ("attributes",)

    def __init__(self, type: Type, name: str) -> None:
        super().__init__(type, name)
        self.attributes: list[str] = []

    def add_attribute(self, attribute: str) -> None:
        self.attributes.append(attribute)


# -- modules ---------------------------------------------------------------------------------------------------------


class Module:
    """Functions and tables by name."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.globals: dict[str, Function | GlobalVariable | SharedMemory] = {}

    def __str__(self) -> str:
        parts = [part.definition() for part in self.globals.values()]
        return "\n".join((*parts, _UNLIKELY_WEIGHTS, ""))


class GlobalVariable(NamedValue):
    """A table of constants that only its module sees."""

    __slots__ = ("initializer", "value_type")

    def __init__(self, module: Module, type: Type, name: str, initializer: Constant) -> None:
        super().__init__(PointerType(), f'@"{name}"')
        self.value_type, self.initializer = type, initializer
        module.globals[name] = self

    def definition(self) -> str:
        return f"{self.name} = internal constant {self.initializer}"


class SharedMemory(NamedValue):
    """Bytes that the threads of a block share; more than a module may have are brought by the launch."""

    __slots__ = ("alignment", "places", "size")
    ALIGNMENT = 16
    MOST = 48 * 1024  # that a module may have

    def __init__(self, module: Module, space: int, name: str) -> None:
        super().__init__(PointerType(space), f'@"{name}"')
        self.size, self.alignment = 0, self.ALIGNMENT
        self.places: dict[str, int] = {}
        module.globals[name] = self

    def reserve(self, name: str, size: int, alignment: int = ALIGNMENT) -> int:
        """Where the bytes of a name begin; so many are reserved when it is first heard of."""
        if name not in self.places:
            self.alignment = max(self.alignment, alignment)
            self.places[name] = -(-self.size // alignment) * alignment
            self.size = self.places[name] + size
        return self.places[name]

    @property
    def launched_size(self) -> int:
        """The bytes that a launch has to bring."""
        return self.size if self.size > self.MOST else 0

    def definition(self) -> str:
        space = self.type.text.removeprefix("ptr ")
        if self.launched_size:
            return f"{self.name} = external {space} global [0 x i8], align {self.alignment}"
        return f"{self.name} = internal {space} global [{self.size} x i8] undef, align {self.alignment}"


class Block:
    __slots__ = ("function", "lines", "name")

    def __init__(self, function: Function, name: str) -> None:
        self.function, self.name = function, name
        self.lines: list[str | Phi] = []


class Function(NamedValue):
    """One without blocks is a declaration."""

    __slots__ = ("args", "attributes", "blocks", "convention", "linkage", "module", "signature", "used")

    def __init__(self, module: Module, signature: FunctionType, name: str) -> None:
        super().__init__(PointerType(), f'@"{name}"')
        self.module, self.signature = module, signature
        self.args = tuple(Argument(kind, f"%a{number}") for number, kind in enumerate(signature.arguments))
        self.attributes: set[str] = set()
        self.linkage = self.convention = ""
        self.blocks: list[Block] = []
        self.used = 0  # names
        module.globals[name] = self

    def append_basic_block(self, name: str = "block") -> Block:
        self.used += 1
        block = Block(self, f"{name}.{self.used}")
        self.blocks.append(block)
        return block

    def definition(self) -> str:
        arguments = ", ".join(" ".join((a.type.text, *a.attributes)) for a in self.args)
        result = self.signature.result.text
        if not self.blocks:
            return f"declare {result} {self.name}({arguments})"
        arguments = ", ".join(" ".join((a.type.text, *a.attributes, a.name)) for a in self.args)
        words = (
            "define",
            self.linkage,
            self.convention,
            result,
            f"{self.name}({arguments})",
            *sorted(self.attributes),
            "{",
        )
        lines = [" ".join(filter(None, words))]
        for block in self.blocks:
            lines.append(f"{block.name}:")
            lines.extend([line if isinstance(line, str) else line.line() for line in block.lines])
        return "\n".join((*lines, "}"))


# -- instructions ----------------------------------------------------------------------------------------------------


def _typed(values: Sequence[NamedValue]) -> str:
    return ", ".join([f"{value.type.text} {value.name}" for value in values])


_UNLIKELY_WEIGHTS = '!0 = !{!"branch_weights", i32 1, i32 99}'
_ORDERS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


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

    def _binary(self, operation: str, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._value(a.type, f"{operation} {a.type.text} {a.name}, {b.name}")

    def add(self, a: NamedValue, b: NamedValue, flags: Sequence[str] = ()) -> NamedValue:
        return self._binary(" ".join(("add", *flags)) if flags else "add", a, b)

    def sub(self, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._binary("sub", a, b)

    def mul(self, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._binary("mul", a, b)

    def sdiv(self, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._binary("sdiv", a, b)

    def udiv(self, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._binary("udiv", a, b)

    def srem(self, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._binary("srem", a, b)

    def urem(self, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._binary("urem", a, b)

    def and_(self, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._binary("and", a, b)

    def or_(self, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._binary("or", a, b)

    def xor(self, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._binary("xor", a, b)

    def shl(self, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._binary("shl", a, b)

    def lshr(self, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._binary("lshr", a, b)

    def ashr(self, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._binary("ashr", a, b)

    def fadd(self, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._binary("fadd", a, b)

    def fsub(self, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._binary("fsub", a, b)

    def fmul(self, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._binary("fmul", a, b)

    def fdiv(self, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._binary("fdiv", a, b)

    def frem(self, a: NamedValue, b: NamedValue) -> NamedValue:
        return self._binary("frem", a, b)

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

    def _convert(self, operation: str, value: NamedValue, kind: Type) -> NamedValue:
        return self._value(kind, f"{operation} {value.type.text} {value.name} to {kind.text}")

    def trunc(self, value: NamedValue, kind: Type) -> NamedValue:
        return self._convert("trunc", value, kind)

    def zext(self, value: NamedValue, kind: Type) -> NamedValue:
        return self._convert("zext", value, kind)

    def sext(self, value: NamedValue, kind: Type) -> NamedValue:
        return self._convert("sext", value, kind)

    def fptrunc(self, value: NamedValue, kind: Type) -> NamedValue:
        return self._convert("fptrunc", value, kind)

    def fpext(self, value: NamedValue, kind: Type) -> NamedValue:
        return self._convert("fpext", value, kind)

    def fptosi(self, value: NamedValue, kind: Type) -> NamedValue:
        return self._convert("fptosi", value, kind)

    def fptoui(self, value: NamedValue, kind: Type) -> NamedValue:
        return self._convert("fptoui", value, kind)

    def sitofp(self, value: NamedValue, kind: Type) -> NamedValue:
        return self._convert("sitofp", value, kind)

    def uitofp(self, value: NamedValue, kind: Type) -> NamedValue:
        return self._convert("uitofp", value, kind)

    def ptrtoint(self, value: NamedValue, kind: Type) -> NamedValue:
        return self._convert("ptrtoint", value, kind)

    def bitcast(self, value: NamedValue, kind: Type) -> NamedValue:
        return value if value.type == kind else self._convert("bitcast", value, kind)

    def bfloat16_bits(self, _: NamedValue, /) -> NamedValue | None:
        """A float rounded to bfloat16, as 16 bits, where there is an instruction for it."""
        return None

    # -- vectors and structures --------------------------------------------------------------------------------------

    def insert_element(self, whole: NamedValue, part: NamedValue, index: NamedValue) -> NamedValue:
        return self._value(whole.type, f"insertelement {whole}, {part}, {index}")

    def extract_element(self, whole: NamedValue, index: NamedValue) -> NamedValue:
        assert isinstance(whole.type, VectorType)
        return self._value(whole.type.element, f"extractelement {whole}, {index}")

    def shuffle_vector(self, a: NamedValue, b: NamedValue, mask: NamedValue) -> NamedValue:
        assert isinstance(a.type, VectorType)
        assert isinstance(mask.type, VectorType)
        return self._value(VectorType(a.type.element, mask.type.count), f"shufflevector {a}, {b}, {mask}")

    def insert_value(self, whole: NamedValue, part: NamedValue, index: int) -> NamedValue:
        return self._value(whole.type, f"insertvalue {whole}, {part}, {index}")

    def extract_value(self, whole: NamedValue, index: int) -> NamedValue:
        assert isinstance(whole.type, LiteralStructType)
        return self._value(whole.type.elements[index], f"extractvalue {whole}, {index}")

    # -- memory ------------------------------------------------------------------------------------------------------

    def alloca(self, kind: Type, align: int) -> NamedValue:
        return self._value(PointerType(), f"alloca {kind.text}, align {align}")

    def load(self, address: NamedValue, typ: Type, align: int | None = None) -> NamedValue:
        aligned = "" if align is None else f", align {align}"
        return self._value(typ, f"load {typ.text}, {address.type.text} {address.name}{aligned}")

    def store(self, value: NamedValue, address: NamedValue, align: int | None = None) -> None:
        aligned = "" if align is None else f", align {align}"
        place = f"{address.type.text} {address.name}{aligned}"
        self.block.lines.append(f"store {value.type.text} {value.name}, {place}")

    def gep(self, base: NamedValue, indices: Sequence[NamedValue], source_etype: Type) -> NamedValue:
        """An address; a vector of them where the index is one."""
        counts = [index.type.count for index in indices if isinstance(index.type, VectorType)]
        kind = VectorType(base.type, counts[0]) if counts else base.type
        places = _typed(indices)
        return self._value(kind, f"getelementptr {source_etype.text}, {base.type.text} {base.name}, {places}")

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
        """Assembly; one with effects stays where it is, and runs even if nobody uses its result."""
        given = ", ".join(map(str, values))
        kind = "asm sideeffect" if effects else "asm"
        line = f'call {signature.result.text} {kind} "{text}", "{constraints}"({given})'
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
        """What is written inside runs where the condition holds."""
        inside, after = self.append_basic_block("then"), self.append_basic_block("after")
        self.cbranch(condition, inside, after)
        if unlikely:
            self.block.lines[-1] = f"{self.block.lines[-1]}, !prof !0"
        self.position_at_end(inside)
        yield
        self.branch(after)
        self.position_at_end(after)


_BIT = IntType(1)
