"""Metadata of a model, the same from its file and from the cache."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from frontend.samples import model, node

import weft

STATED = {
    "producer_name": "user's exporter",
    "producer_version": "1.2.3",
    "domain": "org.example",
    "model_version": 7,
    "description": "counts sheep\nat night",
    "graph_name": "sheep",
    "graph_description": "one at a time",
    "properties": {"labels": "a,b", "größe": "🐑", "empty": ""},
    "opsets": {"ai.onnx": 17, "com.microsoft": 1},
    "ir_version": 8,
}


def sheep() -> onnx.ModelProto:
    proto = model([node("Neg", ["x"], ["y"])])
    proto.producer_name, proto.producer_version = STATED["producer_name"], STATED["producer_version"]
    proto.domain, proto.model_version, proto.ir_version = STATED["domain"], STATED["model_version"], 8
    proto.doc_string = STATED["description"]
    proto.graph.name, proto.graph.doc_string = STATED["graph_name"], STATED["graph_description"]
    onnx.helper.set_model_props(proto, STATED["properties"])
    del proto.opset_import[:]
    proto.opset_import.extend([onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)])
    return proto


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_all_metadata_of_a_file(device: str) -> None:
    loaded = weft.load(sheep(), device=device)
    metadata = loaded.metadata
    assert {name: getattr(metadata, name) for name in STATED} == STATED
    assert metadata.producer == "user's exporter 1.2.3"
    for other in (loaded.on("reference"), copy.copy(loaded), pickle.loads(pickle.dumps(loaded))):
        assert other.metadata == metadata
    assert hash(metadata) == hash(pickle.loads(pickle.dumps(metadata)))
    with pytest.raises(AttributeError):
        metadata.domain = "other"  # type: ignore[misc]


def test_file_without_metadata() -> None:
    metadata = weft.load(model([node("Neg", ["x"], ["y"])])).metadata
    assert (metadata.domain, metadata.model_version, metadata.properties) == ("", 0, {})
    assert "domain" not in repr(metadata)


def test_repr_is_short() -> None:
    proto = sheep()
    onnx.helper.set_model_props(proto, {"vocabulary": "word " * 100_000})
    text = repr(weft.load(proto).metadata)
    assert text.startswith("Metadata(producer_name=\"user's exporter\", producer_version='1.2.3', domain='org.example'")
    assert "opsets={'ai.onnx': 17, 'com.microsoft': 1}" in text
    assert len(text) < 1000


def test_cached_model_has_metadata_without_importing_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "sheep.onnx"
    onnx.save(sheep(), path)
    script = (
        "import sys, weft; m = weft.load(sys.argv[1], device='cpu'); "
        "print(ascii(m.metadata.properties), m.metadata.graph_name, 'onnx' in sys.modules)"
    )
    lines = [
        subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    expected = f"{STATED['properties']!a} sheep"
    assert [line.strip() for line in lines] == [f"{expected} True", f"{expected} False"]


def test_metadata_is_kept_when_weights_are_set() -> None:
    proto = sheep()
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(1, np.float32), "w"))
    proto.graph.node[0].CopyFrom(node("Add", ["x", "w"], ["y"]))
    loaded = weft.load(proto, device="cpu")
    loaded.set_weight("w", np.full(1, 2, np.float32))
    assert loaded.metadata.graph_name == "sheep"
    assert copy.deepcopy(loaded).metadata == loaded.metadata
