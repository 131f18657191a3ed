"""Write outputs to files: arrays, JSON, CSV, images and audio."""

from __future__ import annotations

import csv
import io
import json
import re
import wave
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from weft.cli.output import plain_data
from weft.cli.output_files import STDOUT, write_bytes
from weft.errors import ExecutionError, InputError
from weft.ir.arrays import Array
from weft.ir.dtypes import DType, from_numpy

MIN_SIDE = 16  # pixels of an image
CHANNELS = (1, 3, 4)
DEFAULT_RATE = 16000
SUFFIXES = (".npz", ".npy", ".json", ".csv", ".png", ".wav")
KINDS = "a folder, or a file that ends in .npz, .npy, .json, .csv, .png or .wav"


def check_target(target: Path) -> None:
    """Raise InputError if outputs cannot be written to a file with this suffix."""
    suffix = target.suffix.lower()
    if target != STDOUT and not target.is_dir() and suffix not in SUFFIXES and re.fullmatch(r"\.[a-z]{2,4}", suffix):
        raise InputError(f"--output {target}: weft cannot write {suffix} files", hint=f"name {KINDS}")


def save_outputs(
    results: Mapping[str, Any], target: Path, rate: int | None = None, files: Sequence[str] = ()
) -> dict[str, str]:
    """Write the outputs in the format of the target's suffix, or as NAME.npy into a folder; return the paths by output.

    `files` are the image files that the rows belong to; CSV and JSON name them.
    """
    suffix = target.suffix.lower()
    if target == STDOUT:
        write_bytes(STDOUT, _npy_bytes(_only_tensor(results, target)) if len(results) == 1 else _npz_bytes(results))
    elif target.is_dir() or suffix not in SUFFIXES:
        return _save_folder(results, target)
    elif suffix == ".npz":
        write_bytes(target, _npz_bytes(results))
    elif suffix == ".json":
        write_bytes(target, _json_bytes({"files": files, **results} if files else results))
    elif suffix == ".png":
        name, image = _first_image(results)
        write_bytes(target, png_bytes(image))
        return {name: str(target)}
    else:
        array = _only_tensor(results, target)
        if suffix == ".npy":
            content = _npy_bytes(array)
        else:
            content = _csv_bytes(array, files) if suffix == ".csv" else _wav_bytes(array, rate)
        write_bytes(target, content)
    return {name: str(target) for name in results}


def _only_tensor(results: Mapping[str, Any], target: Path) -> Array:
    tensors = [content for content in results.values() if isinstance(content, np.ndarray)]
    if len(tensors) != 1:
        problem = f"--output {target}: the model has {len(tensors)} output tensors, and such a file holds one"
        raise InputError(problem, hint="name a folder, or a .npz or .json file")
    return tensors[0]


