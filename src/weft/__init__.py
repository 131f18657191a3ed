"""weft compiles and runs ONNX models on CPUs and GPUs.

    model = weft.load("model.onnx")
    outputs = model.run({"x": array})

`print(model)` shows the model's inputs and outputs, `weft.random_inputs(model)` makes inputs for a first run, and
`model.profile()` shows where time goes. `weft.devices()` lists the devices. Every error is a `weft.WeftError`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft.errors import (
    Attempt,
    CacheWarning,
    ChangedFileError,
    DeviceError,
    DeviceFallbackError,
    DeviceLostError,
    ExecutionError,
    FallbackWarning,
    GraphError,
    InputError,
    InternalError,
    InvalidModelError,
    KernelError,
    MissingAttributeError,
    MissingFileError,
    MissingPackageError,
    ModelError,
    OpDefinitionError,
    OutOfMemoryError,
    RunCancelledError,
    RunTimeoutError,
    UnknownNameError,
    UnknownOptionError,
    UnsupportedModelError,
    UntrustedModelError,
    WeftError,
)

if TYPE_CHECKING:
    from weft import ops
    from weft.backends.device import Device
    from weft.batch_inference.batch_function import BatchFunction, batch
    from weft.batch_inference.ray_serve import ray_deployment
    from weft.batch_inference.spark import spark_udf
    from weft.builder.graph import Graph
    from weft.builder.tensor import Tensor
    from weft.export.export import export_c
    from weft.frontend.source import ModelSource
    from weft.generation.answers import Answer, AnswerStream
    from weft.generation.generator import Generator
    from weft.generation.memory import GenerationMemory
    from weft.generation.options import GenerationOptions
    from weft.interrupts import Cancellation
    from weft.ir.metadata import Metadata
    from weft.ir.specs import TensorSpec
    from weft.ir.tensors import DeviceTensor
    from weft.loading import compile, load
    from weft.optimization.optimize import OptimizationReport, optimize
    from weft.quantization.quantize import QuantizationReport, quantize
    from weft.readers.for_model import read_inputs
    from weft.report.compare import compare
    from weft.report.comparison import ModelComparison
    from weft.report.kernel_list import KernelList, ModelKernel
    from weft.report.view import view
    from weft.runtime.benchmark import Benchmark
    from weft.runtime.device_report import DeviceReport
    from weft.runtime.devices import devices
    from weft.runtime.explain import HostStep
    from weft.runtime.memory import Memory
    from weft.runtime.model import Model
    from weft.runtime.policy import DevicePolicy
    from weft.runtime.profile import Profile
    from weft.runtime.random_inputs import random_inputs
    from weft.runtime.state import State
    from weft.runtime.tensors import to_device
    from weft.server.run import serve
    from weft.version import __version__


__all__ = [
    "Answer",
    "AnswerStream",
    "Attempt",
    "BatchFunction",
    "Benchmark",
    "CacheWarning",
    "Cancellation",
    "ChangedFileError",
    "Device",
    "DeviceError",
    "DeviceFallbackError",
    "DeviceLostError",
    "DevicePolicy",
    "DeviceReport",
    "DeviceTensor",
    "ExecutionError",
    "FallbackWarning",
    "GenerationMemory",
    "GenerationOptions",
    "Generator",
    "Graph",
    "GraphError",
    "HostStep",
    "InputError",
    "InternalError",
    "InvalidModelError",
    "KernelError",
    "KernelList",
    "Memory",
    "Metadata",
    "MissingAttributeError",
    "MissingFileError",
    "MissingPackageError",
    "Model",
    "ModelComparison",
    "ModelError",
    "ModelKernel",
    "ModelSource",
    "OpDefinitionError",
    "OptimizationReport",
    "OutOfMemoryError",
    "Profile",
    "QuantizationReport",
    "RunCancelledError",
    "RunTimeoutError",
    "State",
    "Tensor",
    "TensorSpec",
    "UnknownNameError",
    "UnknownOptionError",
    "UnsupportedModelError",
    "UntrustedModelError",
    "WeftError",
    "__version__",
    "batch",
    "compare",
    "compile",
    "devices",
    "export_c",
    "load",
    "ops",
    "optimize",
    "quantize",
    "random_inputs",
    "ray_deployment",
    "read_inputs",
    "serve",
    "spark_udf",
    "to_device",
    "view",
]

_MODULES = ("backend", "compat", "ops", "server")  # public modules

_LAZY = {  # imported on first use, so that `import weft` loads neither the compiler nor onnx
    "load": "weft.loading",
    "compile": "weft.loading",
    "compare": "weft.report.compare",
    "ModelComparison": "weft.report.comparison",
    "KernelList": "weft.report.kernel_list",
    "ModelKernel": "weft.report.kernel_list",
    "devices": "weft.runtime.devices",
    "Device": "weft.backends.device",
    "Cancellation": "weft.interrupts",
    "Generator": "weft.generation.generator",
    "GenerationOptions": "weft.generation.options",
    "GenerationMemory": "weft.generation.memory",
    "Answer": "weft.generation.answers",
    "AnswerStream": "weft.generation.answers",
    "BatchFunction": "weft.batch_inference.batch_function",
    "Benchmark": "weft.runtime.benchmark",
    "batch": "weft.batch_inference.batch_function",
    "State": "weft.runtime.state",
    "spark_udf": "weft.batch_inference.spark",
    "DevicePolicy": "weft.runtime.policy",
    "DeviceReport": "weft.runtime.device_report",
    "to_device": "weft.runtime.tensors",
    "DeviceTensor": "weft.ir.tensors",
    "Graph": "weft.builder.graph",
    "HostStep": "weft.runtime.explain",
    "export_c": "weft.export.export",
    "Model": "weft.runtime.model",
    "ModelSource": "weft.frontend.source",
    "Memory": "weft.runtime.memory",
    "OptimizationReport": "weft.optimization.optimize",
    "optimize": "weft.optimization.optimize",
    "Metadata": "weft.ir.metadata",
    "Profile": "weft.runtime.profile",
    "random_inputs": "weft.runtime.random_inputs",
    "ray_deployment": "weft.batch_inference.ray_serve",
    "read_inputs": "weft.readers.for_model",
    "QuantizationReport": "weft.quantization.quantize",
    "quantize": "weft.quantization.quantize",
    "serve": "weft.server.run",
    "Tensor": "weft.builder.tensor",
    "TensorSpec": "weft.ir.specs",
    "view": "weft.report.view",
    "__version__": "weft.version",
}


def __getattr__(name: str) -> Any:
    try:
        if name in _MODULES:
            return import_module(f"weft.{name}")
        if name in _LAZY:
            from weft.garbage import collect_rarely

            with collect_rarely():
                return getattr(import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        from weft.runtime.model_files import raise_missing_package

        raise_missing_package(error, subject=f"weft.{name}")
    if name.startswith("_"):
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    from weft.runtime.suggestions import missing_name

    raise missing_name(name)


def __dir__() -> list[str]:
    """Return the public names, for `weft.<TAB>`."""
    return sorted({*__all__, *_MODULES, *(name for name in globals() if name.startswith("__"))})
