"""scripts/sizes on the CPU, with small models."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The script as a module, with small decoders in a temporary folder."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    path = ROOT / "scripts" / "sizes"
    spec = spec_from_loader("sizes_script", SourceFileLoader("sizes_script", str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    import size_visits

    monkeypatch.setattr(size_visits, "BUILT", tmp_path)
    monkeypatch.setattr(size_visits, "QUICK_VOCABULARY", 64)
    for name, form in size_visits.DECODERS.items():
        small = replace(form.shape, hidden=64, heads=2, kv_heads=2, intermediate=96, head_size=32)
        monkeypatch.setitem(size_visits.DECODERS, name, replace(form, shape=small))
    return module


def run(script: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["sizes", "--quick", *arguments])
    return int(script.main())


def test_decoders(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert run(script, monkeypatch, "decoder", "--steps", "12", "--layers", "1", "--state", "--json", str(out)) == 0
    rows = json.loads(out.read_text())["parts"]["decoder"]
    assert [row["engine"] for row in rows] == ["weft", "onnxruntime"] * 4
    assert all(len(row["token_ms"]) == 12 and not row.get("failed") for row in rows)
    assert "qwen-genai-int4" in capsys.readouterr().out


@pytest.mark.models
def test_random_sizes(script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import size_checks

    name = "reachy-mini__fknetwork.dynamic"
    try:
        size_checks.find_model(name)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(size_checks, "RANGES", {name: {"N": (1, 20)}})
    assert run(script, monkeypatch, "random", "--sizes", "12") == 0
    assert "pass" in capsys.readouterr().out
    monkeypatch.setattr(size_checks, "agrees_with_prediction", lambda *_: False)
    assert run(script, monkeypatch, "random", "--sizes", "12") == 1
    assert "12 of 12 predictions wrong" in " ".join(capsys.readouterr().out.split())


def test_unknown_names_are_refused(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (["heights"], ["--decoders", "gpt5"]):
        with pytest.raises(SystemExit):
            run(script, monkeypatch, *arguments)
