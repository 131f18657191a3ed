"""The stubs of `weft.ops`; `WEFT_WRITE_DOCS=1 pytest tests/builder/test_stubs.py` writes them."""

from __future__ import annotations

import ast
import inspect
import os
from pathlib import Path

import pytest

from weft import ops
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
def test_a_stub_has_the_parameters_that_functions_have(module: str) -> None:
    space = ops if module == "__init__" else getattr(ops, module)
    functions = [node for node in ast.parse(stub(MODULES[module])).body if isinstance(node, ast.FunctionDef)]
    assert {node.name for node in functions} == set(dir(space)) - {*MODULES, "domain"}
    for node in functions:
        told = [*node.args.args, *filter(None, [node.args.vararg]), *node.args.kwonlyargs]
        real = inspect.signature(getattr(space, node.name)).parameters
        assert [parameter.arg for parameter in told] == list(real), node.name


@pytest.mark.parametrize("module", MODULES)
def test_a_stub_is_what_the_definitions_say(module: str) -> None:
    path = OPS / f"{module}.pyi"
    text = stub(MODULES[module])
    if os.environ.get("WEFT_WRITE_DOCS"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, "run WEFT_WRITE_DOCS=1 pytest tests/builder/test_stubs.py"
