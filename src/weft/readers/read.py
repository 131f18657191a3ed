"""Read files of any kind as one input: detect their kind, convert them, and describe the conversion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field

import numpy as np

from weft.errors import InputError, WeftError
from weft.ir.arrays import Array
from weft.ir.dtypes import DType
from weft.ir.graph import OnnxModel
from weft.ir.specs import TensorSpec
from weft.readers import arrays
from weft.readers.audio import audio_to_input, read_audio
from weft.readers.content import DataSource, Kind
from weft.readers.image_hints import find_image_hints
from weft.readers.images import DEFAULT_IMAGE_OPTIONS, ImageOptions, images_to_input
from weft.records import dataclass

MEDIA_SUFFIXES = {
    **dict.fromkeys((".wav", ".flac", ".ogg", ".mp3"), "audio file"),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif"), "image"),
}


@dataclass(frozen=True, slots=True)
class InputContext:
    """What a conversion depends on besides the files: the model, options, sizes of dynamic dims, sampling rate."""

    source: Callable[[], OnnxModel] | None = None  # reads the model file
    outputs: Sequence[TensorSpec] = ()
    images: ImageOptions = DEFAULT_IMAGE_OPTIONS
    sizes: Mapping[str, int] = field(default_factory=dict)
    rate: int | None = None

    def read_source(self) -> OnnxModel | None:
        """Read the model file; None if there is none, as in compiled files without a graph."""
        with suppress(WeftError):
            return None if self.source is None else self.source()
        return None

    @property
    def properties(self) -> Mapping[str, str]:
        """The metadata of the model file."""
        source = self.read_source()
        return {} if source is None else source.about.properties


@dataclass(frozen=True, slots=True)
class Reading:
    """The array of an input, a note on notable conversions, and the sampling rate of audio."""

    array: Array
    note: str = ""
    rate: int | None = None


def read_input(sources: Sequence[DataSource], spec: TensorSpec, context: InputContext) -> Reading:
    """Read files as an input; several images, or a folder of them, make a batch."""
    files = [file for source in sources for file in expand_folder(source)]
    kinds = {file.kind for file in files}
    if kinds == {Kind.IMAGE}:
        hints = find_image_hints(context.read_source(), spec.name, context.outputs)
        contents = [(file.name, file.read_limited()) for file in files]
        return Reading(*images_to_input(contents, spec, context.images, hints, context.sizes))
    if len(files) > 1:
        problem = f"input {spec.name!r} has {len(files)} files: {', '.join(file.name for file in files[:5])}"
        raise InputError(problem, hint="only images make a batch; stack other data in one file")
    (file,) = files
    if file.kind is Kind.AUDIO:
        audio = read_audio(file.read(), file.name)
        rate = context.rate or audio.rate
        return Reading(*audio_to_input(audio, spec, file.name, context.rate, context.sizes), rate)
    array, notes = arrays.fit_to_input(_read_array(file, spec), spec, file.name)
    if file.kind is Kind.TEXT:  # which has no types
        notes = [note for note in notes if " as " not in note]
    return Reading(array, f"{file.name}: {', '.join(notes)}" if notes else "")


def expand_folder(source: DataSource) -> list[DataSource]:
    """Return the images in a folder, or the file itself."""
    if source.kind is not Kind.FOLDER:
        return [source]
    inside = [DataSource(str(path)) for path in sorted(source.path.iterdir()) if path.is_file()]
    images = [each for each in inside if each.kind is Kind.IMAGE]
    if not images:
        hint = "an ONNX test set with input_0.pb must not be given for a named input"
        raise InputError(f"{source.name}: a folder without images", hint=hint)
    return images


def _read_array(file: DataSource, spec: TensorSpec) -> Array:
    suffix = file.path.suffix.lower()
    match file.kind:
        case Kind.NPY:
            return arrays.read_npy(file)
        case Kind.NPZ:
            return arrays.read_npz(file, spec.name)
        case Kind.TEXT | Kind.BINARY if suffix in MEDIA_SUFFIXES:
            problem = f"{file.name}: not a readable {MEDIA_SUFFIXES[suffix]}, but {file.kind.value}"
            raise InputError(problem, hint="the file may be truncated, or a placeholder for one that was not fetched")
        case _ if suffix in (".npy", ".npz"):
            return arrays.read_npy(file) if suffix == ".npy" else arrays.read_npz(file, spec.name)
        case Kind.TEXT:
            return _read_text_array(file, spec)
        case Kind.PICKLE:
            hint = "save arrays with numpy.save"
            raise InputError(
                f"{file.name}: {Kind.PICKLE.value}, which weft does not read: it could run any code", hint=hint
            )
    try:
        return arrays.read_tensor(file)[1]
    except InputError as error:
        hint = "weft reads images, audio, .npy, .npz, JSON, CSV, texts and ONNX tensors (.pb)"
        raise InputError(f"{file.name}: unknown file format, for input {spec.name!r}", hint=hint) from error


def _read_text_array(file: DataSource, spec: TensorSpec) -> Array:
    text = file.read_text()
    if text.lstrip()[:1] in ("[", "{") or (
        spec.element is not DType.string and "," not in text and arrays.is_number(text)
    ):
        content = arrays.read_json(text, file.name)
        if isinstance(content, dict):
            if spec.name not in content:
                hint = f"it has {', '.join(map(str, content))}"
                raise InputError(f"{file.name}: has no entry for input {spec.name!r}", hint=hint)
            content = content[spec.name]
        return arrays.from_lists(content, spec, file.name)
    if spec.element is not DType.string:
        return arrays.read_table_array(file, spec)
    lines = text.splitlines()
    is_dynamic = spec.shape is None or any(isinstance(dim, str) for dim in spec.shape)
    return np.asarray(lines if is_dynamic and len(lines) > 1 else text.rstrip("\r\n"), object)
