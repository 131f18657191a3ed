"""IR text to object code to functions in memory, for this machine, and listings for others."""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from backends.cpu.native import LANES, elementwise, run_elementwise

from weft.backends.host.codegen import code_key, compile_cached, load_code
from weft.backends.host.machine import _read_cache_bytes, host, named
from weft.backends.host.runner import runner_text
from weft.backends.llvm import compilation
from weft.backends.llvm.compilation import assembly_text, compile_module
from weft.backends.llvm.emit import llvm_text
from weft.backends.llvm.vector_lanes import VECTOR_LANES
from weft.cache.code import CodeCache
from weft.errors import DeviceError, InternalError
from weft.ir.dtypes import DType
from weft.threads import _read_quota, usable_cores

ADD = elementwise("plus", "add", [DType.float32, DType.float32], DType.float32)
NAMES = ["x86-64-v2", "x86-64-v3", "x86-64-v4", "neoverse-n1", "apple-m1"]


def constant(name: str, value: int) -> str:
    return f"define i64 @{name}() nounwind {{\n  ret i64 {value}\n}}\n"


def call(address: int) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int64)(address)())


def test_modules_become_functions() -> None:
    texts = [constant(f"f{number}", number) for number in range(7)]
    code = load_code([compile_module(text, host()) for text in texts], [f"f{number}" for number in range(7)])
    assert [call(code.addresses[f"f{number}"]) for number in range(7)] == list(range(7))


def test_equal_names_in_different_loads_do_not_clash() -> None:
    codes = [load_code([compile_module(constant("same", number), host())], ["same"]) for number in (1, 2)]
    assert [call(code.addresses["same"]) for code in codes] == [1, 2]


def test_system_functions_are_found() -> None:
    text = "declare double @fmod(double, double)\ndefine double @rest(double %a) {\n"
    text += "  %r = call double @fmod(double %a, double 3.0)\n  ret double %r\n}\n"
    code = load_code([compile_module(text, host())], ["rest"])
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(code.addresses["rest"])(7.5) == 1.5


def test_kernels_are_divided_among_modules() -> None:
    kernels = [elementwise(f"k{number}", "add", [DType.float32] * 2, DType.float32) for number in range(5)]
    texts = [llvm_text(kernels[start : start + 2], VECTOR_LANES) for start in range(0, len(kernels), 2)]
    assert [text.count("define void") for text in texts] == [2, 2, 1]
    code = load_code([compile_module(text, host()) for text in texts], [kernel.name for kernel in kernels])
    inputs = [np.arange(37, dtype=np.float32), np.ones(37, np.float32)]
    for kernel in kernels:
        np.testing.assert_array_equal(run_elementwise(kernel, code, inputs), inputs[0] + 1)


def test_compiled_code_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CodeCache(tmp_path)
    text = constant("one", 1)
    first = compile_cached(text, host(), cache)
    monkeypatch.setattr(compilation, "compile_module", lambda *_: pytest.fail("compiled again"))
    assert compile_cached(text, host(), cache) == first


def test_damaged_entry_is_compiled_again(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path)
    text = constant("answer", 42)
    compile_cached(text, host(), cache)
    (entry,) = tmp_path.iterdir()
    damaged = bytearray(entry.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    entry.write_bytes(damaged)
    code = load_code([compile_cached(text, host(), cache)], ["answer"])
    assert call(code.addresses["answer"]) == 42
    assert entry.read_bytes() != bytes(damaged)


def test_code_key_covers_all_dependencies() -> None:
    keys = {code_key(text, machine) for text in ("a", "b") for machine in (host(), named("x86-64-v3"))}
    assert len(keys) == 4


def test_many_threads_compile_at_once() -> None:
    text = llvm_text([ADD], VECTOR_LANES)
    with ThreadPoolExecutor(4) as threads:
        codes = set(threads.map(lambda _: compile_module(text, host()), range(12)))
    assert codes == {compile_module(text, host())}


def test_invalid_code_raises_internal_error() -> None:
    with pytest.raises(InternalError, match="LLVM rejects"):
        compile_module("define void @f( {", host())


def test_unknown_functions_raise_internal_error() -> None:
    text = "declare void @no_such_function_anywhere()\ndefine void @f() {\n"
    text += "  call void @no_such_function_anywhere()\n  ret void\n}\n"
    with pytest.raises(InternalError, match="cannot be loaded"):
        load_code([compile_module(text, host())], ["f"])


# -- machines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_kernels_compile_for_other_processors(name: str) -> None:
    machine = named(name)
    assembly = assembly_text(llvm_text([ADD], VECTOR_LANES), machine)
    assert "plus" in assembly
    register = {16: "xmm", 32: "ymm", 64: "zmm"}[machine.target.vector_bytes]
    if machine.triple.startswith("x86"):
        assert f"%{register}" in assembly
    else:
        assert "fadd" in assembly
        assert ".4s" in assembly


@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
@pytest.mark.parametrize("name", ["x86-64-v3", "apple-m1"])
def test_runner_compiles_for_every_system(name: str, system: str) -> None:
    assert "weft_run" in assembly_text(runner_text(system, arm=name == "apple-m1"), named(name))


def test_named_targets() -> None:
    wide, arm = named("x86-64-v4").target, named("apple-m1").target
    assert (wide.vector_bytes, wide.vector_registers, wide.fused_multiply_add) == (64, 32, True)
    assert (arm.vector_bytes, arm.vector_registers, arm.fused_multiply_add) == (16, 32, True)
    assert named("x86-64-v3").target.vector_registers == 16
    with pytest.raises(DeviceError, match="weft compiles for"):
        named("abacus")


def test_this_machine() -> None:
    target = host().target
    assert target.vector_bytes in (16, 32, 64)
    assert target.cache_bytes >= 64 * 1024
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
    assert target.vector_bytes <= LANES * 4


def test_cores_within_quotas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 32)
    inner = tmp_path / "slice" / "job"
    inner.mkdir(parents=True)
    (inner / "cpu.max").write_text("max 100000\n")
    assert _read_quota(tmp_path, "0::/slice/job") == 32
    (tmp_path / "slice" / "cpu.max").write_text("350000 100000\n")
    assert _read_quota(tmp_path, "0::/slice/job") == 3
    older = tmp_path / "cpu,cpuacct" / "pod"
    older.mkdir(parents=True)
    (older / "cpu.cfs_quota_us").write_text("200000")
    (older / "cpu.cfs_period_us").write_text("100000")
    assert _read_quota(tmp_path, "4:cpu,cpuacct:/pod\n3:memory:/pod") == 2
    (older / "cpu.cfs_quota_us").write_text("-1")
    assert _read_quota(tmp_path, "4:cpu,cpuacct:/pod") == 32


def test_cache_sizes_as_linux_spells_them(tmp_path: Path) -> None:
    for number, (level, size) in enumerate([("1", "32K"), ("2", "2M"), ("3", "64M")]):
        index = tmp_path / f"index{number}"
        index.mkdir()
        (index / "level").write_text(level + "\n")
        (index / "size").write_text(size + "\n")
    assert _read_cache_bytes(tmp_path) == 2 * 1024**2
    assert _read_cache_bytes(tmp_path / "nothing") > 0
