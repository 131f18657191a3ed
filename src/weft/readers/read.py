"""One input from people's files, whatever these are: told by content, made to fit, and said in words what was done."""

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
from weft.readers import arrays, pictures
from weft.readers.content import DataSource, Kind
from weft.readers.picture_evidence import picture_evidence
from weft.readers.pictures import UNDIRECTED, PictureDirections
from weft.readers.sound import HINT as SOUND_HINT
from weft.readers.sound import read_wav, sound_array
from weft.records import dataclass

FOREIGN = {
    ".wav": "sound",
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif"), "picture"),
}
"""Endings that promise what a text is not."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What is known beside the files: the model, what was directed, sizes of dynamic dims, the rate of sound."""

    source: Callable[[], OnnxModel] | None = None  # reads the model's file
    outputs: Sequence[TensorSpec] = ()
    directions: PictureDirections = UNDIRECTED
    sizes: Mapping[str, int] = field(default_factory=dict)
    rate: int | None = None

    def read_source(self) -> OnnxModel | None:
        """The model's file; None where there is none, as in compiled files without a graph."""
        with suppress(WeftError):
            return None if self.source is None else self.source()
        return None

    @property
    def properties(self) -> Mapping[str, str]:
        """The metadata of the model's file."""
        source = self.read_source()
        return {} if source is None else source.about.properties


@dataclass(frozen=True, slots=True)
class Reading:
    """An input's array, what was done to make it, where that is worth a word, and the rate of a sound."""

    array: Array
    told: str = ""
    rate: int | None = None


def read_input(sources: Sequence[DataSource], spec: TensorSpec, terms: Terms) -> Reading:
    """The array that files hold for an input; several pictures, or a folder of them, are a batch."""
    files = [file for source in sources for file in expand_folder(source)]
    kinds = {file.kind for file in files}
    if kinds == {Kind.PICTURE}:
        evidence = picture_evidence(terms.read_source(), spec.name, terms.outputs)
        named = [(file.name, file.limited()) for file in files]
        return Reading(*pictures.picture_array(named, spec, terms.directions, evidence, terms.sizes))
    if len(files) > 1:
        problem = f"input {spec.name!r} is given {len(files)} times: {', '.join(file.name for file in files[:5])}"
        raise InputError(problem, hint="only several pictures make a batch; stack other data in one file")
    (file,) = files
    if file.kind is Kind.WAV:
        sound = read_wav(file.content(), file.name)
        return Reading(*sound_array(sound, spec, file.name, terms.rate, terms.sizes), terms.rate or sound.rate)
    array, told = arrays.fitted(_read(file, spec), spec, file.name)
    if file.kind is Kind.TEXT:  # which has no types of its own
        told = [each for each in told if " as " not in each]
    return Reading(array, f"{file.name}: {', '.join(told)}" if told else "")


def expand_folder(source: DataSource) -> list[DataSource]:
    """A file, or the pictures in a folder."""
    if source.kind is not Kind.FOLDER:
        return [source]
    inside = [DataSource(str(path)) for path in sorted(source.path.iterdir()) if path.is_file()]
    found = [each for each in inside if each.kind is Kind.PICTURE]
    if not found:
        hint = "a test set of ONNX, with input_0.pb, is given without the name of an input"
        raise InputError(f"{source.name}: a folder without pictures", hint=hint)
    return found


def _read(file: DataSource, spec: TensorSpec) -> Array:
    ending = file.path.suffix.lower()
    match file.kind:
        case Kind.NPY:
            return arrays.read_npy(file)
        case Kind.NPZ:
            return arrays.read_npz(file, spec.name)
        case Kind.TEXT | Kind.BINARY if ending in FOREIGN:
            problem = f"{file.name}: not a readable {FOREIGN[ending]}, but {file.kind.value}"
            raise InputError(problem, hint="the file may be cut off, or stand for one that was not fetched")
        case _ if ending in (".npy", ".npz"):
            return arrays.read_npy(file) if ending == ".npy" else arrays.read_npz(file, spec.name)
        case Kind.TEXT:
            return _of_text(file, spec)
        case Kind.SOUND:
            raise InputError(f"{file.name}: {Kind.SOUND.value}, which weft does not read", hint=SOUND_HINT)
        case Kind.PICKLE:
            hint = "save arrays with numpy.save, which weft reads"
            raise InputError(f"{file.name}: {Kind.PICKLE.value}, which could run any code and is not read", hint=hint)
    try:
        return arrays.read_tensor(file)[1]
    except InputError as error:
        hint = "weft reads pictures, WAV, .npy, .npz, JSON, CSV, texts and ONNX's tensors (.pb)"
        raise InputError(f"{file.name}: not known what this is, for input {spec.name!r}", hint=hint) from error


def _of_text(file: DataSource, spec: TensorSpec) -> Array:
    text = file.text()
    begin = text.lstrip()[:1]
    if begin in ("[", "{") or (spec.element is not DType.string and "," not in text and _is_one_number(text)):
        content = arrays.read_json(text, file.name)
        if isinstance(content, dict):
            if spec.name not in content:
                known = ", ".join(map(str, content))
                raise InputError(f"{file.name}: has nothing for input {spec.name!r}", hint=f"it has {known}")
            content = content[spec.name]
        return arrays.array_of(content, spec, file.name)
    if spec.element is not DType.string:
        return arrays.table_array(file, spec)
    lines = text.splitlines()
    open_ended = spec.shape is None or any(isinstance(dim, str) for dim in spec.shape)
    return np.asarray(lines if open_ended and len(lines) > 1 else text.rstrip("\r\n"), object)


def _is_one_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
