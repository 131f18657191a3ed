"""Invalid arguments to every entry point are refused with a WeftError."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attack.families.api import ENTRIES, MODELS, NOT_TRIED, ODD

import weft
from weft.errors import InputError, InternalError, WeftError


@pytest.mark.parametrize("entry", ENTRIES)
def test_invalid_arguments_raise_weft_errors(entry: str) -> None:
    for name, make in ODD.items():
        if (entry, name) in NOT_TRIED:
            continue
        try:
            ENTRIES[entry](make(), "reference")
        except InternalError:
            raise
        except WeftError:
            continue
        except Exception as error:
            pytest.fail(f"{name}: {type(error).__name__}: {error}")


@pytest.mark.parametrize("inputs", [np.ones((2, 3), np.float32), [np.ones((2, 3), np.float32)], "x", 5], ids=repr)
def test_positional_inputs_are_refused(inputs: Any) -> None:
    with pytest.raises(InputError, match="dict of arrays by name"):
        weft.load(MODELS["plain"](), device="reference").run(inputs)


def test_unwritable_dump_folder_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InputError, match="dump folder"):
        weft.load(MODELS["plain"](), device="reference", dump=file / "below")


def test_numpy_numbers_are_numbers() -> None:
    model = weft.load(MODELS["plain"](), device="cpu", threads=np.int64(1), cache=False)
    assert model.memory({"n": np.int32(2)}) == model.memory({"n": 2})
    assert list(model.run({"x": np.ones((2, 3), np.float32)}, outputs=np.array(["z"]))) == ["z"]


def test_strings() -> None:
    model = weft.load(MODELS["strings"](), device="reference")
    assert model.run({"x": np.array([b"a", b"\xc3\xa4"])})["y"].tolist() == ["a", "ä"]
    for bad in (np.array(["a", None], object), np.array([b"\xff"]), [1, 2]):
        with pytest.raises(InputError, match="input 'x'"):
            model.run({"x": bad})
