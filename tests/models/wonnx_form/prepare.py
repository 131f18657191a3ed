"""Rewrite a model, or a file, for wonnx."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import onnx

from models.wonnx_form import forms, layouts, products
from models.wonnx_form.network import Network, NoForm, Shape, attributes_of, read_network
from models.wonnx_form.writer import Form, Step, Writer

FORMS: Mapping[str, Form] = {**forms.FORMS, **layouts.FORMS, **products.FORMS}


def wonnx_form(model: onnx.ModelProto, sizes: Mapping[str, Shape]) -> onnx.ModelProto:
    """Rewrite a model for inputs of these shapes; raise NoForm if that is impossible."""
    unsupported = sorted({node.op_type for node in model.graph.node if node.domain not in ("", "ai.onnx")})
    if unsupported:
        raise NoForm(f"{', '.join(unsupported)}: not an ONNX operator")
    network = read_network(model, sizes)
    unsupported = sorted({node.op_type for node in network.nodes} - FORMS.keys())
    if unsupported:
        raise NoForm(f"wonnx does not support {', '.join(unsupported)}")
    return _write_model(network)


def prepare_file(source: Path, sizes: Mapping[str, Shape], folder: Path) -> Path:
    """Return the file of the rewritten model; write it if the model or this code has changed."""
    key = hashlib.sha256(repr(sorted(sizes.items())).encode())
    key.update(f"{source.stat().st_size} {source.stat().st_mtime_ns}".encode())
    for code in sorted(Path(__file__).parent.glob("*.py")):
        key.update(code.read_bytes())
    path = folder / f"{source.stem}-{key.hexdigest()[:12]}.onnx"
    if path.exists():
        return path
    form = wonnx_form(onnx.load(source), sizes)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{source.stem}-????????????.onnx"):
        old.unlink()
    partial = path.with_suffix(".partial")
    onnx.save(form, partial)
    partial.replace(path)
    return path


def _write_model(network: Network) -> onnx.ModelProto:
    writer = Writer(network)
    for node in network.nodes:
        inputs = tuple(writer.name(name) for name in node.input)
        outputs = tuple(name for name in node.output if name)
        FORMS[node.op_type](writer, Step(node.op_type, inputs, outputs, attributes_of(node), network.opset))
    return writer.model()
