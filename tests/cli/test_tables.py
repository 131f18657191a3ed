"""Tables fit any width, and are complete in a pipe."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from weft.cli.output import NO_LIMIT, facts, table

NAMES = (
    "/encoder/layers.0/self_attention/output/dense/MatMul",
    "a few words of a reason",
    "日本語の長い名前です",
    "x",
    "",
)


def render(content: object, width: int, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    console = Console(file=stream, width=width, soft_wrap=width >= NO_LIMIT, highlight=False, color_system=None)
    console.print(content)
    stream.flush()
    stream.seek(0)
    return stream.read()


@pytest.mark.parametrize("seed", range(20))
def test_any_table_fits(seed: int) -> None:
    """Random tables of random widths keep numbers and unshortened columns."""
    random = np.random.default_rng(seed)
    columns = [f"{'number' if kind else 'words'} {place}" for place, kind in enumerate(random.integers(2, size=4))]
    right = [column for column in columns if column.startswith("number")]
    numbers = [f"{value:,}" for value in random.integers(1_000_000, size=5)]
    rows = [
        [numbers[line] if column in right else NAMES[int(random.integers(len(NAMES)))] for column in columns]
        for line in range(5)
    ]
    words = [column for column in columns if column not in right]
    below = words[0] if words and seed % 2 else None
    width = int(random.integers(24, 130))
    text = render(table("a title of some words", columns, rows, right, below=below), width)
    assert max(map(cell_len, text.splitlines())) <= width, text
    complete = render(table("", columns, rows, right, below=below), NO_LIMIT)
    for row in rows:
        for cell in row:
            assert cell in complete
    if right:
        assert all(number in text for number in numbers), text


def test_spare_columns() -> None:
    columns, row = ("model", "median", "quartiles", "of peak"), ("a-model", "5.83 µs", "5.78 to 5.91 µs", "12.5%")
    content = table("", columns, [row], right=columns[1:], spare=("quartiles", "of peak"))
    assert "not shown" not in render(content, 60)
    narrow = render(content, 34)
    assert "not shown in 34 columns: quartiles" in " ".join(narrow.split())
    assert "12.5%" in narrow


def test_column_below() -> None:
    content = table(
        "", ("kernel", "nodes", "time"), [("map", "some nodes " * 6, "3 s")], ("time",), ("kernel",), "nodes"
    )
    lines = render(content, 40).splitlines()
    assert lines[0].split() == ["kernel", "time"]
    assert lines[3].startswith("    some nodes")


def test_facts_break_between_parts() -> None:
    text = render(facts([("file", f"/folder{'/inner_folder' * 6}/model.onnx"), ("size", Text("3 MiB"))]), 40)
    assert max(map(len, text.splitlines())) <= 40
    assert "".join(text.split()).startswith(f"file/folder{'/inner_folder' * 6}/model.onnx")


def test_shortened_names_stay_distinct() -> None:
    """Only scopes without a number are left out of a node's name."""
    names = [f"/bert_like_encoder/encoder/layers.{number}/self_attention/output/dense/MatMul" for number in range(12)]
    text = render(table("", ("node", "other"), [(name, "x" * 30) for name in names]), 64)
    assert len({line.split()[0] for line in text.splitlines()[2:]}) == len(names)
    assert "/…/layers.11/…/dense/MatMul" in text


def test_ellipsis_follows_the_encoding() -> None:
    content = table("", ("name", "other"), [(NAMES[0], NAMES[0])])
    assert "…" in render(content, 60)
    assert "..." in render(content, 60, "ascii")
