"""Guess the preprocessing that a model expects of images.

ONNX has no general place for it. Sources, best first: image metadata of ONNX and of Ultralytics' exports,
`preprocessor_config.json` beside the model, constants that the first nodes subtract or divide by, and the range of a
quantized input.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.ir.graph import Graph, Node, OnnxModel, weight_arrays
from weft.ir.specs import TensorSpec
from weft.records import dataclass

Numbers = tuple[float, ...]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
LARGEST_CONFIG = 1 << 20  # bytes
PREPROCESSING_NODES = 8  # after an input, at most
BYTE = 255.0
MOST_CHANNELS = 4  # elements of a constant with one for each channel
RESAMPLING = {0: "nearest", 2: "bilinear", 3: "bicubic"}  # as Pillow numbers them


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """What is known of a model's preprocessing: (pixels * scale - mean) / std; `reason` names the source."""

    scale: float | None = None
    mean: Numbers = (0.0,)
    std: Numbers = (1.0,)
    resize: str | None = None
    size: tuple[int, int] | None = None  # height, width
    shorter: int | None = None  # length of the shorter side before the centre crop
    colours: str | None = None
    resampling: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ImageHints:
    """The preprocessing of a model, and whether its outputs are class scores or have spatial dims."""

    preprocessing: Preprocessing = Preprocessing()
    is_classifier: bool = False
    is_spatial: bool = False


def find_image_hints(source: OnnxModel | None, name: str, outputs: Sequence[TensorSpec]) -> ImageHints:
    """Look for hints about the images that the input `name` takes."""
    ranks = [(len(spec.shape), spec.shape[-1] if spec.shape else 1) for spec in outputs if spec.shape is not None]
    is_classifier = bool(ranks) and ranks[0][0] in (1, 2) and not (isinstance(ranks[0][1], int) and ranks[0][1] < 2)
    is_spatial = any(rank >= 3 for rank, _ in ranks)
    return ImageHints((source and _find_preprocessing(source, name)) or Preprocessing(), is_classifier, is_spatial)


def _find_preprocessing(source: OnnxModel, name: str) -> Preprocessing | None:
    file = Path(source.file)
    return (
        _from_metadata(source.about.properties)
        or (_from_config(file.parent / "preprocessor_config.json") if file.is_file() else None)
        or _from_nodes(source.graph, name)
    )


def _from_metadata(properties: Mapping[str, str]) -> Preprocessing | None:
    if "ultralytics" in properties.get("author", "").lower() and "imgsz" in properties:
        size = _parse_literal(properties["imgsz"])
        is_pair = isinstance(size, (list, tuple)) and len(size) == 2 and all(isinstance(side, int) for side in size)
        sides = (size[0], size[1]) if is_pair else None
        is_classifier = properties.get("task") == "classify"
        return Preprocessing(
            scale=1 / BYTE,
            resize="crop" if is_classifier else "fit",
            size=sides,
            shorter=sides[0] if is_classifier and sides is not None else None,
            reason="as in Ultralytics' metadata",
        )
    pixel_range = properties.get("Image.NominalPixelRange")
    colours = {"Bgr8": "bgr", "Rgb8": "rgb", "Gray8": "grey", "Bgra8": "bgr", "Rgba8": "rgb"}.get(
        properties.get("Image.BitmapPixelFormat", "")
    )
    if pixel_range is None and colours is None:
        return None
    scale, mean, std = {
        "NominalRange_0_255": (1.0, 0.0, 1.0),
        "Normalized_0_1": (1 / BYTE, 0.0, 1.0),
        "Normalized_1_1": (1 / BYTE, 0.5, 0.5),
        "NominalRange_16_235": (1.0, 0.0, 1.0),
    }.get(pixel_range or "", (None, 0.0, 1.0))
    return Preprocessing(scale=scale, mean=(mean,), std=(std,), colours=colours, reason="as in the model's metadata")


