"""Works of kernel builders as PTX: how they are compiled, assembled, and packed for `run_ptx.py`.

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
from kernels.products import contracted
from kernels.reductions import reduce_work
from kernels.vector.works import tensor_of
from models.code_digests import gpu_limits

from weft.backends.llvm import assembly
from weft.backends.llvm.compilation import assembly_text
from weft.backends.llvm.emit import emit
from weft.backends.llvm.nvptx import NvidiaProcessor
from weft.backends.llvm.thread_lanes import ThreadLanes, launched_shared_bytes
from weft.backends.webgpu.library import Abilities
from weft.backends.webgpu.targets import target_of
from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.kernel import Kernel
from weft.ir.kernel_verify import verify_kernel
from weft.ir.packing import array_of
from weft.ir.program import Contract, Reduce
from weft.ir.scalar import Apply, Index, Literal, Load
from weft.ir.target import ThreadTarget
from weft.kernels.lower.barriers import with_barriers
from weft.kernels.lower.tensors import Work
from weft.kernels.threads.contract import contract_work
from weft.kernels.threads.maps import map_work

Array = np.ndarray[Any, Any]
F32 = DType.float32


def threads_target() -> ThreadTarget:
    """A GPU with shared memory, as builders see it."""
    return target_of(gpu_limits(is_software=False), Abilities(int64=True, float64=True, float16=True))


def ptx_of(kernel: Kernel, processor: str, lanes: ThreadLanes | None = None) -> tuple[str, int]:
    """A kernel's PTX, and the bytes of shared memory that a launch has to bring."""
    text, (shared,) = ptx_module([kernel], processor, lanes)
    return text, shared


def ptx_module(kernels: Sequence[Kernel], processor: str, lanes: ThreadLanes | None = None) -> tuple[str, list[int]]:
    """The same of several kernels in one module."""
    module = assembly.Module("weft")
    for kernel in kernels:
        emit(kernel, module, lanes or ThreadLanes())
    shared = [launched_shared_bytes(kernel, module) for kernel in kernels]
    return assembly_text(str(module), NvidiaProcessor(processor)), shared


def find_ptxas() -> str | None:
    """NVIDIA's assembler: named by WEFT_PTXAS, on the PATH, or of an installed package."""
    named = os.environ.get("WEFT_PTXAS") or shutil.which("ptxas")
    if named is not None:
        return named
    spec = find_spec("nvidia")
    folders = [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]
    found = [path for folder in folders for path in folder.glob("*/bin/ptxas")]
    return str(found[0]) if found else None


def assemble(ptxas: str, ptx: str, processor: str) -> str:
    """What the assembler says of registers and memory; it must not refuse."""
    command = [ptxas, f"-arch={processor}", "-v", "-o", os.devnull, "-"]
    done = subprocess.run(command, input=ptx, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@dataclass(frozen=True, slots=True)
class Launched:
    """How often a kernel runs, and on which of an example's arrays."""

    blocks: int
    places: list[int]
    parameters: list[int]


@dataclass(frozen=True, slots=True)
class Example:
    """A work, the arrays that it is given, and what should come out."""

    name: str
    work: Work
    operands: tuple[Array, ...]
    expected: Array
    tolerance: float

    @property
    def kernels(self) -> list[Kernel]:
        """With barriers, each under a name of its own."""
        found = []
        for number, launch in enumerate(self.work.launches):
            kernel = replace(with_barriers(launch.kernel), name=f"{self.name}_{number}")
            verify_kernel(kernel)
            found.append(kernel)
        return found

    @property
    def listed(self) -> dict[str, Sequence[Array]]:
        """The memory that the work's references are about; the result comes last."""
        return {
            "operand": self.operands,
            "workspace": [np.zeros(dims.evaluate(w.size, {}), w.dtype.numpy) for w in self.work.workspaces],
            "constant": [array_of(constant) for constant in self.work.constants],
            "errors": [np.zeros(1, np.int32)],
            "result": [np.zeros_like(self.expected)],
        }

    @property
    def arrays(self) -> list[Array]:
        return [array for arrays in self.listed.values() for array in arrays]

    @property
    def launches(self) -> list[Launched]:
        places = [(kind, number) for kind, arrays in self.listed.items() for number in range(len(arrays))]
        return [
            Launched(
                dims.evaluate(launch.blocks, {}),
                [places.index((reference.kind, reference.number)) for reference in launch.references],
                [dims.evaluate(value, {}) for value in launch.values],
            )
            for launch in self.work.launches
        ]

    def packed(self, processor: str) -> dict[str, Any]:
        """As a case of `run_ptx.py`."""
        text, shared = ptx_module(self.kernels, processor)
        launches = [
            (kernel.name, launch.blocks, kernel.lanes, size, launch.places, launch.parameters)
            for kernel, launch, size in zip(self.kernels, self.launches, shared, strict=True)
        ]
        arrays = [array.tobytes() for array in self.arrays]
        return {"name": self.name, "ptx": text.encode(), "arrays": arrays, "launches": launches}

    def check(self, arrays: Sequence[bytes]) -> None:
        found = np.frombuffer(arrays[-1], self.expected.dtype).reshape(self.expected.shape)
        np.testing.assert_allclose(found, self.expected, self.tolerance, self.tolerance, err_msg=self.name)


def examples(sizes: tuple[int, int, int] = (301, 203, 517)) -> list[Example]:
    """A map, a reduction and a product on tiles, at sizes that fill no block."""
    rows, columns, depth = sizes
    target, random = threads_target(), np.random.default_rng(11)
    left, right = (random.normal(size=shape).astype(np.float32) for shape in ((rows, depth), (depth, columns)))
    load = Load(0, tuple(Index(dims.axis(axis, size)) for axis, size in enumerate(left.shape)), F32)
    expression = Apply("add", (Apply("tanh", (load,), F32), Literal(0.5, F32)), F32)
    square = Apply("multiply", (load, load), F32)
    given, other = tensor_of(left), tensor_of(right)
    wide = left.astype(np.float64)
    results = [(np.tanh(wide) + 0.5), (wide**2).sum(1), wide @ right.astype(np.float64)]
    mapped, reduced, product = (result.astype(np.float32) for result in results)
    contract = Contract((0, 2), (2, 1), (0, 1))
    works = [
        map_work(expression, [given], given, target),
        reduce_work(Reduce("sum", (1,)), square, left.shape, [given], tensor_of(reduced), target),
        contracted(contract_work, contract, given, other, tensor_of(product), None, target),
    ]
    return [
        Example("map", works[0], (left,), mapped, 1e-6),
        Example("reduction", works[1], (left,), reduced, 1e-5),
        Example("product", works[2], (left, right), product, 1e-4),
    ]


def main() -> None:
    action, file = sys.argv[1], Path(sys.argv[2])
    if action == "write":
        file.write_bytes(pickle.dumps([example.packed("sm_80") for example in examples()]))
        return
    for example, result in zip(examples(), pickle.loads(file.read_bytes()), strict=True):
        assert not isinstance(result, str), result
        example.check(result)
        print(f"{example.name}: as expected")


if __name__ == "__main__":
    main()
