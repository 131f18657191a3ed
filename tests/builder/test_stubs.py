"""Test the stubs of `weft.ops`; `WEFT_WRITE_DOCS=1 pytest tests/builder/test_stubs.py` writes them."""

from __future__ import annotations

import ast
import inspect
import os
from pathlib import Path

import pytest

from weft import ops
from weft.builder.stubs import generate_stub

OPS = Path(__file__).parent.parent.parent / "src" / "weft" / "ops"
MODULES = {
    "__init__": "",
    "microsoft": "com.microsoft",
    "ml": "ai.onnx.ml",
    "preview": "ai.onnx.preview",
    "preview_training": "ai.onnx.preview.training",
}


@pytest.mark.parametrize("module", MODULES)
def test_a_stub_has_the_parameters_of_the_functions(module: str) -> None:
    space = ops if module == "__init__" else getattr(ops, module)
    functions = [node for node in ast.parse(generate_stub(MODULES[module])).body if isinstance(node, ast.FunctionDef)]
    assert {node.name for node in functions} == set(dir(space)) - {*MODULES, "domain"}
    for node in functions:
        declared = [*node.args.args, *filter(None, [node.args.vararg]), *node.args.kwonlyargs]
        actual = inspect.signature(getattr(space, node.name)).parameters
        assert [parameter.arg for parameter in declared] == list(actual), node.name


@pytest.mark.parametrize("module", MODULES)
def test_a_stub_is_up_to_date(module: str) -> None:
    path = OPS / f"{module}.pyi"
    text = generate_stub(MODULES[module])
    if os.environ.get("WEFT_WRITE_DOCS"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, "run WEFT_WRITE_DOCS=1 pytest tests/builder/test_stubs.py"
