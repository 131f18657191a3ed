"""What is in a picture: the five most likely of ImageNet's 1000 classes.

    python examples/classify.py photo.jpg

The model is EfficientNet-Lite0, which `efficientnet.py` writes; `--model` takes any other classifier of ImageNet whose
one input is a batch of pictures. Needs pillow.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from efficientnet import efficientnet_file
from files import example_file
from PIL import Image

import weft

Array = np.ndarray[Any, np.dtype[np.float32]]


def prepare(picture: Image.Image, size: int, mean: float, scale: float) -> Array:
    """The middle of a picture as the model has seen pictures in training: 1 × 3 × size × size numbers."""
    edge = round(size / 0.875)
    zoom = edge / min(picture.size)
    width, height = (round(side * zoom) for side in picture.size)
    left, top = (width - size) // 2, (height - size) // 2
    resized = picture.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
    pixels = np.asarray(resized.crop((left, top, left + size, top + size)), np.float32)
    channels_first: Array = np.asarray((pixels - mean) / scale).transpose(2, 0, 1)
    return channels_first[np.newaxis]


def labels() -> list[str]:
    names = dict(line.split("\t") for line in _lines("imagenet_synset_to_lemma.txt"))
    return [names[synset] for synset in _lines("imagenet_synsets.txt")]


def classify(model: weft.Model, picture: Image.Image, mean: float = 127, scale: float = 128) -> Array:
    """The probability of each class."""
    match [spec.shape for spec in model.inputs]:
        case [(_, 3, _, size)]:
            pixels = prepare(picture, size if isinstance(size, int) else 224, mean, scale)
        case _:
            sys.exit(f"the model takes\n{model.inputs}\nand not one batch of pictures, [batch, 3, height, width]")
    (scores,) = np.asarray(model(pixels), np.float32)
    if abs(scores.sum() - 1) > 1e-3:  # not probabilities yet
        scores = np.exp(scores - scores.max())
    return np.asarray(scores / scores.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description="Say what is in a picture.")
    parser.add_argument("picture", type=Path, nargs="?", default=Path(__file__).parent / "data" / "cat.jpg")
    parser.add_argument("--model", type=Path, help="an ONNX file; default: EfficientNet-Lite0")
    parser.add_argument("--device", default="auto", help="cpu, cuda, webgpu, ... (default: the best one here)")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="how many classes to show (default: 5)")
    arguments = parser.parse_args()
    try:
        picture = Image.open(arguments.picture)
        model = weft.load(arguments.model or efficientnet_file(), device=arguments.device.split(","))
        probabilities = classify(model, picture)
    except (OSError, weft.WeftError) as error:  # no such file, no picture, no model: the message says which, and why
        sys.exit(str(error))
    names = labels()
    for index in np.argsort(probabilities)[::-1][: arguments.top]:
        print(f"{probabilities[index]:6.1%}  {names[index]}")


def _lines(name: str) -> list[str]:
    return example_file(name).read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    main()
