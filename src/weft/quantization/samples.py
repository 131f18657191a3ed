"""Data to calibrate and measure with: samples from a folder, or made up to fit the model.

A sample is a file: .npz with an array for each input; .npy, a picture or a WAV sound for a model with one input; or a
folder of input_0.pb, input_1.pb, …, as test sets of ONNX models have them. Files are read when they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.frontend.tensor_files import read_tensor_file
from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.ir.specs import TensorSpec
from weft.ir.types import OptionalType
from weft.readers.content import DataSource
from weft.readers.read import InputContext, read_input
from weft.runtime.generated_inputs import generate_inputs

Sample = Mapping[str, Any]

PICTURES = (".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
SOUNDS = (".wav",)
ARRAYS = (".npy", ".npz")


class FolderSamples(Sequence[Sample]):
    """The samples of a folder, read one at a time."""

    def __init__(self, paths: Sequence[Path], specs: Sequence[TensorSpec], context: InputContext) -> None:
        self._paths = paths
        self._specs = specs
        self._context = context

    def __len__(self) -> int:
        return len(self._paths)

    @property
    def told(self) -> str:
        """What is done to pictures and sounds, in the words of the first one."""
        path = self._paths[0]
        if path.suffix.lower() not in (*PICTURES, *SOUNDS):
            return ""
        return read_input([DataSource(str(path))], _only(path, self._specs), self._context).note

    def path(self, number: int) -> Path:
        """The file or folder of a sample."""
        return self._paths[number]

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return FolderSamples(self._paths[number], self._specs, self._context)
        return read_sample(self._paths[number], self._specs, self._context)


def folder_samples(folder: Path, specs: Sequence[TensorSpec], most: int, context: InputContext) -> FolderSamples:
    """Up to `most` samples of a folder, spread over all that it has."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder", hint="give a folder with a file for each sample")
    paths = sorted(_sample_paths(folder))
    if not paths:
        kinds = ", ".join((*ARRAYS, ".pb", *PICTURES, *SOUNDS))
        raise InputError(f"{folder}: holds no samples", hint=f"these are taken: {kinds}")
    if len(paths) > most:
        paths = [paths[round(place)] for place in np.linspace(0, len(paths) - 1, most)]
    samples = FolderSamples(paths, specs, context)
    samples[0]  # what is wrong with the folder shows here
    return samples


def made_up_samples(specs: Sequence[TensorSpec], sizes: Mapping[str, int], most: int, seed: int) -> list[Sample]:
    """Random data, which has little to do with what the model is for."""
    return [generate_inputs(specs, sizes, seed + number) for number in range(most)]


def check_finite(samples: Sequence[Sample], run: Callable[[Sample], Mapping[str, Any]] | None = None) -> None:
    """Refuse samples with NaN or infinities that reach the model's outputs: no range can be told from them.

    A model may mean to take such numbers: masks are infinite, and some models replace NaN. Without `run`, all are
    refused.
    """
    for number, sample in enumerate(samples):
        flaw = next((f"{_describe(array)} in input {name!r}" for name, array in sample.items() if _describe(array)), "")
        if flaw and (run is None or any(_describe(output) for output in run(sample).values())):
            where = samples.path(number) if isinstance(samples, FolderSamples) else f"sample {number} of the data"
            raise InputError(f"{where}: {flaw}", hint="take this sample out of the data, or replace such numbers")


def _describe(content: Any) -> str:
    """What an array holds besides finite numbers."""
    if not isinstance(content, np.ndarray) or content.dtype.kind in "biuOUSM":
        return ""
    numbers = content if content.dtype.kind == "f" else content.astype(np.float64)
    if np.isnan(numbers).any():
        return "NaN"
    return "an infinity" if np.isinf(numbers).any() else ""


def _sample_paths(folder: Path) -> Iterator[Path]:
    """The samples of a folder and of those in it: files, and folders of tensors."""
    if any(folder.glob("input_*.pb")):
        yield folder
        return
    for path in folder.iterdir():
        if path.is_dir():
            yield from _sample_paths(path)
        elif path.suffix.lower() in (*ARRAYS, *PICTURES, *SOUNDS):
            yield path


def read_sample(path: Path, specs: Sequence[TensorSpec], context: InputContext) -> dict[str, Array]:
    """What a file or a folder of tensors has for a model's inputs."""
    if path.is_dir():
        found = _read_test_set(path, specs)
    elif path.suffix.lower() in (*PICTURES, *SOUNDS):
        only = _only(path, specs)
        found = {only.name: read_input([DataSource(str(path))], only, context).array}
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
        with np.errstate(over="ignore"):
            converted = array.astype(spec.element.numpy)
        if spec.element.is_integer and not np.array_equal(converted, array):
            raise InputError(f"{path}: input {spec.name!r} takes {spec.element}, which does not hold these numbers")
        array = converted
    if spec.shape is not None and array.ndim == len(spec.shape) - 1 and spec.shape[0] in (1, *_open(spec)):
        array = array[None]
    return array


def _open(spec: TensorSpec) -> tuple[str, ...]:
    return tuple(dim for dim in spec.shape or () if isinstance(dim, str))
