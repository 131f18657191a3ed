"""Cache the results of kernel builders by their calls, so that known layers need neither builders nor a compiler.

A call is a builder with plain data as arguments. Its name is a digest of this data in which the symbols of a program
are numbered, so that programs with other names for their sizes find the same entry. An entry has launches of kernels
without bodies; the code of a kernel is an entry of its own, by the kernel's unique name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from enum import Enum
from functools import cache
from hashlib import sha256
from typing import Any, Protocol

from weft.cache.code import CodeCache
from weft.ir import dims
from weft.ir.atoms import Atom, Axis, Compound, Symbol
from weft.ir.dims import Dim, Expr
from weft.ir.dtypes import DType
from weft.ir.kernel import Buffer, Kernel
from weft.ir.work import Launch, Reference, Work, Workspace

_OPERATIONS = {"//": dims.floordiv, "%": dims.mod, "min": dims.minimum, "max": dims.maximum}


class UncacheableError(Exception):
    """A call or a launch that has no entry."""


class KernelSource(Protocol):
    """Where known kernels are: the results of builders and the code of kernels."""

    def result(self, name: str) -> bytes | None:
        """Return the result of a call by the call's name."""
        ...

    def code(self, kernel: str) -> bytes | None:
        """Return the code of a kernel by its unique name."""
        ...


class CachedKernels:
    """The kernels in a cache of code; `object_key` returns the key of a kernel's code."""

    def __init__(self, cache: CodeCache, object_key: Callable[[str], str]) -> None:
        self._cache = cache
        self._object_key = object_key

    def result(self, name: str) -> bytes | None:
        return self._cache.get(name)

    def code(self, kernel: str) -> bytes | None:
        return self._cache.get(self._object_key(kernel))

    def put_result(self, name: str, content: bytes) -> None:
        self._cache.put(name, content)

    def put_code(self, kernel: str, content: bytes) -> None:
        self._cache.put(self._object_key(kernel), content)


class LaunchCache(dict[Any, Any]):
    """The results of memoized calls: those of this compilation, and those that `sources` have.

    Keys are tuples of a builder and its arguments. `objects` has the code of the kernels of cached launches.
    """

    def __init__(self, sources: Sequence[KernelSource], identity: str) -> None:
        """`identity` names all that builders depend on besides their arguments."""
        super().__init__()
        self.objects: dict[str, bytes] = {}
        self._sources = sources
        self._identity = identity.encode()
        self._missing: list[tuple[str, tuple[Symbol, ...], Any]] = []
        self._names: dict[Any, tuple[str, tuple[Symbol, ...]]] = {}

    def __missing__(self, key: Any) -> Any:
        name, symbols = self._names[key] = self._name_call(key)
        for source in self._sources if name else ():
            content = source.result(name)
            result = None if content is None else self._read(content, symbols)
            if result is not None:
                super().__setitem__(key, result)
                return result
        raise KeyError(key)

    def __setitem__(self, key: Any, result: Any) -> None:
        super().__setitem__(key, result)
        name, symbols = self._names.pop(key, ("", ()))
        if name:
            self._missing.append((name, symbols, result))

    def built_results(self, kernels: Mapping[int, Kernel]) -> Iterator[tuple[str, bytes]]:
        """Yield the results that no source had by the names of their calls.

        `kernels` are those of the results under unique names, by the id of the original.
        """
        missing, self._missing = self._missing, []
        for name, symbols, result in missing:
            with suppress(UncacheableError):
                yield name, write_result(result, kernels, symbols)

    def _name_call(self, key: tuple[Any, ...]) -> tuple[str, tuple[Symbol, ...]]:
        """Return the name of a call's entry, and its symbols in order; "" if it has none."""
        encoder = _Encoder()
        try:
            text = encoder.encode(key)
        except UncacheableError:
            return "", ()
        return sha256(self._identity + text.encode()).hexdigest(), tuple(encoder.symbols)

    def _read(self, content: bytes, symbols: Sequence[Symbol]) -> Any:
        """Return the result of an entry; None if it is invalid or the code of a kernel is missing."""
        reader = ResultReader(symbols)
        try:
            result = reader.read(content)
        except (ValueError, TypeError, KeyError, IndexError):
            return None
        for name in reader.kernels:
            code = self.objects.get(name) or find_code(self._sources, name)
            if code is None:
                return None
            self.objects[name] = code
        return result


