"""Outputs as files: arrays, JSON, tables, pictures where an output is one, sound where it is that."""

from __future__ import annotations

import io
import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.cli.output import plain_data
from weft.cli.output_files import STDOUT, write_bytes
from weft.errors import ExecutionError, InputError
from weft.ir.arrays import Array
from weft.ir.dtypes import DType, from_numpy

SMALLEST_PICTURE = 16  # pixels of a side
CHANNELS = (1, 3, 4)
USUAL_RATE = 16000
ENDINGS = (".npz", ".npy", ".json", ".csv", ".png", ".wav")
KINDS = "a folder, or a file that ends in .npz, .npy, .json, .csv, .png or .wav"


def check_target(target: Path) -> None:
    """InputError where outputs cannot go to a file of that ending."""
    ending = target.suffix.lower()
    if target != STDOUT and not target.is_dir() and ending not in ENDINGS and re.fullmatch(r"\.[a-z]{2,4}", ending):
        raise InputError(f"--output {target}: weft writes no {ending} files", hint=f"name {KINDS}")


def save_outputs(results: Mapping[str, Any], target: Path, rate: int | None = None) -> dict[str, str]:
    """Write the outputs as the target's ending says; the files by the names of outputs. A folder gets NAME.npy each."""
    ending = target.suffix.lower()
    if target == STDOUT:
        write_bytes(STDOUT, _npy(_only(results, target)) if len(results) == 1 else _npz(results))
    elif target.is_dir() or ending not in ENDINGS:
        return _save_folder(results, target)
    elif ending == ".npz":
        write_bytes(target, _npz(results))
    elif ending == ".json":
        listed = {name: _listed(content) for name, content in results.items()}
        write_bytes(target, (json.dumps(plain_data(listed), indent=1, allow_nan=False) + "\n").encode())
    elif ending == ".png":
        name, picture = _first_picture(results)
        write_bytes(target, png_bytes(picture))
        return {name: str(target)}
    else:
        array = _only(results, target)
        write_bytes(target, _npy(array) if ending == ".npy" else _csv(array) if ending == ".csv" else _wav(array, rate))
    return {name: str(target) for name in results}


def _only(results: Mapping[str, Any], target: Path) -> Array:
    """The one tensor that a file can hold."""
    tensors = {name: content for name, content in results.items() if isinstance(content, np.ndarray)}
    if len(tensors) != 1:
        problem = f"--output {target}: the model gives {len(tensors)} tensors, and such a file holds one"
        raise InputError(problem, hint="name a folder, or a .npz or .json file")
    return next(iter(tensors.values()))


def _save_folder(results: Mapping[str, Any], folder: Path) -> dict[str, str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output {folder}: cannot be made: {error.strerror}", hint="name another folder") from error
    paths: dict[str, str] = {}
    taken: set[str] = set()
    for name, content in results.items():
        stem = re.sub(r"[^\w.-]", "_", name).lstrip(".") or "output"
        number = 1
        unique = stem
        while unique in taken:
            number += 1
            unique = f"{stem}_{number}"
        taken.add(unique)
        path = folder / f"{unique}.npy"
        if isinstance(content, np.ndarray):
            write_bytes(path, _npy(content))
            picture = picture_of(content)
            if picture is not None:
                drawn = folder / f"{unique}.png"
                write_bytes(drawn, png_bytes(picture))
                paths[f"{name} as a picture"] = str(drawn)
        else:
            path = folder / f"{unique}.json"
            write_bytes(path, (json.dumps(plain_data(_listed(content)), indent=1, allow_nan=False) + "\n").encode())
        paths[name] = str(path)
    return paths


def _npy(array: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, storable(array), allow_pickle=False)
    return file.getvalue()


def _npz(results: Mapping[str, Any]) -> bytes:
    for name, content in results.items():
        if not isinstance(content, np.ndarray):
            raise ExecutionError(
                f"output {name!r} is a {type(content).__name__}, which a .npz file cannot hold",
                hint="write a .json file instead",
            )
    file = io.BytesIO()
    named: Any = {name: storable(content) for name, content in results.items()}
    np.savez(file, **named)
    return file.getvalue()


def storable(array: Array) -> Array:
    """In a type that .npy files have: others are widened to float32 or int8."""
    dtype = from_numpy(array.dtype)
    if dtype is DType.string:
        return array.astype(np.str_)
    if dtype.value in np.sctypeDict:
        return array
    return array.astype(np.float32 if dtype.is_float else np.int8)


def _listed(content: Any) -> Any:
    if isinstance(content, np.ndarray):
        stored = storable(content)
        return (stored.astype(np.str_) if stored.dtype.kind == "c" else stored).tolist()
    if isinstance(content, (list, tuple)):
        return [_listed(each) for each in content]
    if isinstance(content, dict):
        return {str(key): _listed(each) for key, each in content.items()}
    return content.item() if isinstance(content, np.generic) else content


def _csv(array: Array) -> bytes:
    if array.ndim > 2:
        raise InputError(f"--output: a table has two dims, and the output {array.ndim}", hint="write .npy or .json")
    rows = np.atleast_2d(storable(array)) if array.ndim != 1 else storable(array).reshape(-1, 1)
    lines = [",".join(_cell(cell) for cell in row) for row in rows.tolist()]
    return ("\n".join(lines) + "\n").encode()


def _cell(content: Any) -> str:
    text = str(content)
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\n\r') else text


def _wav(array: Array, rate: int | None) -> bytes:
    """A waveform as PCM of 16 bits."""
    if array.size == 0 or array.size != max(array.shape, default=0) or array.dtype.kind not in "fiV":
        raise InputError(f"--output: shape {list(array.shape)} is none of a waveform", hint="write .npy instead")
    samples = storable(array).reshape(-1)
    if samples.dtype.kind == "f":
        samples = np.round(np.clip(np.nan_to_num(samples), -1, 1) * 32767)
    data = np.clip(samples.astype(np.float64), -32768, 32767).astype("<i2").tobytes()
    hertz = rate or USUAL_RATE
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, hertz, hertz * 2, 2, 16)
    return (
        b"RIFF"
        + struct.pack("<I", 4 + len(form) + 8 + len(data))
        + b"WAVE"
        + form
        + struct.pack("<4sI", b"data", len(data))
        + data
    )


