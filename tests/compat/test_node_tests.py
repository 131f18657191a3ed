"""The suite's node tests are computed once, and then read from weft's cache."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.backend.test.case.test_case import TestCase as SuiteCase

from weft.cache.files import VARIABLE
from weft.compat.conformance import node_tests
from weft.compat.conformance.node_tests import FOLDER, load_node_tests


@pytest.fixture
def computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds that were computed, of a suite with one test and an empty cache."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "g", [], [])
    data = [
        [np.random.random(3), np.array(["a", "bc"], object), None, [np.zeros((0, 2), ml_dtypes.bfloat16)]],
        [np.float32(2.5), helper.make_tensor("y", TensorProto.INT4, [3], [1, -2, 3])],
    ]
    case = SuiteCase("test_abs", "abs", None, None, helper.make_model(graph), [data], "node", 1e-3, 1e-7)
    kinds: list[str] = []

    def load(kind: str) -> list[SuiteCase]:
        kinds.append(kind)
        return [case]

    monkeypatch.setattr(node_tests, "load_model_tests", load)
    return kinds


def as_bytes(tests: list[Any]) -> bytes:
    return pickle.dumps(tests, 5)


def cache_file(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "cache" / FOLDER).iterdir()
    return path


def test_computed_once(computed: list[str]) -> None:
    first, second = load_node_tests(), load_node_tests()
    assert computed == ["node"]
    assert first[0].model == second[0].model
    assert as_bytes(pickle.loads(as_bytes(first))) == as_bytes(second)


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps([os.getcwd])])
def test_damaged_entry_is_computed_again(content: bytes, tmp_path: Path, computed: list[str]) -> None:
    first = load_node_tests()
    path = cache_file(tmp_path)
    path.chmod(0o600)
    path.write_bytes(content)
    assert as_bytes(load_node_tests()) == as_bytes(first)
    assert computed == ["node", "node"]
    assert path.read_bytes() != content


def test_without_a_cache(computed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    assert len(load_node_tests()) == len(load_node_tests()) == 1
    assert computed == ["node", "node"]
