"""Digest of the op definitions that are not weft's own, for the cache: compiled models depend on them.

The digest covers a function's code, defaults, captured variables and the globals that it names, recursively, down to
weft and to libraries, which enter by version. Where the behaviour of a function does not follow from these (`eval`,
objects without a readable state) there is no digest, and models are not cached.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path, PurePath
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np

from weft.opset.registry import REQUIRED, select_definitions

PACKAGE = Path(__file__).parent.parent
_INSIDE = f"{PACKAGE}{os.sep}"
MOST_VALUES = 50_000
OPAQUE_NAMES = frozenset(
    ("__import__", "compile", "environ", "eval", "exec", "getattr", "getenv", "globals", "import_module", "locals",
     "open", "vars")
)  # fmt: skip
"""Names by which code may reach values that its other names do not show."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice)
_NATIVE = (BuiltinFunctionType, MethodWrapperType, WrapperDescriptorType, GetSetDescriptorType, MemberDescriptorType)
_NOT_PART = frozenset(
    ("__annotations__", "__dataclass_fields__", "__dataclass_params__", "__dict__", "__doc__", "__match_args__",
     "__module__", "__weakref__", "__firstlineno__", "__static_attributes__", "_abc_impl")
)  # fmt: skip


class OpaqueError(Exception):
    """The behaviour of a definition does not follow from its code and captured values."""


def foreign_digest() -> str | None:
    """Digest all definitions outside of weft's own files; None if one of them has no digest."""
    foreign = select_definitions(lambda function: not _is_weft(function))
    roots = {str(getattr(definition.function, "__module__", "")).partition(".")[0] for definition in foreign}
    walk = _Walk(roots)
    try:
        for definition in foreign:
            walk.put(definition.domain, definition.name, str(definition.since), str(definition.inputs))
            walk.put(*(f"{attribute.name} {attribute.annotation}" for attribute in definition.attributes))
            walk.add(definition.function)
    except (OpaqueError, RecursionError):
        return None
    return walk.digest.hexdigest()


@functools.cache
def _library_folders() -> tuple[str, ...]:
    import sysconfig  # slow to import, and seldom needed

    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple({f"{os.path.realpath(sysconfig.get_paths()[name])}{os.sep}" for name in names})


def _is_weft(value: Any) -> bool:
    """Return whether a function or class is defined in weft's own files."""
    if isinstance(value, FunctionType):
        inside = value.__code__.co_filename.startswith(_INSIDE)
        return inside and all(_is_safe_capture(cell.cell_contents) for cell in value.__closure__ or ())
    return isinstance(value, type) and value.__module__.partition(".")[0] == PACKAGE.name


def _is_safe_capture(value: Any) -> bool:
    """Return whether a value in the closure of weft's own function is not user code."""
    if isinstance(value, (FunctionType, type)):
        return _is_weft(value) or value.__module__ == "builtins"
    return not callable(value) or isinstance(value, (np.ufunc, BuiltinFunctionType))