def _from_config(path: Path) -> Preprocessing | None:
    """Read the configuration that Hugging Face's exports have beside the model."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_CONFIG:
            return None
        config = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict) or not (
            "image_mean" in config or "rescale_factor" in config or "do_rescale" in config
        ):
            return None
        does_rescale = config.get("do_rescale", True)
        does_normalize = config.get("do_normalize", True)
        does_crop = config.get("do_center_crop", False) and config.get("crop_size") is not None
        size = config.get("size")
        shorter = size if isinstance(size, int) else size.get("shortest_edge") if isinstance(size, dict) else None
        return Preprocessing(
            scale=float(config.get("rescale_factor", 1 / BYTE)) if does_rescale else 1.0,
            mean=_parse_numbers(config.get("image_mean"), 0.0) if does_normalize else (0.0,),
            std=_parse_numbers(config.get("image_std"), 1.0) if does_normalize else (1.0,),
            resize="crop" if does_crop else "stretch",
            size=_parse_size(config.get("crop_size") if does_crop else size),
            shorter=int(shorter) if does_crop and shorter else None,
            resampling=RESAMPLING.get(config.get("resample", -1)),
            reason=f"as in {path.name}",
        )
    except (OSError, ValueError, TypeError, AttributeError):  # the file may contain anything
        return None


def _from_nodes(graph: Graph, name: str) -> Preprocessing | None:
    """Infer the preprocessing from constants of the first nodes."""
    quantized, numbers = _first_constants(graph, name)
    if quantized is not None:
        lowest, highest = quantized
        for scale, mean, std, ends in (
            (1.0, (0.0,), (1.0,), (0.0, 255.0)),
            (1 / BYTE, (0.0,), (1.0,), (0.0, 1.0)),
            (1 / BYTE, (0.5,), (0.5,), (-1.0, 1.0)),
            (1 / BYTE, IMAGENET_MEAN, IMAGENET_STD, (-2.118, 2.64)),
        ):
            if abs(lowest - ends[0]) + abs(highest - ends[1]) < 0.12 * (ends[1] - ends[0]):
                return Preprocessing(
                    scale, mean, std, reason=f"as its quantized input has the range {lowest:.3g} to {highest:.3g}"
                )
        return None
    byte_constants = [number for number in numbers if 50 <= abs(number) <= 256 or 0.003 < abs(number) < 0.02]
    if byte_constants:
        return Preprocessing(
            1.0, reason=f"as the model normalizes itself (constants {_format_numbers(byte_constants)})"
        )
    unit_constants = [number for number in numbers if 0.1 < abs(number) < 0.9]
    if len(unit_constants) >= 2:
        reason = f"as the model normalizes itself (constants {_format_numbers(unit_constants)})"
        return Preprocessing(1 / BYTE, reason=reason)
    return None


def _first_constants(graph: Graph, name: str) -> tuple[tuple[float, float] | None, list[float]]:
    """Return the range of a quantized input, and the constants per channel that the first nodes apply to it."""
    constants = weight_arrays(graph)
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    numbers: list[float] = []
    value = name
    for _ in range(PREPROCESSING_NODES):
        if len(readers.get(value, ())) != 1:
            break
        (node,) = readers[value]
        others = [constants.get(each) for each in node.inputs if each and each != value]
        if any(array is None for array in others) or not node.outputs:
            break
        arrays = [array for array in others if array is not None]
        floats = [array for array in arrays if array.dtype.kind == "f"]
        codes = [array for array in arrays if array.dtype.name in ("uint8", "int8")]
        if len(floats) == 1 and floats[0].size == 1 and len(codes) == 1 and codes[0].size == 1:
            step, zero = float(floats[0].reshape(())), float(codes[0].reshape(()))
            limits = np.iinfo(codes[0].dtype)
            return ((limits.min - zero) * step, (limits.max - zero) * step), numbers
        if any(array.size > MOST_CHANNELS for array in floats):
            break
        numbers += [float(number) for array in floats for number in array.reshape(-1)]
        value = node.outputs[0]
    return None, numbers


def _format_numbers(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:.4g}" for number in dict.fromkeys(numbers))


def _parse_numbers(entry: Any, default: float) -> Numbers:
    if entry is None:
        return (default,)
    return tuple(float(number) for number in entry) if isinstance(entry, (list, tuple)) else (float(entry),)


def _parse_size(entry: Any) -> tuple[int, int] | None:
    if isinstance(entry, int):
        return entry, entry
    if isinstance(entry, dict) and {"height", "width"} <= entry.keys():
        return int(entry["height"]), int(entry["width"])
    if isinstance(entry, dict) and "shortest_edge" in entry:
        return int(entry["shortest_edge"]), int(entry["shortest_edge"])
    return None


def _parse_literal(text: str) -> Any:
    try:
        return ast.literal_eval(text) if len(text) < LARGEST_CONFIG else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