def _save_folder(results: Mapping[str, Any], folder: Path) -> dict[str, str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"--output {folder}: cannot create the folder: {error.strerror}"
        raise InputError(problem, hint="name another folder") from error
    paths: dict[str, str] = {}
    stems: set[str] = set()
    for name, content in results.items():
        stem = base = re.sub(r"[^\w.-]", "_", name).lstrip(".") or "output"
        number = 1
        while stem in stems:
            number += 1
            stem = f"{base}_{number}"
        stems.add(stem)
        if not isinstance(content, np.ndarray):
            path = folder / f"{stem}.json"
            write_bytes(path, _json_bytes(content))
        else:
            path = folder / f"{stem}.npy"
            write_bytes(path, _npy_bytes(content))
            image = find_image(content)
            if image is not None and find_spec("PIL") is not None:
                image_path = folder / f"{stem}.png"
                write_bytes(image_path, png_bytes(image))
                paths[f"{name} as an image"] = str(image_path)
        paths[name] = str(path)
    return paths


def _npy_bytes(array: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, storable(array), allow_pickle=False)
    return file.getvalue()


def _npz_bytes(results: Mapping[str, Any]) -> bytes:
    for name, content in results.items():
        if not isinstance(content, np.ndarray):
            raise ExecutionError(
                f"output {name!r} is a {type(content).__name__}, which a .npz file cannot hold",
                hint="write a .json file instead",
            )
    file = io.BytesIO()
    arrays: Any = {name: storable(content) for name, content in results.items()}
    np.savez(file, **arrays)
    return file.getvalue()


def storable(array: Array) -> Array:
    """Widen types that .npy files do not have to float32 or int8."""
    dtype = from_numpy(array.dtype)
    if dtype is DType.string:
        return array.astype(np.str_)
    if dtype.value in np.sctypeDict:
        return array
    return array.astype(np.float32 if dtype.is_float else np.int8)


def _json_bytes(content: Any) -> bytes:
    return (json.dumps(plain_data(_to_lists(content)), indent=1, allow_nan=False) + "\n").encode()


def _to_lists(content: Any) -> Any:
    if isinstance(content, np.ndarray):
        stored = storable(content)
        return (stored.astype(np.str_) if stored.dtype.kind == "c" else stored).tolist()
    if isinstance(content, (list, tuple)):
        return [_to_lists(each) for each in content]
    if isinstance(content, Mapping):
        return {str(key): _to_lists(each) for key, each in content.items()}
    return content.item() if isinstance(content, np.generic) else content


def _csv_bytes(array: Array, files: Sequence[str]) -> bytes:
    if array.ndim > 2:
        problem = f"--output: a CSV table has two dims, and the output has {array.ndim}"
        raise InputError(problem, hint="write .npy or .json")
    rows = np.atleast_2d(storable(array)) if array.ndim != 1 else storable(array).reshape(-1, 1)
    lines = rows.tolist()
    if len(files) == len(lines):
        lines = [[file, *line] for file, line in zip(files, lines)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode()


def _wav_bytes(array: Array, rate: int | None) -> bytes:
    """Encode a waveform as 16-bit PCM."""
    if array.size == 0 or array.size != max(array.shape, default=0) or array.dtype.kind not in "fiV":
        raise InputError(f"--output: shape {list(array.shape)} is not that of a waveform", hint="write .npy instead")
    samples = storable(array).reshape(-1)
    if samples.dtype.kind == "f":
        samples = np.round(np.clip(np.nan_to_num(samples), -1, 1) * 32767)
    data = np.clip(samples.astype(np.float64), -32768, 32767).astype("<i2").tobytes()
    file = io.BytesIO()
    with wave.open(file, "wb") as audio:
        audio.setnchannels(1)
        audio.setsampwidth(2)
        audio.setframerate(rate or DEFAULT_RATE)
        audio.writeframes(data)
    return file.getvalue()


# -- images ------------------------------------------------------------------------------------------------------------


def find_image(array: Array) -> Array | None:
    """Return the first sample of an output as pixels, [H, W], [H, W, 3] or [H, W, 4]; None if it is not an image.

    Scores of classes for each pixel become a map of the best class.
    """
    if array.dtype.kind not in "biufV" or array.ndim not in (2, 3, 4) or not array.size:
        return None
    wide = storable(array) if array.dtype.kind == "V" else array
    sample = wide[0] if wide.ndim == 4 else wide
    if sample.ndim == 3:
        first, last = sample.shape[0], sample.shape[2]
        if last in CHANNELS and min(sample.shape[:2]) >= MIN_SIDE:
            sample = sample if last > 1 else sample[:, :, 0]
        elif first in CHANNELS and min(sample.shape[1:]) >= MIN_SIDE:
            sample = sample.transpose(1, 2, 0) if first > 1 else sample[0]
        elif wide.ndim == 4 and 2 <= first <= 512 and min(sample.shape[1:]) >= MIN_SIDE:
            sample = sample.argmax(axis=0)
        elif wide.ndim == 3 and first < MIN_SIDE and min(sample.shape[1:]) >= MIN_SIDE:
            sample = sample[0]
        else:
            return None
    if min(sample.shape[:2]) < MIN_SIDE or max(sample.shape[:2]) > 64 * min(sample.shape[:2]):
        return None
    if array.ndim == 2 and sample.dtype.kind == "f" and min(sample.shape) < 2 * MIN_SIDE:
        return None
    return _to_pixels(sample)


def _to_pixels(sample: Array) -> Array:
    if sample.dtype == np.uint8 and sample.max() > 1:
        return sample
    if sample.dtype.kind in "biu":
        labels = sample.astype(np.int64)
        if sample.ndim == 2 and labels.min() >= 0 and 1 < labels.max() < 1024:
            return _palette()[labels % 256]
        least, most = min(int(labels.min()), 0), max(int(labels.max()), 1)
        return (np.clip((labels - least) / (most - least), 0, 1) * 255).astype(np.uint8)
    numbers = np.nan_to_num(sample.astype(np.float64))
    low, high = float(numbers.min()), float(numbers.max())
    if low >= -0.05 and high <= 1.05:
        low, high = 0.0, 1.0
    elif low >= -13 and 1.5 < high <= 268 and sample.ndim == 3:
        low, high = 0.0, 255.0
    elif low >= -1.05 and high <= 1.05:
        low, high = -1.0, 1.0
    return np.round(np.clip((numbers - low) / max(high - low, 1e-12), 0, 1) * 255).astype(np.uint8)


def _palette() -> Array:
    """Return 256 colours, black first, with distinct neighbours."""
    numbers = np.arange(256)
    parts = [sum(((numbers >> (3 * bit + shift)) & 1) << (7 - bit) for bit in range(3)) for shift in range(3)]
    return np.stack(parts, axis=1).astype(np.uint8)


def _first_image(results: Mapping[str, Any]) -> tuple[str, Array]:
    for name, content in results.items():
        image = find_image(content) if isinstance(content, np.ndarray) else None
        if image is not None:
            return name, image
    shapes = ", ".join(f"{name} {list(getattr(content, 'shape', ()))}" for name, content in results.items())
    raise InputError(f"no output is an image: {shapes}", hint="write .npy or .npz instead")


def png_bytes(pixels: Array) -> bytes:
    """Encode pixels as a PNG file; needs Pillow."""
    try:
        from PIL import Image
    except ImportError as error:
        hint = "pip install 'weft-onnx[image]', or write .npy"
        raise InputError("writing a PNG file needs Pillow", hint=hint) from error
    content = io.BytesIO()
    pixels = pixels[..., 0] if pixels.shape[2:] == (1,) else pixels
    Image.fromarray(np.ascontiguousarray(pixels, np.uint8)).save(content, "PNG")
    return content.getvalue()