class _Walk:
    """Adds values to a digest, each once."""

    def __init__(self, roots: set[str]) -> None:
        """`roots` are the packages that definitions come from; these do not count as libraries."""
        self.digest = sha256()
        self._roots = roots
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []  # keeps the ids in `_numbers` unique

    def put(self, *parts: str | bytes) -> None:
        for part in parts:
            data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
            self.digest.update(len(data).to_bytes(8, "little") + data)

    def add(self, value: Any, names: frozenset[str] = frozenset()) -> None:
        """Add a value; `names` are the attributes that the code uses."""
        self.put(type(value).__name__)
        if value is REQUIRED:
            self.put("required")
        elif isinstance(value, _PLAIN):
            self.put(repr(value))
        elif isinstance(value, ModuleType):
            self._add_module(value, names)
        elif id(value) in self._numbers:
            self.put(str(self._numbers[id(value)]))
        else:
            self._numbers[id(value)] = len(self._numbers)
            self._alive.append(value)
            if len(self._numbers) > MOST_VALUES:
                raise OpaqueError("it depends on too many values")
            self._add_once(value, names)

    def _add_once(self, value: Any, names: frozenset[str]) -> None:
        match value:
            case FunctionType():
                self._add_function(value)
            case CodeType():
                self._add_code(value)
            case type():
                self._add_class(value)
            case MethodType():
                self._add_all((value.__func__, value.__self__))
            case functools.partial():
                self._add_all((value.func, value.args, value.keywords))
            case staticmethod() | classmethod():
                self.add(value.__func__)
            case property():
                self._add_all((value.fget, value.fset, value.fdel))
            case enum.Enum():
                self.put(type(value).__module__, type(value).__qualname__, value.name)
                self.add(type(value))
            case tuple() | list():
                self.put(str(len(value)))
                self._add_all(value)
            case Mapping():
                self.put(str(len(value)))
                for key, content in value.items():
                    self._add_all((key, content))
            case set() | frozenset():
                self._add_set(value)
            case np.ndarray() if value.dtype == object:
                self.put(str(value.shape))
                self._add_all(value.ravel().tolist())
            case np.ndarray() | np.generic():
                self.put(str(value.dtype), str(value.shape), np.ascontiguousarray(value).tobytes())
            case np.dtype() | np.ufunc() | PurePath() | logging.Logger():
                self.put(str(value))
            case re.Pattern():
                self.put(repr(value.pattern), str(value.flags))
            case _ if isinstance(value, _NATIVE):
                self.put(str(value.__qualname__), str(getattr(value, "__module__", "")))
                self.add(getattr(value, "__self__", None) if isinstance(value, BuiltinFunctionType) else None)
            case _ if hasattr(value, "__wrapped__"):
                self.add(value.__wrapped__)
            case _:
                self._add_instance(value, names)

    def _add_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.add(value)

    def _add_set(self, values: set[Any] | frozenset[Any]) -> None:
        """Add a set in an order that does not depend on memory addresses; only plain members have one."""
        if not all(isinstance(value, _PLAIN) for value in values):
            raise OpaqueError("a set of values without an order")
        self.put(str(len(values)), *sorted(f"{type(value).__name__} {value!r}" for value in values))

    def _add_function(self, function: FunctionType) -> None:
        self.put(function.__module__ or "", function.__qualname__)
        if _is_weft(function):
            return
        if self._is_library(function.__module__, function.__code__.co_filename):
            self._add_version(function.__module__)
            return
        self.add(function.__code__)
        self._add_all((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:  # not filled yet
                self.put("empty")
        names = frozenset(_names(function.__code__))
        for name in sorted(names):
            if name in function.__globals__:
                self.put(name)
                self.add(function.__globals__[name], names)
            elif name in OPAQUE_NAMES and hasattr(builtins, name):
                raise OpaqueError(f"{function.__qualname__} uses {name}")
        if names & {"environ", "getenv", "import_module"}:
            raise OpaqueError(f"{function.__qualname__} reads the environment or imports by name")
        for name in _imports(function.__code__):
            if name not in sys.modules:
                raise OpaqueError(f"{function.__qualname__} imports {name}")
            self.put(name)
            self.add(sys.modules[name], names)

    def _add_code(self, code: CodeType) -> None:
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self.put(str(counts), code.co_code, getattr(code, "co_exceptiontable", b""))
        self.put(str((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)))
        for constant in code.co_consts:
            if isinstance(constant, frozenset):
                self._add_set(constant)
            else:
                self.add(constant)

    def _add_class(self, kind: type) -> None:
        self.put(kind.__module__, kind.__qualname__)
        if _is_weft(kind) or kind.__module__ == "builtins":
            return
        if self._is_library(kind.__module__):
            self._add_version(kind.__module__)
            return
        self._add_all(kind.__bases__)
        for name, content in sorted(vars(kind).items()):
            if name not in _NOT_PART:
                self.put(name)
                self.add(content)

    def _add_module(self, module: ModuleType, names: frozenset[str]) -> None:
        """Add a library by its version, and the attributes of any other module that are used."""
        self.put(module.__name__)
        if module.__name__.partition(".")[0] == PACKAGE.name:
            return
        if self._is_library(module.__name__, getattr(module, "__file__", None)):
            self._add_version(module.__name__)
            return
        for name in sorted(names & set(vars(module))):
            self.put(name)
            self.add(vars(module)[name], names)

    def _add_instance(self, value: Any, names: frozenset[str]) -> None:
        kind = type(value)
        if self._is_library(kind.__module__):
            raise OpaqueError(f"a {kind.__qualname__} has no state that can be read")
        self.add(kind)
        state = dict(getattr(value, "__dict__", {}))
        for base in kind.__mro__:
            slots = vars(base).get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                with suppress(AttributeError):
                    state[slot] = object.__getattribute__(value, slot)
        for name, content in sorted(state.items()):
            self.put(name)
            self.add(content, names)

    def _is_library(self, module: str | None, file: str | None = None) -> bool:
        if module is None or module.partition(".")[0] in self._roots - {"__main__"}:
            return False
        if file is None:
            file = getattr(sys.modules.get(module), "__file__", None)
            if file is None:  # built into the interpreter, unless it is the program itself
                return module in sys.builtin_module_names or module == "builtins"
        return os.path.realpath(file).startswith(_library_folders())

    def _add_version(self, module: str) -> None:
        """Add what changes when a library is installed again."""
        root = sys.modules.get(module.partition(".")[0])
        self.put(sys.version, str(getattr(root, "__version__", "")))
        with suppress(OSError):
            status = Path(getattr(sys.modules.get(module), "__file__", None) or "/nowhere").stat()
            self.put(f"{status.st_size} {status.st_mtime_ns}")


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _names(code: CodeType) -> Iterator[str]:
    for part in _codes(code):
        yield from part.co_names


def _imports(code: CodeType) -> Iterator[str]:
    for part in _codes(code):
        for instruction in dis.get_instructions(part):
            if instruction.opname == "IMPORT_NAME":
                yield str(instruction.argval)
