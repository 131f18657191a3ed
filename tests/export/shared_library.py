"""Call an exported model through ctypes, as a shared library that the C compiler links."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.export.export import Exported
from weft.ir.arrays import Array
from weft.ir.dims import as_symbol

COMPILER = shutil.which("cc")
CANARY = 64  # bytes after outputs and workspace that must not change


class SharedLibrary:
    """A model in a shared library; sizes come from the shapes of inputs."""

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
        text: bytes = self.function("error_text")(error)
        return text.decode()

    def check(self, error: int) -> None:
        if error:
            raise RuntimeError(self.text(error))

    def sizes(self, inputs: Mapping[str, Array]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for port in (*self.interface.inputs, *self.interface.size_inputs):
            for dim, size in zip(port.shape, inputs[port.value.name].shape, strict=True):
                symbol = None if isinstance(dim, int) else as_symbol(dim)
                if symbol is not None and sizes.setdefault(symbol.name, size) != size:
                    raise ValueError(f"{symbol.name} is both {sizes[symbol.name]} and {size}")
        return sizes

    def pack_sizes(self, sizes: Mapping[str, int], size_inputs: Sequence[Array] = ()) -> Any:
        """Return the structure of sizes; the caller keeps the inputs that it points to."""
        numbers = [sizes[size.symbol.name] for size in self.interface.sizes]
        numbers += [array.ctypes.data for array in size_inputs]
        return (ctypes.c_int64 * max(len(numbers), 1))(*numbers)

    def shapes(self, sizes: Any) -> list[tuple[int, ...]]:
        outputs = self.interface.outputs
        numbers = (ctypes.c_int64 * (sum(1 + len(port.shape) for port in outputs) + 1))()
        self.check(self.function("output_shapes")(sizes, numbers))
        shapes, position = [], 0
        for port in outputs:
            shape = tuple(numbers[position + 1 : position + 1 + len(port.shape)])
            assert numbers[position] == int(np.prod(shape, dtype=np.int64))
            shapes.append(shape)
            position += 1 + len(shape)
        return shapes

    def run(self, inputs: Mapping[str, Array], *, parallel: Any = None, short: int = 0) -> list[Array]:
        """Return the outputs, and check that memory around them and the workspace is unchanged."""
        input_arrays = [
            _copy_unaligned(np.asarray(inputs[port.value.name], port.dtype.numpy)) for port in self.interface.inputs
        ]
        size_inputs = [
            _copy_unaligned(np.asarray(inputs[p.value.name], p.dtype.numpy)) for p in self.interface.size_inputs
        ]
        sizes = self.pack_sizes(self.sizes(inputs), size_inputs)
        self.check(self.function("check")(sizes))
        shapes = self.shapes(sizes)
        outputs = []
        for port, shape in zip(self.interface.outputs, shapes):
            byte_count = int(np.prod(shape, dtype=np.int64)) * port.dtype.numpy.itemsize
            outputs.append(_copy_unaligned(np.full(byte_count + CANARY, 0xA5, np.uint8), port.dtype.numpy.itemsize))
        needed = self.function("workspace_bytes")(sizes)
        assert needed > 0
        workspace = np.full(needed + CANARY + 8, 0xA5, np.uint8)[8:]  # unaligned, with arbitrary content
        pointers = (ctypes.c_void_p * max(len(input_arrays), 1))(*[array.ctypes.data for array in input_arrays])
        results = (ctypes.c_void_p * max(len(outputs), 1))(*[array.ctypes.data for array in outputs])
        workspace_bytes = ctypes.c_size_t(needed - short)
        arguments = (self.model, sizes, pointers, results, ctypes.c_void_p(workspace.ctypes.data), workspace_bytes)
        if parallel is None:
            self.check(self.function("run")(*arguments))
        else:
            self.check(self.function("run_parallel")(*arguments, parallel))
        assert (workspace[needed:] == 0xA5).all(), "a run wrote past its workspace"
        for output in outputs:
            assert (output[-CANARY:] == 0xA5).all(), "a run wrote past an output"
        return [
            output[:-CANARY].view(port.dtype.numpy).reshape(shape)
            for output, port, shape in zip(outputs, self.interface.outputs, shapes)
        ]

    def close(self) -> None:
        self.function("close")(self.model)


def _copy_unaligned(array: Array, step: int | None = None) -> Array:
    """Copy an array to an address with the least alignment for its elements."""
    step = step or array.itemsize
    memory = np.empty(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + step
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def same_bits(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
