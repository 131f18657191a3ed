"""ddddocr reads short codes with either of its models, with their probabilities, and finds where things are."""

from __future__ import annotations

import ddddocr
from pictures import encoded, lines_of_text, scene
from telling import tell

CODES = ("7X4K", "hello", "3+5=?", "a9Zq2")

reader = ddddocr.DdddOcr(show_ad=False)
older = ddddocr.DdddOcr(show_ad=False, old=True)
detector = ddddocr.DdddOcr(det=True, ocr=False, show_ad=False)


def results() -> list[object]:
    pictures = [encoded(lines_of_text([code])) for code in CODES]
    texts = [[reader.classification(picture), older.classification(picture)] for picture in pictures]
    boxes = [detector.detection(encoded(picture)) for picture in (lines_of_text(["7X 4K"], 48), scene())]
    return [texts, boxes]


if __name__ == "__main__":
    tell(results)
