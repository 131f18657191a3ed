"""ddddocr reads short codes with both of its models, and detects objects in images."""

from __future__ import annotations

import ddddocr
from sample_images import draw_scene, draw_text, encode_png
from script_output import print_results

CODES = ("7X4K", "hello", "3+5=?", "a9Zq2")

reader = ddddocr.DdddOcr(show_ad=False)
older = ddddocr.DdddOcr(show_ad=False, old=True)
detector = ddddocr.DdddOcr(det=True, ocr=False, show_ad=False)


def results() -> list[object]:
    images = [encode_png(draw_text([code])) for code in CODES]
    texts = [[reader.classification(image), older.classification(image)] for image in images]
    boxes = [detector.detection(encode_png(image)) for image in (draw_text(["7X 4K"], 48), draw_scene())]
    return [texts, boxes]


if __name__ == "__main__":
    print_results(results)
