"""The table of messages, field by field against the classes that Triton's client generates from the protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from weft.server.grpc.messages import load_health_messages, load_inference_messages

pytest.importorskip("grpc", reason="grpcio is not installed")
service_pb2 = pytest.importorskip("tritonclient.grpc.service_pb2", reason="tritonclient is not installed")
model_config_pb2 = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="tritonclient is not installed")


KSERVE_FIELDS = {  # of responses that are empty in Triton's protocol
    "inference.RepositoryModelLoadResponse": {"model_name": (1, "string"), "isLoaded": (2, "bool")},
    "inference.RepositoryModelUnloadResponse": {"model_name": (1, "string"), "isUnloaded": (2, "bool")},
}
OMITTED = {  # messages of the service that no call reads or writes
    *("inference.SystemSharedMemoryStatusRequest", "inference.CudaSharedMemoryStatusRequest"),
    *("inference.SystemSharedMemoryUnregisterRequest", "inference.CudaSharedMemoryUnregisterRequest"),
    *("inference.SystemSharedMemoryRegisterRequest", "inference.CudaSharedMemoryRegisterRequest"),
    *("inference.SystemSharedMemoryRegisterResponse", "inference.CudaSharedMemoryRegisterResponse"),
    *("inference.TraceSettingRequest", "inference.TraceSettingResponse"),
    *("inference.TraceSettingRequest.SettingValue", "inference.TraceSettingResponse.SettingValue"),
    *("inference.LogSettingsRequest", "inference.LogSettingsResponse"),
    *("inference.LogSettingsRequest.SettingValue", "inference.LogSettingsResponse.SettingValue"),
    *("inference.InferResponseStatistics", "inference.MemoryUsage"),  # parts of ModelStatistics that weft leaves out
}


def _walk(descriptor: Any) -> Iterator[Any]:
    yield descriptor
    for nested in descriptor.nested_types:
        yield from _walk(nested)


def _peer(full_name: str) -> Any:
    for module in (service_pb2, model_config_pb2):
        for message in module.DESCRIPTOR.message_types_by_name.values():
            for descriptor in _walk(message):
                if descriptor.full_name == full_name:
                    return descriptor
    raise KeyError(full_name)


def _describe(field: Any) -> dict[str, Any]:
    kind = field.message_type or field.enum_type
    return {
        "number": field.number,
        "type": field.type,
        "is_repeated": field.is_repeated,
        "is_map": kind is field.message_type is not None and kind.GetOptions().map_entry,
        "kind": None if kind is None else kind.full_name,
        "json_name": field.json_name,
        "oneof": None if field.containing_oneof is None else field.containing_oneof.name,
        "is_packed": field.is_packed,
    }


@pytest.mark.parametrize("name", list(load_inference_messages()))
def test_fields(name: str) -> None:
    for own in _walk(load_inference_messages()[name].DESCRIPTOR):
        peer = _peer(own.full_name)
        extra = KSERVE_FIELDS.get(own.full_name, {})
        for field in own.fields:
            if field.name in extra:
                assert (field.number, field.type) == (
                    extra[field.name][0],
                    {"string": 9, "bool": 8}[extra[field.name][1]],
                )
            else:
                assert _describe(field) == _describe(peer.fields_by_name[field.name]), field.full_name
        numbers = {field.number for field in own.fields if field.name not in extra}
        is_subset = own.full_name.partition(".")[2].startswith("Model") and peer.file.name == "model_config.proto"
        if not is_subset and own.full_name != "inference.ModelStatistics":
            assert numbers == {field.number for field in peer.fields}


def test_no_message_of_the_service_is_forgotten() -> None:
    defined = {message.DESCRIPTOR.full_name for message in load_inference_messages().values()}
    peers = {
        descriptor.full_name
        for message in service_pb2.DESCRIPTOR.message_types_by_name.values()
        for descriptor in _walk(message)
        if not descriptor.GetOptions().map_entry
    }
    assert peers - defined == OMITTED


def test_datatypes_have_the_same_numbers() -> None:
    own = load_inference_messages()["ModelInput"].DESCRIPTOR.fields_by_name["data_type"].enum_type
    peer = model_config_pb2.DESCRIPTOR.enum_types_by_name["DataType"]
    assert {value.name: value.number for value in own.values} == {value.name: value.number for value in peer.values}


def test_messages_stay_out_of_the_pool_of_clients() -> None:
    own = load_inference_messages()["ModelInferRequest"].DESCRIPTOR
    assert own.file.pool is not service_pb2.DESCRIPTOR.pool
    status = load_health_messages()["HealthCheckResponse"].DESCRIPTOR.fields_by_name["status"]
    assert [value.name for value in status.enum_type.values] == ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"]
