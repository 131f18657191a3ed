"""Loading object code without a linker: the functions of LLVM's linker, and errors for damaged objects."""

from __future__ import annotations

import ctypes
import platform
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from backends.cpu.native import LANES, elementwise, run_elementwise

from weft.backends.host import codegen, image
from weft.backends.host.codegen import link_code, load_code
from weft.backends.host.elf import AARCH64, X86_64, MalformedError, UnsupportedError, read_object
from weft.backends.host.image import LoadedImage, build_image, find_function, load_image
from weft.backends.host.machine import host, named
from weft.backends.llvm import compilation
from weft.backends.llvm.compilation import compile_module
from weft.backends.llvm.emit import llvm_text
from weft.backends.llvm.vector_lanes import VECTOR_LANES
from weft.errors import InternalError
from weft.ir.dtypes import DType

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="images are made on Linux only")

CONSTANTS = """
@table = private constant [4 x i32] [i32 10, i32 20, i32 30, i32 40]
define i32 @pick(i64 %index) nounwind {
  %place = getelementptr [4 x i32], ptr @table, i64 0, i64 %index
  %value = load i32, ptr %place
  ret i32 %value
}
define void @increase(ptr %place) nounwind {
  %value = load <4 x float>, ptr %place
  %sum = fadd <4 x float> %value, <float 1.5, float 2.25, float 3.125, float 4.0625>
  store <4 x float> %sum, ptr %place
  ret void
}
"""
CALLS = """
declare i32 @pick(i64)
declare double @fmod(double, double)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
define i32 @twice(i64 %index) nounwind {
  %value = call i32 @pick(i64 %index)
  %sum = add i32 %value, %value
  ret i32 %sum
}
define double @rest(double %a) {
  %r = call double @fmod(double %a, double 3.0)
  %s = fadd double %r, 0.125
  ret double %s
}
define void @fill(ptr %place, i64 %count) {
  call void @llvm.memset.p0.i64(ptr %place, i8 7, i64 %count, i1 false)
  ret void
}
"""
STATE = """
@state = global i64 40
define i64 @next() nounwind {
  %old = load i64, ptr @state
  %new = add i64 %old, 1
  store i64 %new, ptr @state
  ret i64 %new
}
"""
NAMES = ["pick", "increase", "twice", "rest", "fill"]
Load = Callable[[list[bytes], list[str]], "LoadedImage | codegen.LoadedCode"]


@pytest.mark.parametrize("load", [pytest.param(load_image, marks=on_linux), link_code])
def test_constants_and_calls(load: Load) -> None:
    code = load([compile_module(text, host()) for text in (CONSTANTS, CALLS)], NAMES)
    at = code.addresses
    pick = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)
    assert [pick(at["pick"])(index) for index in range(4)] == [10, 20, 30, 40]
    assert [pick(at["twice"])(index) for index in range(4)] == [20, 40, 60, 80]
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(at["rest"])(7.5) == 1.625
    memory = np.zeros(4, np.float32)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(at["increase"])(memory.ctypes.data)
    assert memory.tolist() == [1.5, 2.25, 3.125, 4.0625]
    filled = np.zeros(1000, np.uint8)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(at["fill"])(filled.ctypes.data, 999)
    assert filled.tolist() == [7] * 999 + [0]


