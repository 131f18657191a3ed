"""Files of all kinds as inputs: detected by content, converted without loss, or refused with a reason."""

from __future__ import annotations

import io
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from onnx import numpy_helper

from weft.errors import InputError
from weft.ir.dtypes import DType
from weft.ir.specs import TensorSpec
from weft.ir.types import TensorType
from weft.readers.arrays import parse_value, read_table_columns
from weft.readers.content import DataSource, Kind, detect_kind
from weft.readers.derived_inputs import derive_input, is_derived, is_rate
from weft.readers.read import InputContext, read_input

ROWS = np.array([[1.5, 2, 3], [4, 5, 6]], np.float32)


def audio_file(format: str, subtype: str) -> bytes:
    content = io.BytesIO()
    soundfile.write(content, np.linspace(-1, 1, 100), 16000, format=format, subtype=subtype)
    return content.getvalue()


AUDIO_FILES = [audio_file("WAV", "PCM_24"), audio_file("WAV", "FLOAT"), audio_file("FLAC", "PCM_16")]


def spec(dtype: DType, *dims: int | str, name: str = "x") -> TensorSpec:
    return TensorSpec(name, dims, TensorType(dtype, dims))


def saved(*arrays: Any, **named: Any) -> bytes:
    content = io.BytesIO()
    np.savez(content, **named) if named else np.save(content, arrays[0])
    return content.getvalue()


def read(content: bytes, declared: TensorSpec, name: str = "f") -> np.ndarray[Any, Any]:
    array = read_input([DataSource(name, content)], declared, InputContext()).array
    assert array.dtype == declared.dtype
    return array


@pytest.mark.parametrize(
    "content",
    [
        saved(ROWS),
        saved(ROWS.astype(np.float64)),
        saved(x=ROWS, y=ROWS + 1),
        saved(other=ROWS),
        numpy_helper.from_array(ROWS, "any").SerializeToString(),
        b"[[1.5, 2, 3], [4, 5, 6]]",
        b'\xef\xbb\xbf {"y": [], "x": [[1.5, 2, 3], [4, 5, 6]]}',
        b"1.5,2,3\n4,5,6\n",
        b"a;b;c\r\n1.5;2;3\r\n\r\n4;5;6",
        b"1.5\t2\t3\n4\t5\t6\n",
    ],
)
def test_numbers_from_all_kinds_of_files(content: bytes) -> None:
    np.testing.assert_array_equal(read(content, spec(DType.float32, "n", 3)), ROWS)


