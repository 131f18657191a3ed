"""The output of commands in terminals of 40, 80 and 120 columns, and in pipes."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from terminal.sample import write_model

if sys.platform == "win32":
    pytest.skip("Windows has no pseudo-terminals of this kind", allow_module_level=True)

from terminal.session import play

pyte = pytest.importorskip("pyte", reason="terminals are tested with pyte: pip install pyte")

WIDTHS = (80, 40, 120)
ONCE = (
    "demo",
    "generate",
    "chat",
    "profile",
    "compare",
    "optimize",
    "report",
    "cache",
    "operators",
)  # in one width only
WIDE = ("info", "kernels", "plan", "an operator")  # also in wide terminals
MODEL = "model.onnx"
SESSION: dict[str, tuple[list[str], int]] = {
    "overview": ([], 0),
    "help": (["--help"], 0),
    "help of a command": (["run", "--help"], 0),
    "demo": (["demo"], 0),
    "generate": (["generate", "The functions of", "--max-new-tokens", "12", "--device", "cpu"], 0),
    "chat": (["chat", "--device", "cpu"], 0),
    "info": (["info", MODEL, "--symbolic"], 0),
    "run": (["run", MODEL], 0),
    "devices": (["devices"], 0),
    "report": (["report", MODEL, "--device", "cpu"], 0),
    "kernels": (["kernels", MODEL, "--device", "cpu"], 0),
    "plan": (["plan", MODEL, "--device", "cpu"], 0),
    "profile": (["profile", MODEL, "--device", "cpu", "--repeat", "2"], 0),
    "compare": (["compare", MODEL, "--devices", "reference,cpu", "--quick"], 0),
    "optimize": (["optimize", MODEL, "smaller.onnx"], 0),
    "an operator": (["ops", "conv"], 0),
    "operators": (["ops", "reduce"], 0),
    "cache": (["cache", "list"], 0),
    "a mistake": (["inof"], 2),
    "an unknown option": (["run", MODEL, "--devcie", "cpu"], 2),
    "a missing file": (["info", "a-missing-model-with-a-rather-long-name.onnx"], 1),
    "a wrong shape": (["run", MODEL, "--shape", "batch=0.5"], 1),
    "not a model": (["info", "page.onnx"], 1),
}
TERMINALS = [
    (name, columns)
    for name in SESSION
    for columns in (WIDTHS[:1] if name in ONCE else WIDTHS if name in WIDE else WIDTHS[:2])
]
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]")
TIMED = re.compile(r"[\d.,%]+|ns|µs|us|ms|s|[kMGT]|(Ki|Mi|Gi)?B|×|x")
SHORT_NAME = re.compile(r"[a-z_]+_[0-9a-f]{8,}")
RULE = re.compile(r"[─━-]+")

Results = Mapping[tuple[str, int | None], dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("terminal")
    write_model(folder / MODEL)
    (folder / "page.onnx").write_text("<!DOCTYPE html><html></html>", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    """Run every command in its terminals, and in a pipe."""
    keys = [*TERMINALS, *((name, None) for name in SESSION)]
    cases = [_case(folder, SESSION[name][0], columns=columns) for name, columns in keys]
    return dict(zip(keys, play(cases), strict=True))


def _case(folder: Path, arguments: list[str], **more: Any) -> dict[str, Any]:
    cache = {"WEFT_CACHE": str(folder / "cache")}
    return {
        "arguments": arguments,
        "folder": str(folder),
        **more,
        "environment": {**cache, **more.get("environment", {})},
    }


@pytest.mark.parametrize(("name", "columns"), TERMINALS)
def test_terminals(name: str, columns: int, results: Results) -> None:
    """Lines fit, words are not broken, and errors have no traceback."""
    result = results[name, columns]
    text = result["written"]
    assert result["code"] == SESSION[name][1], text
    assert "Traceback" not in text
    pipe_words = set(_plain(results[name, None]["written"]).split())
    too_long = " ".join(word for word in pipe_words if len(word) > columns - 16)  # may be broken
    for word in _shown_words(text, columns):
        assert word in pipe_words or word in too_long or _may_differ(word), (
            f"{word!r} is not a word of the pipe's output"
        )


@pytest.mark.parametrize("name", SESSION)
def test_pipes(name: str, results: Results) -> None:
    """Output is not coloured, shortened or wrapped."""
    result = results[name, None]
    assert result["code"] == SESSION[name][1]
    assert "\x1b" not in result["written"]
    if name in ("info", "report", "kernels", "plan", "profile"):
        assert "self_attention/output/dense" in result["written"] or name == "report"
        assert "…" not in result["written"] or name == "info"  # which shortens metadata


def test_environments(folder: Path) -> None:
    """Colours and characters follow the terminal and the encoding."""
    table = ["kernels", MODEL, "--device", "cpu"]
    settings: dict[str, dict[str, Any]] = {
        "plain": {"columns": 80},
        "no colour": {"columns": 80, "environment": {"NO_COLOR": "1"}},
        "dumb": {"columns": 80, "environment": {"TERM": "dumb"}},
        "forced": {"environment": {"FORCE_COLOR": "1"}},
        "COLUMNS": {"columns": 80, "environment": {"COLUMNS": "60"}},
        "invalid COLUMNS": {"columns": 80, "environment": {"COLUMNS": "many"}},
        "ascii": {"columns": 80, "encoding": "ascii"},
        "ascii pipe": {"encoding": "ascii"},
        "Windows": {"columns": 80, "encoding": "cp1252"},
        "DOS": {"columns": 80, "encoding": "cp437"},
    }
    results = dict(zip(settings, play([_case(folder, table, **each) for each in settings.values()]), strict=True))
    assert all(result["code"] == 0 for result in results.values())
    assert "\x1b[1m" in results["plain"]["written"]
    assert not re.search(r"\x1b\[\d*;?3\dm", results["no colour"]["written"])
    assert "\x1b" not in results["dumb"]["written"]
    assert "\x1b[" in results["forced"]["written"]
    assert max(map(_cells, _lines(results["COLUMNS"]["written"]))) <= 60
    assert max(map(_cells, _lines(results["invalid COLUMNS"]["written"]))) <= 80
    for name in ("ascii", "ascii pipe"):
        assert results[name]["written"].isascii()
        assert "?" not in results[name]["written"]
    for result in results.values():
        assert "Traceback" not in result["written"]
        assert "contract" in result["written"]


def test_ascii(folder: Path) -> None:
    """Output falls back to ASCII."""
    commands = [
        ["info", MODEL],
        ["demo"],
        ["--help"],
        ["ops", "relu"],
        ["info", "page.onnx"],
        ["optimize", MODEL, "s.onnx"],
    ]
    for result in play([_case(folder, arguments, encoding="ascii") for arguments in commands]):
        assert result["written"].isascii()
        assert "\\u" not in result["written"]


def _shown_words(written: str, columns: int) -> list[str]:
    """Return the words on the screen at the end, when progress is cleared."""
    screen = pyte.Screen(columns, 900)
    pyte.Stream(screen).feed(written)
    return "\n".join(screen.display).split()


def _plain(written: str) -> str:
    return ESCAPE.sub("", written)


def _lines(written: str) -> list[str]:
    return [line.rstrip() for line in _plain(written).split("\n")]


def _cells(line: str) -> int:
    from rich.cells import cell_len

    return cell_len(line)


def _may_differ(word: str) -> bool:
    """Whether a word may differ: numbers between runs, rules and shortened words between widths."""
    if "…" in word or word == "\\" or RULE.fullmatch(word) or SHORT_NAME.fullmatch(word):
        return True
    return bool(TIMED.fullmatch(word.strip("(),;:[]+"))) or not word.isascii()