def find_code(sources: Sequence[KernelSource], kernel: str) -> bytes | None:
    """Return the code of a kernel from the first source that has it."""
    return next((code for source in sources if (code := source.code(kernel)) is not None), None)


# -- names of calls ---------------------------------------------------------------------------------------------------


class _Encoder:
    """Writes plain data as text; equal data gives equal text, whatever the names of its symbols are."""

    def __init__(self) -> None:
        self.symbols: dict[Symbol, int] = {}

    def encode(self, value: Any) -> str:
        kind: type = type(value)
        if kind is int or kind is str or kind is bool or kind is float or value is None:
            return repr(value)
        if kind is tuple or kind is list:
            return f"({','.join(map(self.encode, value))})"
        if kind is Expr:
            return "+".join([f"{coefficient}{self._monomial(atoms)}" for atoms, coefficient in value.terms])
        names = _field_names(kind)
        if names is not None:
            return f"{kind.__qualname__}({','.join([self.encode(getattr(value, name)) for name in names])})"
        if kind is dict:
            return f"{{{','.join([f'{self.encode(key)}:{self.encode(item)}' for key, item in value.items()])}}}"
        if kind is frozenset:
            return f"{{{','.join(sorted(map(self.encode, value)))}}}"
        if isinstance(value, Enum):
            return f"{kind.__qualname__}.{value.name}"
        if callable(value) and hasattr(value, "__qualname__") and "<" not in value.__qualname__:
            return f"{value.__module__}.{value.__qualname__}"
        raise UncacheableError(kind.__qualname__)

    def _monomial(self, atoms: Sequence[Atom]) -> str:
        return "".join(["*" + self._atom(atom) for atom in atoms])

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Symbol):
            number = self.symbols.setdefault(atom, len(self.symbols))
            return f"s{number}[{atom.low},{atom.high}]"
        if isinstance(atom, Axis):
            return f"a{atom.position}[{self.encode(atom.size)}]"
        return f"({self.encode(atom.left)}{atom.operation}{self.encode(atom.right)})"


@cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    """Return the names of a record's fields, without those that only emission reads; None for other classes."""
    if not hasattr(kind, "__dataclass_fields__"):
        return None
    return tuple(each.name for each in fields(kind) if each.compare)


# -- entries ----------------------------------------------------------------------------------------------------------


def write_result(result: Any, kernels: Mapping[int, Kernel], symbols: Sequence[Symbol]) -> bytes:
    """Write a launch, or works and tuples of launches; raise UncacheableError for anything else.

    `kernels` are those of the launches under unique names, by the id of the original; sizes are those of `symbols`.
    """
    writer = _ResultWriter(kernels, symbols)
    content = writer.write(result)
    return json.dumps([writer.lines, content]).encode()


