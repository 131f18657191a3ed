"""Classify an image: print the five most likely of ImageNet's 1000 classes.

    python examples/classify.py photo.jpg

The model is EfficientNet-Lite0, which `efficientnet.py` writes; `--model` takes any other ImageNet classifier whose
one input is a batch of images. Needs pillow.
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


def preprocess(image: Image.Image, size: int, mean: float, scale: float) -> Array:
    """Crop the center of an image and scale it as in training: 1 × 3 × size × size numbers."""
    edge = round(size / 0.875)
    zoom = edge / min(image.size)
    width, height = (round(side * zoom) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    resized = image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
    pixels = np.asarray(resized.crop((left, top, left + size, top + size)), np.float32)
    channels_first: Array = np.asarray((pixels - mean) / scale).transpose(2, 0, 1)
    return channels_first[np.newaxis]


def read_labels() -> list[str]:
    names = dict(line.split("\t") for line in _read_lines("imagenet_synset_to_lemma.txt"))
    return [names[synset] for synset in _read_lines("imagenet_synsets.txt")]


def classify(model: weft.Model, image: Image.Image, mean: float = 127, scale: float = 128) -> Array:
    """Return the probability of each class."""
    match [spec.shape for spec in model.inputs]:
        case [(_, 3, _, size)]:
            pixels = preprocess(image, size if isinstance(size, int) else 224, mean, scale)
        case _:
            sys.exit(f"the model takes\n{model.inputs}\nbut must take one batch of images, [batch, 3, height, width]")
    (scores,) = np.asarray(model(pixels), np.float32)
    if abs(scores.sum() - 1) > 1e-3:  # not probabilities yet
        scores = np.exp(scores - scores.max())
    return np.asarray(scores / scores.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description="Classify an image.")
    parser.add_argument("image", type=Path, nargs="?", default=Path(__file__).parent / "data" / "cat.jpg")
    parser.add_argument("--model", type=Path, help="an ONNX file; default: EfficientNet-Lite0")
    parser.add_argument("--device", default="auto", help="cpu, cuda, webgpu, ... (default: the best one here)")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="how many classes to show (default: 5)")
    arguments = parser.parse_args()
    try:
        image = Image.open(arguments.image)
        model = weft.load(arguments.model or efficientnet_file(), device=arguments.device.split(","))
        probabilities = classify(model, image)
    except (OSError, weft.WeftError) as error:  # the message says what is wrong
        sys.exit(str(error))
    names = read_labels()
    for index in np.argsort(probabilities)[::-1][: arguments.top]:
        print(f"{probabilities[index]:6.1%}  {names[index]}")


def _read_lines(name: str) -> list[str]:
    return example_file(name).read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    main()
