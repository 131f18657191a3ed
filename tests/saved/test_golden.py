"""A file that an earlier version of weft saved: it gives the same results, or is rejected with an error.

`python -m saved.test_golden` (PYTHONPATH=src:tests) writes it again: needed after a change of records, which the test
reports. If programs saved before would give other results, increase layout.MEANING too.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from saved.saved_models import run_in_process, sample, write_model

import weft
from weft.backends.cpu import portability

GOLDEN = Path(__file__).parent / "golden.weft"
TARGETS = ("x86-64-v2", "aarch64")


@pytest.mark.skipif(
    portability._system() != "linux" or portability._architecture() not in ("x86_64", "aarch64"),
    reason="the file has no code for this machine",
)
def test_golden_file_runs_or_is_rejected(tmp_path: Path, record_property: pytest.RecordProperty) -> None:
    try:
        weft.load(GOLDEN, trusted=True)
    except weft.UnsupportedModelError as error:
        record_property("left out", f"{error.problem}; write golden.weft again")
        return
    digits, _ = run_in_process(GOLDEN, "trusted=True")
    expected = weft.load(write_model(tmp_path / "m.onnx"), device="cpu").run({"x": sample()})["y"]
    assert np.allclose(np.frombuffer(bytes.fromhex(digits), np.float32).reshape(3, 5), expected, rtol=1e-5)


def write_golden_file() -> None:
    with TemporaryDirectory() as folder:
        weft.compile(write_model(Path(folder) / "m.onnx"), GOLDEN, target=TARGETS, cache=False)


if __name__ == "__main__":
    write_golden_file()
