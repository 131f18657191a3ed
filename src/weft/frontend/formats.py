"""Files that are no ONNX models: what they are instead, by bytes and names, and where a path leads nowhere, why."""

from __future__ import annotations

import re
from pathlib import Path, PurePath

TELLING = 512  # bytes, at the beginning
ENDING = 1 << 16  # bytes at the end, where archives list what is in them
SHOWN = 40  # characters of a text

_EXPORT = "export the model as ONNX, and pass that file"
_TORCH = f"{_EXPORT} (torch.onnx.export)"
_KERAS = f"{_EXPORT} (model.export(path, format='onnx') of Keras, or tf2onnx)"
_TENSORFLOW = f"{_EXPORT} (python -m tf2onnx.convert --saved-model FOLDER)"
_MADE_FROM = "pass the ONNX file that it was made from"
_UNPACK = "unpack it first, and pass the .onnx file that is in it"
_INPUT = "pass a model first; files like this one are for its inputs: weft run MODEL --input NAME=FILE"
_WEIGHTS = f"it holds weights without a graph: {_EXPORT}"

_FORMATS: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"version https://git-lfs", "a Git LFS pointer, not the model", "fetch the model with: git lfs pull"),
    (0, b"\x89HDF", "an HDF5 file, as Keras writes", _KERAS),
    (4, b"TFL3", "a TensorFlow Lite model", f"{_EXPORT} (python -m tf2onnx.convert --tflite FILE)"),
    (4, b"ORTM", "a model in onnxruntime's own format (.ort)", _MADE_FROM),
    (0, b"GGUF", "a GGUF file, as llama.cpp reads", _WEIGHTS),
    (0, b"\x1f\x8b", "compressed with gzip", _UNPACK),
    (0, b"BZh", "compressed with bzip2", _UNPACK),
    (0, b"\xfd7zXZ", "compressed with xz", _UNPACK),
    (0, b"(\xb5/\xfd", "compressed with zstd", _UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (0, b"Rar!", "a rar archive", _UNPACK),
    (257, b"ustar", "a tar archive", _UNPACK),
    (0, b"\x93NUMPY", "an array of numpy's", _INPUT),
    (0, b"ftrt", "an engine of TensorRT's", _MADE_FROM),
    (0, b"ptrt", "an engine of TensorRT's", _MADE_FROM),
    (0, b"\x89PNG\r\n", "a picture (PNG)", _INPUT),
    (0, b"\xff\xd8\xff", "a picture (JPEG)", _INPUT),
    (0, b"GIF8", "a picture (GIF)", _INPUT),
    (0, b"II*\0", "a picture (TIFF)", _INPUT),
    (0, b"MM\0*", "a picture (TIFF)", _INPUT),
    (0, b"BM", "a picture (BMP)", _INPUT),
    (8, b"WEBP", "a picture (WebP)", _INPUT),
    (8, b"WAVE", "sound (WAV)", _INPUT),
    (0, b"fLaC", "sound (FLAC)", _INPUT),
    (0, b"ID3", "sound (MP3)", _INPUT),
    (4, b"ftyp", "a video, sound or picture (MP4 and its kin)", _INPUT),
    (0, b"%PDF", "a PDF document", "pass the model itself"),
    (0, b"\x7fELF", "a program or library for Linux", "pass the model itself"),
    (0, b"MZ", "a program or library for Windows", "pass the model itself"),
    (0, b"PAR1", "a table (Parquet)", "pass the model itself"),
    (0, b"SQLite format 3", "an SQLite database", "pass the model itself"),
)
_BY_SUFFIX = {
    ".pkl": ("a Python pickle", _EXPORT),
    ".pickle": ("a Python pickle", _EXPORT),
    ".joblib": ("a Python pickle, as scikit-learn's users write", f"{_EXPORT} (skl2onnx)"),
    ".mlmodel": ("a Core ML model", _MADE_FROM),
    ".pb": ("no ONNX model; files so named are TensorFlow's graphs, or onnx's test data", _TENSORFLOW),
    ".pbtxt": ("a graph of TensorFlow's as text", _TENSORFLOW),
    ".pdmodel": ("a model of PaddlePaddle's", f"{_EXPORT} (paddle2onnx)"),
    ".pdiparams": ("weights of PaddlePaddle's", f"{_EXPORT} (paddle2onnx)"),
    ".caffemodel": ("weights of Caffe's", _EXPORT),
    ".tflite": ("no whole TensorFlow Lite model", f"{_EXPORT} (python -m tf2onnx.convert --tflite FILE)"),
    ".engine": ("an engine of TensorRT's", _MADE_FROM),
    ".plan": ("an engine of TensorRT's", _MADE_FROM),
    ".trt": ("an engine of TensorRT's", _MADE_FROM),
    ".mnn": ("a model of MNN's", _MADE_FROM),
    ".rknn": ("a model for Rockchip's NPUs", _MADE_FROM),
    ".hef": ("a model for Hailo's NPUs", _MADE_FROM),
    ".nb": ("a model of Paddle Lite's", _MADE_FROM),
}
_PAGES = (b"<!doctype html", b"<html", b"<head", b"<!--")
_PICKLE = re.compile(rb"\x80[\x02-\x05][\x8a\x95\x8c}\](ccqX]")


