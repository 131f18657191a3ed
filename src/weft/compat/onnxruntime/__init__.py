"""A drop-in replacement for onnxruntime: its Python interface, on top of weft.

Options without effect are accepted, and the logger `weft.compat` reports each once. Unsupported calls raise an error
with their name. `weft.compat.install()` makes `import onnxruntime` return this package.
"""

from __future__ import annotations

from weft.runtime.model_files import raise_missing_package

try:
    from weft.compat.onnxruntime import capi as capi
except ModuleNotFoundError as error:
    raise_missing_package(error, subject="weft.compat.onnxruntime")
from weft.compat.onnxruntime.binding import IOBinding as IOBinding
from weft.compat.onnxruntime.binding import SessionIOBinding as SessionIOBinding
from weft.compat.onnxruntime.capi import onnxruntime_validation as onnxruntime_validation
from weft.compat.onnxruntime.declarations import ModelMetadata as ModelMetadata
from weft.compat.onnxruntime.declarations import NodeArg as NodeArg
from weft.compat.onnxruntime.enumerations import ExecutionMode as ExecutionMode
from weft.compat.onnxruntime.enumerations import ExecutionOrder as ExecutionOrder
from weft.compat.onnxruntime.enumerations import GraphOptimizationLevel as GraphOptimizationLevel
from weft.compat.onnxruntime.enumerations import OrtAllocatorType as OrtAllocatorType
from weft.compat.onnxruntime.enumerations import OrtCompileApiFlags as OrtCompileApiFlags
from weft.compat.onnxruntime.enumerations import OrtDeviceMemoryType as OrtDeviceMemoryType
from weft.compat.onnxruntime.enumerations import OrtExecutionProviderDevicePolicy as OrtExecutionProviderDevicePolicy
from weft.compat.onnxruntime.enumerations import OrtHardwareDeviceType as OrtHardwareDeviceType
from weft.compat.onnxruntime.enumerations import OrtMemoryInfoDeviceType as OrtMemoryInfoDeviceType
from weft.compat.onnxruntime.enumerations import OrtMemType as OrtMemType
from weft.compat.onnxruntime.enumerations import OrtSparseFormat as OrtSparseFormat
from weft.compat.onnxruntime.functions import copy_tensors as copy_tensors
from weft.compat.onnxruntime.functions import disable_telemetry_events as disable_telemetry_events
from weft.compat.onnxruntime.functions import enable_telemetry_events as enable_telemetry_events
from weft.compat.onnxruntime.functions import get_build_info as get_build_info
from weft.compat.onnxruntime.functions import get_ep_devices as get_ep_devices
from weft.compat.onnxruntime.functions import get_version_string as get_version_string
from weft.compat.onnxruntime.functions import has_collective_ops as has_collective_ops
from weft.compat.onnxruntime.functions import preload_dlls as preload_dlls
from weft.compat.onnxruntime.functions import print_debug_info as print_debug_info
from weft.compat.onnxruntime.functions import set_default_logger_severity as set_default_logger_severity
from weft.compat.onnxruntime.functions import set_default_logger_verbosity as set_default_logger_verbosity
from weft.compat.onnxruntime.functions import set_global_thread_pool_sizes as set_global_thread_pool_sizes
from weft.compat.onnxruntime.functions import set_seed as set_seed
from weft.compat.onnxruntime.memory_info import OrtMemoryInfo as OrtMemoryInfo
from weft.compat.onnxruntime.naming import API_LEVEL
from weft.compat.onnxruntime.options import OrtRunOptions as RunOptions  # noqa: F401
from weft.compat.onnxruntime.options import SessionOptions as SessionOptions
from weft.compat.onnxruntime.providers import get_all_providers as get_all_providers
from weft.compat.onnxruntime.providers import get_available_providers as get_available_providers
from weft.compat.onnxruntime.providers import get_device as get_device
from weft.compat.onnxruntime.session import InferenceSession as InferenceSession
from weft.compat.onnxruntime.unsupported import UNSUPPORTED_FUNCTIONS
from weft.compat.onnxruntime.unsupported import AdapterFormat as AdapterFormat
from weft.compat.onnxruntime.unsupported import LoraAdapter as LoraAdapter
from weft.compat.onnxruntime.unsupported import ModelCompiler as ModelCompiler
from weft.compat.onnxruntime.unsupported import OrtArenaCfg as OrtArenaCfg
from weft.compat.onnxruntime.unsupported import OrtEpAssignedNode as OrtEpAssignedNode
from weft.compat.onnxruntime.unsupported import OrtEpAssignedSubgraph as OrtEpAssignedSubgraph
from weft.compat.onnxruntime.unsupported import OrtEpContextData as OrtEpContextData
from weft.compat.onnxruntime.unsupported import OrtEpContextDataBuffer as OrtEpContextDataBuffer
from weft.compat.onnxruntime.unsupported import OrtEpDevice as OrtEpDevice
from weft.compat.onnxruntime.unsupported import OrtExternalInitializerInfo as OrtExternalInitializerInfo
from weft.compat.onnxruntime.unsupported import OrtHardwareDevice as OrtHardwareDevice
from weft.compat.onnxruntime.unsupported import OrtSyncStream as OrtSyncStream
from weft.compat.onnxruntime.unsupported import SparseTensor as SparseTensor
from weft.compat.onnxruntime.values import OrtDevice as OrtDevice
from weft.compat.onnxruntime.values import OrtDeviceVendorId as OrtDeviceVendorId
from weft.compat.onnxruntime.values import OrtValue as OrtValue

__version__ = version = API_LEVEL
__author__ = "weft"
package_name = "onnxruntime"
cuda_version = ""
import_capi_exception = None
create_and_register_allocator = UNSUPPORTED_FUNCTIONS["create_and_register_allocator"]
create_and_register_allocator_v2 = UNSUPPORTED_FUNCTIONS["create_and_register_allocator_v2"]
register_execution_provider_library = UNSUPPORTED_FUNCTIONS["register_execution_provider_library"]
unregister_execution_provider_library = UNSUPPORTED_FUNCTIONS["unregister_execution_provider_library"]
