"""Data to calibrate and measure with: samples from a folder, or made up to fit the model.

A sample is a file: .npz with an array for each input, .npy for a model with one input, a picture where that input is
one; or a folder of input_0.pb, input_1.pb, …, as test sets of ONNX models have them. Files are read when they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.frontend.tensor_files import read_tensor_file
from weft.ir.dtypes import DType
from weft.ir.specs import TensorSpec
from weft.ir.types import OptionalType
from weft.runtime.generated_inputs import generate_inputs

Array = np.ndarray[Any, Any]
Sample = Mapping[str, Any]

PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".webp")
ARRAYS = (".npy", ".npz")
USUAL_SIDE = 224  # of a picture, where the model leaves it open
COLOURS = (1, 3)


@dataclass(frozen=True, slots=True)
class PictureScale:
    """How a picture becomes numbers: values from 0 to 1, less the mean, divided by the deviation."""

    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)


UNSCALED = PictureScale()


class FolderSamples(Sequence[Sample]):
    """The samples of a folder, read one at a time."""

    def __init__(self, paths: Sequence[Path], specs: Sequence[TensorSpec], scale: PictureScale) -> None:
        self._paths = paths
        self._specs = specs
        self._scale = scale

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return FolderSamples(self._paths[number], self._specs, self._scale)
        return read_sample(self._paths[number], self._specs, self._scale)


def folder_samples(folder: Path, specs: Sequence[TensorSpec], most: int, scale: PictureScale) -> FolderSamples:
    """Up to `most` samples of a folder, spread over all that it has."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder", hint="give a folder with a file for each sample")
    paths = sorted(_sample_paths(folder))
    if not paths:
        kinds = ", ".join((*ARRAYS, ".pb", *PICTURES))
        raise InputError(f"{folder}: holds no samples", hint=f"these are taken: {kinds}")
    if len(paths) > most:
        paths = [paths[round(place)] for place in np.linspace(0, len(paths) - 1, most)]
    samples = FolderSamples(paths, specs, scale)
    samples[0]  # what is wrong with the folder shows here
    return samples


def made_up_samples(specs: Sequence[TensorSpec], sizes: Mapping[str, int], most: int, seed: int) -> list[Sample]:
    """Random data, which has little to do with what the model is for."""
    return [generate_inputs(specs, sizes, seed + number) for number in range(most)]


def _sample_paths(folder: Path) -> Iterator[Path]:
    """The samples of a folder and of those in it: files, and folders of tensors."""
    if any(folder.glob("input_*.pb")):
        yield folder
        return
    for path in folder.iterdir():
        if path.is_dir():
            yield from _sample_paths(path)
        elif path.suffix.lower() in (*ARRAYS, *PICTURES):
            yield path


def read_sample(path: Path, specs: Sequence[TensorSpec], scale: PictureScale) -> dict[str, Array]:
    """What a file or a folder of tensors has for a model's inputs."""
    if path.is_dir():
        found = _read_test_set(path, specs)
    elif path.suffix.lower() in PICTURES:
        found = {_only(path, specs).name: read_picture(path, _only(path, specs), scale)}
    else:
        found = _read_arrays(path, specs)
    missing = [spec.name for spec in specs if spec.name not in found and not isinstance(spec.type, OptionalType)]
    if missing:
        raise InputError(f"{path}: has nothing for input {missing[0]!r}", hint=f"it has {', '.join(found) or 'none'}")
    return {spec.name: _fitting(path, found[spec.name], spec) for spec in specs if spec.name in found}


def _read_test_set(folder: Path, specs: Sequence[TensorSpec]) -> dict[str, Array]:
    found = {}
    for number, spec in enumerate(specs):
        path = folder / f"input_{number}.pb"
        if path.is_file():
            name, array = read_tensor_file(path)
            found[name if name in {each.name for each in specs} else spec.name] = array
    return found


def _read_arrays(path: Path, specs: Sequence[TensorSpec]) -> dict[str, Array]:
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            return {_only(path, specs).name: content}
        with content as archive:
            names = archive.files
            if len(names) == 1 and len(specs) == 1:
                return {specs[0].name: archive[names[0]]}
            return {spec.name: archive[spec.name] for spec in specs if spec.name in names}
    except InputError:
        raise
    except Exception as error:  # numpy, zipfile, zlib and pickle each have errors of their own for damaged files
        raise InputError(f"{path}: not a readable .npy or .npz file: {error}") from error


def _only(path: Path, specs: Sequence[TensorSpec]) -> TensorSpec:
    needed = [spec for spec in specs if not isinstance(spec.type, OptionalType)]
    if len(needed) != 1:
        names = ", ".join(spec.name for spec in specs)
        raise InputError(f"{path}: the model has several inputs", hint=f"use .npz files with arrays {names}")
    return needed[0]


def _fitting(path: Path, array: Array, spec: TensorSpec) -> Array:
    """The array in the input's type, with an axis for the batch where it lacks that one."""
    if spec.element is not None and array.dtype != spec.element.numpy:
        is_number = array.dtype.kind in "fiub" and spec.element is not DType.string
        if not is_number or (spec.element.is_integer and array.dtype.kind == "f"):
            raise InputError(f"{path}: {array.dtype} for input {spec.name!r}, which takes {spec.element}")
        array = array.astype(spec.element.numpy)
    if spec.shape is not None and array.ndim == len(spec.shape) - 1 and spec.shape[0] in (1, *_open(spec)):
        array = array[None]
    return array


def _open(spec: TensorSpec) -> tuple[str, ...]:
    return tuple(dim for dim in spec.shape or () if isinstance(dim, str))


def read_picture(path: Path, spec: TensorSpec, scale: PictureScale) -> Array:
    """A picture as an input: channels first or last, sides as the model has them."""
    shape = spec.shape
    last, first = (shape is not None and len(shape) == 4 and shape[axis] in COLOURS for axis in (3, 1))
    if spec.element is None or shape is None or not (first or last):
        raise InputError(f"{path}: input {spec.name!r} is no picture: {spec.type}", hint="use .npy or .npz files")
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError(f"{path}: pictures need pillow", hint="pip install pillow") from error
    height, width = (side if isinstance(side, int) else USUAL_SIDE for side in (shape[2:] if first else shape[1:3]))
    channels = shape[1] if first else shape[3]
    try:
        with Image.open(path) as picture:
            pixels: Array = np.asarray(
                picture.convert("RGB" if channels == 3 else "L").resize((width, height)), np.float32
            )
    except Exception as error:  # pillow has many for damaged files
        raise InputError(f"{path}: not a readable picture: {error}") from error
    pixels = pixels.reshape(height, width, -1)
    if spec.element.is_float:
        mean, deviation = (np.asarray(numbers, np.float32) for numbers in (scale.mean, scale.deviation))
        pixels = (pixels / 255 - mean) / deviation
    batch = pixels.transpose(2, 0, 1)[None] if first else pixels[None]
    return np.ascontiguousarray(batch).astype(spec.element.numpy)