def other_format(head: bytes, tail: bytes = b"", name: str = "") -> tuple[str, str] | None:
    """What a file is that begins and ends like this and is no model, and what to do; None where that cannot be told."""
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return _archive(head, tail)
    for place, mark, what, hint in _FORMATS:
        if head[place : place + len(mark)] == mark:
            return what, hint
    if head.endswith(b".onnx") and len(head) < TELLING:
        return "a path as bytes", "pass it as a string"
    if _PICKLE.match(head):
        return _pickled(head)
    if head[8:10] in (b'{"', b"{ ") and head[5:8] == b"\0\0\0":
        return "a file of safetensors", _WEIGHTS
    if head and not head.strip(b"\0"):
        return "nothing but zeros, as of a download that was not finished", "fetch it again"
    by_name = _BY_SUFFIX.get(PurePath(name).suffix.lower())
    return by_name or _text(head) or _external(name)


def _archive(head: bytes, tail: bytes) -> tuple[str, str]:
    """A zip, by the names that are in it."""
    names = _names(head, tail)
    model = next((name for name in names if name.endswith(".onnx")), None)
    if model is not None:
        return "a zip archive", f"unpack it first, and pass {model}"
    last = {PurePath(name).name for name in names}
    if "constants.pkl" in last:
        return "a TorchScript model", _TORCH
    if last & {"archive_format", "serialized_exported_program.json"}:
        return "a program of torch.export", _TORCH
    if "data.pkl" in last:
        return "a file of PyTorch's, a zip archive with pickled objects", _TORCH
    if "model.weights.h5" in last:
        return "a Keras model, a zip archive", _KERAS
    if any(name.endswith(".npy") for name in names):
        return "a file of numpy's arrays (.npz)", _INPUT
    return "a zip archive", f"unpack it, or {_EXPORT}"


def _names(head: bytes, tail: bytes) -> list[str]:
    """The names in a zip, from its end; the first one where that is missing."""
    from io import BytesIO
    from zipfile import ZipFile

    try:
        return ZipFile(BytesIO(tail or head)).namelist()
    except Exception:  # whatever is wrong with it
        length = int.from_bytes(head[26:28], "little")
        return [head[30 : 30 + length].decode("utf-8", "replace")]


def _pickled(head: bytes) -> tuple[str, str]:
    if b"torch" in head or head.startswith(b"\x80\x02\x8a\nl\xfc\x9c"):  # the number that old torch.save begins with
        return "a Python pickle, as torch writes", _TORCH
    for library, tool in (
        (b"sklearn", "skl2onnx"),
        (b"lightgbm", "onnxmltools"),
        (b"xgboost", "onnxmltools"),
        (b"catboost", "model.save_model(path, format='onnx')"),
    ):
        if library in head:
            return f"a Python pickle of {library.decode()}", f"{_EXPORT} ({tool})"
    return "a Python pickle", _EXPORT


