"""Kernels for Arm processors with different instructions, run by qemu and compared with onnxruntime."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from backends.cpu.native import elementwise
from export.many_kernels import build_inputs, build_model, compute_expected

from weft.backends.host import machine
from weft.backends.host.machine import named
from weft.backends.llvm.compilation import assembly_text
from weft.backends.llvm.emit import llvm_text
from weft.backends.llvm.vector_lanes import choose_lanes
from weft.export.export import export_c
from weft.ir.dtypes import DType

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
SEED = 20261119


@pytest.mark.parametrize(
    ("target", "precision", "processors"),
    [
        ("cortex-a72", "float32", ["cortex-a72"]),
        ("neoverse-n1", "float32", ["neoverse-n1"]),
        ("neoverse-v1", "fast", ["max,sve-max-vq=1", "max,sve-max-vq=4"]),  # i8mm, bf16 and SVE
    ],
)
def test_kernels_run_by_qemu(target: str, precision: str, processors: list[str], tmp_path: Path) -> None:
    if shutil.which(EMULATOR) is None or shutil.which(COMPILER) is None:
        pytest.skip(f"no {EMULATOR} or {COMPILER} here (on Debian: qemu-user, gcc-aarch64-linux-gnu)")
    print("seed", SEED)
    model, inputs = build_model(), build_inputs(SEED)
    export_c(model, tmp_path, name="network", target=target, precision=precision)
    command = [COMPILER, "-static", "network_example.c", "network.o", "-o", "example"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if "cannot find" in done.stderr or "No such file" in done.stderr:
        pytest.skip("there is no C library for aarch64 (on Debian: libc6-dev-arm64-cross)")
    assert done.returncode == 0, done.stderr
    for name, array in inputs.items():
        array.tofile(tmp_path / f"{name}_in.raw")
    expected = compute_expected(model, inputs)
    arguments = ["./example", "network.weights", *(f"{name}_in.raw" for name in inputs), "--write"]
    for processor in processors:
        run = [EMULATOR, "-cpu", processor, *arguments]
        subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, timeout=120)
        for name, array in expected.items():
            actual = np.fromfile(tmp_path / f"{name}.raw", array.dtype).reshape(array.shape)
            if array.dtype.kind != "f":
                np.testing.assert_array_equal(actual, array, err_msg=name)
                continue
            bound = (1e-2 if precision == "fast" and name == "few_rows" else 1e-5) * max(np.abs(array).max(), 1)
            np.testing.assert_allclose(actual, array, rtol=1e-4, atol=bound, err_msg=f"{name} on {processor}")


@pytest.mark.parametrize(
    ("processor", "instructions"),
    [
        ("cortex-a72", set()),
        ("neoverse-n1", {"sdot"}),
        ("neoverse-v1", {"usdot", "bfdot"}),
        ("apple-m2", {"usdot", "bfdot"}),
    ],
)
def test_instructions(processor: str, instructions: set[str]) -> None:
    other = named(processor)
    assert other.target.dot_product_8 == bool(instructions)
    assert other.target.dot_product_16 == ("bfdot" in instructions)
    kernels = []
    if other.target.dot_product_8:
        kernels.append(elementwise("bytes", "dot4", [DType.int32] * 3, DType.int32))
    if other.target.dot_product_16:
        kernels.append(elementwise("pairs", "dot2", [DType.int32, DType.int32, DType.float32], DType.float32))
    text = "".join(assembly_text(llvm_text([k], choose_lanes(other.target.features)), other) for k in kernels)
    assert {name for name in ("sdot", "udot", "usdot", "bfdot") if f"\t{name}" in text} == instructions


@pytest.mark.parametrize(
    ("processor", "features", "flags", "expected"),
    [
        ("neoverse-n1", "+neon", "", {"dotprod"}),
        ("generic", "+neon,+dotprod", "asimddp", {"dotprod"}),
        ("generic", "+neon", "asimd asimddp i8mm bf16", {"dotprod", "i8mm", "bf16"}),
        ("neoverse-n1", "+neon,-dotprod", "asimd", set()),
        ("apple-m2", "", "", {"dotprod", "i8mm", "bf16"}),
    ],
)
def test_dot_products_of_the_host(
    processor: str, features: str, flags: str, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "processor_names", lambda: ("aarch64-unknown-linux-gnu", processor, features))
    monkeypatch.setattr(machine, "linux_features", lambda: frozenset(flags.split()))
    here = machine.host.__wrapped__()
    present = {name[1:] for name in here.features.split(",") if name.startswith("+")}
    assert present & {"dotprod", "i8mm", "bf16"} == expected
    assert here.target.dot_product_8 == ("dotprod" in expected)
