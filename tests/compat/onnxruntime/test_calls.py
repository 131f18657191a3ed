"""Calls to onnxruntime give the same values, types and exceptions with the real one and with weft.

Intended differences are listed with their reasons, and must exist.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).parent
SOURCE = Path(__file__).parents[3] / "src"
DIFFERENCES = {
    "external_data_in_the_current_directory": "onnxruntime finds it, and then fails to fold the constant",
    "options_custom_ops": "weft does not load compiled kernels, and raises its own error",
    "run_array_like": "weft takes objects with __array__",
    "run_big_endian": "onnxruntime reads the bytes in the wrong order, and returns a wrong result",
    "source_unknown_value": "weft raises InvalidGraph for invalid graphs",
    "source_cycle": "weft raises InvalidGraph for invalid graphs",
}


def test_calls_agree_with_onnxruntime(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    real = _record_outcomes(tmp_path / "real", [])
    ours = _record_outcomes(tmp_path / "weft", ["-m", "weft.compat"])
    assert len(real) > 500
    assert real.keys() == ours.keys() >= DIFFERENCES.keys()
    differing = {name for name in real if not _agree(real[name], ours[name])}
    unexpected = sorted(differing - DIFFERENCES.keys())
    report = "\n".join(f"{name}\n  onnxruntime: {real[name]}\n  weft: {ours[name]}" for name in unexpected)
    assert differing == DIFFERENCES.keys(), report or f"these no longer differ: {DIFFERENCES.keys() - differing}"


def _record_outcomes(folder: Path, launcher: list[str]) -> dict[str, Any]:
    """Run record.py in a new folder, and return the outcome of each call."""
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    environment.pop("WEFT_COMPAT", None)
    process = subprocess.run(
        [sys.executable, "-W", "ignore", *launcher, str(HERE / "record.py"), "outcomes"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    file, outcomes = pickle.loads((folder / "outcomes").read_bytes())
    assert (Path(file).parent == SOURCE / "weft" / "compat" / "onnxruntime") == bool(launcher)
    return dict(outcomes)


def _agree(real: Any, ours: Any) -> bool:
    """Whether two outcomes agree: messages of exceptions may differ, floats by a few roundings."""
    if isinstance(real, tuple) and isinstance(ours, tuple) and real and real[0] == "raised":
        return real[:2] == ours[:2]
    if isinstance(real, (tuple, list)):
        same_length = type(real) is type(ours) and len(real) == len(ours)
        return same_length and all(_agree(one, other) for one, other in zip(real, ours))
    if isinstance(real, np.ndarray):
        if not isinstance(ours, np.ndarray) or real.dtype != ours.dtype or real.shape != ours.shape:
            return False
        if real.dtype.kind == "f":
            return bool(np.allclose(real, ours, rtol=1e-5, atol=1e-6, equal_nan=True))
        return bool(np.array_equal(real, ours))
    return type(real) is type(ours) and bool(real == ours)
