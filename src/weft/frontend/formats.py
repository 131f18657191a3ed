"""Identify files that are not ONNX models, by content and name, and explain paths that do not exist."""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path, PurePath

HEAD_BYTES = 512
TAIL_BYTES = 1 << 16  # zip archives list their files at the end
_MAX_QUOTE = 40  # characters of a text file in a message

_EXPORT = "export the model as ONNX, and pass that file"
_TORCH = f"{_EXPORT} (torch.onnx.export)"
_KERAS = f"{_EXPORT} (model.export(path, format='onnx') of Keras, or tf2onnx)"
_TENSORFLOW = f"{_EXPORT} (python -m tf2onnx.convert --saved-model FOLDER)"
_ORIGINAL = "pass the original ONNX file"
_UNPACK = "unpack it, and pass the .onnx file inside"
_INPUT = "pass a model; a file like this can be an input: weft run MODEL --input NAME=FILE"
_WEIGHTS = f"it holds weights without a graph: {_EXPORT}"

_FORMATS: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"version https://git-lfs", "a Git LFS pointer, not the model", "fetch the model with: git lfs pull"),
    (0, b"\x89HDF", "an HDF5 file, such as Keras writes", _KERAS),
    (4, b"TFL3", "a TensorFlow Lite model", f"{_EXPORT} (python -m tf2onnx.convert --tflite FILE)"),
    (4, b"ORTM", "a model in onnxruntime's own format (.ort)", _ORIGINAL),
    (0, b"GGUF", "a GGUF file for llama.cpp", _WEIGHTS),
    (0, b"\x1f\x8b", "compressed with gzip", _UNPACK),
    (0, b"BZh", "compressed with bzip2", _UNPACK),
    (0, b"\xfd7zXZ", "compressed with xz", _UNPACK),
    (0, b"(\xb5/\xfd", "compressed with zstd", _UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (0, b"Rar!", "a rar archive", _UNPACK),
    (257, b"ustar", "a tar archive", _UNPACK),
    (0, b"\x93NUMPY", "a numpy array", _INPUT),
    (0, b"ftrt", "a TensorRT engine", _ORIGINAL),
    (0, b"ptrt", "a TensorRT engine", _ORIGINAL),
    (0, b"\x89PNG\r\n", "an image (PNG)", _INPUT),
    (0, b"\xff\xd8\xff", "an image (JPEG)", _INPUT),
    (0, b"GIF8", "an image (GIF)", _INPUT),
    (0, b"II*\0", "an image (TIFF)", _INPUT),
    (0, b"MM\0*", "an image (TIFF)", _INPUT),
    (0, b"BM", "an image (BMP)", _INPUT),
    (8, b"WEBP", "an image (WebP)", _INPUT),
    (8, b"WAVE", "an audio file (WAV)", _INPUT),
    (0, b"fLaC", "an audio file (FLAC)", _INPUT),
    (0, b"ID3", "an audio file (MP3)", _INPUT),
    (4, b"ftyp", "a video, audio or image file (MP4 family)", _INPUT),
    (0, b"%PDF", "a PDF document", "pass the model itself"),
    (0, b"\x7fELF", "a program or library for Linux", "pass the model itself"),
    (0, b"MZ", "a program or library for Windows", "pass the model itself"),
    (0, b"PAR1", "a table (Parquet)", "pass the model itself"),
    (0, b"SQLite format 3", "an SQLite database", "pass the model itself"),
)
_BY_SUFFIX = {
    ".pkl": ("a Python pickle", _EXPORT),
    ".pickle": ("a Python pickle", _EXPORT),
    ".joblib": ("a Python pickle, such as joblib writes for scikit-learn", f"{_EXPORT} (skl2onnx)"),
    ".mlmodel": ("a Core ML model", _ORIGINAL),
    ".pb": ("not an ONNX model; .pb files are TensorFlow graphs or ONNX test data", _TENSORFLOW),
    ".pbtxt": ("a TensorFlow graph as text", _TENSORFLOW),
    ".pdmodel": ("a PaddlePaddle model", f"{_EXPORT} (paddle2onnx)"),
    ".pdiparams": ("PaddlePaddle weights", f"{_EXPORT} (paddle2onnx)"),
    ".caffemodel": ("Caffe weights", _EXPORT),
    ".tflite": ("an incomplete TensorFlow Lite model", f"{_EXPORT} (python -m tf2onnx.convert --tflite FILE)"),
    ".engine": ("a TensorRT engine", _ORIGINAL),
    ".plan": ("a TensorRT engine", _ORIGINAL),
    ".trt": ("a TensorRT engine", _ORIGINAL),
    ".mnn": ("an MNN model", _ORIGINAL),
    ".rknn": ("a model for Rockchip NPUs", _ORIGINAL),
    ".hef": ("a model for Hailo NPUs", _ORIGINAL),
    ".nb": ("a Paddle Lite model", _ORIGINAL),
}
_PAGES = (b"<!doctype html", b"<html", b"<head", b"<!--")
_PICKLE = re.compile(rb"\x80[\x02-\x05][\x8a\x95\x8c}\](ccqX]")


