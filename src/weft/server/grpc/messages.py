"""The messages of the protocol, as a table of numbers, names and types.

The classes come from a pool of descriptors of their own: client libraries in the same process register messages with
the same names in the default pool.

A field is "number name type". Types are those of protobuf, and names of other messages and enums; `[]` marks a repeated
field, `{}` a map by strings, and `|name` a member of a oneof. A message "A.B" is nested in "A".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from weft.batch_inference.optional_packages import import_package

INSTALL = "weft-onnx[serve]"
PURPOSE = "serving over gRPC"
INFERENCE = "inference"
HEALTH = "grpc.health.v1"

_NAME_AND_VERSION = "1 name string, 2 version string"
_CONTENTS = (
    "1 bool_contents bool[], 2 int_contents int32[], 3 int64_contents int64[], 4 uint_contents uint32[], "
    "5 uint64_contents uint64[], 6 fp32_contents float[], 7 fp64_contents double[], 8 bytes_contents bytes[]"
)
_TENSOR = (
    "1 name string, 2 datatype string, 3 shape int64[], 4 parameters InferParameter{}, 5 contents InferTensorContents"
)

INFERENCE_MESSAGES: Mapping[str, str] = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "1 live bool",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "1 ready bool",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "1 name string, 2 version string, 3 extensions string[]",
    "ModelReadyRequest": _NAME_AND_VERSION,
    "ModelReadyResponse": "1 ready bool",
    "ModelMetadataRequest": _NAME_AND_VERSION,
    "ModelMetadataResponse": "1 name string, 2 versions string[], 3 platform string, "
    "4 inputs ModelMetadataResponse.TensorMetadata[], 5 outputs ModelMetadataResponse.TensorMetadata[]",
    "ModelMetadataResponse.TensorMetadata": "1 name string, 2 datatype string, 3 shape int64[]",
    # inference
    "InferParameter": "1 bool_param bool|parameter_choice, 2 int64_param int64|parameter_choice, "
    "3 string_param string|parameter_choice, 4 double_param double|parameter_choice, "
    "5 uint64_param uint64|parameter_choice",
    "InferTensorContents": _CONTENTS,
    "ModelInferRequest": "1 model_name string, 2 model_version string, 3 id string, 4 parameters InferParameter{}, "
    "5 inputs ModelInferRequest.InferInputTensor[], 6 outputs ModelInferRequest.InferRequestedOutputTensor[], "
    "7 raw_input_contents bytes[]",
    "ModelInferRequest.InferInputTensor": _TENSOR,
    "ModelInferRequest.InferRequestedOutputTensor": "1 name string, 2 parameters InferParameter{}",
    "ModelInferResponse": "1 model_name string, 2 model_version string, 3 id string, 4 parameters InferParameter{}, "
    "5 outputs ModelInferResponse.InferOutputTensor[], 6 raw_output_contents bytes[]",
    "ModelInferResponse.InferOutputTensor": _TENSOR,
    "ModelStreamInferResponse": "1 error_message string, 2 infer_response ModelInferResponse",
    # configuration
    "ModelConfigRequest": _NAME_AND_VERSION,
    "ModelConfigResponse": "1 config ModelConfig",
    "ModelConfig": "1 name string, 2 platform string, 17 backend string, 3 version_policy ModelVersionPolicy, "
    "4 max_batch_size int32, 5 input ModelInput[], 6 output ModelOutput[], "
    "11 dynamic_batching ModelDynamicBatching|scheduling_choice, "
    "13 sequence_batching ModelSequenceBatching|scheduling_choice, 14 parameters ModelParameter{}, "
    "19 model_transaction_policy ModelTransactionPolicy",
    "ModelVersionPolicy": "1 latest ModelVersionPolicy.Latest|policy_choice",
    "ModelVersionPolicy.Latest": "1 num_versions uint32",
    "ModelInput": "1 name string, 2 data_type DataType, 4 dims int64[], 8 optional bool",
    "ModelOutput": "1 name string, 2 data_type DataType, 3 dims int64[]",
    "ModelDynamicBatching": "1 preferred_batch_size int32[], 2 max_queue_delay_microseconds uint64",
    "ModelSequenceBatching": "1 max_sequence_idle_microseconds uint64",
    "ModelTransactionPolicy": "1 decoupled bool",
    "ModelParameter": "1 string_value string",
    # statistics
    "ModelStatisticsRequest": _NAME_AND_VERSION,
    "ModelStatisticsResponse": "1 model_stats ModelStatistics[]",
    "ModelStatistics": "1 name string, 2 version string, 3 last_inference uint64, 4 inference_count uint64, "
    "5 execution_count uint64, 6 inference_stats InferStatistics, 7 batch_stats InferBatchStatistics[]",
    "InferStatistics": "1 success StatisticDuration, 2 fail StatisticDuration, 3 queue StatisticDuration, "
    "4 compute_input StatisticDuration, 5 compute_infer StatisticDuration, 6 compute_output StatisticDuration, "
    "7 cache_hit StatisticDuration, 8 cache_miss StatisticDuration",
    "InferBatchStatistics": "1 batch_size uint64, 2 compute_input StatisticDuration, "
    "3 compute_infer StatisticDuration, 4 compute_output StatisticDuration",
    "StatisticDuration": "1 count uint64, 2 ns uint64",
    # the repository; a client of KServe sends the name as field 1, and reads the fields of the responses
    "RepositoryIndexRequest": "1 repository_name string, 2 ready bool",
    "RepositoryIndexResponse": "1 models RepositoryIndexResponse.ModelIndex[]",
    "RepositoryIndexResponse.ModelIndex": "1 name string, 2 version string, 3 state string, 4 reason string",
    "RepositoryModelLoadRequest": "1 repository_name string, 2 model_name string, "
    "3 parameters ModelRepositoryParameter{}",
    "RepositoryModelLoadResponse": "1 model_name string, 2 isLoaded bool",
    "RepositoryModelUnloadRequest": "1 repository_name string, 2 model_name string, "
    "3 parameters ModelRepositoryParameter{}",
    "RepositoryModelUnloadResponse": "1 model_name string, 2 isUnloaded bool",
    "ModelRepositoryParameter": "1 bool_param bool|parameter_choice, 2 int64_param int64|parameter_choice, "
    "3 string_param string|parameter_choice, 4 bytes_param bytes|parameter_choice",
    # regions of shared memory, of which there are none
    "SystemSharedMemoryStatusResponse": "1 regions SystemSharedMemoryStatusResponse.RegionStatus{}",
    "SystemSharedMemoryStatusResponse.RegionStatus": "1 name string, 2 key string, 3 offset uint64, 4 byte_size uint64",
    "CudaSharedMemoryStatusResponse": "1 regions CudaSharedMemoryStatusResponse.RegionStatus{}",
    "CudaSharedMemoryStatusResponse.RegionStatus": "1 name string, 2 device_id uint64, 3 byte_size uint64",
    "SystemSharedMemoryUnregisterResponse": "",
    "CudaSharedMemoryUnregisterResponse": "",
}

INFERENCE_ENUMS: Mapping[str, tuple[str, ...]] = {
    "DataType": (
        *("TYPE_INVALID", "TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64", "TYPE_INT8"),
        *("TYPE_INT16", "TYPE_INT32", "TYPE_INT64", "TYPE_FP16", "TYPE_FP32", "TYPE_FP64", "TYPE_STRING", "TYPE_BF16"),
    ),
}

HEALTH_MESSAGES: Mapping[str, str] = {
    "HealthCheckRequest": "1 service string",
    "HealthCheckResponse": "1 status ServingStatus",
}

HEALTH_ENUMS: Mapping[str, tuple[str, ...]] = {
    "ServingStatus": ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"),
}


@lru_cache(maxsize=1)
def load_inference_messages() -> Mapping[str, Any]:
    """Return the classes of the inference protocol by name; MissingPackageError without protobuf."""
    return _make_classes(INFERENCE, INFERENCE_MESSAGES, INFERENCE_ENUMS)


@lru_cache(maxsize=1)
def load_health_messages() -> Mapping[str, Any]:
    """Return the classes of gRPC's health checks by name."""
    return _make_classes(HEALTH, HEALTH_MESSAGES, HEALTH_ENUMS)


