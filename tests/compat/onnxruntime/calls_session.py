"""Calls about sessions: sources, providers, inputs and outputs, external data, profiles, the backend interface."""

from __future__ import annotations

import json
import unittest
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from calls import add_calls, call, open_session, session, write_file
from small_models import ELEMENTS, FLOAT, MODELS, X, identity, model, model_bytes, node, ones, ramp, tensor

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def _describe(values: Any) -> Any:
    return [(value.name, value.type, value.shape, str(value)) for value in values]


def _providers(ort: Any, *arguments: Any, **keywords: Any) -> Any:
    opened = open_session(ort, "two", *arguments, **keywords)
    return opened.get_providers(), opened.get_provider_options(), opened.run(None, {"x": ones()})


add_calls(
    "source",
    {
        "bytes": lambda ort: _describe(ort.InferenceSession(model_bytes("two")).get_inputs()),
        "path": lambda ort: _describe(ort.InferenceSession(str(write_file("a.onnx", model_bytes("two")))).get_inputs()),
        "path_object": lambda ort: _describe(
            ort.InferenceSession(write_file("a.onnx", model_bytes("two"))).get_inputs()
        ),
        "keyword": lambda ort: _describe(ort.InferenceSession(path_or_bytes=model_bytes("two")).get_inputs()),
        "missing_file": lambda ort: ort.InferenceSession("missing.onnx"),
        "folder": lambda ort: ort.InferenceSession("."),
        "garbage": lambda ort: ort.InferenceSession(b"garbage" * 10),
        "garbage_in_a_file": lambda ort: ort.InferenceSession(str(write_file("b.onnx", b"garbage" * 10))),
        "no_bytes": lambda ort: ort.InferenceSession(b""),
        "empty_file": lambda ort: ort.InferenceSession(str(write_file("c.onnx", b""))),
        "truncated": lambda ort: ort.InferenceSession(model_bytes("add")[:-20]),
        "number": lambda ort: ort.InferenceSession(3),
        "none": lambda ort: ort.InferenceSession(None),
        "proto": lambda ort: ort.InferenceSession(onnx.ModelProto.FromString(model_bytes("two"))),
        "nothing": lambda ort: ort.InferenceSession(),
        "wrong_options": lambda ort: ort.InferenceSession(model_bytes("two"), 3),
        "options_keyword": lambda ort: open_session(ort, "two", sess_options=ort.SessionOptions()).get_providers(),
        "more_keywords": lambda ort: open_session(ort, "two", disabled_optimizers=["ConstantFolding"]).get_providers(),
        **{
            name.replace(" ", "_"): lambda ort, name=name: open_session(ort, name)
            for name in MODELS
            if name.startswith(("unknown", "wrong", "cycle", "late"))
        },
    },
)
add_calls(
    "providers",
    {
        "none": lambda ort: _providers(ort, providers=None),
        "empty": lambda ort: _providers(ort, providers=[]),
        "cpu": lambda ort: _providers(ort, providers=[CPU]),
        "tuple": lambda ort: _providers(ort, providers=(CPU,)),
        "with_options": lambda ort: _providers(ort, providers=[(CPU, {"arena_extend_strategy": "kSameAsRequested"})]),
        "options_beside": lambda ort: _providers(ort, providers=[CPU], provider_options=[{}]),
        "options_of_other_length": lambda ort: _providers(ort, providers=[CPU], provider_options=[{}, {}]),
        "options_twice": lambda ort: _providers(ort, providers=[(CPU, {})], provider_options=[{}]),
        "absent": lambda ort: _providers(ort, providers=["CoreMLExecutionProvider"]),
        "absent_and_cpu": lambda ort: _providers(ort, providers=["QNNExecutionProvider", CPU]),
        "unknown": lambda ort: _providers(ort, providers=["FooExecutionProvider"]),
        "text": lambda ort: _providers(ort, providers=CPU),
        "number": lambda ort: _providers(ort, providers=[3]),
        "available": lambda ort: ort.get_available_providers()[-1],
        "all": lambda ort: sorted(
            {CPU, CUDA, "TensorrtExecutionProvider", "DmlExecutionProvider"} & set(ort.get_all_providers())
        ),
        "device": lambda ort: ort.get_device(),
        "set": lambda ort: open_session(ort, "two").set_providers([CPU]),
        "set_with_options": lambda ort: open_session(ort, "two").set_providers([CPU], [{}]),
        "set_unknown": lambda ort: open_session(ort, "two").set_providers(["FooExecutionProvider"]),
        "fallback": lambda ort: (session(ort, "two").disable_fallback(), session(ort, "two").enable_fallback()),
    },
)
UNUSABLE: dict[str, Any] = {
    "unknown": ["FooExecutionProvider"],
    "number": [3],
    "text": CPU,
    "map": {CPU: {}},
    "lone_tuple": [(CPU,)],
    "options_none": [(CPU, None)],
}
add_calls(
    "no_fallback",
    {
        **{
            name: lambda ort, value=value: _providers(ort, providers=value, enable_fallback=0)
            for name, value in UNUSABLE.items()
        },
        "usable": lambda ort: _providers(ort, providers=[CPU], enable_fallback=0),
        "more_options": lambda ort: _providers(ort, providers=[CPU], provider_options=[{}, {}], enable_fallback=0),
        "not_a_number": lambda ort: _providers(ort, providers=["FooExecutionProvider"], enable_fallback="no"),
        "not_a_list": lambda ort: _providers(ort, providers=3),
    },
)
add_calls(
    "inputs",
    {
        name.replace(" ", "_"): lambda ort, name=name: (
            _describe(session(ort, name).get_inputs()),
            _describe(session(ort, name).get_outputs()),
            _describe(session(ort, name).get_overridable_initializers()),
        )
        for name in MODELS
        if not name.startswith(("unknown", "wrong", "cycle", "late"))
    },
)


