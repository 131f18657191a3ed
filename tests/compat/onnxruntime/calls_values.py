"""Calls about OrtValue, OrtDevice and IOBinding."""

from __future__ import annotations

from typing import Any

import numpy as np
from calls import add_calls, call, session
from small_models import ones, ramp


def _value(ort: Any, array: Any = None) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(ramp() if array is None else array)


def _describe(value: Any) -> Any:
    return (
        value.shape(),
        value.data_type(),
        value.element_type(),
        value.device_name(),
        value.has_value(),
        value.is_tensor(),
        value.is_sparse_tensor(),
        value.is_tensor_sequence(),
        value.tensor_size_in_bytes(),
        value.numpy().copy(),
    )


def _from_shape(ort: Any, *arguments: Any) -> Any:
    return ort.OrtValue.ortvalue_from_shape_and_type(*arguments)


add_calls(
    "ortvalue",
    {
        "of_array": lambda ort: _describe(_value(ort)),
        "of_scalar": lambda ort: _describe(_value(ort, np.array(3, np.int64))),
        "of_nothing": lambda ort: _describe(_value(ort, np.zeros((0, 3), np.float32))),
        "of_transposed": lambda ort: _describe(_value(ort, np.arange(6, dtype=np.float32).reshape(3, 2).T)),
        "of_elements": lambda ort: [
            (value.data_type(), value.element_type())
            for name in "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split()
            for value in [_value(ort, np.zeros(2, name))]
        ],
        "of_list": lambda ort: _value(ort, [1, 2]),
        "of_words": lambda ort: _value(ort, np.array(["a", "b"])),
        "of_words_as_objects": lambda ort: _value(ort, np.array(["a", "b"], object)),
        "of_device": lambda ort: ort.OrtValue.ortvalue_from_numpy(ones(), "cpu", 0).device_name(),
        "of_unknown_device": lambda ort: ort.OrtValue.ortvalue_from_numpy(ones(), "foo", 0),
        "of_absent_device": lambda ort: ort.OrtValue.ortvalue_from_numpy(ones(), "cuda", 0),
        "of_value": lambda ort: ort.OrtValue(ones()),
        "by_shape": lambda ort: _from_shape(ort, [2, 3], np.float32).shape(),
        "by_shape_and_number": lambda ort: _from_shape(ort, [2, 3], 7).data_type(),
        "by_shape_and_device": lambda ort: _from_shape(ort, [2, 3], np.int8, "cpu", 0).data_type(),
        "by_shape_on_absent_device": lambda ort: _from_shape(ort, [2, 3], np.float32, "cuda", 0),
        "as_array": lambda ort: _convert_to_arrays(_value(ort)),
        "dlpack": lambda ort: _through_dlpack(_value(ort)),
        "from_dlpack": lambda ort: _describe(ort.OrtValue.from_dlpack(np.arange(4))),
        "updated_by_other_size": lambda ort: _value(ort).update_inplace(ones(2, 2)),
        "shared": lambda ort: _shares_memory(ort),
    },
)


def _convert_to_arrays(value: Any) -> Any:
    return np.asarray(value).copy(), np.asarray(value, dtype=np.float64)


def _through_dlpack(value: Any) -> Any:
    return np.from_dlpack(value).copy(), value.__dlpack_device__()


def _shares_memory(ort: Any) -> Any:
    array = ramp()
    value = ort.OrtValue.ortvalue_from_numpy(array)
    return value.data_ptr() == array.ctypes.data, np.shares_memory(value.numpy(), array)


@call
def ortvalue_updated(ort: Any) -> Any:
    array = ramp()
    value = ort.OrtValue.ortvalue_from_numpy(array)
    value.update_inplace(ones())
    return value.numpy(), array


def _run_values(ort: Any, name: str, names: Any, **feed: Any) -> Any:
    results = session(ort, name).run_with_ort_values(names, feed)
    return [
        (type(value).__name__, value.data_type(), value.is_tensor_sequence(), value.is_tensor()) for value in results
    ]


