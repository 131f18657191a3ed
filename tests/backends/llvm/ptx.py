"""Compile and assemble kernels of builders as PTX, and pack them for `run_ptx.py`.

python -m backends.llvm.ptx write CASES.pickle
python -m backends.llvm.ptx check RESULTS.pickle
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from kernels.products import build_contract
from kernels.reductions import build_reduction
from kernels.vector.works import tensor_of
from models.code_digests import gpu_limits

from weft.backends.llvm import assembly
from weft.backends.llvm.compilation import assembly_text
from weft.backends.llvm.emit import emit
from weft.backends.llvm.nvptx import NvidiaProcessor
from weft.backends.llvm.thread_lanes import ThreadLanes, dynamic_shared_bytes
from weft.backends.webgpu.library import Abilities
from weft.backends.webgpu.targets import build_target
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.kernel import Kernel
from weft.ir.kernel_verify import verify_kernel
from weft.ir.packing import load_constant
from weft.ir.program import Contract, Reduce
from weft.ir.scalar import Apply, Index, Literal, Load
from weft.ir.target import ThreadTarget
from weft.kernels.lower.barriers import insert_barriers
from weft.kernels.lower.tensors import Work
from weft.kernels.threads.contract import build_contraction
from weft.kernels.threads.maps import build_map

Array = np.ndarray[Any, Any]
F32 = DType.float32


def threads_target() -> ThreadTarget:
    """A GPU with shared memory, as builders see it."""
    return build_target(gpu_limits(is_software=False), Abilities(int64=True, float64=True, float16=True))


def emit_ptx(kernel: Kernel, processor: str, lanes: ThreadLanes | None = None) -> tuple[str, int]:
    """Return a kernel's PTX, and the bytes of dynamic shared memory of its launches."""
    text, (shared,) = ptx_module([kernel], processor, lanes)
    return text, shared


def ptx_module(kernels: Sequence[Kernel], processor: str, lanes: ThreadLanes | None = None) -> tuple[str, list[int]]:
    """Return the PTX of several kernels in one module, and their dynamic shared memory."""
    module = assembly.Module("weft")
    for kernel in kernels:
        emit(kernel, module, lanes or ThreadLanes())
    shared = [dynamic_shared_bytes(kernel, module) for kernel in kernels]
    return assembly_text(str(module), NvidiaProcessor(processor)), shared


def find_ptxas() -> str | None:
    """Find NVIDIA's assembler: by WEFT_PTXAS, on the PATH, or in an installed package."""
    named = os.environ.get("WEFT_PTXAS") or shutil.which("ptxas")
    if named is not None:
        return named
    spec = find_spec("nvidia")
    folders = [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]
    paths = [path for folder in folders for path in folder.glob("*/bin/ptxas")]
    return str(paths[0]) if paths else None


def assemble(ptxas: str, ptx: str, processor: str) -> str:
    """Assemble PTX, which must succeed, and return the report on registers and memory."""
    command = [ptxas, f"-arch={processor}", "-v", "-o", os.devnull, "-"]
    done = subprocess.run(command, input=ptx, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@dataclass(frozen=True, slots=True)
class ExampleLaunch:
    """The launch of a kernel on some of an example's arrays."""

    blocks: int
    places: list[int]
    parameters: list[int]


@dataclass(frozen=True, slots=True)
class Example:
    """A work with its operands and the expected result."""

    name: str
    work: Work
    operands: tuple[Array, ...]
    expected: Array
    tolerance: float

    @property
    def kernels(self) -> list[Kernel]:
        """Kernels with barriers and distinct names."""
        kernels = []
        for number, launch in enumerate(self.work.launches):
            kernel = replace(insert_barriers(launch.kernel), name=f"{self.name}_{number}")
            verify_kernel(kernel)
            kernels.append(kernel)
        return kernels

    @property
    def memory(self) -> dict[str, Sequence[Array]]:
        """The arrays that the work refers to, by kind; the result is the last."""
        return {
            "operand": self.operands,
            "workspace": [np.zeros(dims.evaluate(w.size, {}), w.dtype.numpy) for w in self.work.workspaces],
            "constant": [load_constant(constant) for constant in self.work.constants],
            "errors": [np.zeros(1, np.int32)],
            "result": [np.zeros_like(self.expected)],
        }

    @property
    def arrays(self) -> list[Array]:
        return [array for arrays in self.memory.values() for array in arrays]

    @property
    def launches(self) -> list[ExampleLaunch]:
        places = [(kind, number) for kind, arrays in self.memory.items() for number in range(len(arrays))]
        return [
            ExampleLaunch(
                dims.evaluate(launch.blocks, {}),
                [places.index((reference.kind, reference.number)) for reference in launch.references],
                [dims.evaluate(value, {}) for value in launch.values],
            )
            for launch in self.work.launches
        ]

    def build_case(self, processor: str) -> dict[str, Any]:
        """Build a case of `run_ptx.py`."""
        text, shared = ptx_module(self.kernels, processor)
        launches = [
            (kernel.name, launch.blocks, kernel.lanes, size, launch.places, launch.parameters)
            for kernel, launch, size in zip(self.kernels, self.launches, shared, strict=True)
        ]
        arrays = [array.tobytes() for array in self.arrays]
        return {"name": self.name, "ptx": text.encode(), "arrays": arrays, "launches": launches}

    def check(self, arrays: Sequence[bytes]) -> None:
        actual = np.frombuffer(arrays[-1], self.expected.dtype).reshape(self.expected.shape)
        np.testing.assert_allclose(actual, self.expected, self.tolerance, self.tolerance, err_msg=self.name)


def examples(sizes: tuple[int, int, int] = (301, 203, 517)) -> list[Example]:
    """A map, a reduction and a tiled product, with sizes that are not multiples of blocks."""
    rows, columns, depth = sizes
    target, random = threads_target(), np.random.default_rng(11)
    left, right = (random.normal(size=shape).astype(np.float32) for shape in ((rows, depth), (depth, columns)))
    load = Load(0, tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(left.shape)), F32)
    expression = Apply("add", (Apply("tanh", (load,), F32), Literal(0.5, F32)), F32)
    square = Apply("multiply", (load, load), F32)
    left_tensor, right_tensor = tensor_of(left), tensor_of(right)
    wide = left.astype(np.float64)
    results = [(np.tanh(wide) + 0.5), (wide**2).sum(1), wide @ right.astype(np.float64)]
    mapped, reduced, product = (result.astype(np.float32) for result in results)
    contract = Contract((0, 2), (2, 1), (0, 1))
    works = [
        build_map(expression, [left_tensor], left_tensor, target),
        build_reduction(Reduce("sum", (1,)), square, left.shape, [left_tensor], tensor_of(reduced), target),
        build_contract(build_contraction, contract, left_tensor, right_tensor, tensor_of(product), None, target),
    ]
    return [
        Example("map", works[0], (left,), mapped, 1e-6),
        Example("reduction", works[1], (left,), reduced, 1e-5),
        Example("product", works[2], (left, right), product, 1e-4),
    ]


def main() -> None:
    action, file = sys.argv[1], Path(sys.argv[2])
    if action == "write":
        file.write_bytes(pickle.dumps([example.build_case("sm_80") for example in examples()]))
        return
    for example, result in zip(examples(), pickle.loads(file.read_bytes()), strict=True):
        assert not isinstance(result, str), result
        example.check(result)
        print(f"{example.name}: as expected")


if __name__ == "__main__":
    main()