def identify_format(head: bytes, tail: bytes = b"", name: str = "") -> tuple[str, str] | None:
    """Describe a file that is not a model by its first and last bytes: (description, hint), or None if unknown."""
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return _identify_zip(head, tail)
    for offset, magic, description, hint in _FORMATS:
        if head[offset : offset + len(magic)] == magic:
            return description, hint
    if head.endswith(b".onnx") and len(head) < HEAD_BYTES:
        return "a path as bytes", "pass it as a string"
    if _PICKLE.match(head):
        return _identify_pickle(head)
    if head[8:10] in (b'{"', b"{ ") and head[5:8] == b"\0\0\0":
        return "a safetensors file", _WEIGHTS
    if head and not head.strip(b"\0"):
        return "all zeros, as after an unfinished download", "fetch it again"
    by_name = _BY_SUFFIX.get(PurePath(name).suffix.lower())
    return by_name or _identify_text(head) or _identify_weights(name)


def _identify_zip(head: bytes, tail: bytes) -> tuple[str, str]:
    """Describe a zip archive by the names of its files."""
    names = _zip_names(head, tail)
    model = next((name for name in names if name.endswith(".onnx")), None)
    if model is not None:
        return "a zip archive", f"unpack it, and pass {model}"
    base_names = {PurePath(name).name for name in names}
    if "constants.pkl" in base_names:
        return "a TorchScript model", _TORCH
    if base_names & {"archive_format", "serialized_exported_program.json"}:
        return "a torch.export program", _TORCH
    if "data.pkl" in base_names:
        return "a PyTorch file (a zip archive with pickled objects)", _TORCH
    if "model.weights.h5" in base_names:
        return "a Keras model (a zip archive)", _KERAS
    if any(name.endswith(".npy") for name in names):
        return "a file of numpy arrays (.npz)", _INPUT
    return "a zip archive", f"unpack it, or {_EXPORT}"


def _zip_names(head: bytes, tail: bytes) -> list[str]:
    """List the files of a zip archive; only the first one if its directory is missing."""
    from zipfile import ZipFile  # slow to import

    try:
        return ZipFile(BytesIO(tail or head)).namelist()
    except Exception:  # a damaged archive raises errors of many kinds
        length = int.from_bytes(head[26:28], "little")
        return [head[30 : 30 + length].decode("utf-8", "replace")]


def _identify_pickle(head: bytes) -> tuple[str, str]:
    if b"torch" in head or head.startswith(b"\x80\x02\x8a\nl\xfc\x9c"):  # the magic number of the old torch.save format
        return "a Python pickle written by torch", _TORCH
    for library, tool in (
        (b"sklearn", "skl2onnx"),
        (b"lightgbm", "onnxmltools"),
        (b"xgboost", "onnxmltools"),
        (b"catboost", "model.save_model(path, format='onnx')"),
    ):
        if library in head:
            return f"a Python pickle of {library.decode()}", f"{_EXPORT} ({tool})"
    return "a Python pickle", _EXPORT


