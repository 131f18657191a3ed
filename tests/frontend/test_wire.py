"""Stripping weights from a serialized model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from frontend import samples

from weft.errors import InvalidModelError
from weft.frontend import read_model
from weft.frontend.wire import EXTENT_KEY, LARGE, MAX_DEPTH, MESSAGE_SCHEMAS, strip_weights


def test_message_schemas_agree_with_onnx() -> None:
    for schema in MESSAGE_SCHEMAS.values():
        descriptor = getattr(onnx, schema.name).DESCRIPTOR
        messages = {field.number: field.message_type.name for field in descriptor.fields if field.message_type}
        entered = {number: name for number, name in messages.items() if name in MESSAGE_SCHEMAS}
        assert schema.nested == entered
        for number in schema.data | schema.plain:
            assert number in descriptor.fields_by_number


def test_the_remainder_is_small_and_otherwise_equal() -> None:
    content = samples.large_weights(3000).SerializeToString()
    remainder, extents = strip_weights(memoryview(content))
    assert len(extents) == 8
    assert len(remainder) < len(content) - sum(extent.length for extent in extents) + 50 * len(extents)
    parsed = onnx.ModelProto.FromString(remainder)
    original = onnx.ModelProto.FromString(content)
    assert [node.op_type for node in parsed.graph.node] == [node.op_type for node in original.graph.node]
    assert parsed.graph.initializer[0].external_data[0].key == EXTENT_KEY
    assert parsed.graph.initializer[3] == original.graph.initializer[3]


def test_small_models_do_not_change() -> None:
    content = samples.calling().SerializeToString()
    remainder, extents = strip_weights(memoryview(content))
    assert remainder == content
    assert not extents


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(b"\x80" * 20, id="endless number"),
        pytest.param(b"\x08", id="tag without value"),
        pytest.param(b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", id="length past the end"),
        pytest.param(b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", id="length beyond 64 bits"),
        pytest.param(b"\x0b\x0c", id="group"),
        pytest.param(b"\x00\x00", id="field 0"),
        pytest.param(b"<html>" + b" " * 5000, id="a web page"),
    ],
)
def test_damage_is_an_error(damaged: bytes) -> None:
    with pytest.raises(InvalidModelError):
        read_model(damaged)


def test_deep_nesting_is_an_error() -> None:
    content = b"\0" * LARGE
    for number in (7, *(1, 5, 6) * MAX_DEPTH):
        tag = bytes([number << 3 | 2])
        length, size = b"", len(content)
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        content = tag + length + bytes([size]) + content
    with pytest.raises(InvalidModelError):
        read_model(content)


def test_a_forged_extent_is_rejected() -> None:
    forged = samples.model([samples.node("Add", ["x", "w"], ["y"])])
    forged.graph.initializer.append(samples.external("w", [2, 3], **{EXTENT_KEY: "99"}))
    with pytest.raises(InvalidModelError, match="reserved"):
        read_model(forged)


def test_data_in_several_fields() -> None:
    weights = np.arange(1000, dtype=np.float32)
    content = samples.model([samples.node("Relu", ["x"], ["y"])]).SerializeToString()
    halves = [
        onnx.TensorProto(name="w", data_type=1, dims=[1000], float_data=weights[:500]),
        onnx.TensorProto(float_data=weights[500:]),
    ]
    joined = b"".join(half.SerializeToString() for half in halves)
    graph = onnx.ModelProto(graph=onnx.GraphProto()).SerializeToString()
    assert graph == b"\x3a\x00"
    entry = b"\x2a" + _varint(len(joined)) + joined
    model = read_model(content + b"\x3a" + _varint(len(entry)) + entry)
    assert np.array_equal(model.graph.initializers["w"], weights)


def _varint(value: int) -> bytes:
    encoded = b""
    while value > 127:
        encoded, value = encoded + bytes([value & 127 | 128]), value >> 7
    return encoded + bytes([value])
