"""A file that an earlier weft saved: it still means the same, or is refused in words.

`python -m saved.test_golden` (PYTHONPATH=src:tests) writes it anew: to be done where records have changed, which shows
by itself. Where a program means something else now, layout.MEANING has to be another number as well.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from saved.saved_models import run_elsewhere, sample, write_model

import weft
from weft.backends.cpu import portability

GOLDEN = Path(__file__).parent / "golden.weft"
TARGETS = ("x86-64-v2", "aarch64")


@pytest.mark.skipif(
    portability._system() != "linux" or portability._architecture() not in ("x86_64", "aarch64"),
    reason="the file has code for other machines",
)
def test_what_was_saved_before_runs_or_is_refused(tmp_path: Path, record_property: pytest.RecordProperty) -> None:
    try:
        weft.load(GOLDEN, trusted=True)
    except weft.UnsupportedModelError as error:
        record_property("left out", f"{error.problem}; write golden.weft anew")
        return
    found, _ = run_elsewhere(GOLDEN, "trusted=True")
    expected = weft.load(write_model(tmp_path / "m.onnx"), device="cpu").run({"x": sample()})["y"]
    assert np.allclose(np.frombuffer(bytes.fromhex(found), np.float32).reshape(3, 5), expected, rtol=1e-5)


def write() -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        weft.compile(write_model(Path(folder) / "m.onnx"), GOLDEN, target=TARGETS, cache=False)


if __name__ == "__main__":
    write()
