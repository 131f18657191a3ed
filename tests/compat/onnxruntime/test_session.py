"""The onnxruntime drop-in where it cannot be compared with onnxruntime: devices, warnings, unsupported calls."""

from __future__ import annotations

import copy
import gc
import json
import logging
import pickle
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
import weft.compat.onnxruntime as ort
from weft.compat.onnxruntime import ignored_options, providers
from weft.compat.onnxruntime.capi import onnxruntime_pybind11_state as state
from weft.compat.onnxruntime.declarations import derive_declarations, describe_arguments
from weft.compat.onnxruntime.dlpack import read_tensor
from weft.errors import DeviceError, FallbackWarning, InputError, WeftError
from weft.runtime.devices import choose

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def _model(nodes: list[Any], outputs: list[Any], *initializers: Any) -> bytes:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializer=list(initializers))
    imports = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()


Z = helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", 3])
RELU = _model([helper.make_node("Relu", ["x"], ["z"])], [Z])
X = np.array([[-1, 0, 2]], np.float32)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices that sessions are opened on. All names of devices are available."""
    opened: list[str] = []

    def choose(name: str) -> weft.Device:
        return weft.Device(name, True, "")

    def load(source: Any, device: Any, **options: Any) -> weft.Model:
        opened.extend([device] if isinstance(device, str) else device)
        return _load(source, device="cpu", **options)

    _load = weft.load
    monkeypatch.setattr("weft.runtime.devices.choose", choose)
    monkeypatch.setattr("weft.loading.load", load)
    return opened


@pytest.mark.parametrize(
    ("requested", "expected", "names"),
    [
        ([CUDA], ["cuda", "cpu"], [CUDA, CPU]),
        ([(CUDA, {"device_id": 1}), CPU], ["cuda:1", "cpu"], [CUDA, CPU]),
        ([(CUDA, {"device_id": "0", "arena_extend_strategy": "kNextPowerOfTwo"})], ["cuda:0", "cpu"], [CUDA, CPU]),
        (["TensorrtExecutionProvider", CUDA, CPU], ["cuda", "cpu"], ["TensorrtExecutionProvider", CUDA, CPU]),
        (["DmlExecutionProvider"], ["webgpu", "cpu"], ["DmlExecutionProvider", CPU]),
        (["OpenVINOExecutionProvider"], ["cpu"], ["OpenVINOExecutionProvider", CPU]),
        ([CPU], ["cpu"], [CPU]),
        ([(CPU, {"device_id": 3})], ["cpu"], [CPU]),
        ([CPU, CUDA], ["cpu", "cuda"], [CPU, CUDA]),
        (["AzureExecutionProvider", CPU], ["cpu"], [CPU]),
        (None, ["cpu"], [CPU]),
    ],
)
def test_devices_of_providers(devices: list[str], requested: Any, expected: list[str], names: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = ort.InferenceSession(RELU, providers=requested)
    assert devices == expected
    assert session._weft.choice.active_providers(expected[0]) == names


def test_failed_device_is_not_among_the_providers(devices: list[str]) -> None:
    session = ort.InferenceSession(RELU, providers=["TensorrtExecutionProvider", CUDA, "DmlExecutionProvider"])
    active_providers = session._weft.choice.active_providers
    assert active_providers("cuda") == ["TensorrtExecutionProvider", CUDA, "DmlExecutionProvider", CPU]
    assert active_providers("webgpu") == ["DmlExecutionProvider", CPU]
    assert active_providers("cpu") == session.get_providers() == [CPU]
    assert session.get_provider_options() == {CPU: {}}


def test_disabled_fallback() -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with (
        pytest.warns(FallbackWarning),
        pytest.raises(state.EPFail, match="QNNExecutionProvider is not available") as caught,
    ):
        ort.InferenceSession(RELU, options, providers=["QNNExecutionProvider"])
    assert isinstance(caught.value.__cause__, DeviceError)


def test_provider_options_are_strings(devices: list[str]) -> None:
    session = ort.InferenceSession(RELU, providers=[CUDA], provider_options=[{"device_id": 0}])
    assert session._weft.choice.options == {CUDA: {"device_id": "0"}, CPU: {}}
    assert devices == ["cuda:0", "cpu"]


def test_environment_applies_without_providers(devices: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DEVICE", "cpu")
    session = ort.InferenceSession(RELU)
    assert session.get_providers() == [CPU]
    assert session._weft.choice.active_providers("cuda:0") == [CUDA, CPU]
    ort.InferenceSession(RELU, providers=[CPU])
    assert devices == ["auto", "cpu"]


def test_unavailable_provider_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(name: str) -> weft.Device:
        if name == "cpu":
            return weft.Device(name, True, "")
        raise DeviceError("there is no driver")

    monkeypatch.setattr("weft.runtime.devices.choose", choose)
    with pytest.warns(FallbackWarning, match=rf"{CUDA} is not available: there is no driver; trying {CPU}"):
        session = ort.InferenceSession(RELU, providers=[CUDA, CPU])
    assert session.get_providers() == [CPU]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.run(None, {"x": X})


def test_warning_points_to_the_caller() -> None:
    with pytest.warns(FallbackWarning) as caught:
        ort.InferenceSession(RELU, providers=["QNNExecutionProvider"])
    assert [Path(warning.filename) for warning in caught] == [Path(__file__)]


def test_available_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    available = [weft.Device(name, True, "") for name in ("cuda:0", "cuda:1", "webgpu:0", "cpu")]
    monkeypatch.setattr("weft.runtime.devices.automatic", lambda: iter(available))
    monkeypatch.setattr("sys.platform", "linux")
    assert ort.get_available_providers() == [CUDA, "WebGpuExecutionProvider", CPU]
    for platform, provider in (("win32", "DmlExecutionProvider"), ("darwin", "CoreMLExecutionProvider")):
        monkeypatch.setattr("sys.platform", platform)
        assert ort.get_available_providers() == [CUDA, "WebGpuExecutionProvider", provider, CPU]
    assert ort.get_device() == "GPU"
    assert set(ort.get_available_providers()) <= set(ort.get_all_providers())
    assert set(ort.get_all_providers()) == set(providers._DEVICES)


def test_threads() -> None:
    options = ort.SessionOptions()
    for number, threads in ((0, None), (1, 1), (-1, None)):
        options.intra_op_num_threads = number
        assert ort.InferenceSession(RELU, options).weft_model.pool.options.threads == threads


def test_ignored_options_are_logged_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignored_options, "_logged", set())
    options = ort.SessionOptions()
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with caplog.at_level(logging.INFO, "weft.compat"):
        for _ in range(3):
            ort.InferenceSession(RELU, options)
            ort.set_seed(1)
    assert [record.message.partition(" has no effect")[0] for record in caplog.records] == [
        "SessionOptions.execution_mode",
        "the session config entry 'session.intra_op.allow_spinning'",
        "set_seed",
    ]


UNSUPPORTED: dict[str, Callable[[], Any]] = {
    "SessionOptions.register_custom_ops_library": lambda: ort.SessionOptions().register_custom_ops_library("a.so"),
    "SparseTensor.sparse_coo_from_numpy": lambda: ort.SparseTensor.sparse_coo_from_numpy(
        [2], X, X, ort.OrtDevice.make("cpu", 0)
    ),
    "LoraAdapter": lambda: ort.LoraAdapter(),
    "create_and_register_allocator": lambda: ort.create_and_register_allocator(None, None),
    "InferenceSession.set_ep_dynamic_options": lambda: ort.InferenceSession(RELU).set_ep_dynamic_options({"a": "b"}),
    "RunOptions.add_active_adapter": lambda: ort.RunOptions().add_active_adapter(None),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_calls_are_named(name: str) -> None:
    with pytest.raises(state.NotImplemented, match=f"{name} is not supported: ") as caught:
        UNSUPPORTED[name]()
    assert isinstance(caught.value.__cause__, WeftError)


def test_cause_of_exceptions_is_weft_s_error() -> None:
    session = ort.InferenceSession(RELU)
    with pytest.raises(state.InvalidArgument, match="input 'x' must be float32, not float64") as caught:
        session.run(None, {"x": X.astype(np.float64)})
    assert isinstance(caught.value.__cause__, InputError)
    assert caught.value.__cause__.hint
    with pytest.raises(state.InvalidArgument, match="Invalid input name: y") as caught:
        session.run(None, {"x": X, "y": X})
    assert "it takes x" in str(caught.value.__cause__)
    with pytest.raises(state.NoSuchFile) as caught:
        ort.InferenceSession("no such file.onnx")
    assert isinstance(caught.value.__cause__, WeftError)


def test_run_is_terminated_by_another_thread() -> None:
    session = ort.InferenceSession(_endless_loop())
    options = ort.RunOptions()
    timer = threading.Timer(0.2, lambda: setattr(options, "terminate", True))
    timer.start()
    with pytest.raises(state.Fail, match="terminate flag"):
        session.run(None, {"x": X}, options)
    timer.join()
    assert options.terminate


def _endless_loop() -> bytes:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["condition"], ["condition_out"]),
            helper.make_node("Sin", ["before"], ["after"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("iteration", TensorProto.INT64, []),
            helper.make_tensor_value_info("condition", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, ["N", 3]),
        ],
        [
            helper.make_tensor_value_info("condition_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.FLOAT, ["N", 3]),
        ],
    )
    start = numpy_helper.from_array(np.array(True), "start")
    return _model([helper.make_node("Loop", ["", "start", "x"], ["z"], body=body)], [Z], start)


def test_profile_is_a_trace_with_kernels(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "times")
    session = ort.InferenceSession(RELU, options)
    session.run(None, {"x": X})
    events = json.loads(Path(session.end_profiling()).read_text())
    kernels = [event for event in events if event["cat"] == "Node"]
    assert {(event["args"]["op_name"], event["args"]["provider"]) for event in kernels} == {("Relu", CPU)}
    assert {tuple(sorted(event)) for event in events} == {("args", "cat", "dur", "name", "ph", "pid", "tid", "ts")}


def test_bound_memory_is_written_in_place() -> None:
    session = ort.InferenceSession(RELU)
    memory = np.full((1, 3), 9, np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("z", "cpu", 0, np.float32, memory.shape, memory.ctypes.data)
    session.run_with_iobinding(binding)
    assert memory.tolist() == [[0, 0, 2]]
    assert binding.get_outputs()[0].data_ptr() == memory.ctypes.data


def test_traced_size_replaces_a_name() -> None:
    """A file may give a name to a dim that always has the same size."""
    model = onnx.ModelProto.FromString(RELU)
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "features"
    session = ort.InferenceSession(model.SerializeToString())
    assert session.get_outputs()[0].shape == ["N", 3]


def test_arguments_without_an_onnx_file() -> None:
    """Without the declarations of a file, traced shapes give the same NodeArgs."""
    model = weft.load(RELU)
    arguments = describe_arguments(model, derive_declarations(model), {})
    assert [str(argument) for argument in (*arguments.inputs, *arguments.outputs)] == [
        str(argument)
        for argument in (*ort.InferenceSession(RELU).get_inputs(), *ort.InferenceSession(RELU).get_outputs())
    ]


def test_damaged_files_raise_onnxruntime_s_errors() -> None:
    seed = 15
    random = np.random.default_rng(seed)
    expected = (state.InvalidProtobuf, state.InvalidGraph, state.InvalidArgument, state.Fail, state.NotImplemented)
    for _ in range(200):
        damaged = bytearray(RELU)
        for offset in random.integers(0, len(damaged), 3):
            damaged[offset] = random.integers(0, 256)
        error: Exception | None = None
        try:
            session = ort.InferenceSession(bytes(damaged))
            session.get_inputs(), session.get_outputs(), session.get_modelmeta()
        except expected as raised:
            error = raised
        assert error is None or isinstance(error.__cause__, WeftError), seed


def test_dlpack_round_trip() -> None:
    array = np.arange(4, dtype=np.int64)
    value = ort.OrtValue.from_dlpack(array)
    assert value.data_ptr() == array.ctypes.data
    assert np.from_dlpack(value).tolist() == [0, 1, 2, 3]


class _Tracked(np.ndarray):
    """An array that weak references can follow."""


def _track(array: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], weakref.ref[Any]]:
    tracked = array.view(_Tracked)
    return tracked, weakref.ref(tracked)


def test_imported_memory_stays_alive_while_in_use() -> None:
    source, alive = _track(np.arange(4, dtype=np.float32))
    value = ort.OrtValue.from_dlpack(source.__dlpack__())
    view = value.numpy()[1:]
    del source, value
    gc.collect()
    assert alive() is not None
    assert view.tolist() == [1, 2, 3]
    del view
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("rejected", [np.ones((2, 3), np.float32).T, np.ones((2, 2), np.complex64).T])
def test_rejected_capsules_free_their_memory(rejected: np.ndarray[Any, Any]) -> None:
    source, alive = _track(rejected)
    capsule = source.__dlpack__()
    with pytest.raises(RuntimeError, match="contiguous"):
        ort.OrtValue.from_dlpack(capsule)
    del source, capsule
    gc.collect()
    assert alive() is None


def test_exported_memory_stays_alive_with_its_consumer() -> None:
    source, alive = _track(np.arange(4, dtype=np.float32))
    capsule = ort.OrtValue.ortvalue_from_numpy(source).to_dlpack()
    del source
    consumer = ort.OrtValue.from_dlpack(capsule)
    del capsule
    gc.collect()
    assert consumer.numpy().tolist() == [0, 1, 2, 3]
    del consumer
    gc.collect()
    assert alive() is None


def test_dlpack_of_bfloat16() -> None:
    words = np.array([0x3F80, 0xC000], np.uint16)
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(words, TensorProto.BFLOAT16)
    again = ort.OrtValue.from_dlpack(value)
    assert (again.data_type(), again.data_ptr()) == ("tensor(bfloat16)", words.ctypes.data)
    assert again.numpy().astype(np.float32).tolist() == [1, -2]


def test_dlpack_of_booleans() -> None:
    """numpy exports booleans as such, which onnxruntime rejects."""
    assert ort.OrtValue.from_dlpack(X > 0).data_type() == "tensor(bool)"


def test_capsules_on_other_devices() -> None:
    capsule = X.__dlpack__()
    read_tensor(capsule).device_type = 2
    value = ort.OrtValue.from_dlpack(capsule)
    assert (value.shape(), value.data_type(), value.device_name()) == ([1, 3], "tensor(float)", "cuda")
    with pytest.raises(state.InvalidArgument):
        ort.InferenceSession(RELU).run_with_ort_values(None, {"x": value})
    with pytest.raises(state.NotImplemented):
        value.data_ptr()


def test_view_as_another_type() -> None:
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.array([0x3F80], np.uint16), TensorProto.BFLOAT16)
    assert value.data_type() == "tensor(bfloat16)"
    assert float(value.numpy()[0]) == 1.0


def test_values_on_a_device() -> None:
    """Outputs that are bound to a device can be inputs of the next run, and their memory can be overwritten."""
    try:
        choose("webgpu:0")
    except DeviceError as error:
        pytest.skip(str(error))
    session = ort.InferenceSession(RELU, providers=[("WebGpuExecutionProvider", {"device_id": 0})])
    assert session.get_providers() == ["WebGpuExecutionProvider", CPU]
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("z", "webgpu")
    session.run_with_iobinding(binding)
    (value,) = binding.get_outputs()
    assert (value.device_name(), value.shape(), value.data_type()) == ("webgpu", [1, 3], "tensor(float)")
    assert session.run_with_ort_values(None, {"x": value})[0].numpy().tolist() == [[0, 0, 2]]
    value.update_inplace(X)
    assert value.numpy().tolist() == X.tolist()
    binding.bind_ortvalue_output("z", value)
    session.run_with_iobinding(binding)
    assert value.numpy().tolist() == binding.copy_outputs_to_cpu()[0].tolist() == [[0, 0, 2]]
    placed = ort.OrtValue.ortvalue_from_numpy(X, "webgpu", 0)
    assert session.run_with_ort_values(["z"], {"x": placed})[0].numpy().tolist() == [[0, 0, 2]]
    with pytest.raises(state.NotImplemented, match=r"OrtValue\.data_ptr"):
        placed.data_ptr()
    for share in (placed.to_dlpack, placed.__dlpack_device__):
        with pytest.raises(state.NotImplemented, match=r"OrtValue\.__dlpack__"):
            share()


def test_inner_devices_of_gpus() -> None:
    """Programs bind outputs to inner devices of DirectML, for which weft uses WebGPU."""
    try:
        choose("webgpu:0")
    except DeviceError as error:
        pytest.skip(str(error))
    session = ort.InferenceSession(RELU, providers=[("WebGpuExecutionProvider", {"device_id": 0})])
    device = state.OrtDevice(state.OrtDevice.dml(), state.OrtDevice.default_memory(), 0)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding._iobinding.bind_output("z", device)
    session.run_with_iobinding(binding)
    (value,) = binding._iobinding.get_outputs()
    fetches = state.OrtValueVector()
    session.run_with_ortvaluevector(ort.RunOptions(), ["x"], [value], ["z"], fetches, [device])
    again = session._sess.run_with_ort_values({"x": value}, ["z"], None)
    for result in (value, fetches[0], again[0]):
        assert (result.device_name(), result.numpy().tolist()) == ("webgpu", [[0, 0, 2]])


def test_loading_onnxruntime_s_format_is_unsupported(tmp_path: Path) -> None:
    content = b"\x18\0\0\0ORTM" + bytes(40)
    (tmp_path / "model.ort").write_bytes(content)
    for source in (content, tmp_path / "model.ort"):
        with pytest.raises(state.NotImplemented, match="onnxruntime's own format"):
            ort.InferenceSession(source)


def test_saving_onnxruntime_s_format_is_unsupported(tmp_path: Path) -> None:
    by_suffix, by_entry = ort.SessionOptions(), ort.SessionOptions()
    by_suffix.optimized_model_filepath = str(tmp_path / "model.ort")
    by_entry.optimized_model_filepath = str(tmp_path / "model.onnx")
    by_entry.add_session_config_entry("session.save_model_format", "ORT")
    for options in (by_suffix, by_entry):
        with pytest.raises(state.NotImplemented, match="onnxruntime's format"):
            ort.InferenceSession(RELU, options)
    assert not list(tmp_path.iterdir())


def test_pickle_without_an_installed_drop_in() -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    again = pickle.loads(pickle.dumps(ort.InferenceSession(RELU, options, [CPU])))
    assert type(again) is ort.InferenceSession
    assert again.run(None, {"x": X})[0].tolist() == [[0, 0, 2]]
    actual = again.get_session_options()
    assert (actual.intra_op_num_threads, actual.graph_optimization_level) == (1, ort.GraphOptimizationLevel(1))
    assert type(copy.deepcopy(options.graph_optimization_level)) is ort.GraphOptimizationLevel
    error = pickle.loads(pickle.dumps(state.InvalidArgument("text")))
    assert (type(error), str(error)) == (state.InvalidArgument, "text")


class Pickable(ort.InferenceSession):
    """A class like one in insightface, with other arguments and its own state."""

    def __init__(self, model: bytes) -> None:
        super().__init__(model, providers=[CPU])
        self.model = model

    def __getstate__(self) -> dict[str, bytes]:
        return {"model": self.model}

    def __setstate__(self, state: dict[str, bytes]) -> None:
        self.__init__(state["model"])


class Labelled(ort.InferenceSession):
    def __init__(self, model: bytes, label: str) -> None:
        super().__init__(model, providers=[CPU])
        self.label = label


def test_pickle_of_derived_classes() -> None:
    again = pickle.loads(pickle.dumps(Pickable(RELU)))
    assert type(again) is Pickable
    assert again.run(None, {"x": X})[0].tolist() == [[0, 0, 2]]
    labelled = pickle.loads(pickle.dumps(Labelled(RELU, "a")))
    assert (type(labelled), labelled.label) == (Labelled, "a")
    assert labelled.run(None, {"x": X})[0].tolist() == [[0, 0, 2]]


def test_copy_tensors() -> None:
    source, target = (ort.OrtValue.ortvalue_from_numpy(array) for array in (X, np.zeros_like(X)))
    ort.copy_tensors([source], [target])
    assert target.numpy().tolist() == X.tolist()


NOT_PROVIDED = {"contextlib"}  # a module that onnxruntime happens to import
CLASSES = "InferenceSession IOBinding ModelMetadata NodeArg OrtDevice OrtValue RunOptions SessionOptions".split()


def test_no_public_name_is_missing() -> None:
    real = pytest.importorskip("onnxruntime")
    real_submodules = {"quantization", "transformers"}  # attributes once they are imported
    assert _public_names(real) - _public_names(ort) - real_submodules == NOT_PROVIDED
    for name in CLASSES:
        assert _public_names(getattr(real, name)) - _public_names(getattr(ort, name)) == set(), name


def test_no_inner_name_is_missing() -> None:
    """Every name of onnxruntime's extension module and of its classes exists, supported or not."""
    pytest.importorskip("onnxruntime")
    from onnxruntime.capi import onnxruntime_pybind11_state as real

    for name in _public_names(real):
        assert hasattr(state, name), name
        if isinstance(getattr(real, name), type):
            assert _public_names(getattr(real, name)) - _public_names(getattr(state, name)) == set(), name


