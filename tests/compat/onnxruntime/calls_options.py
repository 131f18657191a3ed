"""Calls about options, enumerations, module-level functions and names."""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import importlib.util
import pickle
from typing import Any

from calls import add_calls, call

SESSION_FIELDS = (
    "enable_cpu_mem_arena enable_mem_pattern enable_mem_reuse enable_profiling execution_mode execution_order "
    "graph_optimization_level inter_op_num_threads intra_op_num_threads log_severity_level log_verbosity_level logid "
    "optimized_model_filepath profile_file_prefix use_deterministic_compute use_per_session_threads"
).split()
RUN_FIELDS = "log_severity_level log_verbosity_level logid only_execute_path_to_fetches terminate".split()


def _set_option(options: Any, name: str, value: Any) -> Any:
    setattr(options, name, value)
    return getattr(options, name)


def _round_trip_entry(options: Any, kind: str, key: Any, value: Any) -> Any:
    getattr(options, f"add_{kind}_config_entry")(key, value)
    return getattr(options, f"get_{kind}_config_entry")(key)


add_calls(
    "options",
    {
        "defaults": lambda ort: [getattr(ort.SessionOptions(), name) for name in SESSION_FIELDS],
        "threads": lambda ort: _set_option(ort.SessionOptions(), "intra_op_num_threads", 3),
        "negative_threads": lambda ort: _set_option(ort.SessionOptions(), "intra_op_num_threads", -1),
        "threads_text": lambda ort: _set_option(ort.SessionOptions(), "intra_op_num_threads", "a"),
        "threads_float": lambda ort: _set_option(ort.SessionOptions(), "intra_op_num_threads", 1.5),
        "threads_none": lambda ort: _set_option(ort.SessionOptions(), "intra_op_num_threads", None),
        "level_number": lambda ort: _set_option(ort.SessionOptions(), "graph_optimization_level", 99),
        "level": lambda ort: _set_option(
            ort.SessionOptions(), "graph_optimization_level", ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        ),
        "mode_number": lambda ort: _set_option(ort.SessionOptions(), "execution_mode", 0),
        "mode": lambda ort: _set_option(ort.SessionOptions(), "execution_mode", ort.ExecutionMode.ORT_PARALLEL),
        "flag_number": lambda ort: _set_option(ort.SessionOptions(), "enable_profiling", 1),
        "flag_text": lambda ort: _set_option(ort.SessionOptions(), "enable_mem_pattern", "no"),
        "severity": lambda ort: _set_option(ort.SessionOptions(), "log_severity_level", 3),
        "severity_float": lambda ort: _set_option(ort.SessionOptions(), "log_severity_level", 2.5),
        "logid_number": lambda ort: _set_option(ort.SessionOptions(), "logid", 3),
        "no_such": lambda ort: _set_option(ort.SessionOptions(), "no_such_option", 3),
        "entry": lambda ort: _round_trip_entry(ort.SessionOptions(), "session", "a", "b"),
        "entry_number": lambda ort: _round_trip_entry(ort.SessionOptions(), "session", "a", 3),
        "entry_without_key": lambda ort: _round_trip_entry(ort.SessionOptions(), "session", "", "3"),
        "missing_entry": lambda ort: ort.SessionOptions().get_session_config_entry("a"),
        "dimension": lambda ort: ort.SessionOptions().add_free_dimension_override_by_name("N", 3),
        "has_providers": lambda ort: ort.SessionOptions().has_providers(),
        "custom_ops": lambda ort: ort.SessionOptions().register_custom_ops_library("missing.so"),
        "of_a_run": lambda ort: [getattr(ort.RunOptions(), name) for name in RUN_FIELDS],
        "of_a_run_entry": lambda ort: _round_trip_entry(ort.RunOptions(), "run", "a", "b"),
        "of_a_run_missing_entry": lambda ort: ort.RunOptions().get_run_config_entry("a"),
        "of_a_run_logid": lambda ort: _set_option(ort.RunOptions(), "logid", "mine"),
        "of_a_run_terminate": lambda ort: _set_option(ort.RunOptions(), "terminate", True),
        "of_a_run_terminate_text": lambda ort: _set_option(ort.RunOptions(), "terminate", "no"),
        "initializer_none": lambda ort: ort.SessionOptions().add_initializer("w", None),
        "files_of_negative_length": lambda ort: ort.SessionOptions().add_external_initializers_from_files_in_memory(
            ["a"], [b"a"], [-1]
        ),
        "of_a_run_no_such": lambda ort: _set_option(ort.RunOptions(), "no_such_option", 3),
    },
)
ENUMERATIONS = (
    "ExecutionMode ExecutionOrder GraphOptimizationLevel OrtAllocatorType OrtCompileApiFlags OrtDeviceMemoryType "
    "OrtExecutionProviderDevicePolicy OrtHardwareDeviceType OrtMemoryInfoDeviceType OrtMemType OrtSparseFormat"
).split()
add_calls(
    "enumeration",
    {
        **{
            name: lambda ort, name=name: {key: int(member) for key, member in getattr(ort, name).__members__.items()}
            for name in ENUMERATIONS
        },
        "texts": lambda ort: (str(ort.ExecutionMode.ORT_PARALLEL), repr(ort.ExecutionMode.ORT_PARALLEL)),
        "parts": lambda ort: (ort.ExecutionMode.ORT_PARALLEL.name, ort.ExecutionMode.ORT_PARALLEL.value),
        "of_number": lambda ort: ort.GraphOptimizationLevel(1),
        "of_other_number": lambda ort: ort.GraphOptimizationLevel(77),
        "of_text": lambda ort: ort.GraphOptimizationLevel("ORT_ENABLE_ALL"),
        "equals": lambda ort: (
            ort.GraphOptimizationLevel.ORT_ENABLE_ALL == 99,
            ort.GraphOptimizationLevel(99) == ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
            ort.GraphOptimizationLevel.ORT_ENABLE_BASIC == ort.ExecutionMode.ORT_PARALLEL,
            ort.GraphOptimizationLevel.ORT_ENABLE_ALL != 99,
            hash(ort.GraphOptimizationLevel.ORT_ENABLE_ALL),
        ),
        "less": lambda ort: ort.ExecutionMode.ORT_PARALLEL < ort.ExecutionMode.ORT_SEQUENTIAL,
        "item": lambda ort: ort.ExecutionMode["ORT_PARALLEL"],
        "copied": lambda ort: copy.deepcopy(ort.ExecutionMode.ORT_PARALLEL),
        "pickled": lambda ort: pickle.loads(pickle.dumps(ort.ExecutionMode.ORT_PARALLEL)),
        "vendors": lambda ort: {member.name: int(member) for member in ort.OrtDeviceVendorId},
    },
)
add_calls(
    "module",
    {
        "version": lambda ort: (ort.__version__.count("."), ort.__version__ == ort.get_version_string()),
        "metadata": lambda _: importlib.metadata.version("onnxruntime"),
        "name": lambda ort: ort.__name__,
        "spec": lambda _: importlib.util.find_spec("onnxruntime").name,  # type: ignore[union-attr]
        "capi_spec": lambda _: importlib.util.find_spec("onnxruntime.capi").name,  # type: ignore[union-attr]
        "no_such_spec": lambda _: importlib.util.find_spec("onnxruntime.no_such_module"),
        "no_such_name": lambda ort: ort.no_such_name,
        "device": lambda ort: ort.get_device(),
        "build": lambda ort: "Build Info: " in ort.get_build_info(),
        "severity": lambda ort: ort.set_default_logger_severity(3),
        "severity_beyond": lambda ort: ort.set_default_logger_severity(9),
        "verbosity": lambda ort: ort.set_default_logger_verbosity(0),
        "seed": lambda ort: ort.set_seed(1),
        "telemetry": lambda ort: (ort.disable_telemetry_events(), ort.enable_telemetry_events()),
        "preload": lambda ort: ort.preload_dlls(cuda=False, cudnn=False),
        "collectives": lambda ort: ort.has_collective_ops(),
        "quantization": lambda _: importlib.import_module("onnxruntime.quantization").QuantType.QInt8.name,
        "quantization_imported": lambda _: _import_name("from onnxruntime import quantization", "quantization"),
        "tools": lambda _: importlib.import_module("onnxruntime.tools").__name__,
        "homes": lambda ort: [
            f"{getattr(ort, name).__module__}.{getattr(ort, name).__qualname__}"
            for name in (
                "InferenceSession SessionOptions RunOptions NodeArg ModelMetadata OrtValue OrtDevice IOBinding "
                "SparseTensor GraphOptimizationLevel"
            ).split()
        ],
    },
)
EXCEPTIONS = (
    "Fail InvalidArgument NoSuchFile NoModel EngineError RuntimeException InvalidProtobuf ModelLoaded NotImplemented "
    "InvalidGraph EPFail ModelLoadCanceled ModelRequiresCompilation NotFound DeviceReset"
).split()


