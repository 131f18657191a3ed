"""Sources of models, and external data."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy as np
import onnx
import pytest
from frontend import samples

from weft.errors import InvalidModelError, ModelError
from weft.frontend import read_model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "large.onnx"
    file.write_bytes(samples.large_weights().SerializeToString())
    return file


def base_of(array: np.ndarray) -> object:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.base


def test_all_sources_of_a_model_are_equivalent(path: Path) -> None:
    content = path.read_bytes()
    packed = path.with_suffix(".gz")
    packed.write_bytes(gzip.compress(content))
    with path.open("rb") as file, path.open("rb") as skipped, gzip.open(packed) as unpacked:
        sources = [path, str(path), content, bytearray(content), memoryview(content), file, io.BytesIO(content)]
        models = [read_model(source) for source in (*sources, onnx.ModelProto.FromString(content), unpacked)]
        skipped.read(1)
        with pytest.raises(ModelError):
            read_model(skipped)
    assert models[0].file == models[1].file == models[5].file == str(path)
    assert models[2].file == "<bytes>"
    first = models[0].graph
    for model in models:
        assert list(map(str, model.graph.nodes)) == list(map(str, first.nodes))
        for name, array in model.graph.initializers.items():
            assert np.array_equal(array, first.initializers[name])
            assert not array.flags.writeable


def test_weights_are_views_of_the_source(path: Path) -> None:
    for model in (read_model(path), read_model(path.read_bytes())):
        graph = model.graph
        inside = graph.nodes[1].attributes["then_branch"].initializers["inside"]
        views = [graph.initializers["raw"], graph.initializers["listed"], graph.initializers["doubles"], inside]
        views.append(graph.nodes[0].attributes["value"])
        assert all(isinstance(base_of(array), memoryview) for array in views)
        assert len({id(base_of(array).obj) for array in views}) == 1


@pytest.mark.parametrize("source", ["nowhere.onnx", Path("/"), 3, None, io.StringIO("text"), b"", b"\0"])
def test_invalid_sources(source: object) -> None:
    with pytest.raises(ModelError):
        read_model(source)


def test_errors_name_the_file_and_keep_the_cause(tmp_path: Path) -> None:
    file = tmp_path / "damaged.onnx"
    file.write_bytes(b"\x08\x0a\x3a\x02\x0a\x05")  # a truncated node in a graph
    with pytest.raises(InvalidModelError, match=r"damaged\.onnx") as caught:
        read_model(file)
    assert caught.value.__cause__ is not None
    file.write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(InvalidModelError, match="git lfs pull"):
        read_model(file)
    file.write_bytes(onnx.ModelProto(ir_version=10).SerializeToString())
    with pytest.raises(InvalidModelError, match="no graph"):
        read_model(file)


def test_external_data_is_mapped_once(tmp_path: Path) -> None:
    path = samples.with_external(tmp_path)
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer.append(samples.external("tail", [2], location="./weights.bin", offset="2408"))
    path.write_bytes(proto.SerializeToString())
    arrays = read_model(path).graph.initializers
    assert np.array_equal(arrays["w"], np.arange(600, dtype=np.float32))
    assert arrays["tail"].tolist() == [598, 599]
    assert base_of(arrays["w"]).obj is base_of(arrays["tail"]).obj
    assert not arrays["w"].flags.writeable
    with path.open("rb") as file:
        assert np.array_equal(read_model(file).graph.initializers["w"], arrays["w"])


def test_external_data_needs_a_path(tmp_path: Path) -> None:
    content = samples.with_external(tmp_path).read_bytes()
    for source in (content, io.BytesIO(content), onnx.ModelProto.FromString(content)):
        with pytest.raises(ModelError, match="pass the path"):
            read_model(source)


@pytest.mark.parametrize(
    "entries",
    [
        {"location": "../secret"},
        {"location": "folder/../../secret"},
        {"location": "/etc/passwd"},
        {"location": "link"},
        {"location": "linked/secret"},
        {"location": "missing.bin"},
        {"location": "folder"},
        {"location": ""},
        {},
        {"location": "a\0b"},
        {"location": "weights.bin", "offset": "2413"},
        {"location": "weights.bin", "offset": "-4"},
        {"location": "weights.bin", "offset": "9" * 30},
        {"location": "weights.bin", "offset": "1e3"},
        {"location": "weights.bin", "length": "8"},
        {"location": "weights.bin", "length": "4", "dims": "3"},
    ],
)
def test_invalid_external_data(tmp_path: Path, entries: dict[str, str]) -> None:
    folder = tmp_path / "model"
    (folder / "folder").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"\0" * 4)
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "linked").symlink_to(tmp_path)
    path = samples.with_external(folder)
    proto = onnx.load(path, load_external_data=False)
    dims = [int(entries.pop("dims", "1"))]
    proto.graph.initializer[0].CopyFrom(samples.external("w", dims, **entries))
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match="value w"):
        read_model(path)


def test_a_download_cache_of_symbolic_links(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    samples.with_external(blobs)
    for name in ("model.onnx", "weights.bin"):
        (blobs / name).rename(blobs / f"blob-{name}")
        (snapshot / name).symlink_to(blobs / f"blob-{name}")
    assert read_model(snapshot / "model.onnx").graph.initializers["w"][5] == 5