add_calls(
    "with_values",
    {
        "named": lambda ort: _run_values(ort, "two", ["n"], x=_value(ort)),
        "all": lambda ort: _run_values(ort, "two", None, x=_value(ort)),
        "numpy": lambda ort: [
            value.numpy() for value in session(ort, "two").run_with_ort_values(None, {"x": _value(ort)})
        ],
        "sequence": lambda ort: _run_values(ort, "sequence_construct", None, x=_value(ort)),
        "maps": lambda ort: _run_values(ort, "zipmap_strings", None, x=_value(ort)),
        "arrays": lambda ort: _run_values(ort, "add", ["z"], x=ones(), y=_value(ort)),
        "missing": lambda ort: _run_values(ort, "add", ["z"], x=_value(ort)),
        "wrong_output": lambda ort: _run_values(ort, "two", ["q"], x=_value(ort)),
        "wrong_type": lambda ort: _run_values(ort, "two", ["n"], x=_value(ort, np.zeros((2, 3)))),
        "sequence_as_numpy": lambda ort: (
            session(ort, "sequence_construct").run_with_ort_values(None, {"x": _value(ort)})[0].numpy()
        ),
        "sequence_shape": lambda ort: (
            session(ort, "sequence_construct").run_with_ort_values(None, {"x": _value(ort)})[0].shape()
        ),
        "chained": lambda ort: (
            session(ort, "two")
            .run_with_ort_values(["n"], {"x": session(ort, "two").run_with_ort_values(["n"], {"x": _value(ort)})[0]})[0]
            .numpy()
        ),
    },
)
add_calls(
    "device",
    {
        name: lambda ort, name=name: (
            ort.OrtDevice.make(name, 0).device_type(),
            ort.OrtDevice.make(name, 1).device_id(),
            ort.OrtDevice.make(name, 0).device_mem_type(),
            int(ort.OrtDevice.make(name, 0).device_vendor_id()),
        )
        for name in ("cpu", "cuda", "dml", "foo")
    },
)


def _bind_inputs(ort: Any) -> Any:
    binding = session(ort, "add").io_binding()
    binding.bind_cpu_input("x", ramp())
    binding.bind_cpu_input("y", ones())
    return binding


def _run_binding(ort: Any, binding: Any) -> Any:
    session(ort, "add").run_with_iobinding(binding)
    return [value.numpy().copy() for value in binding.get_outputs()], binding.copy_outputs_to_cpu()


@call
def binding_output(ort: Any) -> Any:
    binding = _bind_inputs(ort)
    binding.bind_output("z")
    return _run_binding(ort, binding), type(binding).__name__


@call
def binding_output_on_the_host(ort: Any) -> Any:
    binding = _bind_inputs(ort)
    binding.bind_output("z", "cpu")
    return _run_binding(ort, binding)


@call
def binding_output_in_memory(ort: Any) -> Any:
    binding, memory = _bind_inputs(ort), np.zeros((2, 3), np.float32)
    binding.bind_output("z", "cpu", 0, np.float32, (2, 3), memory.ctypes.data)
    return _run_binding(ort, binding), memory, binding.get_outputs()[0].data_ptr() == memory.ctypes.data


@call
def binding_output_in_a_value(ort: Any) -> Any:
    binding = _bind_inputs(ort)
    target = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    binding.bind_ortvalue_output("z", target)
    return _run_binding(ort, binding), target.numpy()


@call
def binding_output_in_an_array(ort: Any) -> Any:
    binding, memory = _bind_inputs(ort), np.zeros((2, 3), np.float32)
    binding.bind_ortvalue_output("z", ort.OrtValue.ortvalue_from_numpy(memory))
    return _run_binding(ort, binding), memory


@call
def binding_copies_are_not_overwritten(ort: Any) -> Any:
    binding, memory = _bind_inputs(ort), np.zeros((2, 3), np.float32)
    binding.bind_ortvalue_output("z", ort.OrtValue.ortvalue_from_numpy(memory))
    session(ort, "add").run_with_iobinding(binding)
    (first,) = binding.copy_outputs_to_cpu()
    binding.bind_cpu_input("x", ramp() * 5)
    session(ort, "add").run_with_iobinding(binding)
    return first, memory, binding.copy_outputs_to_cpu()


@call
def binding_output_of_another_shape(ort: Any) -> Any:
    binding, memory = _bind_inputs(ort), np.zeros((4, 3), np.float32)
    binding.bind_output("z", "cpu", 0, np.float32, (4, 3), memory.ctypes.data)
    return _run_binding(ort, binding)


@call
def binding_output_of_another_type(ort: Any) -> Any:
    binding = _bind_inputs(ort)
    binding.bind_ortvalue_output("z", ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float64))
    return _run_binding(ort, binding)


