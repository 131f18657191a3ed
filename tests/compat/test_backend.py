"""weft as a backend of onnx, tested with onnx's own test runner."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace

import numpy as np
import onnx
import onnx.backend.test
import pytest
from onnx import TensorProto, helper

import weft.backend
from weft.errors import InputError, UnsupportedModelError

SAMPLE = """
    abs add add_bcast argmax_keepdims_example cast_FLOAT_to_BFLOAT16 clip_example concat_2d_axis_0
    conv_with_strides_padding cumsum_1d einsum_sum gather_0 gelu_default_1 gemm_alpha gru_defaults identity_sequence
    identity_opt if if_seq layer_normalization_4d_axis1 loop11 lstm_with_peepholes matmul_3d maxpool_2d_pads
    nonzero_example optional_has_element_optional_input pow quantizelinear_int4 range_float_type_positive_delta
    reduce_sum_keepdims_example reshape_negative_dim resize_upsample_sizes_nearest rnn_seq_length scan9_sum slice
    softmax_axis_1 split_to_sequence_1 string_concat top_k transpose_all_permutations_0 tril
    unique_sorted_without_axis ai_onnx_ml_label_encoder_string_int sequence_insert_at_back where_example
    sequence_model4 strnorm_model_monday_empty_output single_relu_model sign_model Conv2d_groups Linear PReLU_2d
    Softmax BatchNorm2d_eval operator_view
""".split()


@pytest.fixture(scope="module")
def suite() -> dict[str, Callable[[], None]]:
    """The tests of the suite by name. onnx's runner calls `supports_device` thousands of times, so it is cached."""
    backend = SimpleNamespace(**vars(weft.backend) | {"supports_device": cache(weft.backend.supports_device)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite overflows on purpose while it computes its data
        runner = onnx.backend.test.BackendTest(backend, __name__)
    tests = {}
    for case in runner.test_cases.values():
        tests |= {name: case(name).debug for name in dir(case) if name.startswith("test_") and name.endswith("_cpu")}
    return tests


@pytest.mark.parametrize("name", SAMPLE)
def test_sample_of_the_suite(name: str, suite: dict[str, Callable[[], None]]) -> None:
    suite[f"test_{name}_cpu"]()


def affine() -> onnx.ModelProto:
    """The model y = a * x + b, with a default for b among the inputs, as in files before IR version 4."""
    vector = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("a", "b", "x", "y")]
    nodes = [helper.make_node("Mul", ["a", "x"], ["ax"]), helper.make_node("Add", ["ax", "b"], ["y"])]
    default = helper.make_tensor("b", TensorProto.FLOAT, [2], [10.0, 20.0])
    return helper.make_model(helper.make_graph(nodes, "affine", vector[:3], vector[3:], [default]))


A, B, X = (np.array(values, np.float32) for values in ([1, 2], [5, 5], [3, 4]))


def test_positional_inputs() -> None:
    prepared = weft.backend.prepare(affine())
    np.testing.assert_array_equal(prepared.run([A, X])[0], [13, 28])
    np.testing.assert_array_equal(prepared.run([A, B, X])[0], [8, 13])
    np.testing.assert_array_equal(prepared.run({"x": X, "a": A})["y"], [13, 28])
    np.testing.assert_array_equal(weft.backend.run_model(affine(), [A, X]).y, [13, 28])


def test_wrong_number_of_inputs() -> None:
    with pytest.raises(InputError):
        weft.backend.run_model(affine(), [A])
    with pytest.raises(InputError, match="4 inputs were given, the model takes 2"):
        weft.backend.run_model(affine(), [A, B, X, X])


def test_one_node() -> None:
    node = helper.make_node("Add", ["x", "y"], ["z"])
    np.testing.assert_array_equal(weft.backend.run_node(node, [A, X])[0], [4, 6])


def test_one_node_of_an_older_opset() -> None:
    values = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    (flattened,) = weft.backend.run_node(helper.make_node("Softmax", ["x"], ["y"]), [values], opset_version=11)
    np.testing.assert_allclose(flattened.sum(axis=(1, 2)), [1, 1], rtol=1e-6)


def test_one_node_with_gaps() -> None:
    node = helper.make_node("Clip", ["x", "", "high"], ["y"])
    np.testing.assert_array_equal(weft.backend.run_node(node, [X, np.float32(3.5)])[0], [3, 3.5])


def test_one_node_on_a_sequence() -> None:
    node = helper.make_node("SequenceAt", ["s", "i"], ["y"])
    np.testing.assert_array_equal(weft.backend.run_node(node, [[A, X], np.int64(1)])[0], X)


def test_one_node_of_another_domain() -> None:
    node = helper.make_node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml", threshold=1.5)
    np.testing.assert_array_equal(weft.backend.run_node(node, [A])[0], [0, 1])


def test_one_node_with_an_empty_optional() -> None:
    node = helper.make_node("OptionalHasElement", ["o"], ["y"])
    with pytest.raises(UnsupportedModelError, match="an empty optional has no type"):
        weft.backend.run_node(node, [None])


def test_devices() -> None:
    assert weft.backend.supports_device("CPU")
    assert not weft.backend.supports_device("CPU:7")
    assert not weft.backend.supports_device("TPU")


def test_compatibility() -> None:
    assert weft.backend.is_compatible(affine())
    unknown_op = affine()
    unknown_op.graph.node[0].op_type = "NoSuchOp"
    assert not weft.backend.is_compatible(unknown_op)
