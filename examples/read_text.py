"""Read the text in an image: detect lines, then recognize each of them.

    python examples/read_text.py photo.png

PP-OCRv6 (small; Chinese, English and more, Apache License 2.0) in two models: one marks the pixels that belong to text,
the other recognizes a line, as a letter or a blank for every few columns. Lines should be horizontal. Needs pillow.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from files import example_file
from PIL import Image

import weft

Array = np.ndarray[Any, np.dtype[Any]]
Box = tuple[int, int, int, int]  # left, top, right, bottom
SHORT_SIDE, LINE_HEIGHT, MARKED, SURE = 736, 48, 0.3, 0.5


@dataclass(frozen=True, slots=True)
class Line:
    box: Box
    text: str
    certainty: float


def read_text(detector: weft.Model, reader: weft.Model, image: Image.Image) -> list[Line]:
    """Return the lines of text from top to bottom, and from left to right."""
    letters = ["", *reader.metadata.properties["character"].splitlines(), " "]
    lines = []
    for box in find_lines(detector, image):
        left, top, right, bottom = box
        width = max(round(LINE_HEIGHT * (right - left) / (bottom - top)), LINE_HEIGHT)
        (scores,) = reader(pixels(image.crop(box).resize((width, LINE_HEIGHT), Image.Resampling.BILINEAR)))
        best = scores.argmax(axis=1)
        new = (best != 0) & (np.diff(best, prepend=0) != 0)  # repeated letters are one letter
        if new.any():
            text = "".join(letters[number] for number in best[new])
            lines.append(Line(box, text, float(scores.max(axis=1)[new].mean())))
    return sort_lines(lines)


def sort_lines(lines: list[Line]) -> list[Line]:
    rows: list[list[Line]] = []
    for line in sorted(lines, key=center):
        if rows and center(line) - center(rows[-1][0]) < (line.box[3] - line.box[1]) / 3:
            rows[-1].append(line)
        else:
            rows.append([line])
    return [line for row in rows for line in sorted(row, key=lambda line: line.box[0])]


def center(line: Line) -> float:
    return (line.box[1] + line.box[3]) / 2


def find_lines(detector: weft.Model, image: Image.Image) -> Iterator[Box]:
    zoom = max(SHORT_SIDE / min(image.size), 1.0)
    width, height = (max(round(side * zoom / 32), 1) * 32 for side in image.size)
    text = detector(pixels(image.resize((width, height), Image.Resampling.BILINEAR)))[0, 0]
    for left, top, right, bottom in components(text > MARKED):
        wide, high = right - left, bottom - top
        if min(wide, high) > 3 and text[top:bottom, left:right][text[top:bottom, left:right] > MARKED].mean() > SURE:
            margin = 0.8 * wide * high / (wide + high)  # the model marks only the middle of a line
            across, down = image.width / width, image.height / height
            yield (
                max(round((left - margin) * across), 0),
                max(round((top - margin) * down), 0),
                min(round((right + margin) * across), image.width),
                min(round((bottom + margin) * down), image.height),
            )


def components(marked: Array) -> list[Box]:
    """Return boxes around connected pixels: runs of a row join the boxes that they touch in the row above."""
    finished: list[Box] = []
    above: list[tuple[int, int, Box]] = []  # runs of the row above: begin, end, box
    for y, row in enumerate(np.pad(marked, ((0, 1), (1, 1))).astype(np.int8)):
        changes = np.flatnonzero(np.diff(row)).tolist()
        runs: list[tuple[int, int, Box]] = []
        for begin, end in zip(changes[::2], changes[1::2]):
            touched = {box for other, last, box in (*above, *runs) if other < end and begin < last}
            joined = enclose({(begin, y, end, y + 1), *touched})
            above, runs = ([(b, e, joined if box in touched else box) for b, e, box in part] for part in (above, runs))
            runs.append((begin, end, joined))
        current = {box for _, _, box in runs}
        finished += {box for _, _, box in above} - current
        above = runs
    return finished


def enclose(boxes: set[Box]) -> Box:
    lefts, tops, rights, bottoms = zip(*boxes)
    return min(lefts), min(tops), max(rights), max(bottoms)


def pixels(image: Image.Image) -> Array:
    """Convert an image to a batch of one in BGR order, from -1 to 1."""
    values = np.asarray(image.convert("RGB"), np.float32)[:, :, ::-1] / 127.5 - 1
    return np.ascontiguousarray(values.transpose(2, 0, 1)[np.newaxis])


def main() -> None:
    parser = argparse.ArgumentParser(description="Read the text in an image.")
    parser.add_argument("image", type=Path, nargs="?", default=Path(__file__).parent / "data" / "receipt.png")
    parser.add_argument("--device", default="auto", help="cpu, cuda, webgpu, ... (default: the best one here)")
    parser.add_argument("--detector", type=Path, help="an ONNX file; default: PP-OCRv6 small")
    parser.add_argument("--reader", type=Path, help="an ONNX file; default: PP-OCRv6 small")
    arguments = parser.parse_args()
    try:
        image = Image.open(arguments.image).convert("RGB")
        detector = weft.load(
            arguments.detector or example_file("text_detection.onnx"), device=arguments.device.split(",")
        )
        reader = weft.load(
            arguments.reader or example_file("text_recognition.onnx"), device=arguments.device.split(",")
        )
        for line in read_text(detector, reader, image):
            print(f"{line.certainty:6.1%}  {line.text}")
    except (OSError, weft.WeftError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