def _import_name(statement: str, name: str) -> Any:
    namespace: dict[str, Any] = {}
    exec(statement, namespace)
    return namespace[name].__name__


@call
def exceptions(ort: Any) -> Any:
    state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    return {
        name: [base.__name__ for base in getattr(state, name).__mro__ if base.__name__ != "OrtStatusError"]
        for name in EXCEPTIONS
    }


@call
def exceptions_are_the_same_everywhere(ort: Any) -> Any:
    from onnxruntime.capi import _pybind_state, onnxruntime_pybind11_state

    return [getattr(_pybind_state, name) is getattr(onnxruntime_pybind11_state, name) for name in EXCEPTIONS]


@call
def exceptions_are_caught(ort: Any) -> Any:
    from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, NoSuchFile

    try:
        ort.InferenceSession("missing.onnx")
    except NoSuchFile as error:
        return issubclass(InvalidArgument, Exception), str(error).startswith("[ONNXRuntimeError] : 3 : NO_SUCHFILE : ")
    return None


@call
def inner_modules(ort: Any) -> Any:
    import onnxruntime.capi._pybind_state as state
    import onnxruntime.capi.onnxruntime_inference_collection as collection

    return state.get_available_providers()[-1], collection.InferenceSession is ort.InferenceSession, ort.capi.__name__