class _ResultWriter:
    """Writes results as JSON. Sizes become lines that refer to earlier ones, each size once.

    A line is an int, or the terms of a sum: each a coefficient and factors. A factor is the number of a symbol, or an
    operation with the lines of its operands.
    """

    def __init__(self, kernels: Mapping[int, Kernel], symbols: Sequence[Symbol]) -> None:
        self.lines: list[Any] = []
        self._kernels = kernels
        self._numbers: dict[Dim, int] = {}
        self._symbols = {symbol: number for number, symbol in enumerate(symbols)}

    def write(self, result: Any) -> list[Any]:
        match result:
            case Launch():
                return ["launch", *self._write_launch(result)]
            case Workspace(dtype, size):
                return ["workspace", dtype.value, self._size(size)]
            case Work(launches, workspaces, (), overwritable, ()):
                return ["work", self.write(launches), self.write(workspaces), list(overwritable)]
            case tuple():
                return ["tuple", *map(self.write, result)]
        raise UncacheableError(type(result).__qualname__)

    def _write_launch(self, launch: Launch) -> list[Any]:
        kernel = self._kernels.get(id(launch.kernel))
        if kernel is None:  # a template discarded the launch
            raise UncacheableError(launch.kernel.name)
        if any(buffer.tile is not None for buffer in kernel.buffers):
            raise UncacheableError("tiles")
        buffers = [[each.name, each.dtype.value, each.written, each.local_size, each.late] for each in kernel.buffers]
        used = set(kernel.parameters)
        parameters = [[name, self._size(value)] for name, value in launch.parameters if name in used]
        references = [[name, reference.kind, reference.number] for name, reference in launch.buffers]
        return [kernel.name, kernel.lanes, buffers, self._size(launch.blocks), parameters, references]

    def _size(self, dim: Dim) -> int:
        """Return the number of a size's line."""
        if dim not in self._numbers:
            line = dim if isinstance(dim, int) else [[times, *map(self._factor, atoms)] for atoms, times in dim.terms]
            self._numbers[dim] = len(self.lines)
            self.lines.append(line)
        return self._numbers[dim]

    def _factor(self, atom: Atom) -> Any:
        if isinstance(atom, Compound):
            return [atom.operation, self._size(atom.left), self._size(atom.right)]
        if not isinstance(atom, Symbol) or atom not in self._symbols:
            raise UncacheableError(str(atom))
        return self._symbols[atom]


def list_kernels(content: bytes) -> set[str]:
    """Return the names of the kernels in what `write_result` wrote."""
    kernels: set[str] = set()
    pending = [json.loads(content)[1]]
    while pending:
        kind, *fields = pending.pop()
        if kind == "launch":
            kernels.add(fields[0])
        elif kind in ("work", "tuple"):
            pending += fields[:1] if kind == "work" else fields
    return kernels


class ResultReader:
    """Reads what `write_result` wrote; `kernels` are the names of the kernels, which have no bodies."""

    def __init__(self, symbols: Sequence[Symbol]) -> None:
        self.kernels: set[str] = set()
        self._symbols = symbols
        self._sizes: list[Dim] = []

    def read(self, content: bytes) -> Any:
        """Read a result; raise an error of some kind if the content is invalid."""
        lines, result = json.loads(content)
        for line in lines:
            self._sizes.append(line if isinstance(line, int) else self._sum(line))
        return self._read(result)

    def _sum(self, terms: Sequence[Any]) -> Dim:
        total: Dim = 0
        for times, *factors in terms:
            term: Dim = times
            for factor in factors:
                if isinstance(factor, int):
                    term = dims.from_atom(self._symbols[factor]) * term
                else:
                    operation, left, right = factor
                    term = _OPERATIONS[operation](self._sizes[left], self._sizes[right]) * term
            total = total + term
        return total

    def _read(self, content: Sequence[Any]) -> Any:
        kind, *fields = content
        match kind:
            case "launch":
                return self._read_launch(*fields)
            case "workspace":
                dtype, size = fields
                return Workspace(DType(dtype), self._sizes[size])
            case "work":
                launches, workspaces, overwritable = fields
                return Work(self._read(launches), self._read(workspaces), overwritable=tuple(overwritable))
            case "tuple":
                return tuple(map(self._read, fields))
        raise ValueError(kind)

    def _read_launch(
        self, name: str, lanes: int, buffers: Any, blocks: int, parameters: Any, references: Any
    ) -> Launch:
        self.kernels.add(name)
        kernel = Kernel(
            name,
            tuple(
                [Buffer(name, DType(kind), written, size, None, late) for name, kind, written, size, late in buffers]
            ),
            tuple([name for name, _ in parameters]),
            lanes,
            (),
        )
        return Launch(
            kernel,
            self._sizes[blocks],
            tuple([(name, self._sizes[number]) for name, number in parameters]),
            tuple([(name, Reference(kind, number)) for name, kind, number in references]),
        )
