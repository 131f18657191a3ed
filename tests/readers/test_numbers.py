"""Numbers from texts and arrays: integers are exact, and what an input's type cannot represent is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from frontend.samples import model, node, value
from onnx import TensorProto, numpy_helper
from readers.test_read import read, saved, spec

import weft
from weft.cli import main
from weft.errors import InputError
from weft.ir.dtypes import DType
from weft.readers.arrays import fit_to_input, parse_value

LARGE = 2**53 + 1

EXACT = [
    (DType.int64, "9007199254740993", LARGE),
    (DType.int64, "-9007199254740993", -LARGE),
    (DType.int64, "9223372036854775807", 2**63 - 1),
    (DType.int64, "-9223372036854775808", -(2**63)),
    (DType.uint64, "18446744073709551615", 2**64 - 1),
    (DType.uint64, "9223372036854775809", 2**63 + 1),
    (DType.int64, "9007199254740993.0", LARGE),
    (DType.int64, "9007199254740993e0", LARGE),
    (DType.int32, "1e3", 1000),
    (DType.int8, "-128", -128),
    (DType.bool, "1", True),
]
REFUSED = [
    (DType.int64, "9223372036854775808"),
    (DType.int64, "-9223372036854775809"),
    (DType.int64, "1e19"),
    (DType.int64, "1e400"),
    (DType.uint64, "18446744073709551616"),
    (DType.uint64, "-1"),
    (DType.int8, "300"),
    (DType.uint8, "-1"),
    (DType.int32, "2.5"),
    (DType.bool, "2"),
    (DType.int64, "1" * 400),
    (DType.float64, "1" * 400),
    (DType.float64, "1e400"),
]


@pytest.mark.parametrize("partner", ["0", "1.0"])
@pytest.mark.parametrize(("dtype", "text", "expected"), EXACT)
def test_integers_are_exact(dtype: DType, text: str, expected: int, partner: str) -> None:
    """Neighbours with other types change nothing: numpy has one type for all."""
    declared = spec(dtype, "n", 2)
    contents = [
        f"[[{text}, {partner}]]",
        f'{{"x": [[{text}, {partner}]]}}',
        f"{text},{partner}\n",
        f"a;b\n{text};{partner}",
    ]
    arrays: list[Any] = [read(content.encode(), declared) for content in contents]
    arrays.append(fit_to_input(parse_value(contents[0], declared), declared, "typed")[0])
    for array in arrays:
        assert array.tolist() == [[expected, float(partner)]]
    for single in (text, f" {text} "):
        assert fit_to_input(parse_value(single, spec(dtype)), spec(dtype), "typed")[0].item() == expected


@pytest.mark.parametrize(("dtype", "text"), REFUSED)
def test_numbers_that_do_not_fit_are_refused(dtype: DType, text: str) -> None:
    declared = spec(dtype, "n", 2)
    with pytest.raises(InputError, match=r"f: row 3 has .* in column 'b'"):
        read(f"a,b\n0,0\n0,{text}".encode(), declared)
    for content in (f"[[0, {text}]]", f'{{"x": [[0, {text}]]}}'):
        with pytest.raises(InputError, match=r"^f: ") as caught:
            read(content.encode(), declared)
        assert len(str(caught.value)) < 300
    with pytest.raises(InputError, match=r"typed|--input"):
        fit_to_input(parse_value(f"[[0, {text}]]", declared), declared, "typed")


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([-1], np.int8), DType.uint8),
        (np.array([-1]), DType.uint64),
        (np.array([2**64 - 1], np.uint64), DType.int64),
        (np.array([200], np.uint8), DType.int8),
        (np.array([300]), DType.int8),
        (np.array([2.0**63]), DType.int64),
        (np.array([2.0**64]), DType.uint64),
        (np.array([np.nan]), DType.int64),
        (np.array([np.inf]), DType.int32),
        (np.array([0.5], np.float16), DType.int32),
        (np.array([0.5], ml_dtypes.bfloat16), DType.int32),
        (np.array([2]), DType.bool),
        (np.array([1e39]), DType.float32),
        (np.array([70000]), DType.float16),
        (np.array([1e6], np.float32), DType.float8e4m3fn),
        (np.array([b"ab"], "V2"), DType.int16),
        (np.array([(1, 2)], [("a", "i4"), ("b", "i4")]), DType.int64),
    ],
)
def test_arrays_that_do_not_fit_are_refused(array: Any, dtype: DType) -> None:
    with pytest.raises(InputError, match=r"^f: .*input 'x'"):
        fit_to_input(array, spec(dtype, "n"), "f")
    if array.dtype.kind in "iuf":
        with pytest.raises(InputError, match=r"at \[0\]"):
            read(saved(array), spec(dtype, "n"))


def test_types_keep_their_meaning() -> None:
    numbers = np.array([1.5, -2], ml_dtypes.bfloat16)
    tensor = numpy_helper.from_array(numbers).SerializeToString()
    assert read(tensor, spec(DType.float16, "n")).tolist() == [1.5, -2]
    assert read(saved(numbers), spec(DType.bfloat16, "n")).tolist() == [1.5, -2]
    assert read(saved(np.array([2.0**62, -3])), spec(DType.int64, "n")).tolist() == [2**62, -3]
    assert read(saved(np.array([2**24 + 1])), spec(DType.float32, "n")).tolist() == [2**24]
    assert read(saved(np.array([-np.inf, np.nan])), spec(DType.float16, "n"))[0] == -np.inf


def test_texts_are_decoded_or_refused() -> None:
    declared = spec(DType.string, "n")
    assert read(saved(np.array([b"must"], "V4")), declared).tolist() == ["must"]
    assert read(saved(np.array(["é".encode()])), declared).tolist() == ["é"]
    with pytest.raises(InputError, match="utf-8"):
        read(saved(np.array([b"\xff"])), declared)


def test_the_command_line_keeps_every_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = model(
        [node("Identity", ["x"], ["y"])],
        [value("x", ("n",), TensorProto.INT64)],
        [value("y", ("n",), TensorProto.INT64)],
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(graph if isinstance(graph, bytes) else graph.SerializeToString())
    (tmp_path / "x.csv").write_text(f"{LARGE}\n")
    for source in (f"x=[{LARGE}]", f"x={LARGE}"):
        assert main(["run", str(path), "-i", source, "--device", "reference", "--json"]) == 0
        assert str(LARGE) in capsys.readouterr().out
    assert weft.read_inputs(weft.load(path, device="reference"), {"x": [LARGE, 1.0]})["x"].tolist() == [LARGE, 1]
