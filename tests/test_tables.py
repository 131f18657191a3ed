"""How weft's objects print: a short `repr`, tables as text and as HTML, safe against hostile files."""

from __future__ import annotations

import rlcompleter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import model, node, tensor, value

import weft
from weft.quantities import (
    escape_unprintable,
    format_bytes,
    format_count,
    format_seconds,
    format_shape,
    join_few,
    shorten,
)
from weft.tables import Table

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e\ud800'\"&"
LONG = "block/" * 100 + "weight"
INPUTS = 500
MAX_LINE = 700  # of a repr


def hostile() -> onnx.ModelProto:
    """Build a model with many inputs and hostile names."""
    names = [HOSTILE.replace("\ud800", ""), LONG, *(f"x{number}" for number in range(INPUTS - 2))]
    proto = model(
        [node("Add", [names[0], names[1]], ["日本語"]), node("MatMul", ["日本語", "w"], [LONG + "y"])],
        [value(name, ["batch", 3]) for name in names],
        [value("日本語", ["batch", 3]), value(LONG + "y", ["batch", 300])],
        [tensor("w", np.ones((3, 300), np.float32))],
    )
    proto.producer_name, proto.doc_string = HOSTILE.replace("\ud800", ""), "d" * 5000
    for number in range(100):
        proto.metadata_props.add(key=f"key{number}<b>", value="v" * 1000)
    return proto


@pytest.fixture(scope="module")
def loaded() -> weft.Model:
    return weft.load(hostile(), device="cpu", threads=1)


