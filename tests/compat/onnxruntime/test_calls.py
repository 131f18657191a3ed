"""One program of calls to onnxruntime, run with the real one and with weft: values, types and exceptions are the same.

What differs on purpose is listed with its reason, and must differ.
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
MEANT = {
    "external_data_in_the_folder_of_the_process": "onnxruntime looks there, and then fails to fold what it found",
    "options_custom_ops": "weft loads no compiled kernels of others, and says so whatever the library is",
    "run_array_like": "weft takes whatever has __array__",
    "run_big_endian": "onnxruntime takes the bytes in the wrong order, and gives a wrong result",
    "source_unknown_value": "what is wrong with a graph is an InvalidGraph here",
    "source_circle": "what is wrong with a graph is an InvalidGraph here",
}


def test_calls_are_answered_as_by_onnxruntime(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    real, ours = _recorded(tmp_path / "real", []), _recorded(tmp_path / "weft", ["-m", "weft.compat"])
    assert len(real) > 500
    assert real.keys() == ours.keys() >= MEANT.keys()
    differing = {name for name in real if not _same(real[name], ours[name])}
    shown = [f"{name}\n  onnxruntime: {real[name]}\n  weft: {ours[name]}" for name in sorted(differing - MEANT.keys())]
    assert differing == MEANT.keys(), "\n".join(shown) or f"these no longer differ: {MEANT.keys() - differing}"


def _recorded(folder: Path, way: list[str]) -> dict[str, Any]:
    """What came of each call, in a process that begins in a folder of its own."""
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    environment.pop("WEFT_COMPAT", None)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *way, str(HERE / "record.py"), "told"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    file, outcomes = pickle.loads((folder / "told").read_bytes())
    assert (Path(file).parent == SOURCE / "weft" / "compat" / "onnxruntime") == bool(way)
    return dict(outcomes)


def _same(real: Any, ours: Any) -> bool:
    """Whether two outcomes are the same: texts of exceptions may differ, floats by a few roundings."""
    if isinstance(real, tuple) and isinstance(ours, tuple) and real and real[0] == "raised":
        return real[:2] == ours[:2]
    if isinstance(real, (tuple, list)):
        same_length = type(real) is type(ours) and len(real) == len(ours)
        return same_length and all(_same(one, other) for one, other in zip(real, ours))
    if isinstance(real, np.ndarray):
        if not isinstance(ours, np.ndarray) or real.dtype != ours.dtype or real.shape != ours.shape:
            return False
        if real.dtype.kind == "f":
            return bool(np.allclose(real, ours, rtol=1e-5, atol=1e-6, equal_nan=True))
        return bool(np.array_equal(real, ours))
    return type(real) is type(ours) and bool(real == ours)
