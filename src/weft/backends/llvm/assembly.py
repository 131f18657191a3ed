"""LLVM assembly as text: types, values, functions and modules.

The names are those of `llvmlite.ir`, of which this is the part that kernels need. Instructions are kept as lines of
text (builder.py), because kernels have tens of thousands of them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

_UNLIKELY_WEIGHTS = '!0 = !{!"branch_weights", i32 1, i32 99}'  # see IRBuilder.if_then

# -- types -----------------------------------------------------------------------------------------------------------


class Type:
    """A type, identified by its text; calling it with a number returns a constant."""

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
    """An integer type. It caches constants, since index arithmetic uses the same few over and over."""

    __slots__ = ("constants", "width")
    MOST_CACHED = 4096

    def __init__(self, width: int) -> None:
        self.width = width
        self.text = f"i{width}"
        self.constants: dict[int, Constant] = {}

    def __call__(self, number: Any) -> Constant:
        constant = self.constants.get(number)
        if constant is None:
            constant = Constant(self, number)
            if len(self.constants) < self.MOST_CACHED:
                self.constants[number] = constant
        return constant


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
    """A pointer, in an address space."""

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
    """A typed operand of instructions."""

    __slots__ = ("name", "type")

    def __init__(self, type: Type, name: str) -> None:
        self.type, self.name = type, name

    @property
    def lanes(self) -> int:
        """The number of elements of a vector."""
        assert isinstance(self.type, VectorType)
        return self.type.count

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
    """Format a float exactly, in hexadecimal; LLVM takes floats as the double of the same value."""
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
    """A phi node."""

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
    """A module of functions and global variables."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.globals: dict[str, Function | GlobalVariable | SharedMemory] = {}

    def __str__(self) -> str:
        parts = [part.definition() for part in self.globals.values()]
        return "\n".join((*parts, _UNLIKELY_WEIGHTS, ""))


class GlobalVariable(NamedValue):
    """A table of constants, internal to its module."""

    __slots__ = ("initializer", "value_type")

    def __init__(self, module: Module, type: Type, name: str, initializer: Constant) -> None:
        super().__init__(PointerType(), f'@"{name}"')
        self.value_type, self.initializer = type, initializer
        module.globals[name] = self

    def definition(self) -> str:
        return f"{self.name} = internal constant {self.initializer}"


class SharedMemory(NamedValue):
    """Shared memory of a thread block: static in the module, or dynamic if it is larger than a module may declare."""

    __slots__ = ("alignment", "offsets", "size")
    ALIGNMENT = 16
    MOST_STATIC = 48 * 1024

    def __init__(self, module: Module, space: int, name: str) -> None:
        super().__init__(PointerType(space), f'@"{name}"')
        self.size, self.alignment = 0, self.ALIGNMENT
        self.offsets: dict[str, int] = {}
        module.globals[name] = self

    def reserve(self, name: str, size: int, alignment: int = ALIGNMENT) -> int:
        """Return the offset of a named range, which is reserved on the first call."""
        if name not in self.offsets:
            self.alignment = max(self.alignment, alignment)
            self.offsets[name] = -(-self.size // alignment) * alignment
            self.size = self.offsets[name] + size
        return self.offsets[name]

    @property
    def dynamic_size(self) -> int:
        """The bytes of dynamic shared memory that launches must request."""
        return self.size if self.size > self.MOST_STATIC else 0

    def definition(self) -> str:
        space = self.type.text.removeprefix("ptr ")
        if self.dynamic_size:
            return f"{self.name} = external {space} global [0 x i8], align {self.alignment}"
        return f"{self.name} = internal {space} global [{self.size} x i8] undef, align {self.alignment}"


class Block:
    __slots__ = ("function", "lines", "name")

    def __init__(self, function: Function, name: str) -> None:
        self.function, self.name = function, name
        self.lines: list[str | Phi] = []


class Function(NamedValue):
    """A function; without blocks it is a declaration."""

    __slots__ = ("args", "attributes", "blocks", "convention", "linkage", "module", "signature", "used")

    def __init__(self, module: Module, signature: FunctionType, name: str) -> None:
        super().__init__(PointerType(), f'@"{name}"')
        self.module, self.signature = module, signature
        self.args = tuple(Argument(kind, f"%a{number}") for number, kind in enumerate(signature.arguments))
        self.attributes: set[str] = set()
        self.linkage = self.convention = ""
        self.blocks: list[Block] = []
        self.used = 0  # numbers used in names
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