def _metadata(ort: Any, name: str) -> Any:
    metadata = session(ort, name).get_modelmeta()
    graph = (metadata.graph_name, metadata.graph_description)
    return (
        metadata.producer_name,
        metadata.domain,
        metadata.description,
        metadata.version,
        dict(sorted(metadata.custom_metadata_map.items())),
        graph,
    )


add_calls(
    "metadata",
    {"none": lambda ort: _metadata(ort, "two"), "all": lambda ort: _metadata(ort, "metadata")},
)


@call
def modified_shapes(ort: Any) -> Any:
    shape = session(ort, "add").get_inputs()[0].shape
    shape[0] = 7
    metadata = session(ort, "metadata").get_modelmeta()
    metadata.custom_metadata_map.clear()
    return shape, session(ort, "add").get_inputs()[0].shape, len(metadata.custom_metadata_map)


@call
def types_of_elements(ort: Any) -> Any:
    return [
        ort.InferenceSession(identity(element), providers=[CPU]).get_outputs()[0].type
        for element in ELEMENTS
        if element != "BFLOAT16"
    ]


@call
def session_options_come_back(ort: Any) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    actual = open_session(ort, "two", options).get_session_options()
    entry = actual.get_session_config_entry("session.intra_op.allow_spinning")
    return type(actual).__name__, actual.intra_op_num_threads, entry


@call
def session_with_every_option(ort: Any) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = options.enable_mem_pattern = options.enable_mem_reuse = False
    options.use_deterministic_compute = True
    options.log_severity_level, options.log_verbosity_level, options.logid = 3, 0, "me"
    return open_session(ort, "two", options).run(None, {"x": ones()})


@call
def session_is_subclassed(ort: Any) -> Any:
    class Mine(ort.InferenceSession):  # type: ignore[misc, name-defined]
        def names(self) -> Any:
            return [value.name for value in self.get_inputs()]

    opened = Mine(model_bytes("add"), providers=[CPU])
    return opened.names(), opened.run(None, {"x": ones(), "y": ones()})