def _make_classes(package: str, messages: Mapping[str, str], enums: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    descriptors = import_package("google.protobuf.descriptor_pb2", PURPOSE, INSTALL)
    pools = import_package("google.protobuf.descriptor_pool", PURPOSE, INSTALL)
    factory = import_package("google.protobuf.message_factory", PURPOSE, INSTALL)
    file = descriptors.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, labels in enums.items():
        enum = file.enum_type.add(name=name)
        for number, label in enumerate(labels):
            enum.value.add(name=label, number=number)
    added: dict[str, Any] = {}
    for name, fields in messages.items():
        parent, _, own = name.rpartition(".")
        message = added[parent].nested_type.add(name=own) if parent else file.message_type.add(name=name)
        added[name] = message
        for field in filter(None, fields.split(", ")):
            _add_field(message, f".{package}.", name, field, enums)
    pool = pools.DescriptorPool()
    pool.Add(file)
    return {name: factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


def _add_field(message: Any, package: str, owner: str, text: str, enums: Mapping[str, Any]) -> None:
    number, name, kind = text.split(" ")
    kind, _, choice = kind.partition("|")
    is_map, is_list = kind.endswith("{}"), kind.endswith("[]")
    kind = kind.removesuffix("{}").removesuffix("[]")
    field = message.field.add(name=name, number=int(number))
    field.label = field.LABEL_REPEATED if is_map or is_list else field.LABEL_OPTIONAL
    if is_map:
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        _add_field(entry, package, owner, "1 key string", enums)
        _add_field(entry, package, owner, f"2 value {kind}", enums)
        kind = f"{owner}.{entry.name}"
    if kind[0].islower():
        field.type = getattr(field, f"TYPE_{kind.upper()}")
    else:
        field.type = field.TYPE_ENUM if kind in enums else field.TYPE_MESSAGE
        field.type_name = package + kind
    if choice:
        names = [each.name for each in message.oneof_decl]
        if choice not in names:
            message.oneof_decl.add(name=choice)
            names.append(choice)
        field.oneof_index = names.index(choice)