@call
def binding_unknown_output(ort: Any) -> Any:
    binding = _bind_inputs(ort)
    binding.bind_output("q")
    return _run_binding(ort, binding)


@call
def binding_output_in_half_described_memory(ort: Any) -> Any:
    return _bind_inputs(ort).bind_output("z", "cpu", 0, None, (2, 3), 1234)


@call
def binding_input_in_memory(ort: Any) -> Any:
    binding, memory = session(ort, "add").io_binding(), ramp()
    binding.bind_input("x", "cpu", 0, np.float32, (2, 3), memory.ctypes.data)
    binding.bind_input(
        name="y", device_type="cpu", device_id=0, element_type=np.float32, shape=[2, 3], buffer_ptr=memory.ctypes.data
    )
    binding.bind_output("z")
    return _run_binding(ort, binding)


@call
def binding_input_of_a_value(ort: Any) -> Any:
    binding = session(ort, "add").io_binding()
    binding.bind_ortvalue_input("x", _value(ort))
    binding.bind_ortvalue_input("y", _value(ort))
    binding.bind_output("z")
    return _run_binding(ort, binding)


@call
def binding_again(ort: Any) -> Any:
    binding = _bind_inputs(ort)
    binding.bind_output("z")
    results = []
    for factor in (1, 2, 3):
        binding.bind_cpu_input("x", ramp() * factor)
        results.append(_run_binding(ort, binding))
    return results


@call
def binding_memory_that_changes(ort: Any) -> Any:
    binding, memory = _bind_inputs(ort), ramp()
    binding.bind_input("x", "cpu", 0, np.float32, (2, 3), memory.ctypes.data)
    binding.bind_output("z")
    first = _run_binding(ort, binding)
    memory[:] = 9
    return first, _run_binding(ort, binding)


@call
def binding_two_outputs(ort: Any) -> Any:
    binding = session(ort, "two").io_binding()
    binding.bind_cpu_input("x", ramp())
    binding.bind_output("n")
    binding.bind_output("r")
    session(ort, "two").run_with_iobinding(binding, ort.RunOptions())
    return binding.copy_outputs_to_cpu()


add_calls(
    "binding",
    {
        "nothing": lambda ort: session(ort, "add").run_with_iobinding(session(ort, "add").io_binding()),
        "no_output": lambda ort: session(ort, "add").run_with_iobinding(_bind_inputs(ort)),
        "unknown_input": lambda ort: _bind_inputs(ort).bind_cpu_input("q", ones()),
        "list": lambda ort: _bind_inputs(ort).bind_cpu_input("x", [[1, 2, 3]]),
        "unknown_device": lambda ort: _bind_inputs(ort).bind_output("z", "foo"),
        "no_binding": lambda ort: session(ort, "add").run_with_iobinding(None),
        "waits": lambda ort: (_bind_inputs(ort).synchronize_inputs(), _bind_inputs(ort).synchronize_outputs()),
        "without_results": lambda ort: (_bind_inputs(ort).get_outputs(), _bind_inputs(ort).copy_outputs_to_cpu()),
    },
)


@call
def binding_wrong_type(ort: Any) -> Any:
    binding = _bind_inputs(ort)
    binding.bind_cpu_input("x", ones().astype(np.float64))
    binding.bind_output("z")
    return _run_binding(ort, binding)


@call
def binding_missing_input(ort: Any) -> Any:
    binding = session(ort, "add").io_binding()
    binding.bind_cpu_input("x", ramp())
    binding.bind_output("z")
    return _run_binding(ort, binding)


@call
def binding_cleared(ort: Any) -> Any:
    binding = _bind_inputs(ort)
    binding.bind_output("z")
    _run_binding(ort, binding)
    binding.clear_binding_outputs()
    return binding.get_outputs(), binding.copy_outputs_to_cpu()


def _update_inplace(ort: Any, content: Any) -> Any:
    memory = ramp()
    value = _value(ort, memory)
    value.update_inplace(content(ort))
    return value.numpy().copy(), memory