def _external_data_model() -> tuple[bytes, bytes]:
    """Return a model, and the content of the file `w.bin` that it refers to."""
    proto = onnx.ModelProto.FromString(model_bytes("overridable"))
    del proto.graph.input[1]
    weight = proto.graph.initializer[0]
    content = onnx.numpy_helper.to_array(weight).tobytes()
    weight.ClearField("float_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", str(len(content)))):
        weight.external_data.add(key=key, value=value)
    return proto.SerializeToString(), content


def _run_external(ort: Any, options: Any, source: Any = None) -> Any:
    content = _external_data_model()[0] if source is None else source
    return ort.InferenceSession(content, options, providers=[CPU]).run(None, {"x": ones()})


@call
def external_data_in_a_configured_folder(ort: Any) -> Any:
    folder = Path("data")
    folder.mkdir(exist_ok=True)
    (folder / "w.bin").write_bytes(_external_data_model()[1])
    options = ort.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder.resolve()))
    return _run_external(ort, options)


@call
def external_data_in_the_current_directory(ort: Any) -> Any:
    Path("w.bin").write_bytes(_external_data_model()[1])
    try:
        return _run_external(ort, None)
    finally:
        Path("w.bin").unlink()


@call
def external_data_beside_the_model(ort: Any) -> Any:
    folder = Path("whole")
    folder.mkdir(exist_ok=True)
    content, data = _external_data_model()
    (folder / "model.onnx").write_bytes(content)
    (folder / "w.bin").write_bytes(data)
    return _run_external(ort, None, str(folder / "model.onnx"))


@call
def missing_external_data(ort: Any) -> Any:
    return _run_external(ort, None)


@call
def external_data_in_memory(ort: Any) -> Any:
    content, data = _external_data_model()
    options = ort.SessionOptions()
    options.add_external_initializers_from_files_in_memory(["w.bin"], [data], [len(data)])
    return _run_external(ort, options), _run_external(ort, options, str(write_file("external.onnx", content)))


@call
def external_data_as_values(ort: Any) -> Any:
    value = ort.OrtValue.ortvalue_from_numpy(np.full(3, 7, np.float32))
    options = ort.SessionOptions()
    options.add_external_initializers(["w"], [value])
    return _run_external(ort, options)


@call
def external_data_as_values_of_other_names(ort: Any) -> Any:
    value = ort.OrtValue.ortvalue_from_numpy(np.full(3, 7, np.float32))
    options = ort.SessionOptions()
    options.add_external_initializers(["q"], [value])
    return _run_external(ort, options)


@call
def session_with_an_unknown_initializer(ort: Any) -> Any:
    value = ort.OrtValue.ortvalue_from_numpy(np.full(3, 7, np.float32))
    options = ort.SessionOptions()
    options.add_initializer("q", value)
    return open_session(ort, "overridable", options).run(None, {"x": ones()})


@call
def session_writes_its_model(ort: Any) -> Any:
    options = ort.SessionOptions()
    options.optimized_model_filepath = "optimized.onnx"
    open_session(ort, "two", options)
    return ort.InferenceSession("optimized.onnx", providers=[CPU]).run(None, {"x": ones()})


@call
def tools_quantize(ort: Any) -> Any:
    """onnxruntime's own tools, with sessions of the imported onnxruntime."""
    from onnxruntime.capi._pybind_state import quantize_matmul_4bits
    from onnxruntime.quantization import quantize_dynamic

    weights = onnx.numpy_helper.from_array(ramp().T.copy(), "w")
    content = model([node("MatMul", ["x", "w"], ["z"])], [X], [tensor("z", FLOAT, ["N", 2])], (weights,))
    source, target = write_file("float.onnx", content), Path("dynamic.onnx")
    quantize_dynamic(source, target)
    ops = [each.op_type for each in onnx.load(target).graph.node]
    return callable(quantize_matmul_4bits), ops, open_file(ort, target).run(None, {"x": ones()})