def _text(head: bytes) -> tuple[str, str] | None:
    """What a text is; None for other bytes."""
    try:
        text = (head[:-3] if len(head) >= TELLING else head).decode("utf-8-sig")  # the last character may be cut
    except UnicodeDecodeError as error:
        if len(head) < TELLING or error.start < len(head) - 8:
            return None
        text = head[: error.start].decode("utf-8-sig")
    if not text.strip() or not all(character.isprintable() or character in "\t\r\n\f" for character in text):
        return None
    start = text.lstrip().lower()
    if start.startswith(tuple(page.decode() for page in _PAGES)):
        return "a web page", "the download gave a page instead of the file; fetch the file itself"
    if start.startswith(("<?xml", "<error")):
        if "<error" in start:
            return "an error message of a server (XML)", "the download failed; fetch the file itself"
        if "<net" in start:
            return "XML, as OpenVINO writes", _MADE_FROM
        return "XML", "pass the binary file"
    if start.startswith(("{", "[")):
        if '"error"' in start:
            return "an error message of a server (JSON)", "the download failed; fetch the file itself"
        return "JSON", "pass the binary file"
    if start.startswith(("ir_version:", "<\n  ir_version", "<ir_version")):
        return (
            "an ONNX model written as text",
            "read it with onnx.parser or protobuf's text_format, and save it as .onnx",
        )
    if start.startswith("7767517"):
        return "a network of ncnn's", _MADE_FROM
    line = text.strip().splitlines()[0]
    shown = line if len(line) <= SHOWN else f"{line[:SHOWN].rstrip()}…"
    return f"a text that begins with {shown!r}", "pass the ONNX file itself; where this was downloaded, it failed"


def _external(name: str) -> tuple[str, str] | None:
    """Whether a file may hold the weights of a model beside it."""
    path = Path(name)
    if path.suffix.lower() not in (".data", ".bin", ".weights", ".dat") and not name.endswith("_data"):
        return None
    try:
        models = sorted(entry.name for entry in path.parent.glob("*.onnx"))
    except (OSError, ValueError):
        return None
    stem = path.name.split(".")[0]
    model = next((model for model in models if model.split(".")[0] == stem), models[0] if len(models) == 1 else None)
    if model is None:
        return None
    return "no ONNX model; it may hold weights of one", f"pass the model that is beside it: {model}"


def path_hint(path: str) -> str:
    """Why a path may lead nowhere."""
    from difflib import get_close_matches

    scheme, found, _ = path.partition("://")
    if found and scheme.isalnum():
        return "models are read from files: download it first"
    if path.startswith("~"):
        return "~ is not replaced: pass os.path.expanduser(path)"
    if not path:
        return "the path is empty"
    wanted = Path(path)
    try:
        if wanted.is_dir():
            return _folder_hint(wanted)
        models = sorted(entry.name for entry in wanted.parent.glob("*.onnx"))
    except (OSError, ValueError):
        return "check the path"
    by_form = {name.lower(): name for name in models}
    near = get_close_matches(wanted.with_suffix(".onnx").name.lower(), by_form, 1, cutoff=0.85)
    return f"check the path; there is {by_form[near[0]]} beside it" if near else "check the path"


def _folder_hint(folder: Path) -> str:
    for pattern in ("*.onnx", "*/*.onnx"):
        models = sorted(entry.relative_to(folder).as_posix() for entry in folder.glob(pattern))
        if models:
            return f"pass the path of a file in it: {models[0]}"
    if (folder / "saved_model.pb").exists():
        return f"it is a SavedModel of TensorFlow's: {_TENSORFLOW}"
    if folder.suffix == ".mlpackage" or (folder / "Manifest.json").exists():
        return f"it is a Core ML package: {_MADE_FROM}"
    if (folder / "config.json").exists() and [*folder.glob("*.safetensors"), *folder.glob("*.bin")]:
        return f"it is a model of transformers: {_EXPORT} (optimum-cli export onnx --model FOLDER OUTPUT)"
    if list(folder.glob("*.xml")):
        return f"it may be a model of OpenVINO's: {_MADE_FROM}"
    return "pass the path of a file"