@pytest.fixture(scope="module")
def objects(loaded: weft.Model, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One object of each class that has tables."""
    folder = tmp_path_factory.mktemp("objects")
    small = folder / "small.onnx"
    onnx.save(
        model(
            [node("MatMul", ["x", "w"], ["y"])],
            [value("x", ["b", 64])],
            [value("y", ["b", 64])],
            [tensor("w", np.eye(64, dtype=np.float32))],
        ),
        small,
    )
    inputs = weft.random_inputs(loaded)
    return {
        "model": loaded,
        "inputs": loaded.inputs,
        "spec": loaded.inputs[1],
        "metadata": loaded.metadata,
        "memory": loaded.memory(),
        "report": loaded.report(),
        "profile": loaded.profile(inputs, repeat=2),
        "bench": loaded.bench(inputs, seconds=0.01),
        "results": loaded.run(inputs),
        "devices": weft.devices(),
        "device": weft.devices()[0],
        "optimised": weft.optimize(small),
        "quantised": weft.quantize(small, folder / "quantised.onnx", to="int8", measure=False),
    }  # fmt: skip


KINDS = ["model", "inputs", "spec", "metadata", "memory", "report", "profile", "bench", "results", "devices", "device"]
KINDS += ["optimised", "quantised"]


@pytest.mark.parametrize("kind", KINDS)
def test_reprs_are_short(kind: str, objects: dict[str, Any]) -> None:
    lines = repr(objects[kind]).split("\n")
    assert len(lines) == 1 or kind in ("inputs", "results", "devices")
    assert len(lines) <= 22
    assert max(map(len, lines)) <= MAX_LINE
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_texts_fit_the_terminal(
    kind: str, width: int, objects: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = str(objects[kind]).split("\n")
    assert len(lines) <= 80
    assert all(line.isprintable() for line in lines)
    if kind not in ("spec", "report", "results", "device"):  # which are sentences or single lines
        assert max(map(len, lines)) <= width


class _Elements(HTMLParser):
    """The names of all elements and attributes, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.update([tag, *(name for name, _ in attrs)])
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("kind", KINDS)
def test_html_has_only_tables(kind: str, objects: dict[str, Any]) -> None:
    page = objects[kind]._repr_html_()
    page.encode("utf-8")
    elements = _Elements()
    elements.feed(page)
    elements.close()
    assert elements.open == []
    assert elements.names <= {"div", "table", "thead", "tbody", "tr", "th", "td", "strong", "style"}
    assert "background" not in page
    assert ";color" not in page
    assert '"color' not in page
    assert len(page) < 60_000


def test_hostile_names_are_escaped(objects: dict[str, Any]) -> None:
    elements = _Elements()
    elements.feed(objects["model"]._repr_html_())
    assert "<script>alert(1)</script>\\x1b[31m\\u202e" in elements.text
    assert "日本語" in elements.text
    assert "480 more" in elements.text


def test_print_shows_file_device_inputs_and_outputs(tmp_path: Path) -> None:
    path = tmp_path / "tiny.onnx"
    onnx.save(model([node("Relu", ["x"], ["y"])], [value("x", ["batch", 3])], [value("y", ["batch", 3])]), path)
    text = str(weft.load(path, device="reference"))
    for part in (str(path)[-20:], "reference", "input   x", "output  y", "float32", "[batch, 3]"):
        assert part in text


def test_specs_are_tuples(loaded: weft.Model) -> None:
    assert isinstance(loaded.inputs, tuple)
    assert loaded.inputs == tuple(loaded.inputs)
    assert hash(loaded.inputs) == hash(tuple(loaded.inputs))
    assert isinstance(weft.devices(), list)
    assert isinstance(loaded.run(weft.random_inputs(loaded)), dict)


# -- completion ------------------------------------------------------------------------------------------------------


def test_dir_of_the_package_has_the_public_names() -> None:
    names = {name for name in dir(weft) if not name.startswith("__")}
    assert names == {name for name in weft.__all__ if not name.startswith("__")} | {
        "backend",
        "compat",
        "ops",
        "server",
    }
    for name in names:
        assert getattr(weft, name) is not None


def test_tab_completion() -> None:
    completer = rlcompleter.Completer({"weft": weft})
    completions = []
    while (name := completer.complete("weft.", len(completions))) is not None:
        completions.append(name.rstrip("()"))
    assert {"weft.load", "weft.Model", "weft.devices", "weft.random_inputs"} <= set(completions)
    assert "weft.annotations" not in completions


def test_dir_of_a_model_has_the_public_names(loaded: weft.Model) -> None:
    names = {name for name in dir(loaded) if not name.startswith("_")}
    assert {"run", "inputs", "profile", "bench", "memory", "report", "save"} <= names
    assert not names & {"pool", "session", "move_to"}


# -- formatting ------------------------------------------------------------------------------------------------------


def test_long_names_keep_their_ends() -> None:
    assert shorten("a" * 30 + "z", 9) == "aaaa…aaaz" or shorten("a" * 30 + "z", 9).endswith("z")
    assert len(shorten("x" * 1_000_000)) == 60
    assert shorten("short") == "short"
    assert shorten("a\nb\x00") == "a\\nb\\x00"
    assert escape_unprintable("\ud800") == "\\ud800"


def test_long_lists_are_shortened() -> None:
    assert join_few(["a", "b"]) == "a, b"
    assert join_few(["a", "b", "c", "d", "e"]) == "a, b, c, d, e"
    assert join_few(map(str, range(10))) == "0, 1, 2, 3, … 6 more"
    assert format_shape(("batch", 3)) == "[batch, 3]"
    assert format_shape(range(1000)) == "[0, 1, 2, 3, 4, 5, 6, 7, … 992 more]"
    assert format_shape(None) == "[...]"


def test_numbers_have_units() -> None:
    assert format_bytes(12345678) == "11.8 MiB"
    assert format_count(12345678, "FLOP") == "12.3 MFLOP"
    assert [format_seconds(seconds) for seconds in (2e-7, 3e-5, 0.0123, 2.5, 1234)] == [
        "200 ns",
        "30 µs",
        "12.3 ms",
        "2.5 s",
        "1234 s",
    ]


def test_an_empty_table() -> None:
    assert Table([], ("a", "b")).text() == "a  b\n-  -"
    assert Table([]).text() == ""
    assert "<table" in Table([]).html()


def test_wide_characters_take_two_columns() -> None:
    lines = Table([("日本", 1), ("abcd", 22)], ("name", "n"), right=("n",)).text().split("\n")
    assert lines[2:] == ["日本   1", "abcd  22"]
