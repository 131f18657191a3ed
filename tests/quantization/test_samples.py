"""Test samples from folders: arrays, test sets and images, and errors for wrong files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from weft.errors import InputError
from weft.ir.dtypes import DType
from weft.ir.specs import TensorSpec
from weft.ir.types import TensorType
from weft.quantization.samples import list_samples
from weft.readers.images import ImageOptions
from weft.readers.read import InputContext


def spec(name: str, dtype: DType, *shape: int | str) -> TensorSpec:
    return TensorSpec(name, shape, TensorType(dtype, None))


ROWS = spec("x", DType.float32, "batch", 3)
IMAGE = spec("image", DType.float32, 1, 3, 4, 6)
PLAIN = InputContext()


def test_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.ones((2, 3)))
    np.save(tmp_path / "a.npy", np.zeros(3, np.float32))
    np.savez(tmp_path / "c.npz", anything=np.full((1, 3), 2, np.float32))
    samples = list_samples(tmp_path, [ROWS], 10, PLAIN)
    assert [sample["x"].shape for sample in samples] == [(1, 3), (2, 3), (1, 3)]
    assert {sample["x"].dtype.name for sample in samples} == {"float32"}
    assert [sample["x"][0, 0] for sample in samples] == [0, 1, 2]


def test_several_inputs_by_name(tmp_path: Path) -> None:
    both = [ROWS, spec("n", DType.int64, 1)]
    np.savez(tmp_path / "one.npz", n=np.array([7]), x=np.ones((1, 3), np.float32))
    (sample,) = list_samples(tmp_path, both, 10, PLAIN)
    assert sample["n"] == 7
    np.savez(tmp_path / "two.npz", x=np.ones((1, 3), np.float32))
    with pytest.raises(InputError, match="no array for input 'n'"):
        list_samples(tmp_path, both, 10, PLAIN)[1]
    np.save(tmp_path / "a.npy", np.ones((1, 3)))
    with pytest.raises(InputError, match="the model has several inputs"):
        list_samples(tmp_path, both, 10, PLAIN)


def test_test_sets(tmp_path: Path) -> None:
    both = [ROWS, spec("n", DType.int64, 1)]
    for number in range(3):
        folder = tmp_path / f"test_data_set_{number}"
        folder.mkdir()
        arrays = (np.full((1, 3), number, np.float32), np.array([number]))
        for position, (name, array) in enumerate(zip(("x", ""), arrays)):
            content = numpy_helper.from_array(array, name).SerializeToString()
            (folder / f"input_{position}.pb").write_bytes(content)
    samples = list_samples(tmp_path, both, 2, PLAIN)
    assert [int(sample["n"][0]) for sample in samples] == [0, 2], "evenly spaced"
    (tmp_path / "test_data_set_0" / "input_0.pb").write_bytes(b"\xff\xff\xff")
    with pytest.raises(InputError, match=r"input_0.pb: not a tensor"):
        list_samples(tmp_path, both, 2, PLAIN)


def test_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (60, 40), (255, 0, 51)).save(tmp_path / "red.png")
    directed = InputContext(images=ImageOptions(mean=(0.5, 0.0, 0.0), std=(0.5, 1.0, 2.0)))
    (sample,) = list_samples(tmp_path, [IMAGE], 5, directed)
    assert sample["image"].shape == (1, 3, 4, 6)
    np.testing.assert_allclose(sample["image"][0, :, 0, 0], [1.0, 0.0, 0.1], atol=1e-6)
    last = spec("image", DType.uint8, "n", "h", "w", 3)
    (sample,) = list_samples(tmp_path, [last], 5, PLAIN)
    assert sample["image"].shape == (1, 224, 224, 3)
    assert sample["image"][0, 0, 0].tolist() == [255, 0, 51]
    with pytest.raises(InputError, match="cannot convert an image to input"):
        list_samples(tmp_path, [ROWS], 5, PLAIN)


@pytest.mark.parametrize("name", ["bad.npy", "bad.npz", "bad.png"])
def test_damaged_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"damaged")
    with pytest.raises(InputError, match=f"{name}: not a readable"):
        list_samples(tmp_path, [IMAGE], 5, PLAIN)


def test_empty_and_missing_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no samples"):
        list_samples(tmp_path, [ROWS], 5, PLAIN)
    with pytest.raises(InputError, match="no such folder"):
        list_samples(tmp_path / "missing", [ROWS], 5, PLAIN)


def test_types_that_do_not_fit(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([0.5]))
    with pytest.raises(InputError, match="which needs int64"):
        list_samples(tmp_path, [spec("n", DType.int64, 1)], 5, PLAIN)


def test_integers_that_do_not_fit(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1, 300]))
    with pytest.raises(InputError, match=r"a\.npy: input 'n' needs uint8, which cannot represent"):
        list_samples(tmp_path, [spec("n", DType.uint8, 2)], 5, PLAIN)
    np.save(tmp_path / "a.npy", np.array([1, 200]))
    (sample,) = list_samples(tmp_path, [spec("n", DType.uint8, 2)], 5, PLAIN)
    np.testing.assert_array_equal(sample["n"], np.array([1, 200], np.uint8))


def test_external_data_in_a_test_set_is_refused(tmp_path: Path) -> None:
    proto = onnx.TensorProto(name="x", data_type=1, dims=[1, 3], data_location=onnx.TensorProto.EXTERNAL)
    proto.external_data.add(key="location", value="../secret")
    (tmp_path / "input_0.pb").write_bytes(proto.SerializeToString())
    with pytest.raises(InputError, match=r"input_0.pb"):
        list_samples(tmp_path, [ROWS], 5, PLAIN)
