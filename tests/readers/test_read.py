"""Files of all kinds as inputs: told by content, made to fit where nothing is lost, refused with words where not."""

from __future__ import annotations

import io
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from weft.errors import InputError
from weft.ir.dtypes import DType
from weft.ir.specs import TensorSpec
from weft.ir.types import TensorType
from weft.readers.arrays import table_columns, typed
from weft.readers.companions import companion, is_companion, is_rate
from weft.readers.content import DataSource, Kind, kind_of
from weft.readers.read import Terms, read_input

ROWS = np.array([[1.5, 2, 3], [4, 5, 6]], np.float32)


def spec(dtype: DType, *dims: int | str, name: str = "x") -> TensorSpec:
    return TensorSpec(name, dims, TensorType(dtype, dims))


def saved(*arrays: Any, **named: Any) -> bytes:
    content = io.BytesIO()
    np.savez(content, **named) if named else np.save(content, arrays[0])
    return content.getvalue()


def read(content: bytes, wanted: TensorSpec, name: str = "f") -> np.ndarray[Any, Any]:
    found = read_input([DataSource(name, content)], wanted, Terms()).array
    assert found.dtype == wanted.dtype
    return found


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
    ("content", "wanted", "problem"),
    [
        (saved(ROWS), spec(DType.float32, "n", 4), r"\[2, 3\], but input 'x' takes \[n, 4\]"),
        (b"[1.5]", spec(DType.int64, 1), "int64"),
        (b"[300]", spec(DType.uint8, 1), "uint8"),
        (b"[[1], [2, 3]]", spec(DType.float32, "n", "m"), "one length"),
        (b"[" * 100_000, spec(DType.float32, "n"), "deep|JSON"),
        (b"[" * 40 + b"1" + b"]" * 40, spec(DType.float32, "n"), "deep"),
        (b'{"y": 1}', spec(DType.float32, "n"), "nothing for input 'x'"),
        (b'["a"]', spec(DType.float32, "n"), "no number|holds"),
        (b"[1]", spec(DType.string, "n"), "texts"),
        (b"a,b\n1,2\n3\n", spec(DType.float32, "n", 2), "row 3 has 1 cells"),
        (b"a,b\n1,2\n3,x\n", spec(DType.float32, "n", 2), "row 3 has 'x' in column 'b'"),
        (b"a,b\n", spec(DType.float32, "n", 2), "no rows"),
        (b"\x80\x04\x95abc", spec(DType.float32, "n"), "pickle"),
        (b"ID3\x04", spec(DType.float32, "n"), "sound"),
        (b"\0\1\2", spec(DType.float32, "n"), "not known what this is"),
        (b"", spec(DType.float32, "n"), "empty"),
        (saved(x=ROWS)[:-30], spec(DType.float32, "n", 3), "not a readable"),
        (saved(a=ROWS, b=ROWS), spec(DType.float32, "n", 3), "holds no array 'x'"),
        (saved(np.array(["a"]))[:-1] + b"\xff", spec(DType.string, "n"), "texts that are none"),
        (saved(np.array([1 + 2j])), spec(DType.float32, 1), "complex"),
    ],
)
def test_what_does_not_fit_is_said(content: bytes, wanted: TensorSpec, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read(content, wanted)


def test_endings_that_promise_something_else(tmp_path: Path) -> None:
    for name, problem in (("x.png", "not a readable picture, but a text"), ("x.npy", "not a readable .npy")):
        (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1")
        with pytest.raises(InputError, match=problem):
            read_input([DataSource(str(tmp_path / name))], spec(DType.float32, 1, 3, 8, 8), Terms())
    with pytest.raises(InputError, match="folder without pictures"):
        read_input([DataSource(str(tmp_path))], spec(DType.float32, 1, 3, 8, 8), Terms())


def test_archives_that_hold_more_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.readers.arrays.memory_left", lambda: 1000)
    assert read(saved(x=ROWS), spec(DType.float32, "n", 3)).shape == (2, 3)
    with pytest.raises(InputError, match="and there are 1,000 left"):
        read(saved(x=np.zeros(1000, np.float32)), spec(DType.float32, "n"))


def test_kinds() -> None:
    assert kind_of(b"RIFF\0\0\0\0WEBPVP8 ") is Kind.PICTURE
    assert kind_of(b"\0\0\0\x1cftypavif") is Kind.PICTURE
    assert kind_of("schön\n".encode()) is Kind.TEXT
    assert kind_of(("a" * 4095 + "ö").encode()[:4096]) is Kind.TEXT, "a character is cut off"
    assert kind_of(b"\x08\x03\x10\x01") is Kind.BINARY


def test_columns_by_the_names_of_inputs() -> None:
    table = DataSource("f", b"name;age;city\nbob;3;Rome\nann;4;Oslo\n")
    inputs = [spec(DType.int64, "n", 1, name="age"), spec(DType.string, "n", 1, name="city")]
    found = table_columns(table, inputs)
    assert found is not None
    assert found["age"].tolist() == [[3], [4]]
    assert found["city"].tolist() == [["Rome"], ["Oslo"]]
    assert table_columns(table, [*inputs, spec(DType.int64, "n", 1, name="missing")]) is None


def test_what_is_typed() -> None:
    number = spec(DType.float32)
    for text, expected in (("16000", 16000), ("-1e3", -1000), (".5", 0.5), ("true", True), ("-inf", -np.inf)):
        found = typed(text, number)
        assert found is not None
        assert found == expected
    assert typed("photo.jpg", number) is None
    assert typed("", number) is None
    found = typed("[[1, 2], [3, 4]]", number)
    assert found is not None
    assert found.shape == (2, 2)
    text = typed("hello there", spec(DType.string))
    assert text is not None
    assert text.item() == "hello there"
    for quoted, meant in (('"photo.jpg"', "photo.jpg"), ("[sic", "[sic"), ('"said" he', '"said" he')):
        text = typed(quoted, spec(DType.string))
        assert text is not None
        assert text.item() == meant
    with pytest.raises(InputError, match="is no list"):
        typed("[1, 2", number)


def test_inputs_that_follow_from_others() -> None:
    sound = {"audio": np.zeros((2, 700), np.float32)}
    sizes = {"n": 2, "seq": 5}

    def follows(wanted: TensorSpec) -> Any:
        assert is_companion(wanted)
        found = companion(wanted, sound, sizes, 8000)
        assert found is not None
        assert found[0].dtype == wanted.dtype
        return found[0].tolist()

    assert is_rate(spec(DType.int64, name="sr"))
    assert follows(spec(DType.int64, 1, name="sample_rate")) == [8000]
    assert follows(spec(DType.int64, "n", name="audio_lens")) == [700, 700]
    assert follows(spec(DType.int64, 1, "seq", name="attention_mask")) == [[1] * 5]
    assert follows(spec(DType.int64, 1, "seq", name="position_ids")) == [[0, 1, 2, 3, 4]]
    assert follows(spec(DType.float32, "n", 1, name="state")) == [[0], [0]]
    assert follows(spec(DType.float32, "n", "past_len", name="past_key_values.0.key")) == [[], []]
    for name in ("x", "image", "chars", "statement", "temperature", "input", "pixel_values"):
        assert not is_companion(spec(DType.float32, "n", 3, name=name)), name
    assert companion(spec(DType.float32, "n", name="aspect"), sound, sizes, None) is None


def test_damaged_files_are_refused_and_nothing_else() -> None:
    seed = 16
    print("seed", seed)
    chance = random.Random(seed)
    files = [
        saved(ROWS),
        saved(x=ROWS),
        b"[[1, 2, 3]]",
        b"a,b,c\n1,2,3\n",
        numpy_helper.from_array(ROWS).SerializeToString(),
    ]
    for _ in range(1500):
        content = bytearray(chance.choice(files))
        for _ in range(chance.randrange(1, 6)):
            content[chance.randrange(len(content))] = chance.choice((0, 255, chance.randrange(256)))
        if chance.random() < 0.3:
            del content[chance.randrange(len(content)) :]
        wanted = chance.choice((spec(DType.float32, "n", 3), spec(DType.string, "n"), spec(DType.int64)))
        with suppress(InputError):
            read(bytes(content), wanted)
