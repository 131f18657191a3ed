"""Samples for calibration and measurement: from a folder, or random.

A sample is a file: .npz with an array for each input; .npy, an image or WAV audio for a model with one input; or a
folder of input_0.pb, input_1.pb, …, the format of the test sets of ONNX models. Files are read when they are used.
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

IMAGES = (".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
AUDIO = (".wav",)
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
    def preprocessing(self) -> str:
        """How images and audio are preprocessed, as described for the first sample."""
        path = self._paths[0]
        if path.suffix.lower() not in (*IMAGES, *AUDIO):
            return ""
        return read_input([DataSource(str(path))], _find_single_input(path, self._specs), self._context).note

    def path(self, number: int) -> Path:
        """Return the file or folder of a sample."""
        return self._paths[number]

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return FolderSamples(self._paths[number], self._specs, self._context)
        return read_sample(self._paths[number], self._specs, self._context)


def list_samples(folder: Path, specs: Sequence[TensorSpec], most: int, context: InputContext) -> FolderSamples:
    """Select up to `most` samples of a folder, evenly spaced."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder", hint="name a folder with a file for each sample")
    paths = sorted(_sample_paths(folder))
    if not paths:
        kinds = ", ".join((*ARRAYS, ".pb", *IMAGES, *AUDIO))
        raise InputError(f"{folder}: the folder has no samples", hint=f"supported files are {kinds}")
    if len(paths) > most:
        paths = [paths[round(position)] for position in np.linspace(0, len(paths) - 1, most)]
    samples = FolderSamples(paths, specs, context)
    samples[0]  # raise errors early
    return samples


def random_samples(specs: Sequence[TensorSpec], sizes: Mapping[str, int], count: int, seed: int) -> list[Sample]:
    return [generate_inputs(specs, sizes, seed + number) for number in range(count)]


def check_finite(samples: Sequence[Sample], run: Callable[[Sample], Mapping[str, Any]] | None = None) -> None:
    """Raise InputError for samples with NaN or infinities that reach the outputs of `run`, or for all without `run`.

    Some models expect such inputs: masks are infinite, and some models replace NaN.
    """
    for number, sample in enumerate(samples):
        flaws = ((name, _find_nonfinite(array)) for name, array in sample.items())
        problem = next((f"{flaw} in input {name!r}" for name, flaw in flaws if flaw), "")
        if problem and (run is None or any(_find_nonfinite(output) for output in run(sample).values())):
            where = samples.path(number) if isinstance(samples, FolderSamples) else f"sample {number} of the data"
            raise InputError(f"{where}: {problem}", hint="remove this sample, or replace such numbers")


def _find_nonfinite(content: Any) -> str:
    """Describe the first kind of number in an array that is not finite; empty if all are."""
    if not isinstance(content, np.ndarray) or content.dtype.kind in "biuOUSM":
        return ""
    numbers = content if content.dtype.kind == "f" else content.astype(np.float64)
    if np.isnan(numbers).any():
        return "NaN"
    return "an infinity" if np.isinf(numbers).any() else ""


def _sample_paths(folder: Path) -> Iterator[Path]:
    """Yield the samples in a folder and its subfolders: files, and folders of tensors."""
    if any(folder.glob("input_*.pb")):
        yield folder
        return
    for path in folder.iterdir():
        if path.is_dir():
            yield from _sample_paths(path)
        elif path.suffix.lower() in (*ARRAYS, *IMAGES, *AUDIO):
            yield path


def read_sample(path: Path, specs: Sequence[TensorSpec], context: InputContext) -> dict[str, Array]:
    """Read the inputs of a model from a file or a folder of tensors."""
    if path.is_dir():
        arrays = _read_test_set(path, specs)
    elif path.suffix.lower() in (*IMAGES, *AUDIO):
        spec = _find_single_input(path, specs)
        arrays = {spec.name: read_input([DataSource(str(path))], spec, context).array}
    else:
        arrays = _read_arrays(path, specs)
    missing = [spec.name for spec in specs if spec.name not in arrays and not isinstance(spec.type, OptionalType)]
    if missing:
        raise InputError(f"{path}: no array for input {missing[0]!r}", hint=f"it has {', '.join(arrays) or 'none'}")
    return {spec.name: _fit_to_spec(path, arrays[spec.name], spec) for spec in specs if spec.name in arrays}


def _read_test_set(folder: Path, specs: Sequence[TensorSpec]) -> dict[str, Array]:
    arrays = {}
    for number, spec in enumerate(specs):
        path = folder / f"input_{number}.pb"
        if path.is_file():
            name, array = read_tensor_file(path)
            arrays[name if name in {each.name for each in specs} else spec.name] = array
    return arrays


def _read_arrays(path: Path, specs: Sequence[TensorSpec]) -> dict[str, Array]:
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            return {_find_single_input(path, specs).name: content}
        with content as archive:
            names = archive.files
            if len(names) == 1 and len(specs) == 1:
                return {specs[0].name: archive[names[0]]}
            return {spec.name: archive[spec.name] for spec in specs if spec.name in names}
    except InputError:
        raise
    except Exception as error:  # numpy, zipfile, zlib and pickle raise different errors for damaged files
        raise InputError(f"{path}: not a readable .npy or .npz file: {error}") from error


def _find_single_input(path: Path, specs: Sequence[TensorSpec]) -> TensorSpec:
    required = [spec for spec in specs if not isinstance(spec.type, OptionalType)]
    if len(required) != 1:
        names = ", ".join(spec.name for spec in specs)
        raise InputError(f"{path}: the model has several inputs", hint=f"use .npz files with arrays {names}")
    return required[0]


def _fit_to_spec(path: Path, array: Array, spec: TensorSpec) -> Array:
    """Convert an array to the input's type, and add the batch axis if it is missing."""
    if spec.element is not None and array.dtype != spec.element.numpy:
        is_number = array.dtype.kind in "fiub" and spec.element is not DType.string
        if not is_number or (spec.element.is_integer and array.dtype.kind == "f"):
            raise InputError(f"{path}: {array.dtype} for input {spec.name!r}, which needs {spec.element}")
        with np.errstate(over="ignore"):
            converted = array.astype(spec.element.numpy)
        if spec.element.is_integer and not np.array_equal(converted, array):
            raise InputError(f"{path}: input {spec.name!r} needs {spec.element}, which cannot represent these numbers")
        array = converted
    if spec.shape is not None and array.ndim == len(spec.shape) - 1 and _may_be_one(spec.shape[0]):
        array = array[None]
    return array


def _may_be_one(size: int | str) -> bool:
    return size == 1 or isinstance(size, str)
