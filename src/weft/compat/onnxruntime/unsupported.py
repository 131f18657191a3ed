"""onnxruntime's classes and functions that weft does not support: each call raises an error with its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.compat.onnxruntime.exceptions import unsupported_error
from weft.compat.onnxruntime.naming import COLLECTION, STATE

_ADAPTERS = "merge adapters into the model's weights"
_ALLOCATORS = "weft plans the memory of a run as a whole and has no allocators"
_ASSIGNMENT = "session.weft_model.report() shows where a model runs"
_COMPATIBILITY = "compiled models of onnxruntime's providers cannot run on weft"
_COMPILER = "use `weft compile` or weft.compile"
_CONTEXTS = "weft has no compiled contexts of providers"
_DEVICES = "weft.devices() lists the devices"
_OPERATORS = "`weft ops` lists the operators"
_PLUGINS = "weft's devices are Python packages, see docs/guides/devices.md"
_SPARSE = "weft's runs take dense tensors"
_STREAMS = "weft orders runs by itself"


def unsupported_function(name: str, reason: str) -> Callable[..., Any]:
    """Return a function that raises an error with this name."""

    def call(*_: Any, **__: Any) -> Any:
        raise unsupported_error(name, reason)

    call.__name__ = call.__qualname__ = name
    return call


def _unsupported_class(title: str, reason: str, members: str = "", module: str = STATE) -> Any:
    """Return a class that cannot be instantiated, with methods `members`, which raise."""
    namespace: dict[str, Any] = {"__module__": module, "__doc__": f"Not supported: {reason}."}
    namespace["__init__"] = unsupported_function(title, reason)
    for member in members.split():
        namespace[member] = staticmethod(unsupported_function(f"{title}.{member}", reason))
    return type(title, (), namespace)


SparseTensor = _unsupported_class(
    "SparseTensor",
    _SPARSE,
    "sparse_coo_from_numpy sparse_csr_from_numpy blocksparse_from_numpy as_blocksparse_view as_coo_view as_csrc_view "
    "get_blocksparse_data get_coo_data get_csrc_data data_type dense_shape device_name format to_cuda values",
    COLLECTION,
)
SparseBlockSparseView = _unsupported_class("SparseBlockSparseView", _SPARSE, "indices")
SparseCooView = _unsupported_class("SparseCooView", _SPARSE, "indices")
SparseCsrView = _unsupported_class("SparseCsrView", _SPARSE, "inner outer")
ModelCompiler = _unsupported_class(
    "ModelCompiler",
    _COMPILER,
    "compile_to_bytes compile_to_file compile_to_stream set_ep_context_data_write_func "
    "clear_ep_context_data_write_func",
    COLLECTION,
)
AdapterFormat = _unsupported_class(
    "AdapterFormat",
    _ADAPTERS,
    "read_adapter export_adapter get_adapter_version get_format_version get_model_version get_parameters "
    "set_adapter_version set_model_version set_parameters adapter_version format_version model_version parameters",
    COLLECTION,
)
LoraAdapter = _unsupported_class("LoraAdapter", _ADAPTERS, "Load")
OrtArenaCfg = _unsupported_class(
    "OrtArenaCfg",
    _ALLOCATORS,
    "arena_extend_strategy initial_chunk_size_bytes initial_growth_chunk_size_bytes max_dead_bytes_per_chunk max_mem "
    "max_power_of_two_extend_bytes",
)
OrtEpDevice = _unsupported_class(
    "OrtEpDevice", _DEVICES, "create_sync_stream device ep_metadata ep_name ep_options ep_vendor memory_info"
)
OrtHardwareDevice = _unsupported_class("OrtHardwareDevice", _DEVICES, "device_id metadata type vendor vendor_id")
OrtSyncStream = _unsupported_class("OrtSyncStream", _STREAMS, "get_handle")
OrtEpAssignedNode = _unsupported_class("OrtEpAssignedNode", _ASSIGNMENT, "domain name op_type")
OrtEpAssignedSubgraph = _unsupported_class("OrtEpAssignedSubgraph", _ASSIGNMENT, "ep_name get_nodes")
OrtEpContextData = _unsupported_class("OrtEpContextData", _CONTEXTS, "read size")
OrtEpContextDataBuffer = _unsupported_class(
    "OrtEpContextDataBuffer", _CONTEXTS, "allocate is_allocated max_size size write"
)
SessionObjectInitializer = _unsupported_class("SessionObjectInitializer", "make sessions with InferenceSession")
OrtExternalInitializerInfo = _unsupported_class(
    "OrtExternalInitializerInfo", _COMPILER, "byte_size file_offset filepath"
)
schemadef = _unsupported_class("schemadef", _OPERATORS, "OpSchema")
opkernel = _unsupported_class("opkernel", _OPERATORS, "KernelDef")

_UNSUPPORTED_FUNCTIONS = {
    _ALLOCATORS: "create_and_register_allocator create_and_register_allocator_v2",
    _COMPATIBILITY: "get_compatibility_info_from_model get_compatibility_info_from_model_bytes "
    "get_hardware_device_ep_incompatibility_details get_model_compatibility_for_ep_devices",
    _DEVICES: "get_hardware_devices",
    _OPERATORS: "get_all_operator_schema get_all_opkernel_def get_registered_ep_kernel_defs",
    _PLUGINS: "register_execution_provider_library unregister_execution_provider_library",
    "make sessions with InferenceSession": "get_session_initializer",
}
UNSUPPORTED_FUNCTIONS = {
    name: unsupported_function(name, reason)
    for reason, names in _UNSUPPORTED_FUNCTIONS.items()
    for name in names.split()
}