def open_file(ort: Any, path: Path) -> Any:
    return ort.InferenceSession(path, providers=[CPU])


@call
def profile(ort: Any) -> Any:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = "times"
    opened = open_session(ort, "two", options)
    opened.run(None, {"x": ones()})
    opened.run(["r"], {"x": ones()})
    started = opened.get_profiling_start_time_ns() > 0
    file = opened.end_profiling()
    events = json.loads(Path(file).read_text())
    runs = [event for event in events if event["name"] == "model_run"]
    fields = sorted(runs[0])
    ops = bool({event["args"]["op_name"] for event in events if event["cat"] == "Node"} & {"Relu", "Neg"})
    return started, file.startswith("times_"), file.endswith(".json"), len(runs), fields, ops


@call
def profile_without_profiling(ort: Any) -> Any:
    return session(ort, "two").end_profiling()


@call
def profile_ended_twice(ort: Any) -> Any:
    options = ort.SessionOptions()
    options.enable_profiling = True
    opened = open_session(ort, "two", options)
    opened.run(None, {"x": ones()})
    Path(opened.end_profiling()).unlink()
    return opened.end_profiling(), opened.run(None, {"x": ones()})


def _backend() -> Any:
    import onnxruntime.backend

    return onnxruntime.backend


def _proto(name: str, version: int = 18) -> Any:
    proto = onnx.ModelProto.FromString(model_bytes(name))
    proto.opset_import[0].version = version
    return proto


def _catch_skip(work: Any) -> Any:
    try:
        return work()
    except unittest.SkipTest:
        return "skipped"


add_calls(
    "backend",
    {
        "path": lambda _: _backend().run(str(write_file("a.onnx", model_bytes("two"))), ones()),
        "bytes": lambda _: _backend().run(model_bytes("add"), [ones(), ones()]),
        "proto": lambda _: _backend().run(_proto("two"), [ones()], "CPU"),
        "prepared": lambda _: _backend().prepare(model_bytes("two"), intra_op_num_threads=1).run(ones(), logid="a"),
        "class": lambda _: _backend().backend.OnnxRuntimeBackend.run_model(model_bytes("two"), ones()),
        "session": lambda ort: _backend().prepare(session(ort, "two")).run([ones()]),
        "twice": lambda _: type(_backend().prepare(_backend().prepare(model_bytes("two")))).__name__,
        "devices": lambda _: [_backend().supports_device(name) for name in ("CPU", "FOO")],
        "compatible": lambda _: _backend().is_compatible(_proto("two")),
        "unreleased_opset": lambda _: _catch_skip(lambda: _backend().prepare(_proto("two", 99))),
        "other_device": lambda _: _backend().prepare(model_bytes("two"), "FOO"),
        "one_input_of_two": lambda _: _backend().run(model_bytes("add"), ones()),
        "too_few_inputs": lambda _: _backend().run(model_bytes("add"), [ones()]),
        "profiling_option": lambda _: _backend().run(model_bytes("two"), ones(), enable_profiling=True),
        "terminate_option": lambda _: _backend().prepare(model_bytes("two")).run(ones(), terminate=True),
        "unknown_option": lambda _: _backend().run(model_bytes("two"), ones(), no_such_option=1),
        "node": lambda _: _backend().backend.OnnxRuntimeBackend.run_node(None, None),
    },
)


@call
def examples(ort: Any) -> Any:
    """The models in onnxruntime's package."""
    from onnxruntime.datasets import get_example

    results = []
    for name in ("logreg_iris.onnx", "mul_1.onnx", "sigmoid.onnx"):
        opened = ort.InferenceSession(get_example(name), providers=[CPU])
        (argument,) = opened.get_inputs()
        x = np.linspace(0, 4, int(np.prod(argument.shape)), dtype=np.float32).reshape(argument.shape)
        results.append(
            (argument.shape, [value for value in opened.run(None, {argument.name: x}) if hasattr(value, "shape")])
        )
    return results
