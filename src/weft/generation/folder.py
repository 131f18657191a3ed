"""Open the folder of a language model: onnxruntime-genai, optimum, transformers.js, or a decoder with a tokenizer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Union

from weft.errors import InputError, MissingFileError, ModelError, UnsupportedModelError
from weft.generation.genai_folder import GENAI_CONFIG, open_genai_folder
from weft.generation.model_folder import DecoderNames, EncoderNames, ModelFolder
from weft.generation.optimum_folder import DECODERS, find_parts, open_decoder_file, open_optimum_folder

__all__ = ["DecoderNames", "EncoderNames", "ModelFolder", "open_folder"]

EXPORT_HINT = (
    "export the model: optimum-cli export onnx --model MODEL --task text-generation-with-past FOLDER, "
    "or python -m onnxruntime_genai.models.builder -m MODEL -o FOLDER -p int4 -e cpu"
)
OTHER_FORMATS = {  # by the ends of file names
    ".safetensors": "safetensors",
    "pytorch_model.bin": "PyTorch",
    ".pt": "PyTorch",
    ".pth": "PyTorch",
    ".gguf": "GGUF",
    ".h5": "TensorFlow",
    ".msgpack": "Flax",
    ".tflite": "TensorFlow Lite",
}


def open_folder(path: Union[str, os.PathLike[str]], variant: str | None = None) -> ModelFolder:
    """Read what a folder says about its language model; no ONNX file is opened.

    path: the folder, or its decoder's .onnx file.
    variant: the precision in the file names of optimum and transformers.js (`q4`, `fp16`, `int8`, …); `fp32` is the
    file without a suffix. The default is the first that exists of fp32, bf16, fp16, 8 bits, 4 bits.
    """
    location = _existing_path(path)
    if location.is_file():
        return _open_file(location, variant)
    if (location / GENAI_CONFIG).is_file():
        if variant is not None:
            problem = f"{location} has one variant, so variant={variant!r} cannot be chosen"
            raise InputError(problem, hint="leave out `variant`: folders of onnxruntime-genai have no others")
        return open_genai_folder(location)
    if find_parts(location):
        return open_optimum_folder(location, variant)
    files = sorted(location.glob("*.onnx")) or sorted(location.glob("onnx/*.onnx"))
    if len(files) == 1 and variant is None:
        return open_decoder_file(files[0])
    raise _unknown_folder_error(location, files)


def _existing_path(path: Union[str, os.PathLike[str]]) -> Path:
    try:
        location = Path(path).expanduser()
        exists = location.exists()
    except (TypeError, ValueError, RuntimeError, OSError) as error:
        raise InputError(f"{path!r} is not a path: {error}", hint="pass the folder of a language model") from error
    if not exists:
        problem = f"{location} does not exist"
        raise MissingFileError(
            problem, hint="pass the folder of a language model; weft downloads none, `hf download` does"
        )
    return location


def _open_file(file: Path, variant: str | None) -> ModelFolder:
    if file.suffix != ".onnx":
        kind = next((kind for end, kind in OTHER_FORMATS.items() if file.name.endswith(end)), None)
        if kind is not None:
            raise UnsupportedModelError(f"{file} is a file of {kind}, not of ONNX", hint=EXPORT_HINT)
        raise ModelError(f"{file} is not an ONNX file", hint="pass the folder of a language model, or its .onnx file")
    if variant is not None:
        problem = f"{file} is one file, so variant={variant!r} cannot be chosen"
        raise InputError(problem, hint="pass its folder to choose a variant, or leave out `variant`")
    root = file.parent.parent if file.parent.name == "onnx" else file.parent
    if (root / GENAI_CONFIG).is_file():
        folder = open_genai_folder(root)
        if folder.decoder.samefile(file):
            return folder
    for part, variants in find_parts(root).items():
        for name, path in variants.items():
            if path == file and part in DECODERS:
                return open_optimum_folder(root, name)
    return open_decoder_file(file)


def _unknown_folder_error(path: Path, files: list[Path]) -> ModelError:
    if files:
        names = ", ".join(file.name for file in files[:8]) + (", …" if len(files) > 8 else "")
        problem = f"{path} has {len(files)} ONNX files, and none is named as a decoder ({names})"
        return ModelError(problem, hint="pass the path of the decoder's .onnx file")
    try:
        content = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        return ModelError(f"{path} cannot be read: {error}", hint="check its permissions")
    kinds = {kind: None for name in content for end, kind in OTHER_FORMATS.items() if name.endswith(end)}
    if kinds:
        problem = f"{path} has weights of {' and '.join(kinds)}, but no ONNX file"
        return UnsupportedModelError(problem, hint=EXPORT_HINT)
    problem = f"{path} has no ONNX file, neither in the folder nor in onnx/"
    return MissingFileError(problem, hint=EXPORT_HINT)
