"""An exported model called through ctypes: a shared library that the C compiler makes of the object."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.export.export import Exported
from weft.ir.dims import as_symbol

Array = np.ndarray[Any, Any]
COMPILER = shutil.which("cc")
CANARY = 64  # bytes after outputs and workspace that nobody may write to


class Called:
    """A model in a shared library. Sizes are taken from the shapes of inputs."""

    def __init__(self, files: Exported) -> None:
        self.files, self.interface = files, files.interface
        path = files.object.with_suffix(".so")
        assert COMPILER is not None
        subprocess.run([COMPILER, "-shared", str(files.object), "-o", str(path)], check=True)
        self.library = ctypes.CDLL(str(path))
        self.model = (ctypes.c_void_p * 2)()
        self.function("workspace_bytes").restype = ctypes.c_size_t
        self.function("error_text").restype = ctypes.c_char_p
        weights = None if files.weights is None else str(files.weights).encode()
        self.check(self.function("open")(self.model, weights))

    def function(self, verb: str) -> Any:
        return getattr(self.library, f"{self.interface.name}_{verb}")

    def text(self, error: int) -> str:
        found: bytes = self.function("error_text")(error)
        return found.decode()

    def check(self, error: int) -> None:
        if error:
            raise RuntimeError(self.text(error))

    def sizes(self, inputs: Mapping[str, Array]) -> dict[str, int]:
        found: dict[str, int] = {}
        for port in (*self.interface.inputs, *self.interface.deciding):
            for dim, size in zip(port.shape, inputs[port.value.name].shape, strict=True):
                symbol = None if isinstance(dim, int) else as_symbol(dim)
                if symbol is not None and found.setdefault(symbol.name, size) != size:
                    raise ValueError(f"{symbol.name} is both {found[symbol.name]} and {size}")
        return found

    def packed_sizes(self, sizes: Mapping[str, int], deciding: Sequence[Array] = ()) -> Any:
        """The structure of sizes; the inputs that it points to are the caller's to keep."""
        numbers = [sizes[size.symbol.name] for size in self.interface.sizes]
        numbers += [array.ctypes.data for array in deciding]
        return (ctypes.c_int64 * max(len(numbers), 1))(*numbers)

    def shapes(self, sizes: Any) -> list[tuple[int, ...]]:
        outputs = self.interface.outputs
        room = (ctypes.c_int64 * (sum(1 + len(port.shape) for port in outputs) + 1))()
        self.check(self.function("output_shapes")(sizes, room))
        found, place = [], 0
        for port in outputs:
            shape = tuple(room[place + 1 : place + 1 + len(port.shape)])
            assert room[place] == int(np.prod(shape, dtype=np.int64))
            found.append(shape)
            place += 1 + len(shape)
        return found

    def run(self, inputs: Mapping[str, Array], *, parallel: Any = None, short: int = 0) -> list[Array]:
        """The outputs; memory around them and the workspace is looked after."""
        given = [_uneven(np.asarray(inputs[port.value.name], port.dtype.numpy)) for port in self.interface.inputs]
        deciding = [_uneven(np.asarray(inputs[p.value.name], p.dtype.numpy)) for p in self.interface.deciding]
        sizes = self.packed_sizes(self.sizes(inputs), deciding)
        self.check(self.function("check")(sizes))
        shapes = self.shapes(sizes)
        outputs = []
        for port, shape in zip(self.interface.outputs, shapes):
            bytes_made = int(np.prod(shape, dtype=np.int64)) * port.dtype.numpy.itemsize
            outputs.append(_uneven(np.full(bytes_made + CANARY, 0xA5, np.uint8), port.dtype.numpy.itemsize))
        needed = self.function("workspace_bytes")(sizes)
        assert needed > 0
        workspace = np.full(needed + CANARY + 8, 0xA5, np.uint8)[8:]  # at no special address, and full of nonsense
        pointers = (ctypes.c_void_p * max(len(given), 1))(*[array.ctypes.data for array in given])
        results = (ctypes.c_void_p * max(len(outputs), 1))(*[array.ctypes.data for array in outputs])
        bytes_given = ctypes.c_size_t(needed - short)
        arguments = (self.model, sizes, pointers, results, ctypes.c_void_p(workspace.ctypes.data), bytes_given)
        if parallel is None:
            self.check(self.function("run")(*arguments))
        else:
            self.check(self.function("run_parallel")(*arguments, parallel))
        assert (workspace[needed:] == 0xA5).all(), "a run wrote behind its workspace"
        for room in outputs:
            assert (room[-CANARY:] == 0xA5).all(), "a run wrote behind an output"
        return [
            room[:-CANARY].view(port.dtype.numpy).reshape(shape)
            for room, port, shape in zip(outputs, self.interface.outputs, shapes)
        ]

    def close(self) -> None:
        self.function("close")(self.model)


def _uneven(array: Array, step: int | None = None) -> Array:
    """A copy at an address that is no more aligned than its elements must be."""
    step = step or array.itemsize
    room = np.empty(array.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + step
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def same_bits(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
