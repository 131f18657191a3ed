"""The digests that show whether a change touched any model's kernels."""

from __future__ import annotations

from pathlib import Path

from models.code_digests import codes, programs

import weft
from weft import ops


def test_covers_every_target(tmp_path: Path) -> None:
    graph = weft.Graph()
    x = graph.input("x", (4, 8), "float32")
    graph.output(ops.softmax(x @ x.T), "y")
    graph.to_onnx(tmp_path / "model.onnx")
    listings = list(codes(programs(str(tmp_path / "model.onnx"))))
    assert {target for target, _, _ in listings} == {"cpu", "gpu", "software"}
    assert all(code for _, _, code in listings)
