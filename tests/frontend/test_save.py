"""Saving a model with new weights: onnx reads the new values, and nothing else changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from frontend import samples
from onnx import numpy_helper

from weft.errors import InputError
from weft.frontend import copy_model, open_model, read_model, save, save_model
from weft.ir.graph import weight_arrays, with_weights

Array = np.ndarray[Any, Any]


def save_copy(source: Any, changed: Mapping[str, Array], path: Path) -> onnx.ModelProto:
    opened = copy_model(open_model(source))
    save_model(opened, read_model(opened).external, changed, path)
    return onnx.ModelProto.FromString(path.read_bytes())


def change_elements(array: Array) -> Array:
    """Return an array of the same type and shape with other elements."""
    if array.dtype == object:
        return np.array([f"{text}, changed \udcff" for text in array.reshape(-1)], object).reshape(array.shape)
    if array.dtype == bool:
        return ~array
    return np.array(array.reshape(-1)[::-1]).reshape(array.shape)


def read_weights(proto: onnx.ModelProto) -> dict[str, Array]:
    return weight_arrays(read_model(proto).graph)


@pytest.mark.parametrize("raw", [True, False])
def test_every_element_type(raw: bool, tmp_path: Path) -> None:
    proto = samples.every_dtype(raw=raw)
    before = read_weights(proto)
    changed = {name: change_elements(array) for name, array in before.items()}
    new_model = save_copy(proto, changed, tmp_path / "new.onnx")
    after = read_weights(new_model)
    assert list(after) == list(before)
    for name, array in changed.items():
        assert (after[name].dtype, after[name].shape) == (array.dtype, array.shape)
        if array.dtype == object:
            assert after[name].tolist() == array.tolist()
            continue
        assert after[name].tobytes() == array.tobytes()
        tensor = next(tensor for tensor in new_model.graph.initializer if tensor.name == name)
        assert numpy_helper.to_array(tensor).tobytes() == array.tobytes(), name
    for tensor in new_model.graph.initializer:
        tensor.CopyFrom(next(old for old in proto.graph.initializer if old.name == tensor.name))
    assert new_model == proto


def test_saving_without_changes_preserves_every_byte(tmp_path: Path) -> None:
    for number, proto in enumerate((samples.large_weights(), samples.calling(), samples.branching())):
        path = tmp_path / f"{number}.onnx"
        save_copy(proto, {}, path)
        assert path.read_bytes() == proto.SerializeToString()


def test_initializers_constants_and_sparse_tensors(tmp_path: Path) -> None:
    proto = samples.large_weights()
    model = read_model(proto)
    inside = ("z/else_branch/inside", "z/then_branch/inside")
    assert model.weights == ("raw", "listed", "doubles", "integers", "sparse", "k", *inside)
    arrays = weight_arrays(model.graph)
    assert set(arrays) == set(model.weights)
    for name in model.weights:
        new_model = save_copy(proto, {name: change_elements(arrays[name])}, tmp_path / "new.onnx")
        onnx.checker.check_model(new_model)
        after = read_weights(new_model)
        for each, array in arrays.items():
            np.testing.assert_array_equal(after[each], change_elements(array) if each == name else array)


def test_an_ambiguous_weight_name_means_the_outer_weight(tmp_path: Path) -> None:
    proto = samples.large_weights(600)
    plain = np.zeros(2, np.float32)
    proto.graph.initializer.append(samples.tensor("z/then_branch/inside", plain))
    model = read_model(proto)
    assert weight_arrays(model.graph)["z/then_branch/inside"].shape == (2,)
    new_model = save_copy(
        proto, {"z/then_branch/inside": plain + 1, "z/else_branch/inside": np.ones(600, np.float32)}, tmp_path / "a"
    )
    branches = {attribute.name: attribute.g for attribute in new_model.graph.node[1].attribute}
    assert numpy_helper.to_array(branches["else_branch"].initializer[0]).tolist() == [1.0] * 600
    assert numpy_helper.to_array(branches["then_branch"].initializer[0]).tolist() != [1.0] * 600
    assert numpy_helper.to_array(new_model.graph.initializer[-1]).tolist() == [1, 1]
    changed = with_weights(model.graph, {"z/then_branch/inside": plain + 1})
    assert changed.nodes[1] is model.graph.nodes[1]


def test_shadowing_weights_in_subgraphs_have_no_name() -> None:
    proto = samples.large_weights(4)
    for attribute in proto.graph.node[1].attribute:
        attribute.g.initializer[0].name = attribute.g.node[0].input[1] = "raw"  # a name of the main graph
    assert not any("branch" in name for name in read_model(proto).weights)


def test_constants_of_functions_are_not_weights() -> None:
    names = read_model(samples.calling()).weights
    proto = samples.calling()
    assert set(names) <= {tensor.name for tensor in proto.graph.initializer} | {
        node.output[0] for node in proto.graph.node
    }


def test_external_data_moves_into_the_file(tmp_path: Path) -> None:
    path = samples.with_external(tmp_path)
    model = read_model(path)
    (tmp_path / "new").mkdir()
    unchanged = save_copy(path, {}, tmp_path / "new" / "unchanged.onnx")
    np.testing.assert_array_equal(read_weights(unchanged)["w"], model.graph.initializers["w"])
    array = np.full(600, 7, np.float32)
    new_model = save_copy(path, {"w": array}, tmp_path / "new" / "changed.onnx")
    np.testing.assert_array_equal(read_weights(new_model)["w"], array)
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == ["changed.onnx", "unchanged.onnx"]


def test_weights_beyond_the_protobuf_limit_go_to_a_second_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = samples.with_external(tmp_path)
    monkeypatch.setattr(save, "MAX_MESSAGE_BYTES", 1000)
    folder = tmp_path / "new"
    folder.mkdir()
    for attempt in range(2):
        for number in (7, 8):
            array = np.full(600, number, np.float32)
            new_model = save_copy(path, {"w": array}, folder / f"{number}.onnx")
            assert new_model.graph.initializer[0].data_location == onnx.TensorProto.EXTERNAL
            np.testing.assert_array_equal(read_model(folder / f"{number}.onnx").graph.initializers["w"], array)
            loaded = onnx.load(folder / f"{number}.onnx")
            np.testing.assert_array_equal(numpy_helper.to_array(loaded.graph.initializer[0]), array)
        assert len(list(folder.iterdir())) == 4, attempt  # equal content is one file


def test_saving_over_its_own_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(samples.large_weights().SerializeToString())
    opened = open_model(path)
    array = np.full(3000, 3, np.float32)
    save_model(copy_model(opened), {}, {"raw": array}, path)
    np.testing.assert_array_equal(read_model(path).graph.initializers["raw"], array)
    np.testing.assert_array_equal(
        read_model(opened).graph.initializers["raw"], read_weights(samples.large_weights())["raw"]
    )  # an open reader still sees the old file
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    source = copy_model(open_model(samples.large_weights()))
    for path in (tmp_path / "nowhere" / "new.onnx", tmp_path):
        with pytest.raises(InputError, match="cannot be written"):
            save_model(source, {}, {}, path)
    assert list(tmp_path.iterdir()) == []
