"""rapidocr reads lines of text that were rendered to a picture, upright and upside down."""

from __future__ import annotations

import logging

import numpy as np
from pictures import lines_of_text
from rapidocr import RapidOCR
from telling import tell

logging.disable(logging.INFO)
PICTURE = lines_of_text(["The quick brown fox jumps", "over 13 lazy dogs: 42.50 EUR", "weft & warp", "Ready? Yes!"])

engine = RapidOCR()


def results() -> list[object]:
    lines: list[object] = []
    for picture in (PICTURE, PICTURE.rotate(180)):
        found = engine(np.asarray(picture))
        lines += [list(line) for line in zip(found.txts, found.boxes.tolist(), found.scores, strict=True)]
    return lines


if __name__ == "__main__":
    tell(results)
