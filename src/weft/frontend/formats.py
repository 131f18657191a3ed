"""Files that are no ONNX models: what they are instead, by their first bytes, and where a path leads nowhere, why."""

from __future__ import annotations

from pathlib import Path

TELLING = 512  # bytes, at the beginning

_EXPORT = "export the model as ONNX, and pass that file"
_FORMATS: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"version https://git-lfs", "a Git LFS pointer, not the model", "fetch the model with: git lfs pull"),
    (0, b"PK\x03\x04", "a zip archive, as torch and Keras write", f"unpack it, or {_EXPORT} (torch.onnx.export)"),
    (0, b"\x80\x02", "a Python pickle, as torch writes", f"{_EXPORT} (torch.onnx.export)"),
    (0, b"\x80\x04\x95", "a Python pickle", _EXPORT),
    (0, b"\x89HDF", "an HDF5 file, as Keras writes", f"{_EXPORT} (tf2onnx)"),
    (4, b"TFL3", "a TensorFlow Lite model", f"{_EXPORT} (tf2onnx --tflite)"),
    (4, b"ORTM", "a model in onnxruntime's own format (.ort)", "pass the ONNX file that it was made from"),
    (0, b"GGUF", "a GGUF file", _EXPORT),
    (0, b"\x1f\x8b", "compressed with gzip", "unpack it first"),
    (0, b"BZh", "compressed with bzip2", "unpack it first"),
    (0, b"\xfd7zXZ", "compressed with xz", "unpack it first"),
    (0, b"(\xb5/\xfd", "compressed with zstd", "unpack it first"),
    (257, b"ustar", "a tar archive", "unpack it first"),
    (0, b"<?xml", "XML, as OpenVINO writes", "pass the ONNX file that it was made from"),
    (0, b"\x93NUMPY", "an array of numpy's", "pass a model; arrays are its inputs"),
    (0, b"ftrt", "an engine of TensorRT's", "pass the ONNX file that it was made from"),
)
_PAGES = (b"<!doctype html", b"<html", b"<head")


def other_format(head: bytes) -> tuple[str, str] | None:
    """What a file is that begins like this and is no model, and what to do; None where that cannot be told."""
    for place, mark, what, hint in _FORMATS:
        if head[place : place + len(mark)] == mark:
            return what, hint
    if head.endswith(b".onnx"):
        return "a path as bytes", "pass it as a string"
    text = head.lstrip().lower()
    if text.startswith(_PAGES):
        return "a web page", "the download gave a page instead of the file; fetch the file itself"
    if head[8:10] == b'{"' and head[7:8] == b"\0":
        return "a file of safetensors, which holds weights without a graph", _EXPORT
    if text.startswith((b'{"', b"{\n", b"{ ")):
        return "JSON", "pass the binary file"
    return None


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
        folder = wanted.is_dir()
        models = sorted(entry.name for entry in (wanted if folder else wanted.parent).glob("*.onnx"))
    except (OSError, ValueError):
        return "check the path"
    if folder:
        return f"pass the path of a file in it: {models[0]}" if models else "pass the path of a file"
    by_form = {name.lower(): name for name in models}
    near = get_close_matches(wanted.with_suffix(".onnx").name.lower(), by_form, 1, cutoff=0.85)
    return f"check the path; there is {by_form[near[0]]} beside it" if near else "check the path"