add_calls(
    "update_inplace",
    {
        "with_strides": lambda ort: _update_inplace(ort, lambda _: np.ones((3, 2), np.float32).T),
        "with_a_value": lambda ort: _update_inplace(ort, lambda ort: _lasting_value(ort, ones())),
        "with_a_list": lambda ort: _update_inplace(ort, lambda _: [[0.0, 0.0, 0.0]] * 2),
        "with_fewer_elements": lambda ort: _update_inplace(ort, lambda _: np.zeros(5, np.float32)),
        "with_a_value_of_another_type": lambda ort: _update_inplace(
            ort, lambda ort: _lasting_value(ort, np.zeros((2, 3)))
        ),
        "with_a_value_of_another_size": lambda ort: _update_inplace(
            ort, lambda ort: _lasting_value(ort, np.zeros(7, np.float32))
        ),
    },
)
_alive: list[Any] = []


def _lasting_value(ort: Any, array: Any) -> Any:
    """Return a value whose array stays alive: onnxruntime's values do not keep a reference."""
    _alive.append(array)
    return _value(ort, array)


ELEMENT_TYPES: dict[str, Any] = {
    "word": str,
    "object": object,
    "text_of_onnx": 8,
    "unknown_number": 99,
    "name": "float32",
    "complex": np.complex64,
    "time": "M8[s]",
    "wide": np.longdouble,
}
add_calls(
    "ortvalue_elements",
    {
        **{
            name: lambda ort, kind=kind: _from_shape(ort, [2], kind).data_type() for name, kind in ELEMENT_TYPES.items()
        },
        **{
            f"of_{name}_array": lambda ort, kind=kind: _value(ort, np.zeros(2, kind)).data_type()
            for name, kind in ELEMENT_TYPES.items()
            if not isinstance(kind, int)
        },
        "negative_size": lambda ort: _from_shape(ort, [-1], np.float32),
        "as_an_unknown_type": lambda ort: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(3, "u1"), 99),
        "as_a_wider_type": lambda ort: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(3, "u1"), 16),
        "of_a_list": lambda ort: ort.OrtValue.ortvalue_from_numpy_with_onnx_type([1], 1),
    },
)
add_calls(
    "binding_of",
    {
        "no_value": lambda ort: _bind_inputs(ort).bind_ortvalue_input("x", None),
        "an_array": lambda ort: _bind_inputs(ort).bind_ortvalue_input("x", ones()),
        "no_output_value": lambda ort: _bind_inputs(ort).bind_ortvalue_output("z", None),
        "another_session": lambda ort: session(ort, "two").run_with_iobinding(_bind_inputs(ort)),
        "another_device": lambda ort: _bind_inputs(ort).bind_input("x", "foo", 0, np.float32, (2, 3), 1),
    },
)


def _normalize_providers(*arguments: Any) -> Any:
    from onnxruntime.capi.onnxruntime_inference_collection import check_and_normalize_provider_args

    return check_and_normalize_provider_args(*arguments, ["a", "b"])


def _device_type(name: str) -> Any:
    from onnxruntime.capi.onnxruntime_inference_collection import get_ort_device_type

    return get_ort_device_type(name)


add_calls(
    "device_type_of",
    {name: lambda _, name=name: _device_type(name) for name in "cpu cuda gpu dml npu cann webgpu fpga foo".split()},
)
add_calls(
    "normalized",
    {
        "none": lambda _: _normalize_providers(None, None),
        "names": lambda _: _normalize_providers(["a", "b"], None),
        "tuples": lambda _: _normalize_providers([("a", {1: 2}), "b"], None),
        "options": lambda _: _normalize_providers(["a", "b"], [{1: 2}, {}]),
        "repeated": lambda _: _normalize_providers(["a", "b", "a"], [{"x": 1}, {}, {"y": 2}]),
        "unknown": lambda _: _normalize_providers(["q"], None),
        "number": lambda _: _normalize_providers(3, None),
        "number_inside": lambda _: _normalize_providers([3], None),
        "number_as_options": lambda _: _normalize_providers(["a"], 3),
        "text_as_options": lambda _: _normalize_providers(["a"], ["b"]),
        "fewer_options": lambda _: _normalize_providers(["a", "b"], [{}]),
        "options_twice": lambda _: _normalize_providers([("a", {1: 2})], [{3: 4}]),
    },
)
add_calls(
    "session",
    {
        "tuning": lambda ort: session(ort, "two").set_tuning_results(session(ort, "two").get_tuning_results()),
        "captured_graph": lambda ort: session(ort, "two").release_captured_graph(),
    },
)