def test_kernels_give_the_same_bits_as_with_the_linker() -> None:
    """Many objects at once: functions with tables of coefficients, and the remainder, which the system computes."""
    names = ["exp", "tanh", "sin", "erf", "log", "sqrt"] * 10
    kernels = [elementwise(f"k{n}_{name}", name, [DType.float32], DType.float32) for n, name in enumerate(names)]
    kernels.append(elementwise("rest", "fmod", [DType.float64] * 2, DType.float64, lanes=1))
    objects = [compile_module(llvm_text([kernel], VECTOR_LANES), host()) for kernel in kernels]
    assert len(objects) == 61
    names = [kernel.name for kernel in kernels]
    ours, linked = load_code(objects, names), link_code(objects, names)
    assert isinstance(ours.owner, LoadedImage) == (sys.platform == "linux")
    rng = np.random.default_rng(3)
    values = rng.normal(size=LANES * 3 + 5).astype(np.float32)
    for kernel in kernels[:-1]:
        results = [run_elementwise(kernel, code, [np.abs(values)]) for code in (ours, linked)]
        assert results[0].tobytes() == results[1].tobytes(), kernel.name
    pair = [rng.normal(size=50) * 10, rng.normal(size=50)]
    for code in (ours, linked):
        np.testing.assert_array_equal(run_elementwise(kernels[-1], code, pair), np.fmod(*pair))


@on_linux
def test_llvm_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = [compile_module(text, host()) for text in (CONSTANTS, CALLS)]
    monkeypatch.setattr(compilation, "initialize_compiler", lambda: pytest.fail("LLVM was woken"))
    monkeypatch.setattr(codegen, "link_code", lambda *_: pytest.fail("LLVM links"))
    assert set(load_code(objects, NAMES).addresses) == set(NAMES)


# -- the other way ---------------------------------------------------------------------------------------------------


@on_linux
@pytest.mark.parametrize("trouble", ["state", "platform", "machine", "code", "memory", "refusal"])
def test_unsupported_objects_are_linked_by_llvm(trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    match trouble:
        case "platform":
            monkeypatch.setattr(sys, "platform", "darwin")
        case "machine":
            monkeypatch.setattr("platform.machine", lambda: "sparc64")
        case "code":
            monkeypatch.setattr(image, "_MACHINES", {platform.machine(): X86_64 + AARCH64})
            monkeypatch.setattr(image, "_cache_flush", lambda _: pytest.fail)
        case "memory":
            monkeypatch.setattr(image, "build_image", lambda *_: image.Image(bytearray(0), 0, {"pick": -1}))
        case "refusal":
            system = image._system()
            refusing = SimpleNamespace(mmap=system.mmap, munmap=system.munmap, mprotect=lambda *_: -1)
            monkeypatch.setattr(image, "_system", lambda: refusing)
    if trouble == "state":
        code = load_code([compile_module(STATE, host())], ["next"])
        assert [ctypes.CFUNCTYPE(ctypes.c_int64)(code.addresses["next"])() for _ in range(2)] == [41, 42]
    else:
        code = load_code([compile_module(CONSTANTS, host())], ["pick"])
        assert ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)(code.addresses["pick"])(2) == 30
    assert not isinstance(code.owner, LoadedImage)


@on_linux
def test_code_without_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """qemu refuses to protect no bytes."""
    system = image._system()

    def protect(start: int, size: int, how: int) -> int:
        return system.mprotect(start, size, how) if size else -1

    careful = SimpleNamespace(mmap=system.mmap, munmap=system.munmap, mprotect=protect)
    monkeypatch.setattr(image, "_system", lambda: careful)
    text = "define i32 @seven() {\n  ret i32 7\n}"
    code = load_code([compile_module(text, host())], ["seven"])
    assert isinstance(code.owner, LoadedImage)
    assert ctypes.CFUNCTYPE(ctypes.c_int32)(code.addresses["seven"])() == 7


@on_linux
def test_system_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_function("memset") != find_function("fmod")
    with pytest.raises(UnsupportedError, match="no_such_function"):
        find_function("no_such_function_anywhere")

    def missing(_: str) -> None:
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(UnsupportedError, match="instruction cache"):
        image._cache_flush.__wrapped__(AARCH64)


# -- memory ----------------------------------------------------------------------------------------------------------