def _public_names(owner: Any) -> set[str]:
    return {name for name in dir(owner) if not name.startswith("_")}


def test_inner_attributes() -> None:
    """insightface and others read these attributes instead of calling the public methods."""
    session = ort.InferenceSession(RELU, providers=[CPU])
    assert session._providers == session._fallback_providers == [CPU]
    assert session._provider_options == {CPU: {}}
    assert [each.name for each in session._inputs_meta] == [each.name for each in session.get_inputs()]
    assert [each.name for each in session._outputs_meta] == [each.name for each in session.get_outputs()]
    assert session._overridable_initializers == session.get_overridable_initializers()
    assert session._model_meta.graph_name == session.get_modelmeta().graph_name


def test_derived_classes_may_use_any_names() -> None:
    class Mine(ort.InferenceSession):  # type: ignore[misc]
        def __init__(self, content: bytes) -> None:
            self._run = self._model = self._names = self.model = self.names = 3
            super().__init__(content)
            self._model_path = "mine"

        def _open(self) -> str:
            return "mine"

    session = Mine(RELU)
    assert session.run(None, {"x": X})[0].tolist() == [[0, 0, 2]]
    assert session.run(["z"], {"x": X}, ort.RunOptions())[0].tolist() == [[0, 0, 2]]
    assert (session._open(), session._model_path, session._run) == ("mine", "mine", 3)


def test_external_data_in_memory_that_is_too_short() -> None:
    model = onnx.ModelProto.FromString(
        _model([helper.make_node("Add", ["x", "w"], ["z"])], [Z], numpy_helper.from_array(np.ones(3, np.float32), "w"))
    )
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.bin")
    weight.external_data.add(key="length", value="12")
    for content in (b"", b"1234"):
        options = ort.SessionOptions()
        options.add_external_initializers_from_files_in_memory(["w.bin"], [content], [len(content)])
        with pytest.raises(state.InvalidGraph, match="its data exceeds"):
            ort.InferenceSession(model.SerializeToString(), options)
    weight.external_data[1].value = "many"
    with pytest.raises(state.InvalidGraph, match="is not a number"):
        ort.InferenceSession(model.SerializeToString(), options)