# -- pictures ----------------------------------------------------------------------------------------------------------


def picture_of(array: Array) -> Array | None:
    """The first sample of an output as pixels, [H, W], [H, W, 3] or [H, W, 4]; None where it is no picture.

    Scores of more classes than colours become a map of the best one.
    """
    if array.dtype.kind not in "biufV" or array.ndim not in (2, 3, 4) or not array.size:
        return None
    wide = storable(array) if array.dtype.kind == "V" else array
    sample = wide[0] if wide.ndim == 4 else wide
    if sample.ndim == 3:
        first, last = sample.shape[0], sample.shape[2]
        if last in CHANNELS and min(sample.shape[:2]) >= SMALLEST_PICTURE:
            sample = sample if last > 1 else sample[:, :, 0]
        elif first in CHANNELS and min(sample.shape[1:]) >= SMALLEST_PICTURE:
            sample = sample.transpose(1, 2, 0) if first > 1 else sample[0]
        elif wide.ndim == 4 and 2 <= first <= 512 and min(sample.shape[1:]) >= SMALLEST_PICTURE:
            sample = sample.argmax(axis=0)
        elif wide.ndim == 3 and first < SMALLEST_PICTURE and min(sample.shape[1:]) >= SMALLEST_PICTURE:
            sample = sample[0]
        else:
            return None
    if min(sample.shape[:2]) < SMALLEST_PICTURE or max(sample.shape[:2]) > 64 * min(sample.shape[:2]):
        return None
    if array.ndim == 2 and sample.dtype.kind == "f" and min(sample.shape) < 2 * SMALLEST_PICTURE:
        return None
    return _pixels(sample)


def _pixels(sample: Array) -> Array:
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
    """256 colours, those of neighbours far apart; the first is black."""
    numbers = np.arange(256)
    parts = [sum(((numbers >> (3 * bit + shift)) & 1) << (7 - bit) for bit in range(3)) for shift in range(3)]
    return np.stack(parts, axis=1).astype(np.uint8)


def _first_picture(results: Mapping[str, Any]) -> tuple[str, Array]:
    for name, content in results.items():
        picture = picture_of(content) if isinstance(content, np.ndarray) else None
        if picture is not None:
            return name, picture
    shapes = ", ".join(f"{name} {list(getattr(content, 'shape', ()))}" for name, content in results.items())
    raise InputError(f"no output is a picture: {shapes}", hint="write .npy or .npz instead")


def png_bytes(pixels: Array) -> bytes:
    """A PNG file, written without a library."""
    import zlib

    height, width = pixels.shape[:2]
    kind = {2: 0, 3: {1: 0, 3: 2, 4: 6}.get(pixels.shape[-1], 0)}[pixels.ndim]
    rows = np.ascontiguousarray(pixels, np.uint8).reshape(height, -1)
    raw = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1).tobytes()

    def chunk(label: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + label + body + struct.pack(">I", zlib.crc32(label + body))

    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw, 6)) + chunk(b"IEND", b"")