def access(address: int) -> str | None:
    """Return the access rights at an address from the system."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        places, allowed, *_ = line.split()
        start, end = (int(place, 16) for place in places.split("-"))
        if start <= address < end:
            return allowed
    return None


@on_linux
def test_memory_is_never_writable_and_executable() -> None:
    objects = [compile_module(CONSTANTS, host())]
    code = load_code(objects, ["pick", "increase"])
    start = code.addresses["pick"] & -4096
    size = len(build_image(objects, image._host_machine(), find_function).data)
    assert {access(start + offset) for offset in range(0, size, 4096)} == {"r-xp", "r--p"}
    del code
    assert access(start) not in ("r-xp", "r--p")


# -- another machine -------------------------------------------------------------------------------------------------


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 else value


def test_references_of_arm_code() -> None:
    """Decode the instructions: their targets must be those of the source."""
    machine = named("neoverse-n1")
    image_data = build_image(
        [compile_module(text, machine) for text in (CONSTANTS, CALLS)], AARCH64, lambda _: 0x1234567890
    )
    words = [word for (word,) in struct.iter_unpack("<I", image_data.data[: image_data.code_bytes])]
    pages: dict[int, int] = {}  # by register
    constants: list[bytes] = []
    calls: list[int] = []
    for number, word in enumerate(words):
        register, base = word & 31, word >> 5 & 31
        if word & 0x9F000000 == 0x90000000:  # adrp
            pages[register] = (number * 4 & -4096) + signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21) * 4096
        elif word & 0xFFC00000 == 0x3DC00000 and base in pages:  # ldr q
            place = pages.pop(base) + (word >> 10 & 0xFFF) * 16
            constants.append(bytes(image_data.data[place : place + 16]))
        elif word & 0xFFC00000 == 0x91000000 and base in pages:  # add
            place = pages.pop(base) + (word >> 10 & 0xFFF)
            constants.append(bytes(image_data.data[place : place + 16]))
        elif word & 0x7C000000 == 0x14000000:  # b, bl
            calls.append(number * 4 + signed(word & 0x3FFFFFF, 26) * 4)
    assert struct.pack("<4f", 1.5, 2.25, 3.125, 4.0625) in constants
    assert struct.pack("<4i", 10, 20, 30, 40) in constants
    stub = struct.pack("<IIQ", 0x58000050, 0xD61F0200, 0x1234567890)
    assert image_data.places["pick"] in calls
    assert sum(image_data.data[place : place + 16] == stub for place in calls) == 2


# -- damage ----------------------------------------------------------------------------------------------------------


def attempt(content: bytes, machine: int) -> bool:
    """Whether an object can be loaded; otherwise one of the two expected errors is raised."""
    try:
        read_object(content)
        build_image([content], machine, lambda _: 0x1234567890)
        if sys.platform == "linux":
            load_image([content], ["pick"])
    except (MalformedError, UnsupportedError):
        return False
    return True


@pytest.mark.parametrize(("processor", "machine"), [("x86-64-v3", X86_64), ("neoverse-n1", AARCH64)])
def test_damaged_objects_do_not_crash(processor: str, machine: int) -> None:
    seed = 11
    rng = random.Random(seed)
    for text in (CONSTANTS, CALLS):
        content = compile_module(text, named(processor))
        build_image([content], machine, lambda _: 0x1234567890)
        tables = struct.unpack_from("<Q", content, 40)[0]
        for _ in range(400):
            damaged = bytearray(content)
            for _ in range(rng.randint(1, 3)):
                place = rng.randrange(*rng.choice([(0, 64), (tables, len(content)), (0, len(content))]))
                damaged[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            attempt(bytes(damaged), machine)
        for length in range(0, len(content), 7):
            assert not attempt(content[:length], machine), (seed, length)


@on_linux
def test_damaged_objects_raise_internal_error() -> None:
    content = compile_module(CONSTANTS, host())
    with pytest.raises(InternalError, match="cannot be loaded"):
        load_code([content[: len(content) // 2]], ["pick"])
    with pytest.raises(InternalError, match="no function other"):
        load_code([content], ["other"])
    with pytest.raises(InternalError, match="the same name"):
        load_code([content, content], ["pick"])
