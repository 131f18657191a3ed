"""The stubs of `weft.ops`; `WEFT_WRITE_DOCS=1 pytest tests/builder/test_stubs.py` writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft.builder.stubs import stub

OPS = Path(__file__).parent.parent.parent / "src" / "weft" / "ops"
MODULES = {
    "__init__": "",
    "microsoft": "com.microsoft",
    "ml": "ai.onnx.ml",
    "preview": "ai.onnx.preview",
    "preview_training": "ai.onnx.preview.training",
}


@pytest.mark.parametrize("module", MODULES)
def test_a_stub_is_what_the_definitions_say(module: str) -> None:
    path = OPS / f"{module}.pyi"
    text = stub(MODULES[module])
    if os.environ.get("WEFT_WRITE_DOCS"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, "run WEFT_WRITE_DOCS=1 pytest tests/builder/test_stubs.py"
