"""The declarations that type checkers read are right: tests/typed_program.py runs, and uses every public name."""

from __future__ import annotations

import ast
import asyncio
import inspect
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import typed_program

import weft
from weft import loading
from weft.optimization.optimize import OptimizeOptions
from weft.quantization.options import QuantizeOptions
from weft.runtime.options import LoadOptions


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("typed") / "tiny.onnx"
    typed_program.build_model().save(file)
    return file


def test_typed_program_runs(path: Path, tmp_path: Path) -> None:
    x = np.ones((2, 4), np.float32)
    models = [*typed_program.load_sources(path, path.read_bytes()), typed_program.load_with_options(path, tmp_path)]
    assert [len(model.inputs) for model in models] == [1] * len(models)
    model = models[0]
    assert "x" in typed_program.describe(model)
    assert typed_program.measure(model, tmp_path) > 0
    np.testing.assert_array_equal(typed_program.run_model(model, x), np.full((2, 3), 4, np.float32))
    assert typed_program.continue_state(tmp_path) == 8 * 4 * 4
    assert typed_program.generate_text()
    assert list(asyncio.run(typed_program.run_in_event_loop(model, x))) == ["y"]
    optimized, quantized = typed_program.write_models(path, tmp_path)
    assert optimized.path == tmp_path / "optimized.onnx"
    assert quantized.to == "int8"
    assert "absent" in typed_program.catch_errors(str(tmp_path / "absent.onnx"))


def test_typed_program_uses_every_public_name() -> None:
    tree = ast.parse(inspect.getsource(typed_program))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert sorted(set(weft.__all__) - used) == []


def test_declaration_of_load_equals_its_options() -> None:
    """Editors read a declaration of `load`; its options are those of `LoadOptions`."""
    tree = ast.parse(inspect.getsource(loading))
    (declared,) = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _is_declaration(node))
    options = next(
        node for node in ast.walk(ast.parse(inspect.getsource(LoadOptions))) if isinstance(node, ast.ClassDef)
    )
    stated = [line for line in options.body if isinstance(line, ast.AnnAssign) and line.value is not None]
    arguments = zip(declared.args.kwonlyargs, declared.args.kw_defaults)
    assert [(a.arg, _text(a.annotation), _text(default)) for a, default in arguments] == [
        (_text(line.target), _text(line.annotation), _text(line.value)) for line in stated
    ]
    assert list(inspect.signature(weft.load).parameters) == ["source", *(field.name for field in fields(LoadOptions))]


@pytest.mark.parametrize(("function", "options"), [(weft.optimize, OptimizeOptions), (weft.quantize, QuantizeOptions)])
def test_functions_take_their_options(function: object, options: type) -> None:
    parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
    for field in fields(options):
        assert field.name in parameters
        if field.name != "sizes":
            default = parameters[field.name].default
            assert default is inspect.Parameter.empty or default == field.default
        assert f"\n    {field.name}: " in (function.__doc__ or "")


def _is_declaration(node: ast.FunctionDef) -> bool:
    return node.name == "load" and bool(node.args.kwonlyargs)


def _text(node: ast.AST | None) -> str:
    return "" if node is None else ast.unparse(node)