def _identify_text(head: bytes) -> tuple[str, str] | None:
    """Describe a text file; return None for other bytes."""
    try:
        text = (head[:-3] if len(head) >= HEAD_BYTES else head).decode("utf-8-sig")  # the last character may be cut
    except UnicodeDecodeError as error:
        if len(head) < HEAD_BYTES or error.start < len(head) - 8:
            return None
        text = head[: error.start].decode("utf-8-sig")
    if not text.strip() or not all(character.isprintable() or character in "\t\r\n\f" for character in text):
        return None
    start = text.lstrip().lower()
    if start.startswith(tuple(page.decode() for page in _PAGES)):
        return "a web page", "the download returned a web page instead of the file; download the file itself"
    if start.startswith(("<?xml", "<error")):
        if "<error" in start:
            return "a server's error message (XML)", "the download failed; download the file again"
        if "<net" in start:
            return "an OpenVINO model (XML)", _ORIGINAL
        return "XML", "pass the binary file"
    if start.startswith(("{", "[")):
        if '"error"' in start:
            return "a server's error message (JSON)", "the download failed; download the file again"
        return "JSON", "pass the binary file"
    if start.startswith(("ir_version:", "<\n  ir_version", "<ir_version")):
        return (
            "an ONNX model written as text",
            "read it with onnx.parser or protobuf's text_format, and save it as .onnx",
        )
    if start.startswith("7767517"):
        return "an ncnn model", _ORIGINAL
    line = text.strip().splitlines()[0]
    quote = line if len(line) <= _MAX_QUOTE else f"{line[:_MAX_QUOTE].rstrip()}…"
    return (
        f"a text file that begins with {quote!r}",
        "pass the ONNX file; if you downloaded this one, download it again",
    )


def _identify_weights(name: str) -> tuple[str, str] | None:
    """Describe a file that may hold external weights of a model in the same folder."""
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
    return "not an ONNX model, but possibly its external weights", f"pass the model in the same folder: {model}"


def path_hint(path: str) -> str:
    """Return what to do about a path that cannot be opened."""
    from difflib import get_close_matches  # slow to import

    scheme, separator, _ = path.partition("://")
    if separator and scheme.isalnum():
        return "models are read from files: download it first"
    if path.startswith("~"):
        return "~ is not expanded: pass os.path.expanduser(path)"
    if not path:
        return "the path is empty"
    missing = Path(path)
    try:
        if missing.is_dir():
            return _folder_hint(missing)
        models = sorted(entry.name for entry in missing.parent.glob("*.onnx"))
    except (OSError, ValueError):
        return "check the path"
    by_lower_case = {name.lower(): name for name in models}
    similar = get_close_matches(missing.with_suffix(".onnx").name.lower(), by_lower_case, 1, cutoff=0.85)
    return f"check the path; did you mean {by_lower_case[similar[0]]}?" if similar else "check the path"


def _folder_hint(folder: Path) -> str:
    for pattern in ("*.onnx", "*/*.onnx"):
        models = sorted(entry.relative_to(folder).as_posix() for entry in folder.glob(pattern))
        if models:
            return f"pass the path of a file in it: {models[0]}"
    if (folder / "saved_model.pb").exists():
        return f"it is a TensorFlow SavedModel: {_TENSORFLOW}"
    if folder.suffix == ".mlpackage" or (folder / "Manifest.json").exists():
        return f"it is a Core ML package: {_ORIGINAL}"
    if (folder / "config.json").exists() and [*folder.glob("*.safetensors"), *folder.glob("*.bin")]:
        return f"it is a transformers model: {_EXPORT} (optimum-cli export onnx --model FOLDER OUTPUT)"
    if list(folder.glob("*.xml")):
        return f"it may be an OpenVINO model: {_ORIGINAL}"
    return "pass the path of a file"
