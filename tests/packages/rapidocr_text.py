"""rapidocr reads lines of text in an image, upright and upside down."""

from __future__ import annotations

import logging

import numpy as np
from rapidocr import RapidOCR
from sample_images import draw_text
from script_output import print_results

logging.disable(logging.INFO)
IMAGE = draw_text(["The quick brown fox jumps", "over 13 lazy dogs: 42.50 EUR", "weft & warp", "Ready? Yes!"])

engine = RapidOCR()


def results() -> list[object]:
    lines: list[object] = []
    for image in (IMAGE, IMAGE.rotate(180)):
        output = engine(np.asarray(image))
        lines += [list(line) for line in zip(output.txts, output.boxes.tolist(), output.scores, strict=True)]
    return lines


if __name__ == "__main__":
    print_results(results)
