"""Test that the examples in the help of each command run."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LEFT_OUT
from docs.test_pages import run_page, sample_folder

from weft.cli import COMMANDS

__all__ = ["sample_folder"]

NOT_RUN = {
    "weft run model.onnx -i x=x.npy -i rate=16000 -o results": "the classifier has no rate",
    "weft report model.onnx --device cuda,webgpu,cpu": "needs a GPU",
    "weft kernels model.onnx -k contract --device webgpu:0": "needs a GPU",
    "weft tune model.onnx": "needs a GPU",
    "weft tune model.onnx --batch 8 --seconds 10": "needs a GPU",
    "weft devices --calibrate": "it takes long",
    "weft bench model.onnx": "it takes long",
    "weft bench model.onnx --against none --batch 8 --threads 4": "it takes long",
    "weft bench --generate folder --against onnxruntime-genai": "it takes long, and needs onnxruntime-genai",
    "weft bench --diff before.json after.json": "the files are a reader's own",
    "weft serve model.onnx": "the server runs until it is stopped",
    "weft serve folder": "the server runs until it is stopped",
    "weft serve models/ --host 0.0.0.0": "the server runs until it is stopped",
    "weft serve small=a.onnx large=b.onnx --max-wait 5ms": "the server runs until it is stopped",
    "weft conformance --device cpu": "it takes long, and scripts/test runs it",
    'eval "$(weft completion zsh)"': "it is for zsh, and tests of completion run it",
    "weft cache clean --older-than 7": "other tests use the cache",
}
BEFORE = """<!-- python:
import os, shutil
os.environ["HOME"] = os.getcwd()
os.makedirs(".config/fish/completions")
os.makedirs("models")
shutil.copy("model.onnx", "changed.onnx")
shutil.copy("model.onnx", "models/model.onnx")
-->

```sh
weft profile model.onnx -o profile.json --repeat 1
```
"""


def page() -> str:
    """Return a page with a block for each example."""
    blocks = [BEFORE]
    for command in COMMANDS:
        for purpose, line in getattr(importlib.import_module(f"weft.cli.{command}"), "EXAMPLES", ()):
            above = f"<!-- not run: {NOT_RUN[line]} -->\n" if line in NOT_RUN else ""
            blocks.append(f"{purpose}:\n\n{above}```sh\n{line}\n```\n")
    return "\n".join(blocks)


@pytest.mark.skipif(shutil.which("bash") is None, reason="examples are for bash")
def test_examples_run(sample_folder: Path, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    path = tmp_path / "help.md"
    path.write_text(page(), encoding="utf-8")
    outcomes = run_page(path, sample_folder, tmp_path)
    lines = page().split("\n")
    for reason in {block["left_out"] for block in outcomes if block["left_out"]}:
        record_property(LEFT_OUT, f"examples in help: {reason}")
    assert {lines[block["line"] - 1]: block["wrong"] for block in outcomes if block["wrong"]} == {}
    assert len(outcomes) > 40, json.dumps(outcomes)


def test_excluded_examples_exist() -> None:
    lines = page().split("\n")
    assert [line for line in NOT_RUN if line not in lines] == []
