"""Calls to onnxruntime's inner classes, which onnx-array-api, training code and tests of bindings use."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from calls import add_calls, call, open_session, session
from small_models import FLOAT, model, model_bytes, node, ones, ramp, tensor

DEVICE_METHODS = "cpu cuda gpu dml npu fpga cann webgpu default_memory".split()
_alive: list[Any] = []  # arrays of values: onnxruntime's values do not keep a reference
DTYPES = "uint8 int8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split()


def _inner() -> Any:
    from onnxruntime.capi import _pybind_state

    return _pybind_state


def _host_device() -> Any:
    device = _inner().OrtDevice
    return device(device.cpu(), device.default_memory(), 0)


def _describe_device(*arguments: Any) -> Any:
    device = _inner().OrtDevice(*arguments)
    return device.device_type(), device.device_id(), device.vendor_id(), device.mem_type()


def _value(array: Any) -> Any:
    _alive.append(array)
    return _inner().OrtValue.ortvalue_from_numpy(array, _host_device())


def _describe(value: Any) -> Any:
    array = value.numpy()
    return value.shape(), value.data_type(), array.copy(), array.flags.writeable


add_calls(
    "inner_device",
    {
        "types": lambda _: [getattr(_inner().OrtDevice, name)() for name in DEVICE_METHODS],
        "of_three": lambda _: _describe_device(1, 0, 2),
        "of_four": lambda _: _describe_device(1, 0, 4318, 2),
        "of_another_type": lambda _: _describe_device(77, 0, 0),
        "of_a_member": lambda ort: _describe_device(0, ort.OrtMemType.DEFAULT, 0),
        "of_two": lambda _: _describe_device(1, 0),
        "of_text": lambda _: _describe_device("cpu", 0, 0),
        "in_the_public_class": lambda ort: ort.OrtDevice(_host_device()).device_type(),
    },
)
add_calls(
    "inner_value",
    {
        "of_array": lambda _: _describe(_value(ramp())),
        "of_shape": lambda _: (
            _inner().OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32, _host_device()).shape()
        ),
        "of_onnx_type": lambda _: (
            _inner().OrtValue.ortvalue_from_shape_and_onnx_type([2], 7, _host_device()).data_type()
        ),
        "in_the_public_class": lambda ort: ort.OrtValue(_value(ramp())).shape(),
        "an_array_in_the_public_class": lambda ort: ort.OrtValue(ramp()),
    },
)


def _from_capsule(array: Any, *arguments: Any) -> Any:
    return _describe(_inner().OrtValue.from_dlpack(array.__dlpack__(), *arguments))


def _consumed_capsule() -> Any:
    capsule = ramp().__dlpack__()
    _inner().OrtValue.from_dlpack(capsule)
    return capsule


def _read_only_array() -> Any:
    array = ramp()
    array.flags.writeable = False
    return array


add_calls(
    "dlpack",
    {
        **{name: lambda _, name=name: _from_capsule(ramp().astype(name)) for name in DTYPES},
        **{f"{name}_as_bools": lambda _, name=name: _from_capsule(ones().astype(name), True) for name in DTYPES},
        **{
            f"of_{name}_value": lambda ort, name=name: np.from_dlpack(ort.OrtValue(_value(ramp().astype(name))))
            for name in (*DTYPES, "bool")
        },
        "kinds": lambda _: [
            (name, _inner().is_dlpack_uint8_tensor(_value(ramp().astype(name)).to_dlpack()))
            for name in (*DTYPES, "bool")
        ],
        "kind_of_an_array": lambda _: _inner().is_dlpack_uint8_tensor(ramp()),
        "kind_of_nothing": lambda _: _inner().is_dlpack_uint8_tensor(None),
        "kind_of_a_consumed_capsule": lambda _: _inner().is_dlpack_uint8_tensor(_consumed_capsule()),
        "bools_through_the_public_class": lambda ort: _describe(
            ort.OrtValue.from_dlpack(ort.OrtValue(_value(ramp() > 0)))
        ),
        "bfloat16": lambda ort: ort.OrtValue.from_dlpack(
            ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.array([0x3F80], np.uint16), 16)
        ).data_type(),
        "capsule_in_the_public_class": lambda ort: _describe(ort.OrtValue.from_dlpack(ramp().__dlpack__())),
        "array_in_the_public_class": lambda ort: _describe(ort.OrtValue.from_dlpack(ramp())),
        "scalar": lambda _: _from_capsule(np.array(3.0)),
        "complex": lambda _: _from_capsule(ramp().astype(np.complex64)),
        "of_no_elements": lambda _: [_from_capsule(np.zeros(shape, "f4")) for shape in ((1, 0, 4), (0,), (4, 0))],
        "some_rows": lambda _: _from_capsule(ramp()[1:]),
        "one_column": lambda _: _from_capsule(ramp()[:1].T),
        "transposed": lambda _: _from_capsule(ramp().T),
        "some_columns": lambda _: _from_capsule(ramp()[:, 1:]),
        "read_only": lambda ort: ort.OrtValue.from_dlpack(_read_only_array()),
        "of_a_read_only_value": lambda _: type(_value(_read_only_array()).to_dlpack()).__name__,
        "consumed": lambda _: _inner().OrtValue.from_dlpack(_consumed_capsule()),
        "versioned": lambda _: _inner().OrtValue.from_dlpack(ramp().__dlpack__(max_version=(1, 0))),
        "number": lambda ort: ort.OrtValue.from_dlpack(3),
        "nothing": lambda ort: ort.OrtValue.from_dlpack(None),
        "list": lambda ort: ort.OrtValue.from_dlpack([1.0]),
        "device": lambda _: _value(ramp()).__dlpack_device__(),
    },
)


@call
def dlpack_shares_memory(ort: Any) -> Any:
    array = ramp()
    value = _value(array)
    other = _inner().OrtValue.from_dlpack(value.to_dlpack())
    other.update_inplace(ones())
    return other.data_ptr() == value.data_ptr() == array.ctypes.data, array


@call
def dlpack_outlives_its_source(ort: Any) -> Any:
    values = [_inner().OrtValue.from_dlpack(np.full(1000, number, "f4").__dlpack__()) for number in range(5)]
    gc.collect()
    return [float(value.numpy().sum()) for value in values]


@call
def vector(ort: Any) -> Any:
    values = _inner().OrtValueVector()
    values.push_back(_value(ramp()))
    values.push_back(_value(ramp() > 0))
    values.push_back(ramp().__dlpack__(), False)
    values.push_back((ramp() > 0).view(np.uint8).__dlpack__(), True)
    values.reserve(9)
    values.shrink_to_fit()
    return (
        len(values),
        [value.numpy().copy() for value in values],
        [values.element_type_at(at) for at in range(4)],
        values.bool_tensor_indices(),
        [type(capsule).__name__ for capsule in (values.dlpack_at(0), *values.to_dlpacks(None))],
        values.to_dlpacks(_inner().is_dlpack_uint8_tensor),
    )


@call
def vector_of_addresses(ort: Any) -> Any:
    array, values = ramp(), _inner().OrtValueVector()
    values.push_back_batch([array], [array.ctypes.data], [np.float32], [[2, 3]], [_host_device()])
    return values[0].numpy().copy(), values[0].data_ptr() == array.ctypes.data


add_calls(
    "vector",
    {
        "beyond": lambda _: _inner().OrtValueVector()[0],
        "capsule_beyond": lambda _: _inner().OrtValueVector().dlpack_at(3),
        "type_beyond": lambda _: _inner().OrtValueVector().element_type_at(3),
    },
)


def _run_values(ort: Any, feeds: Any, names: Any, options: Any = None) -> Any:
    results = session(ort, "two")._sess.run_with_ort_values(feeds, names, options)
    return type(results).__name__, [value.numpy() for value in results]


add_calls(
    "inner_run",
    {
        "values": lambda ort: _run_values(ort, {"x": _value(ramp())}, ["n", "r"]),
        "values_with_options": lambda ort: _run_values(ort, {"x": _value(ramp())}, ["n"], ort.RunOptions()),
        "values_wrong_output": lambda ort: _run_values(ort, {"x": _value(ramp())}, ["q"]),
        "values_wrong_type": lambda ort: _run_values(ort, {"x": _value(ramp().astype("f8"))}, ["n"]),
        "values_as_arrays": lambda ort: _run_values(ort, {"x": ramp()}, ["n"]),
        "arrays": lambda ort: session(ort, "two")._sess.run(["n"], {"x": ramp()}, None),
        "no_names": lambda ort: session(ort, "two")._sess.run([], {"x": ramp()}, None),
        "names_none": lambda ort: session(ort, "two")._sess.run(None, {"x": ramp()}, None),
        "metadata": lambda ort: [
            [value.name for value in session(ort, "two")._sess.inputs_meta],
            [value.name for value in session(ort, "two")._sess.outputs_meta],
            session(ort, "two")._sess.model_meta.graph_name,
        ],
    },
)


@call
def inner_session(ort: Any) -> Any:
    inner = _inner().InferenceSession(_inner().get_default_session_options(), model_bytes("two"), False, False)
    inner.initialize_session(["CPUExecutionProvider"], [{}], set())
    return inner.get_providers(), inner.run(["n"], {"x": ramp()}, None)


@call
def uninitialized_inner_session(ort: Any) -> Any:
    inner = _inner().InferenceSession(_inner().get_default_session_options(), model_bytes("two"), False, False)
    return inner.run(["n"], {"x": ramp()}, None)


@call
def run_vectors(ort: Any) -> Any:
    feeds, fetches, preallocated = (_inner().OrtValueVector() for _ in range(3))
    feeds.push_back(_value(ramp()))
    memory = np.zeros((2, 3), np.float32)
    preallocated.push_back(_value(memory))
    for results in (fetches, preallocated):
        session(ort, "two").run_with_ortvaluevector(ort.RunOptions(), ["x"], feeds, ["n"], results, [_host_device()])
    return [(len(results), results[0].numpy()) for results in (fetches, preallocated)], memory


def _run_inner_binding(ort: Any, *arguments: Any) -> Any:
    binding = _inner().SessionIOBinding(session(ort, "two")._sess)
    memory = np.zeros((2, 3), np.float32)
    if arguments:
        binding.bind_input("x", *arguments)
        binding.bind_output("n", _host_device(), np.float32, (2, 3), memory.ctypes.data)
    else:
        binding.bind_ortvalue_input("x", _value(ramp()))
        binding.bind_output("n", _host_device())
    session(ort, "two")._sess.run_with_iobinding(binding, None)
    outputs = binding.get_outputs()
    return type(outputs).__name__, outputs[0].numpy(), binding.copy_outputs_to_cpu(), memory


add_calls(
    "inner_binding",
    {
        "values": lambda ort: _run_inner_binding(ort),
        "arrays": lambda ort: _run_inner_binding(ort, ramp()),
        "memory": lambda ort: _run_inner_binding(ort, _host_device(), np.float32, (2, 3), INPUT_MEMORY.ctypes.data),
        "memory_of_onnx_type": lambda ort: _run_inner_binding(ort, _host_device(), 1, (2, 3), INPUT_MEMORY.ctypes.data),
        "list": lambda ort: _run_inner_binding(ort, [[1.0, 2.0, 3.0]]),
    },
)
INPUT_MEMORY = ramp()


@call
def inner_binding_of_a_public_one(ort: Any) -> Any:
    binding = session(ort, "two").io_binding()
    binding._iobinding.bind_input("x", ramp())
    binding._iobinding.bind_output("n", _host_device())
    session(ort, "two")._sess.run_with_iobinding(binding._iobinding, None)
    outputs = binding._iobinding.get_outputs()
    return type(outputs).__name__, outputs[0].numpy(), binding.copy_outputs_to_cpu()


def _describe_memory(info: Any) -> Any:
    return (
        info.name,
        info.device_id,
        info.mem_type,
        info.allocator_type,
        info.device_mem_type,
        info.device_vendor_id,
    )


add_calls(
    "memory",
    {
        "host": lambda ort: _describe_memory(_memory_info(ort, "Cpu")),
        "gpu": lambda ort: _describe_memory(_memory_info(ort, "Cuda", 1)),
        "host_of_another_number": lambda ort: _describe_memory(_memory_info(ort, "Cpu", 1)),
        "unknown": lambda ort: _describe_memory(_memory_info(ort, "Foo")),
        "numbers": lambda ort: ort.OrtMemoryInfo("Cpu", 0, 0, 0),
        "changed": lambda ort: setattr(_memory_info(ort, "Cpu"), "name", "Gpu"),
        "of_inputs": lambda ort: [_describe_memory(info) for info in session(ort, "add").get_input_memory_infos()],
        "of_outputs": lambda ort: [_describe_memory(info) for info in session(ort, "two").get_output_memory_infos()],
        "second_form": lambda ort: [
            _describe_memory(
                ort.OrtMemoryInfo.create_v2(
                    "Test", kind, 4318, 1, memory, 128, ort.OrtAllocatorType.ORT_DEVICE_ALLOCATOR
                )
            )
            for kind in (ort.OrtMemoryInfoDeviceType.CPU, ort.OrtMemoryInfoDeviceType.GPU)
            for memory in (ort.OrtDeviceMemoryType.DEFAULT, ort.OrtDeviceMemoryType.HOST_ACCESSIBLE)
        ],
    },
)


def _memory_info(ort: Any, name: str, number: int = 0) -> Any:
    return ort.OrtMemoryInfo(name, ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, number, ort.OrtMemType.DEFAULT)


def _override_denotations(ort: Any, dims: Any, overrides: Any, names: Any = None, rows: int = 0) -> Any:
    """Open a model whose input has denotations, with overrides of their sizes, and run it if `rows` is not 0."""
    x, z = tensor("x", FLOAT, dims), tensor("z", FLOAT, dims)
    for dim, denotation in zip(x.type.tensor_type.shape.dim, ("DATA_BATCH", "DATA_CHANNEL")):
        dim.denotation = denotation
    options = ort.SessionOptions()
    for denotation, size in overrides.items():
        options.add_free_dimension_override_by_denotation(denotation, size)
    for name, size in (names or {}).items():
        options.add_free_dimension_override_by_name(name, size)
    content = model([node("Abs", ["x"], ["z"])], [x], [z])
    opened = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    results = opened.run(None, {"x": ones(rows, 2)}) if rows else None
    return opened.get_inputs()[0].shape, opened.get_outputs()[0].shape, results


add_calls(
    "denotation",
    {
        "named": lambda ort: _override_denotations(ort, ["N", "M"], {"DATA_BATCH": 3}),
        "unnamed": lambda ort: _override_denotations(ort, [None, None], {"DATA_BATCH": 3, "DATA_CHANNEL": 2}),
        "run": lambda ort: _override_denotations(ort, ["N", "M"], {"DATA_BATCH": 3}, rows=3),
        "run_of_another_size": lambda ort: _override_denotations(ort, ["N", "M"], {"DATA_BATCH": 3}, rows=4),
        "another_fixed_size": lambda ort: _override_denotations(ort, [4, "M"], {"DATA_BATCH": 3}),
        "and_name": lambda ort: _override_denotations(ort, ["N", "M"], {"DATA_BATCH": 3}, {"N": 3}),
        "against_name": lambda ort: _override_denotations(ort, ["N", "M"], {"DATA_BATCH": 3}, {"N": 5}),
        "unknown": lambda ort: _override_denotations(ort, ["N", "M"], {"OTHER": 3}),
        "number": lambda ort: ort.SessionOptions().add_free_dimension_override_by_denotation(3, 3),
        "text_as_size": lambda ort: ort.SessionOptions().add_free_dimension_override_by_denotation("a", "b"),
    },
)


def _save_external(ort: Any, file: str, min_size: str | None = None) -> Any:
    """Have a session save its model. Return the sizes of the files, the location of the weights, and the results."""
    folder = Path(f"external {file.replace('/', ' ')} {min_size}")
    (folder / "inner").mkdir(parents=True)
    weights = onnx.numpy_helper.from_array(np.arange(1200, dtype=np.float32).reshape(3, 400), "w")
    content = model(
        [node("MatMul", ["x", "w"], ["z"])], [tensor("x", FLOAT, ["N", 3])], [tensor("z", FLOAT, None)], (weights,)
    )
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(folder / "model.onnx")
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", file)
    if min_size is not None:
        key = "session.optimized_model_external_initializers_min_size_in_bytes"
        options.add_session_config_entry(key, min_size)
    ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.glob("**/*.bin"))}
    (weight,) = onnx.load(folder / "model.onnx", load_external_data=False).graph.initializer
    location = {entry.key: entry.value for entry in weight.external_data}
    reopened = ort.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    return sizes, location, reopened.run(None, {"x": ones(1, 3)})


add_calls(
    "external_initializers",
    {
        "usual": lambda ort: _save_external(ort, "w.bin"),
        "just_large_enough": lambda ort: _save_external(ort, "w.bin", "4800"),
        "too_small": lambda ort: _save_external(ort, "w.bin", "4801"),
        "all": lambda ort: _save_external(ort, "w.bin", "0"),
        "in_a_folder": lambda ort: _save_external(ort, "inner/w.bin"),
        "in_a_missing_folder": lambda ort: _save_external(ort, "none/w.bin"),
        "outside": lambda ort: _save_external(ort, "../w.bin"),
        "absolute_path": lambda ort: _save_external(ort, str(Path("w.bin").resolve())),
        "not_a_number": lambda ort: _save_external(ort, "w.bin", "many"),
        "negative": lambda ort: _save_external(ort, "w.bin", "-1"),
    },
)


def _open_configured(ort: Any, config: str | None) -> Any:
    """Return the options of a session whose model has some in its metadata, and the results of a run."""
    proto = onnx.ModelProto.FromString(model_bytes("two"))
    if config is not None:
        onnx.helper.set_model_props(proto, {"ort_config": config})
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = 1, 3
    os.environ["ORT_LOAD_CONFIG_FROM_MODEL"] = "1"
    try:
        opened = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    finally:
        del os.environ["ORT_LOAD_CONFIG_FROM_MODEL"]
    actual = opened.get_session_options()
    if actual.enable_profiling:
        Path(opened.end_profiling()).unlink()
    names = "intra_op_num_threads inter_op_num_threads execution_mode graph_optimization_level enable_profiling"
    return [getattr(actual, name) for name in names.split()], opened.run(None, {"x": ones()})


def _option_json(name: str, value: str) -> str:
    return f'{{"session_options": {{"{name}": {value}}}}}'


add_calls(
    "configured",
    {
        "missing": lambda ort: _open_configured(ort, None),
        "empty": lambda ort: _open_configured(ort, "{}"),
        "list": lambda ort: _open_configured(ort, "[1]"),
        "number": lambda ort: _open_configured(ort, '{"session_options": 3}'),
        "invalid_json": lambda ort: _open_configured(ort, "{"),
        "threads": lambda ort: _open_configured(ort, _option_json("intra_op_num_threads", "2")),
        "threads_text": lambda ort: _open_configured(ort, _option_json("intra_op_num_threads", '"2"')),
        "negative_threads": lambda ort: _open_configured(ort, _option_json("intra_op_num_threads", "-2")),
        "threads_true": lambda ort: _open_configured(ort, _option_json("intra_op_num_threads", "true")),
        "level": lambda ort: _open_configured(ort, _option_json("graph_optimization_level", "1")),
        "another_level": lambda ort: _open_configured(ort, _option_json("graph_optimization_level", "7")),
        "mode": lambda ort: _open_configured(ort, _option_json("execution_mode", "1")),
        "another_mode": lambda ort: _open_configured(ort, _option_json("execution_mode", "9")),
        "profiling": lambda ort: _open_configured(ort, _option_json("enable_profiling", "1")),
        "profiling_true": lambda ort: _open_configured(ort, _option_json("enable_profiling", "true")),
        "unknown": lambda ort: _open_configured(ort, _option_json("no_such_option", "1")),
    },
)


@call
def unused_free_dimension_override(ort: Any) -> Any:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 2)
    return open_session(ort, "two", options).run(None, {"x": ones(5, 3)})


@call
def external_initializers_of_a_model_with_external_data(ort: Any) -> Any:
    """A model is saved twice; the last one does not need the files of those before it."""
    folder = Path("twice")
    folder.mkdir()
    weights = onnx.numpy_helper.from_array(np.arange(1200, dtype=np.float32).reshape(3, 400), "w")
    x = tensor("x", FLOAT, ["N", 3])
    content = model([node("MatMul", ["x", "w"], ["z"])], [x], [tensor("z", FLOAT, None)], (weights,))
    onnx.save(onnx.ModelProto.FromString(content), folder / "0.onnx", save_as_external_data=True, location="0.bin")
    for number in (1, 2):
        options = ort.SessionOptions()
        options.optimized_model_filepath = str(folder / f"{number}.onnx")
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", f"{number}.bin")
        ort.InferenceSession(str(folder / f"{number - 1}.onnx"), options, providers=["CPUExecutionProvider"])
    files = sorted(path.name for path in folder.iterdir())
    for name in ("0.onnx", "0.bin", "1.onnx", "1.bin"):
        (folder / name).unlink()
    reopened = ort.InferenceSession(str(folder / "2.onnx"), providers=["CPUExecutionProvider"])
    return files, reopened.run(None, {"x": ones(1, 3)})