def test_types_and_ranks_that_fit() -> None:
    assert read(b"16000", spec(DType.int64)).shape == ()
    assert read(b"[1, 2, 3]", spec(DType.int64, "n", "seq")).tolist() == [[1, 2, 3]]
    assert read(b"[1, 2, 3]", spec(DType.float16, "n", 1)).tolist() == [[1], [2], [3]]
    assert read(b"[0, 1]", spec(DType.bool, 2)).tolist() == [False, True]
    assert read(saved(ROWS[0].astype(np.float64)), spec(DType.float32, 1, 3)).shape == (1, 3)
    assert read(b"[1.5]", spec(DType.bfloat16, 1)).tolist() == [1.5]
    texts = spec(DType.string, "n")
    assert read(b"one\ntwo\n", texts).tolist() == ["one", "two"]
    assert read(b"one line\n", texts).tolist() == ["one line"]
    assert read(b"one\ntwo\n", spec(DType.string, 1)).tolist() == ["one\ntwo"]
    assert read(b'["a", "b"]', texts).tolist() == ["a", "b"]
    assert read(saved(np.array(["a", "b"])), texts).tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "declared", "problem"),
    [
        (saved(ROWS), spec(DType.float32, "n", 4), r"\[2, 3\], but input 'x' takes \[n, 4\]"),
        (b"[1.5]", spec(DType.int64, 1), "int64"),
        (b"[300]", spec(DType.uint8, 1), "uint8"),
        (b"[[1], [2, 3]]", spec(DType.float32, "n", "m"), "different lengths"),
        (b"[" * 100_000, spec(DType.float32, "n"), "deeply|JSON"),
        (b"[" * 40 + b"1" + b"]" * 40, spec(DType.float32, "n"), "deep"),
        (b'{"y": 1}', spec(DType.float32, "n"), "no entry for input 'x'"),
        (b'["a"]', spec(DType.float32, "n"), "has <U1, but"),
        (b"[1]", spec(DType.string, "n"), "strings"),
        (b"a,b\n1,2\n3\n", spec(DType.float32, "n", 2), "row 3 has 1 cells"),
        (b"a,b\n1,2\n3,x\n", spec(DType.float32, "n", 2), "row 3 has 'x' in column 'b'"),
        (b"a,b\n", spec(DType.float32, "n", 2), "no rows"),
        (b"\x80\x04\x95abc", spec(DType.float32, "n"), "pickle"),
        (b"ID3\x04", spec(DType.float32, "n"), "not a readable audio file"),
        (b"\0\1\2", spec(DType.float32, "n"), "unknown file format"),
        (b"", spec(DType.float32, "n"), "empty"),
        (saved(x=ROWS)[:-30], spec(DType.float32, "n", 3), "not a readable"),
        (saved(a=ROWS, b=ROWS), spec(DType.float32, "n", 3), "has no array 'x'"),
        (saved(np.array(["a"]))[:-1] + b"\xff", spec(DType.string, "n"), "invalid strings"),
        (saved(np.array([1 + 2j])), spec(DType.float32, 1), "complex"),
    ],
)
def test_content_that_does_not_fit_is_refused(content: bytes, declared: TensorSpec, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read(content, declared)


def test_suffixes_that_do_not_match_the_content(tmp_path: Path) -> None:
    for name, problem in (("x.png", "not a readable image, but a text"), ("x.npy", "not a readable .npy")):
        (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1")
        with pytest.raises(InputError, match=problem):
            read_input([DataSource(str(tmp_path / name))], spec(DType.float32, 1, 3, 8, 8), InputContext())
    with pytest.raises(InputError, match="folder without images"):
        read_input([DataSource(str(tmp_path))], spec(DType.float32, 1, 3, 8, 8), InputContext())


def test_archives_larger_than_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.readers.arrays.memory_left", lambda: 1000)
    assert read(saved(x=ROWS), spec(DType.float32, "n", 3)).shape == (2, 3)
    with pytest.raises(InputError, match="only 1,000 are left"):
        read(saved(x=np.zeros(1000, np.float32)), spec(DType.float32, "n"))


def test_kinds() -> None:
    assert detect_kind(b"RIFF\0\0\0\0WEBPVP8 ") is Kind.IMAGE
    assert detect_kind(b"\0\0\0\x1cftypavif") is Kind.IMAGE
    assert detect_kind("schön\n".encode()) is Kind.TEXT
    assert detect_kind(("a" * 4095 + "ö").encode()[:4096]) is Kind.TEXT, "a character is truncated"
    assert detect_kind(b"\x08\x03\x10\x01") is Kind.BINARY


def test_columns_by_the_names_of_inputs() -> None:
    table = DataSource("f", b"name;age;city\nbob;3;Rome\nann;4;Oslo\n")
    inputs = [spec(DType.int64, "n", 1, name="age"), spec(DType.string, "n", 1, name="city")]
    columns = read_table_columns(table, inputs)
    assert columns is not None
    assert columns["age"].tolist() == [[3], [4]]
    assert columns["city"].tolist() == [["Rome"], ["Oslo"]]
    assert read_table_columns(table, [*inputs, spec(DType.int64, "n", 1, name="missing")]) is None


def test_values_from_the_command_line() -> None:
    number = spec(DType.float32)
    for text, expected in (("16000", 16000), ("-1e3", -1000), (".5", 0.5), ("true", True), ("-inf", -np.inf)):
        parsed = parse_value(text, number)
        assert parsed is not None
        assert parsed == expected
    assert parse_value("photo.jpg", number) is None
    assert parse_value("", number) is None
    parsed = parse_value("[[1, 2], [3, 4]]", number)
    assert parsed is not None
    assert parsed.shape == (2, 2)
    text = parse_value("hello there", spec(DType.string))
    assert text is not None
    assert text.item() == "hello there"
    for quoted, expected_text in (('"photo.jpg"', "photo.jpg"), ("[sic", "[sic"), ('"said" he', '"said" he')):
        text = parse_value(quoted, spec(DType.string))
        assert text is not None
        assert text.item() == expected_text
    with pytest.raises(InputError, match="is not a list"):
        parse_value("[1, 2", number)


def test_derived_inputs() -> None:
    audio = {"audio": np.zeros((2, 700), np.float32)}
    sizes = {"n": 2, "seq": 5}

    def derive(declared: TensorSpec) -> Any:
        assert is_derived(declared)
        derived = derive_input(declared, audio, sizes, 8000)
        assert derived is not None
        assert derived[0].dtype == declared.dtype
        return derived[0].tolist()

    assert is_rate(spec(DType.int64, name="sr"))
    assert derive(spec(DType.int64, 1, name="sample_rate")) == [8000]
    assert derive(spec(DType.int64, "n", name="audio_lens")) == [700, 700]
    assert derive(spec(DType.int64, 1, "seq", name="attention_mask")) == [[1] * 5]
    assert derive(spec(DType.int64, 1, "seq", name="position_ids")) == [[0, 1, 2, 3, 4]]
    assert derive(spec(DType.float32, "n", 1, name="state")) == [[0], [0]]
    assert derive(spec(DType.float32, "n", "past_len", name="past_key_values.0.key")) == [[], []]
    for name in ("x", "image", "chars", "statement", "temperature", "input", "pixel_values"):
        assert not is_derived(spec(DType.float32, "n", 3, name=name)), name
    assert derive_input(spec(DType.float32, "n", name="aspect"), audio, sizes, None) is None


def test_damaged_files_raise_only_input_errors() -> None:
    seed = 16
    print("seed", seed)
    generator = random.Random(seed)
    files = [
        saved(ROWS),
        saved(x=ROWS),
        b"[[1, 2, 3]]",
        b"a,b,c\n1,2,3\n",
        numpy_helper.from_array(ROWS).SerializeToString(),
        *AUDIO_FILES,
    ]
    for _ in range(1500):
        content = bytearray(generator.choice(files))
        for _ in range(generator.randrange(1, 6)):
            content[generator.randrange(len(content))] = generator.choice((0, 255, generator.randrange(256)))
        if generator.random() < 0.3:
            del content[generator.randrange(len(content)) :]
        declared = generator.choice(
            (spec(DType.float32, "n", 3), spec(DType.string, "n"), spec(DType.int64), spec(DType.float32, "n"))
        )
        with suppress(InputError):
            read(bytes(content), declared)
