"""Array-like inputs are converted, or refused with a reason."""

from __future__ import annotations

import array
import asyncio
import ctypes
import re
from collections import deque
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from frontend.samples import model, node, value
from onnx import TensorProto

import weft

A = np.array([1, 2, 3], np.float32)


@cache
def passing(dtype: int, shape: Any = ("n",)) -> weft.Model:
    """Build a model whose output is its input."""
    graph = model([node("Identity", ["x"], ["y"])], [value("x", shape, dtype)], [value("y", shape, dtype)])
    return weft.load(graph, device="cpu")


FLOAT, INT64, STRING, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.BOOL
BFLOAT16, FLOAT8, COMPLEX = TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.COMPLEX64


class Interface:
    """An object with `__array_interface__`, as PIL images have."""

    def __init__(self) -> None:
        self.array = A.copy()
        self.__array_interface__ = self.array.__array_interface__


class Raising:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("boom")


class Listing:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return [1, 2]


class Sparse:
    def toarray(self) -> Any:
        return A


class Text(str):
    """A subclass of str."""


ACCEPTED: dict[str, tuple[int, Any, list[Any]]] = {
    "list": (FLOAT, [1, 2.5, True], [1, 2.5, 1]),
    "tuple": (FLOAT, (1, 2), [1, 2]),
    "range": (INT64, range(3), [0, 1, 2]),
    "deque": (INT64, deque([1, 2]), [1, 2]),
    "array.array": (FLOAT, array.array("f", [1, 2]), [1, 2]),
    "memoryview": (FLOAT, memoryview(A), [1, 2, 3]),
    "ctypes": (FLOAT, (ctypes.c_float * 2)(1, 2), [1, 2]),
    "array interface": (FLOAT, Interface(), [1, 2, 3]),
    "decimals": (FLOAT, [Decimal("1.5"), 2], [1.5, 2]),
    "fractions": (FLOAT, [Fraction(1, 4)], [0.25]),
    "numbers beyond 64 bits": (FLOAT, [2**70], [2.0**70]),
    "numpy's scalars": (FLOAT, [np.float32(1), np.float64(2)], [1, 2]),
    "big endian": (FLOAT, A.astype(">f4"), [1, 2, 3]),
    "read-only": (FLOAT, np.broadcast_to(np.float32(1), (2,)), [1, 1]),
    "strided": (FLOAT, np.arange(6, dtype=np.float32)[::-2], [5, 3, 1]),
    "empty": (FLOAT, np.zeros(0, np.float32), []),
    "a list of nothing": (FLOAT, [], []),
    "no mask": (FLOAT, np.ma.array(A), [1, 2, 3]),
    "longlong": (INT64, np.array([1], np.longlong), [1]),
    "booleans": (BOOL, [0, 1], [False, True]),
    "complex": (COMPLEX, [1j, 2], [1j, 2]),
    "strings": (STRING, ["a", "ü"], ["a", "ü"]),
    "numpy's strings": (STRING, np.array(["a", "ü"]), ["a", "ü"]),
    "numpy's bytes": (STRING, np.array([b"a", "ü".encode()]), ["a", "ü"]),
    "bytes": (STRING, [b"a", b"bc"], ["a", "bc"]),
    "scalars of strings": (STRING, [np.str_("a"), Text("b")], ["a", "b"]),
    "objects": (STRING, np.array(["a", Text("b")], object), ["a", "b"]),
    "no strings": (STRING, [], []),
    "a list as bfloat16": (BFLOAT16, [1.5, 2], [1.5, 2]),
    "bfloat16": (BFLOAT16, A.astype(ml_dtypes.bfloat16), [1, 2, 3]),
    "float8": (FLOAT8, A.astype(ml_dtypes.float8_e4m3fn), [1, 2, 3]),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(case: str) -> None:
    kind, array_like, expected = ACCEPTED[case]
    loaded = passing(kind)
    for _ in range(2):
        actual = loaded.run({"x": array_like})["y"]
        assert actual.dtype == loaded.outputs[0].dtype
        assert actual.tolist() == expected
        if actual.dtype == object:
            assert {type(text) for text in actual} <= {str}


REFUSED: dict[str, tuple[int, Any, str]] = {
    "nothing": (FLOAT, None, "must be an array, not nothing"),
    "a set": (FLOAT, {1, 2}, "not a set"),
    "a generator": (FLOAT, (x for x in [1.0]), "not a generator"),
    "a class": (FLOAT, np.float32, "not the class float32"),
    "bytes": (FLOAT, b"abcd", "np.frombuffer"),
    "a bytearray": (FLOAT, bytearray(4), "np.frombuffer"),
    "sparse": (FLOAT, Sparse(), "toarray()"),
    "nested lists": (FLOAT, [[1], [2, 3]], "different lengths"),
    "None among numbers": (FLOAT, [1, None], "None is not a number"),
    "text among numbers": (FLOAT, ["1"], "'1' is not a number"),
    "complex as float": (FLOAT, [1j], "complex numbers do not fit float32"),
    "fractions as int": (INT64, [Fraction(1, 2)], "fits int64"),
    "floats as int": (INT64, [1.5], "fractional numbers do not fit int64"),
    "too large": (INT64, [2**70], "outside the range of int64"),
    "masked": (FLOAT, np.ma.array(A, mask=[1, 0, 0]), "masked"),
    "structured": (FLOAT, np.zeros(3, [("a", "f4"), ("b", "f4")]), "array['a']"),
    "dates": (INT64, np.array(["2020"], "M8[s]"), "which ONNX lacks"),
    "objects": (FLOAT, np.array([1.0, 2], object), "Python objects"),
    "missing strings": (STRING, np.array(["a", None], object), "must hold strings, not None"),
    "NaN among strings": (STRING, np.array(["a", float("nan")], object), "must hold strings, not nan"),
    "numbers as strings": (STRING, [1, 2], "strings"),
    "no UTF-8": (STRING, np.array([b"\xff"]), "not UTF-8"),
    "no UTF-8 in a list": (STRING, [b"\xff"], "not UTF-8"),
    "another dtype": (FLOAT, A.astype(np.float64), "array.astype(np.float32)"),
    "float32 as bfloat16": (BFLOAT16, A, "array.astype(ml_dtypes.bfloat16)"),
    "what raises": (FLOAT, Raising(), "boom"),
    "what gives a list": (FLOAT, Listing(), "not producing an array"),
    "no dimensions": (FLOAT, 3.0, "array[np.newaxis]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    kind, array_like, message = REFUSED[case]
    loaded = passing(kind)
    for _ in range(2):
        with pytest.raises(weft.InputError, match=re.escape(message)) as caught:
            loaded.run({"x": array_like})
        assert "input 'x'" in str(caught.value)


def test_arrays_on_mapped_files(tmp_path: Path) -> None:
    A.tofile(tmp_path / "a.bin")
    assert passing(FLOAT).run({"x": np.memmap(tmp_path / "a.bin", np.float32, "r")})["y"].tolist() == A.tolist()


@pytest.mark.parametrize(
    ("declared", "shape", "hint"),
    [
        ((1, 3, 8, 9), (3, 8, 9), "array[np.newaxis]"),
        (("n", 3, 8, 9), (8, 9, 3), None),
        ((3, 8, 9), (1, 3, 8, 9), "array[0]"),
        (("n", 3, 8, 9), (2, 8, 9, 3), "array.transpose(0, 3, 1, 2)"),
        (("n", 8, 9, 3), (2, 3, 8, 9), "array.transpose(0, 2, 3, 1)"),
        (("n", 3, 8, 9), (2, 3, 8, 8), None),
    ],
)
def test_hints_for_shapes_that_almost_fit(declared: Any, shape: Any, hint: str | None) -> None:
    loaded = passing(TensorProto.FLOAT, declared)
    with pytest.raises(weft.InputError) as caught:
        loaded.run({"x": np.zeros(shape, np.float32)})
    assert (caught.value.hint is None) if hint is None else (hint in str(caught.value.hint))


# -- libraries, where they are installed -----------------------------------------------------------------------------


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    plain = torch.tensor([1.0, 2.0])
    computed = plain * torch.ones(2, requires_grad=True)
    for tensor in (plain, torch.nn.Parameter(plain), computed, torch.stack([plain, plain], 1)[:, 0]):
        assert passing(FLOAT).run({"x": tensor})["y"].tolist() == [1, 2]
    narrow = plain.bfloat16()
    for tensor in (narrow, torch.nn.Parameter(narrow), torch.stack([narrow, narrow], 1)[:, 0]):
        assert passing(BFLOAT16).run({"x": tensor})["y"].tolist() == [1, 2]
    assert passing(BFLOAT16).run({"x": torch.ones(1).bfloat16().expand(3)})["y"].tolist() == [1] * 3
    assert passing(BFLOAT16).run({"x": torch.zeros(0).bfloat16()})["y"].tolist() == []
    assert passing(TensorProto.BFLOAT16, ()).run({"x": torch.tensor(1.5).bfloat16()})["y"] == 1.5
    assert passing(FLOAT8).run({"x": plain.to(torch.float8_e4m3fn)})["y"].tolist() == [1, 2]
    assert passing(COMPLEX).run({"x": torch.tensor([1j, 2j]).conj()})["y"].tolist() == [-1j, -2j]
    assert passing(FLOAT).run({"x": torch.tensor([1j, 2j]).conj().imag})["y"].tolist() == [-1, -2]
    assert passing(FLOAT).run({"x": [torch.tensor(1.0), torch.tensor(2.0)]})["y"].tolist() == [1, 2]
    for tensor, message in (
        (narrow, r"tensor\.to\(torch\.float32\)"),
        (plain.to("meta"), "meta"),
        (plain.to_sparse(), "to_dense"),
        (torch.quantize_per_tensor(plain, 0.1, 0, torch.qint8), "dequantize"),
    ):
        with pytest.raises(weft.InputError, match=message):
            passing(FLOAT).run({"x": tensor})


def test_torch_tensors_on_a_device() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for tensor in (
        torch.tensor([1.5, 2]),
        torch.nn.Parameter(torch.tensor([1.5, 2])),
        torch.tensor([1.5, 2]).bfloat16(),
    ):
        placed = weft.to_device(tensor, "cpu")
        tensor.data.zero_()
        assert placed.numpy().tolist() == [1.5, 2]


def test_outputs_into_torch_tensors() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for _ in range(2):
        place = torch.zeros(3)
        assert passing(FLOAT).run({"x": A}, into={"y": place})["y"] is place
        assert place.tolist() == [1, 2, 3]
        narrow = torch.zeros(6).bfloat16()[::2]
        passing(BFLOAT16).run({"x": A.astype(ml_dtypes.bfloat16)}, into={"y": narrow})
        assert narrow.tolist() == [1, 2, 3]
    with pytest.raises(weft.InputError, match="requires_grad"):
        passing(FLOAT).run({"x": A}, into={"y": torch.zeros(3, requires_grad=True)})


def test_pandas_columns() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pandas.DataFrame({"a": np.float32([1, 2]), "s": ["x", "y"], "i": [1, 2]})
    assert passing(FLOAT).run({"x": table["a"]})["y"].tolist() == [1, 2]
    assert passing(STRING).run({"x": table["s"]})["y"].tolist() == ["x", "y"]
    assert passing(INT64).run({"x": table["i"].astype("Int64")})["y"].tolist() == [1, 2]
    assert passing(STRING).run({"x": table["s"].astype("category")})["y"].tolist() == ["x", "y"]
    with pytest.raises(weft.InputError, match="must hold strings"):
        passing(STRING).run({"x": pandas.Series(["a", None], dtype="string")})
    with pytest.raises(weft.InputError, match="Python objects"):
        passing(FLOAT).run({"x": table})
    with pytest.raises(weft.InputError, match="pass its columns"):
        passing(FLOAT).run(table)


def test_pillow_images() -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    picture = image.new("RGB", (2, 3), (1, 2, 3))
    actual = passing(TensorProto.UINT8, ("h", "w", "c")).run({"x": picture})["y"]
    assert actual.shape == (3, 2, 3)
    with pytest.raises(weft.InputError, match="not uint8"):
        passing(FLOAT).run({"x": picture})


def test_jax_arrays() -> None:
    numpy = pytest.importorskip("jax.numpy", reason="jax is not installed")
    assert passing(FLOAT).run({"x": numpy.array([1.0, 2.0])})["y"].tolist() == [1, 2]
    assert passing(BFLOAT16).run({"x": numpy.array([1.0, 2.0], numpy.bfloat16)})["y"].tolist() == [1, 2]
    with pytest.raises(weft.InputError, match="may not be written to"):
        passing(FLOAT).run({"x": A}, into={"y": numpy.zeros(3)})


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (np.array([b"must", b"a"], "V4"), ["must", "a\0\0\0"]),
        (np.array(["é".encode()]), ["é"]),
        (np.array(["é".encode()]).view("V2"), ["é"]),
        (np.array([np.void(b"must"), np.bytes_(b"be"), np.str_("é")], object), ["must", "be", "é"]),
        (np.array([b""], "V0"), [""]),
        (np.ma.array(["a", "b"], mask=[False, False]), ["a", "b"]),
        (np.char.array(["a", "b"]), ["a", "b"]),
    ],
)
def test_all_string_types(texts: Any, expected: list[str]) -> None:
    assert passing(STRING).run({"x": texts})["y"].tolist() == expected


def test_bytes_scalar_is_a_string() -> None:
    assert passing(STRING, ()).run({"x": np.void(b"must")})["y"].item() == "must"


@pytest.mark.parametrize(
    "texts",
    [
        np.array([b"\xff\xfe"], "V2"),
        np.array([b"\xff"]),
        np.array([np.void(b"\xff")], object),
        np.array([(b"a", 1)], [("text", "S4"), ("number", "i4")]),
        np.array(["a", None], object),
        np.array(["a", 1.5], object),
        np.array(["2020-01-01"], "M8[D]"),
        np.array([1], ml_dtypes.bfloat16),
        bytearray(b"must"),
        memoryview(b"must"),
    ],
)
def test_non_strings_are_refused(texts: Any) -> None:
    with pytest.raises(weft.InputError, match="input 'x'"):
        passing(STRING).run({"x": texts})


@pytest.mark.parametrize("device", ["cpu", "reference", "webgpu:0"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_scalar_outputs_keep_their_declared_shape(shape: tuple[int, ...], device: str) -> None:
    """The output has the declared shape in every run and with every way to run."""
    graph = model([node("Add", ["x", "x"], ["y"])], [value("x", (), FLOAT)], [value("y", (), FLOAT)])
    loaded = weft.load(graph, device=device)
    for number in range(3):
        array = np.full(shape, number, np.float32)
        target = np.empty((), np.float32)
        tensor = weft.to_device(array, device) if device != "reference" else array
        for result in (
            loaded.run({"x": array})["y"],
            loaded.run({"x": array.tolist()})["y"],
            loaded.run({"x": tensor})["y"],
            loaded.run({"x": array}, into={"y": target})["y"],
            loaded.run({"x": array}, timeout=60)["y"],
            asyncio.run(loaded.run_async({"x": array}))["y"],
        ):
            assert result.shape == ()
            assert result == 2 * number
    with pytest.raises(weft.InputError, match="0 dimensions"):
        loaded.run({"x": np.zeros(2, np.float32)})
    with pytest.raises(weft.InputError, match="0 dimensions"):
        loaded.run({"x": np.zeros((1, 0), np.float32)})
