"""Test errors: wrong calls from C return an error and never crash; unsupported models are refused."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from export import networks
from export.shared_library import COMPILER, SharedLibrary
from onnx import TensorProto

from weft.errors import DeviceError, InputError, UnsupportedModelError
from weft.export.export import export_c
from weft.export.interface import (
    BAD_INDEX,
    COMMON_ERRORS,
    FIRST_SIZE_ERROR,
    NO_FILE,
    NOT_OPEN,
    NULL_ARGUMENT,
    SMALL_WORKSPACE,
    TOO_LARGE,
    WRONG_CONTENT,
    WRONG_LENGTH,
    make_c_name,
)

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler (cc)")


@pytest.fixture(scope="module")
def convolutional(tmp_path_factory: pytest.TempPathFactory) -> SharedLibrary:
    return SharedLibrary(export_c(networks.convnet(), tmp_path_factory.mktemp("conv"), name="network"))


@needs_compiler
def test_a_workspace_that_is_one_byte_short(convolutional: SharedLibrary) -> None:
    inputs = {"x": np.zeros((2, 3, 24, 20), np.float32)}
    convolutional.run(inputs)
    for short in (1, 64, 4096):
        with pytest.raises(RuntimeError, match="workspace has fewer bytes"):
            convolutional.run(inputs, short=short)


@needs_compiler
def test_no_byte_past_a_workspace_is_written(tmp_path: Path) -> None:
    library = SharedLibrary(export_c(networks.branches(), tmp_path, name="network"))
    sizes = (ctypes.c_int64 * 1)(3)
    x, y, y0 = (np.ones((3, 4), np.float32) for _ in range(3))
    inputs = (ctypes.c_void_p * 1)(x.ctypes.data)
    outputs = (ctypes.c_void_p * 2)(y.ctypes.data, y0.ctypes.data)
    needed = library.function("workspace_bytes")(sizes)
    for length in (*range(0, needed, 29), needed - 1, needed):
        workspace = np.full(needed + 256, 0xA5, np.uint8)
        address = ctypes.c_void_p(workspace.ctypes.data + 1)
        error = library.function("run")(library.model, sizes, inputs, outputs, address, ctypes.c_size_t(length))
        assert error == (0 if length == needed else SMALL_WORKSPACE)
        assert (workspace[1 + length :] == 0xA5).all(), length


@needs_compiler
def test_sizes_out_of_range(convolutional: SharedLibrary) -> None:
    check, needed = convolutional.function("check"), convolutional.function("workspace_bytes")
    for size in (0, -1, -(2**63), 2**63 - 1, 10**9):
        sizes = (ctypes.c_int64 * 1)(size)
        assert check(sizes) == FIRST_SIZE_ERROR, size
        assert needed(sizes) == 0
    assert "batch" in convolutional.text(FIRST_SIZE_ERROR)
    assert check(None) == NULL_ARGUMENT
    assert convolutional.text(-5) == convolutional.text(99) == "unknown error"


@needs_compiler
def test_sizes_whose_products_overflow(tmp_path: Path) -> None:
    library = SharedLibrary(export_c(networks.transformer(), tmp_path, name="network"))
    largest = 10**9 - 1
    for sizes in ((largest, largest), (1, largest), (largest, 1)):
        packed = (ctypes.c_int64 * 2)(*sizes)
        needed = library.function("workspace_bytes")(packed)
        error = library.function("check")(packed)
        assert (error == 0) == (needed > 0)
        assert error or needed > 32 * 4 * sizes[0] * sizes[1]
    assert library.function("check")((ctypes.c_int64 * 2)(largest, largest)) == TOO_LARGE


@needs_compiler
def test_guards_have_errors(tmp_path: Path) -> None:
    library = SharedLibrary(export_c(networks.guards(), tmp_path, name="network"))
    good = {"a": np.ones((4, 4), np.float32), "b": np.ones((4, 4), np.float32)}
    (result,) = library.run(good)
    assert result.shape == (2, 8)
    for n, m in ((4, 3), (3, 3), (2, 5)):
        with pytest.raises(RuntimeError, match="this code is for sizes with"):
            library.run({"a": np.ones((n, 4), np.float32), "b": np.ones((m, 4), np.float32)})


@needs_compiler
def test_inputs_that_determine_sizes_are_checked(tmp_path: Path) -> None:
    library = SharedLibrary(export_c(networks.size_inputs(), tmp_path, name="network"))
    assert [port.member for port in library.interface.size_inputs] == ["shape", "times"]
    for shape, times in (((5, 5), (1, 1)), ((2, 6), (-1, 1)), ((2, 6), (10**12, 10**12)), ((10**18, 3), (1, 1))):
        inputs = {"x": np.zeros((2, 6), np.float32), "shape": np.array(shape), "times": np.array(times)}
        with pytest.raises(RuntimeError):
            library.run(inputs)
    no_pointers = (ctypes.c_int64 * 3)(2, 0, 0)
    assert library.function("check")(no_pointers) == NULL_ARGUMENT


@needs_compiler
def test_an_index_out_of_range(tmp_path: Path) -> None:
    library = SharedLibrary(export_c(networks.scatter(), tmp_path, name="network"))
    inputs = {"x": np.zeros((2, 6), np.float32), "i": np.array([[0, 5], [-1, 2]]), "u": np.ones((2, 2), np.float32)}
    (result,) = library.run(inputs)
    assert result.sum() == 4
    for wrong in (6, -7, 2**40):
        inputs["i"][0, 0] = wrong
        with pytest.raises(RuntimeError, match=COMMON_ERRORS[BAD_INDEX][1]):
            library.run(inputs)


@needs_compiler
def test_weights_are_checked(convolutional: SharedLibrary, tmp_path: Path) -> None:
    path, model = tmp_path / "w", (ctypes.c_void_p * 2)()
    open_model, bind_model = convolutional.function("open"), convolutional.function("bind")
    assert convolutional.files.weights is not None
    content = convolutional.files.weights.read_bytes()
    assert open_model(model, str(path).encode()) == NO_FILE
    for text, error in ((content[:-1], WRONG_LENGTH), (content + b"\0", WRONG_LENGTH), (b"", WRONG_LENGTH)):
        path.write_bytes(text)
        assert open_model(model, str(path).encode()) == error
        assert model[0] is None
    random = np.random.default_rng(7)
    for position in (0, 7, len(content) - 100, *map(int, random.integers(0, len(content), 8))):
        damaged = bytearray(content)
        damaged[position] ^= 1 << int(random.integers(0, 8))
        path.write_bytes(damaged)
        assert open_model(model, str(path).encode()) == WRONG_CONTENT, position
    assert open_model(model, None) == open_model(None, b"x") == NULL_ARGUMENT
    memory = np.zeros(len(content) + 128, np.uint8)
    start = -memory.ctypes.data % 64
    memory[start : start + len(content)] = np.frombuffer(content, np.uint8)
    length = ctypes.c_size_t(len(content))
    assert bind_model(model, ctypes.c_void_p(memory.ctypes.data + start), length) == 0
    assert bind_model(model, ctypes.c_void_p(memory.ctypes.data + start + 8), length) == NULL_ARGUMENT
    assert bind_model(model, None, length) == NULL_ARGUMENT
    convolutional.function("close")(model)
    convolutional.function("close")(None)


@needs_compiler
def test_null_pointers(convolutional: SharedLibrary) -> None:
    run = convolutional.function("run")
    sizes = (ctypes.c_int64 * 1)(1)
    needed = convolutional.function("workspace_bytes")(sizes)
    workspace, x, y = np.zeros(needed, np.uint8), np.zeros((1, 3, 24, 20), np.float32), np.zeros((1, 7), np.float32)
    inputs, outputs = (ctypes.c_void_p * 1)(x.ctypes.data), (ctypes.c_void_p * 1)(y.ctypes.data)
    arguments: list[Any] = [
        convolutional.model,
        sizes,
        inputs,
        outputs,
        ctypes.c_void_p(workspace.ctypes.data),
        ctypes.c_size_t(needed),
    ]
    assert run(*arguments) == 0
    for number in range(5):
        assert run(*arguments[:number], None, *arguments[number + 1 :]) == NULL_ARGUMENT, number
    assert run(*arguments[:2], (ctypes.c_void_p * 1)(), *arguments[3:]) == NULL_ARGUMENT
    assert run(*arguments[:3], (ctypes.c_void_p * 1)(), *arguments[4:]) == NULL_ARGUMENT
    assert run((ctypes.c_void_p * 2)(), *arguments[1:]) == NOT_OPEN
    assert run(*arguments[:5], ctypes.c_size_t(0)) == SMALL_WORKSPACE


def test_unsupported_models_are_refused_by_node(tmp_path: Path) -> None:
    dynamic = networks.model(
        [networks.node("NonZero", "x", "y")],
        [("x", TensorProto.FLOAT, ["n"])],
        [("y", TensorProto.INT64, [1, "k"])],
    )
    with pytest.raises(UnsupportedModelError, match="nonzero") as error:
        export_c(dynamic, tmp_path)
    assert error.value.node
    strings = networks.model(
        [networks.node("Identity", "x", "y")], [("x", TensorProto.STRING, [2])], [("y", TensorProto.STRING, [2])]
    )
    with pytest.raises(UnsupportedModelError, match="string") as error:
        export_c(strings, tmp_path)
    assert error.value.value == "x"
    assert not list(tmp_path.iterdir())


def test_wrong_options(tmp_path: Path) -> None:
    source = networks.convnet()
    with pytest.raises(InputError, match="no dynamic dim"):
        export_c(source, tmp_path, sizes={"length": 4})
    with pytest.raises(InputError, match="not a C identifier"):
        export_c(source, tmp_path, name="a-b")
    with pytest.raises(DeviceError, match="unknown processor"):
        export_c(source, tmp_path, target="z80")


@pytest.mark.parametrize(
    ("text", "name"), [("a.b/c", "a_b_c"), ("int", "int_"), ("9x", "_9x"), ("Ünïcode", "n_code"), ("::", "value")]
)
def test_c_names(text: str, name: str) -> None:
    assert make_c_name(text) == name
