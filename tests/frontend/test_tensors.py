"""Reading tensors: every element type in every encoding, sparse tensors, and mismatched sizes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from frontend import samples
from onnx import TensorProto, helper, numpy_helper

from weft.errors import InvalidModelError, UnsupportedModelError
from weft.frontend import read_model
from weft.frontend.tensors import ELEMENT_TYPES
from weft.ir.dtypes import DType


def read(*tensors: onnx.TensorProto) -> dict[str, np.ndarray]:
    return dict(
        read_model(samples.model([samples.node("Relu", ["x"], ["y"])], initializers=tensors)).graph.initializers
    )


def test_every_element_type_has_an_onnx_number() -> None:
    assert set(ELEMENT_TYPES.values()) == set(DType)


@pytest.mark.parametrize("raw", [True, False])
def test_every_dtype(raw: bool) -> None:
    arrays = read_model(samples.every_dtype(raw=raw)).graph.initializers
    assert len(arrays) == len(DType)
    for name, array in arrays.items():
        dtype = ELEMENT_TYPES[TensorProto.DataType.Value(name)]
        assert array.dtype == dtype.numpy
        assert not array.flags.writeable
        if dtype is DType.string:
            assert array.tolist() == ["a", "bé", "\udcff"]
            assert array[2].encode("utf-8", "surrogateescape") == b"\xff"
        elif dtype is DType.float8e8m0:  # has no zero
            assert array[1:3].astype(np.float32).tolist() == [1, 1]
        else:
            assert array.astype(np.complex64 if dtype.is_complex else np.float32).tolist() == [0, 1, 1, 0, 1]


@pytest.mark.parametrize("number", sorted(set(ELEMENT_TYPES) - {TensorProto.STRING}))
@pytest.mark.parametrize("count", [7, 6000])
def test_random_bits_read_like_onnx(number: int, count: int) -> None:
    dtype = ELEMENT_TYPES[number]
    content = np.random.default_rng(number).integers(0, 256, (count * dtype.bits + 7) // 8, np.uint8)
    if dtype is DType.bool:
        content &= 1
    tensor = TensorProto(name="w", data_type=number, dims=[count], raw_data=content.tobytes())
    array = read(tensor)["w"]
    expected = numpy_helper.to_array(tensor)
    assert array.dtype == dtype.numpy
    if dtype.bits < 8:
        assert array.astype(np.float32).tobytes() == expected.astype(np.float32).tobytes()
    else:
        assert array.tobytes() == expected.tobytes()


def test_sub_byte_extremes() -> None:
    packed = TensorProto(name="w", data_type=TensorProto.INT4, dims=[3], raw_data=b"\x87\x0f")
    assert read(packed)["w"].astype(int).tolist() == [7, -8, -1]
    quarter = TensorProto(name="w", data_type=TensorProto.INT2, dims=[4], raw_data=b"\xe4")
    assert read(quarter)["w"].astype(int).tolist() == [0, 1, -2, -1]
    listed = TensorProto(name="w", data_type=TensorProto.UINT4, dims=[3], int32_data=[0xF1, 0x05])
    assert read(listed)["w"].astype(int).tolist() == [1, 15, 5]


def test_bits_in_int32_data() -> None:
    half = np.array([1.5, -2], np.float16)
    brain = np.array([1.5, -2], ml_dtypes.bfloat16)
    arrays = read(
        TensorProto(name="half", data_type=TensorProto.FLOAT16, dims=[2], int32_data=half.view(np.uint16).tolist()),
        TensorProto(name="brain", data_type=TensorProto.BFLOAT16, dims=[2], int32_data=brain.view(np.uint16).tolist()),
        TensorProto(name="small", data_type=TensorProto.INT8, dims=[2], int32_data=[-128, 127]),
    )
    assert arrays["half"].tolist() == [1.5, -2]
    assert arrays["brain"].astype(float).tolist() == [1.5, -2]
    assert arrays["small"].tolist() == [-128, 127]


def test_complex_numbers_and_booleans_other_than_0_and_1() -> None:
    arrays = read(
        TensorProto(name="c", data_type=TensorProto.COMPLEX64, dims=[2], float_data=[1, 2, 3, 4]),
        TensorProto(name="b", data_type=TensorProto.BOOL, dims=[3], raw_data=b"\x00\x02\x01"),
        TensorProto(name="scalar", data_type=TensorProto.INT64, int64_data=[-5]),
        TensorProto(name="empty", data_type=TensorProto.FLOAT, dims=[0, 4]),
    )
    assert arrays["c"].tolist() == [1 + 2j, 3 + 4j]
    assert arrays["b"].tolist() == [False, True, True]
    assert arrays["scalar"].shape == ()
    assert arrays["empty"].shape == (0, 4)


@pytest.mark.parametrize(
    "tensor",
    [
        TensorProto(data_type=1, dims=[3], raw_data=b"\0" * 8),
        TensorProto(data_type=1, dims=[2**40, 2**40], raw_data=b"\0" * 8),
        TensorProto(data_type=1, dims=[3], raw_data=b"\0" * 5000),
        TensorProto(data_type=1, dims=[3], float_data=[1.0, 2.0]),
        TensorProto(data_type=1, dims=[2], float_data=[0.0] * 500),
        TensorProto(data_type=TensorProto.INT64, dims=[500], float_data=[0.0] * 500),
        TensorProto(data_type=1, dims=[3]),
        TensorProto(data_type=1, dims=[-1], raw_data=b""),
        TensorProto(data_type=TensorProto.INT4, dims=[3], raw_data=b"\0"),
        TensorProto(data_type=TensorProto.INT4, dims=[3], int32_data=[0]),
        TensorProto(data_type=TensorProto.COMPLEX64, dims=[1], float_data=[0.0]),
        TensorProto(data_type=TensorProto.STRING, dims=[1], raw_data=b"a"),
        TensorProto(data_type=0, dims=[1], raw_data=b"a"),
        TensorProto(data_type=99, dims=[1], raw_data=b"a"),
    ],
    ids=range(14),
)
def test_mismatched_sizes(tensor: TensorProto) -> None:
    tensor.name = "culprit"
    with pytest.raises((InvalidModelError, UnsupportedModelError), match="culprit"):
        read(tensor)


def sparse(values: np.ndarray, indices: object, dims: list[int]) -> onnx.ModelProto:
    proto = samples.model([samples.node("Add", ["x", "s"], ["y"])])
    entries = samples.tensor("places", np.array(indices, np.int64))
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(samples.tensor("s", values), entries, dims))
    return proto


def test_sparse_tensors_become_dense() -> None:
    values = np.array([1, 2], np.float32)
    linear = read_model(sparse(values, [1, 5], [2, 3])).graph.initializers["s"]
    assert linear.tolist() == [[0, 1, 0], [0, 0, 2]]
    pairs = read_model(sparse(values, [[0, 1], [1, 2]], [2, 3])).graph.initializers["s"]
    assert np.array_equal(linear, pairs)
    constant = samples.node("Constant", [], ["k"])
    attribute = sparse(values, [1, 5], [2, 3]).graph.sparse_initializer[0]
    constant.attribute.append(helper.make_attribute("sparse_value", attribute))
    proto = samples.model([constant, samples.node("Add", ["x", "k"], ["y"])])
    assert np.array_equal(read_model(proto).graph.nodes[0].attributes["sparse_value"], linear)


@pytest.mark.parametrize(
    ("indices", "dims"),
    [
        ([1, 6], [2, 3]),
        ([-1, 5], [2, 3]),
        ([[0, 1], [2, 0]], [2, 3]),
        ([[0], [1]], [2, 3]),
        ([0], [2, 3]),
        ([0, 1], [2**40]),
        ([0, 1], [2**40, 2**40]),
        ([0, 1], [-2, 3]),
    ],
)
def test_invalid_sparse_tensors(indices: object, dims: list[int]) -> None:
    with pytest.raises((InvalidModelError, UnsupportedModelError), match="value s"):
        read_model(sparse(np.array([1, 2], np.float32), indices, dims))
