"""What a model wants of pictures, by what it says of itself: its metadata, files beside it, the first of its nodes.

Nothing states it in general. What is looked at, best first: the metadata of ONNX's own for images and those of
Ultralytics' exports, `preprocessor_config.json` beside the file, numbers that the first nodes take off pictures or
divide them by, the range that a quantized input stands for.
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
FAR = 8  # nodes behind an input that may still be preparation
BYTE = 255.0
FEW = 4  # numbers of a constant that is for channels
RESAMPLING = {0: "nearest", 2: "bilinear", 3: "bicubic"}  # as Pillow numbers them


@dataclass(frozen=True, slots=True)
class Habit:
    """How a model wants its pictures, as far as that is known: (pixels * scale - mean) / std; `why` says from what."""

    scale: float | None = None
    mean: Numbers = (0.0,)
    std: Numbers = (1.0,)
    resize: str | None = None
    size: tuple[int, int] | None = None  # height, width
    shorter: int | None = None  # what the shorter side becomes before the middle is cut out
    colours: str | None = None
    resampling: str | None = None
    why: str = ""


NOTHING_KNOWN = Habit()


@dataclass(frozen=True, slots=True)
class PictureEvidence:
    """Of one model: its habit, and whether its outputs are classes, or have places of the picture."""

    habit: Habit = NOTHING_KNOWN
    classifies: bool = False
    spatial: bool = False


def picture_evidence(source: OnnxModel | None, name: str, outputs: Sequence[TensorSpec]) -> PictureEvidence:
    """What is known of the pictures that the input `name` takes."""
    ranks = [(len(spec.shape), spec.shape[-1] if spec.shape else 1) for spec in outputs if spec.shape is not None]
    classifies = bool(ranks) and ranks[0][0] in (1, 2) and not (isinstance(ranks[0][1], int) and ranks[0][1] < 2)
    spatial = any(rank >= 3 for rank, _ in ranks)
    return PictureEvidence((source and _habit(source, name)) or NOTHING_KNOWN, classifies, spatial)


def _habit(source: OnnxModel, name: str) -> Habit | None:
    file = Path(source.file)
    return (
        _of_metadata(source.about.properties)
        or (_of_config(file.parent / "preprocessor_config.json") if file.is_file() else None)
        or _of_nodes(source.graph, name)
    )


def _of_metadata(properties: Mapping[str, str]) -> Habit | None:
    if "ultralytics" in properties.get("author", "").lower() and "imgsz" in properties:
        size = _literal(properties["imgsz"])
        pair = isinstance(size, (list, tuple)) and len(size) == 2 and all(isinstance(side, int) for side in size)
        sides = (size[0], size[1]) if pair else None
        classifies = properties.get("task") == "classify"
        return Habit(
            scale=1 / BYTE,
            resize="crop" if classifies else "fit",
            size=sides,
            shorter=sides[0] if classifies and sides is not None else None,
            why="as Ultralytics' models want it (metadata)",
        )
    span = properties.get("Image.NominalPixelRange")
    colours = {"Bgr8": "bgr", "Rgb8": "rgb", "Gray8": "grey", "Bgra8": "bgr", "Rgba8": "rgb"}.get(
        properties.get("Image.BitmapPixelFormat", "")
    )
    if span is None and colours is None:
        return None
    scale, mean, std = {
        "NominalRange_0_255": (1.0, 0.0, 1.0),
        "Normalized_0_1": (1 / BYTE, 0.0, 1.0),
        "Normalized_1_1": (1 / BYTE, 0.5, 0.5),
        "NominalRange_16_235": (1.0, 0.0, 1.0),
    }.get(span or "", (None, 0.0, 1.0))
    return Habit(scale=scale, mean=(mean,), std=(std,), colours=colours, why="as the model's metadata say")


def _of_config(path: Path) -> Habit | None:
    """What Hugging Face's exports have beside the model."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_CONFIG:
            return None
        said = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(said, dict) or not ("image_mean" in said or "rescale_factor" in said or "do_rescale" in said):
            return None
        rescales = said.get("do_rescale", True)
        normalizes = said.get("do_normalize", True)
        crops = said.get("do_center_crop", False) and said.get("crop_size") is not None
        size = said.get("size")
        shorter = size if isinstance(size, int) else size.get("shortest_edge") if isinstance(size, dict) else None
        return Habit(
            scale=float(said.get("rescale_factor", 1 / BYTE)) if rescales else 1.0,
            mean=_numbers(said.get("image_mean"), 0.0) if normalizes else (0.0,),
            std=_numbers(said.get("image_std"), 1.0) if normalizes else (1.0,),
            resize="crop" if crops else "stretch",
            size=_sides(said.get("crop_size") if crops else size),
            shorter=int(shorter) if crops and shorter else None,
            resampling=RESAMPLING.get(said.get("resample", -1)),
            why=f"as {path.name} beside the model says",
        )
    except (OSError, ValueError, TypeError, AttributeError):  # a file of somebody else's: it may hold anything
        return None


def _of_nodes(graph: Graph, name: str) -> Habit | None:
    """What the first nodes do with the input tells what they expect."""
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
                return Habit(scale, mean, std, why=f"as its quantized input says, {lowest:.3g} to {highest:.3g}")
        return None
    whole = [number for number in numbers if 50 <= abs(number) <= 256 or 0.003 < abs(number) < 0.02]
    if whole:
        return Habit(1.0, why=f"as the model does the rest itself (it has {_listed(whole)} behind this input)")
    share = [number for number in numbers if 0.1 < abs(number) < 0.9]
    if len(share) >= 2:
        return Habit(1 / BYTE, why=f"as the model does the rest itself (it has {_listed(share)} behind this input)")
    return None


def _first_constants(graph: Graph, name: str) -> tuple[tuple[float, float] | None, list[float]]:
    """The range of a quantized input, and the numbers for channels that the first nodes use on it."""
    constants = weight_arrays(graph)
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    numbers: list[float] = []
    value = name
    for _ in range(FAR):
        if len(readers.get(value, ())) != 1:
            break
        (node,) = readers[value]
        others = [constants.get(each) for each in node.inputs if each and each != value]
        if any(array is None for array in others) or not node.outputs:
            break
        known = [array for array in others if array is not None]
        floats = [array for array in known if array.dtype.kind == "f"]
        codes = [array for array in known if array.dtype.name in ("uint8", "int8")]
        if len(floats) == 1 and floats[0].size == 1 and len(codes) == 1 and codes[0].size == 1:
            step, zero = float(floats[0].reshape(())), float(codes[0].reshape(()))
            limits = np.iinfo(codes[0].dtype)
            return ((limits.min - zero) * step, (limits.max - zero) * step), numbers
        if any(array.size > FEW for array in floats):
            break
        numbers += [float(number) for array in floats for number in array.reshape(-1)]
        value = node.outputs[0]
    return None, numbers


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:.4g}" for number in dict.fromkeys(numbers))


def _numbers(said: Any, usual: float) -> Numbers:
    if said is None:
        return (usual,)
    return tuple(float(number) for number in said) if isinstance(said, (list, tuple)) else (float(said),)


def _sides(said: Any) -> tuple[int, int] | None:
    if isinstance(said, int):
        return said, said
    if isinstance(said, dict) and {"height", "width"} <= said.keys():
        return int(said["height"]), int(said["width"])
    if isinstance(said, dict) and "shortest_edge" in said:
        return int(said["shortest_edge"]), int(said["shortest_edge"])
    return None


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text) if len(text) < LARGEST_CONFIG else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
