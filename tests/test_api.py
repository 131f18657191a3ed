"""The public interface: sources and options of `weft.load`, specs of a model, inputs and results of `run`."""

from __future__ import annotations

import dataclasses
import inspect
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from frontend.samples import model, node, tensor, value
from onnx import TensorProto, helper

import weft
from weft.backends.device import RunOptions
from weft.fuse import PIPELINE as FUSING
from weft.ir.dtypes import DType
from weft.ir.types import TensorType
from weft.passes import PIPELINE
from weft.runtime.options import LoadOptions

RNG = np.random.default_rng(7)
SOURCE = Path(weft.__file__).parents[1]


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def affine() -> onnx.ModelProto:
    """y = x @ w + b over a dynamic batch; b may be overridden; z = -x."""
    return model(
        [
            node("MatMul", ["x", "w"], ["p"]),
            node("Add", ["p", "b"], ["y"]),
            node("Neg", ["x"], ["z"]),
        ],
        [value("x", ["batch", 3]), value("b", [2])],
        [value("y", ["batch", 2]), value("z", ["batch", 3])],
        [tensor("w", np.arange(6, dtype=np.float32).reshape(3, 2)), tensor("b", np.float32([10, 20]))],
    )


X = np.float32([[1, 2, 3], [4, 5, 6]])
Y = X @ np.arange(6, dtype=np.float32).reshape(3, 2) + np.float32([10, 20])


# -- loading ---------------------------------------------------------------------------------------------------------


def sources(folder: Path) -> dict[str, Any]:
    content = affine().SerializeToString()
    path = folder / "affine.onnx"
    path.write_bytes(content)
    return {
        "str": str(path),
        "Path": path,
        "bytes": content,
        "bytearray": bytearray(content),
        "memoryview": memoryview(content),
        "BytesIO": io.BytesIO(content),
        "open file": path.open("rb"),
        "ModelProto": affine(),
    }


@pytest.mark.parametrize(
    "kind", ["str", "Path", "bytes", "bytearray", "memoryview", "BytesIO", "open file", "ModelProto"]
)
def test_load_takes_every_kind_of_source(kind: str, tmp_path: Path) -> None:
    loaded = weft.load(sources(tmp_path)[kind])
    np.testing.assert_array_equal(loaded.run({"x": X})["y"], Y)


def test_file_objects_are_read_from_their_position() -> None:
    stream = io.BytesIO(b"header" + affine().SerializeToString())
    stream.seek(6)
    np.testing.assert_array_equal(weft.load(stream)(X)[0], Y)


def test_loading_does_not_change_a_model_proto() -> None:
    built = affine()
    before = built.SerializeToString(deterministic=True)
    weft.load(built)
    assert built.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("source", [3, None, ["model.onnx"]])
def test_other_sources_are_refused(source: Any) -> None:
    with pytest.raises(weft.ModelError, match="is not a model"):
        weft.load(source)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(weft.ModelError, match=r"absent\.onnx"):
        weft.load(tmp_path / "absent.onnx")


# -- what a model tells of itself ------------------------------------------------------------------------------------


def test_specs() -> None:
    loaded = weft.load(affine())
    assert [(spec.name, spec.dtype, spec.shape) for spec in loaded.inputs] == [("x", "float32", ("batch", 3))]
    assert [(spec.name, spec.dtype, spec.shape) for spec in loaded.outputs] == [
        ("y", "float32", ("batch", 2)),
        ("z", "float32", ("batch", 3)),
    ]
    assert [spec.name for spec in loaded.defaults] == ["b"]
    assert isinstance(loaded.inputs[0], weft.TensorSpec)
    assert loaded.inputs[0].element is DType.float32
    assert str(loaded.inputs[0]) == "x: float32[batch, 3]"
    for text in ("x: float32[batch, 3]", "z: float32[batch, 3]", loaded.device):
        assert text in repr(loaded)


@pytest.mark.parametrize("element", list(DType))
def test_dtypes_are_those_of_arrays(element: DType) -> None:
    spec = weft.TensorSpec("x", (2,), TensorType(element, (2,)))
    dtype = np.dtype(spec.dtype)
    assert dtype == np.empty(2, spec.dtype).dtype == element.numpy
    assert hash(spec.dtype) == hash(element.numpy)
    assert spec.element == element.value
    assert spec == pickle.loads(pickle.dumps(spec))
    assert repr(spec) == f"TensorSpec(name='x', dtype={dtype}, shape=(2,))"
    assert spec.dtype == dtype.type
    assert spec.dtype == dtype.name


def test_dtypes_compare_as_numpy_does() -> None:
    loaded = weft.load(affine())
    spec = loaded.inputs[0]
    for same in (np.float32, "float32", np.dtype("float32"), np.dtype(np.float32), X.dtype, DType.float32):
        assert spec.dtype == same
    for other in (np.float64, "float64", ml_dtypes.bfloat16, None, object):
        assert spec.dtype != other
    assert loaded.run({"x": np.zeros((1, 3), spec.dtype)})["y"].dtype == loaded.outputs[0].dtype
    assert {spec.dtype: 1}[np.dtype("float32")] == 1


def test_output_shapes_are_inferred() -> None:
    """The trace determines which dims are dynamic, whatever the file declares."""
    built = model(
        [node("Concat", ["x", "x"], ["c"], axis=0), node("Transpose", ["c"], ["y"], perm=[1, 0])],
        [value("x", ["n", "m"])],
        [value("y", None)],
    )
    assert weft.load(built).outputs[0].shape == ("m", "2*n")


def test_specs_of_non_tensors() -> None:
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    built = model(
        [node("SequenceAt", ["s", "i"], ["y"])],
        [helper.make_value_info("s", sequence), value("i", [], TensorProto.INT64)],
        [value("y", None)],
    )
    loaded = weft.load(built)
    assert loaded.inputs[0].dtype is None
    assert str(loaded.inputs[0].type) == "sequence(float32[...])"
    np.testing.assert_array_equal(loaded.run({"s": [X, Y], "i": 1})["y"], Y)
    with pytest.raises(weft.InputError, match="'s' is a sequence"):
        loaded.run({"s": X, "i": 1})


# -- running ---------------------------------------------------------------------------------------------------------


def test_ways_to_call() -> None:
    loaded = weft.load(affine())
    y, z = loaded(X)
    np.testing.assert_array_equal(y, Y)
    np.testing.assert_array_equal(z, -X)
    np.testing.assert_array_equal(loaded(x=X)[0], Y)
    assert list(loaded.run({"x": X})) == ["y", "z"]
    single = weft.load(model([node("Neg", ["x"], ["y"])]))
    np.testing.assert_array_equal(single(X), -X)


def test_invalid_calls() -> None:
    loaded = weft.load(affine())
    with pytest.raises(weft.InputError, match="2 inputs for a model that takes 1"):
        loaded(X, X)
    with pytest.raises(weft.InputError, match="'x' is given twice"):
        loaded(X, x=X)
    with pytest.raises(weft.InputError, match="no input 'q'"):
        loaded(q=X)
    with pytest.raises(weft.InputError, match="'x' is missing"):
        loaded()
    assert issubclass(weft.InputError, ValueError)


def test_some_outputs_only() -> None:
    loaded = weft.load(affine())
    assert list(loaded.run({"x": X}, outputs=["z"])) == ["z"]
    both = loaded.run({"x": X}, outputs=["z", "y"])
    assert list(both) == ["z", "y"]
    np.testing.assert_array_equal(both["y"], Y)
    assert loaded.run({"x": X}, outputs=[]) == {}
    with pytest.raises(weft.InputError, match=r"no output 'q'(?s:.)*y, z"):
        loaded.run({"x": X}, outputs=["q"])
    with pytest.raises(weft.InputError, match="list of names"):
        loaded.run({"x": X}, outputs="y")


def test_other_outputs_are_not_computed() -> None:
    built = model(
        [node("Neg", ["x"], ["y"]), node("Gather", ["x", "i"], ["z"], axis=0)],
        [value("x"), value("i", [1], TensorProto.INT64)],
        [value("y", None), value("z", None)],
    )
    loaded = weft.load(built)
    with pytest.raises(weft.ExecutionError, match="out of range"):
        loaded.run({"x": X, "i": [99]})
    np.testing.assert_array_equal(loaded.run({"x": X, "i": [99]}, outputs=["y"])["y"], -X)


def test_defaults_may_be_overridden() -> None:
    loaded = weft.load(affine())
    other = np.float32([-1, 1])
    expected = Y - np.float32([10, 20]) + other
    np.testing.assert_array_equal(loaded.run({"x": X, "b": other})["y"], expected)
    np.testing.assert_array_equal(loaded(X, b=other)[0], expected)
    np.testing.assert_array_equal(loaded.run({"x": X})["y"], Y)
    np.testing.assert_array_equal(loaded.run({"x": X, "b": other}, outputs=["y"])["y"], expected)
    with pytest.raises(weft.InputError, match="'b' must have size 2"):
        loaded.run({"x": X, "b": np.float32([1, 2, 3])})


def test_overridden_shape_is_used() -> None:
    """A default that determined a shape at load time does not determine it for another value."""
    built = model(
        [node("Reshape", ["x", "s"], ["y"])],
        [value("x", [2, 3]), value("s", [2], TensorProto.INT64)],
        [value("y", None)],
        [tensor("s", np.int64([6, 1]))],
    )
    loaded = weft.load(built)
    assert loaded(X).shape == (6, 1)
    assert loaded(X, s=[3, -1]).shape == (3, 2)
    assert loaded(X).shape == (6, 1)


class Arrayish:
    """An object with nothing but `__array__`."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return X if dtype is None else X.astype(dtype)


class Capsule:
    """An object with nothing but `__dlpack__`."""

    def __dlpack__(self, **options: Any) -> Any:
        return X.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return X.__dlpack_device__()


@pytest.mark.parametrize(
    "array_like",
    [
        X.tolist(),
        tuple(map(tuple, X.tolist())),
        [[1, 2, 3], [4, 5, 6]],
        Arrayish(),
        Capsule(),
        np.asfortranarray(X),
        X.astype(">f4"),
        np.repeat(X, 2, axis=0)[::2],
    ],
    ids=["lists", "tuples", "ints", "__array__", "__dlpack__", "fortran", "big-endian", "strided"],
)
def test_inputs_may_be_array_likes(array_like: Any) -> None:
    np.testing.assert_array_equal(weft.load(affine())(array_like)[0], Y)


def test_scalars() -> None:
    built = model([node("Add", ["x", "x"], ["y"])], [value("x", [])], [value("y", [])])
    loaded = weft.load(built)
    for scalar in (1.5, np.float32(1.5), np.array(1.5, np.float32), True, 2):
        result = loaded(scalar)
        assert isinstance(result, np.ndarray)
        assert result.shape == ()
        assert result == 2 * scalar
    assert weft.load(model([node("Not", ["x"], ["y"])], [value("x", [], TensorProto.BOOL)]))(True) == np.False_


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (X.astype(np.float64), "must be float32, not float64"),
        (X.astype(np.int32), "must be float32, not int32"),
        (np.array([["a"]]), "must be float32, not string"),
        ([["a"]], "cannot be read as an array of float32"),
        ([[1], [2, 3]], "cannot be read as an array of float32"),
        (None, "must be an array, not nothing"),
        (object(), "must be an array, not a object"),
        (X[0], "must have 2 dimensions"),
        (X[None], "must have 2 dimensions"),
        (X[:, :2], "must have size 3 in dimension 1"),
        (np.zeros((2, 3), "datetime64[s]"), "which ONNX lacks"),
    ],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
def test_invalid_inputs_are_explained(array: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "affine.onnx"
    path.write_bytes(affine().SerializeToString())
    with pytest.raises(weft.InputError) as caught:
        weft.load(path).run({"x": array})
    assert message in str(caught.value)
    assert "'x'" in str(caught.value)
    assert str(path) in str(caught.value)


def test_fractions_are_not_cast_to_integers() -> None:
    loaded = weft.load(model([node("Neg", ["x"], ["y"])], [value("x", [2], TensorProto.INT64)], [value("y", None)]))
    np.testing.assert_array_equal(loaded([3, -4]), [-3, 4])
    with pytest.raises(weft.InputError, match="fractional"):
        loaded([0.5, 1.0])


@pytest.mark.parametrize(
    ("dtype", "fitting", "other"),
    [(TensorProto.INT8, -128, 300), (TensorProto.UINT64, 2**64 - 1, -1), (TensorProto.INT64, -(2**63), 2**63),
     (TensorProto.UINT4, 15, 16), (TensorProto.UINT8, True, -1)],
)  # fmt: skip
def test_integers_that_do_not_fit_are_refused(dtype: int, fitting: int, other: int) -> None:
    loaded = weft.load(model([node("Identity", ["x"], ["y"])], [value("x", [1], dtype)], [value("y", [1], dtype)]))
    assert int(loaded([fitting])[0]) == fitting
    with pytest.raises(weft.InputError, match="'x'"):
        loaded([other])


@pytest.mark.parametrize(
    "dtype",
    [np.float16, np.float64, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, np.bool_,
     ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4, ml_dtypes.uint4,
     np.complex64, object],
)  # fmt: skip
def test_every_dtype_is_accepted(dtype: Any) -> None:
    number = TensorProto.STRING if dtype is object else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    array = np.array(["a", "é", ""], object) if dtype is object else np.array([0, 1, 3]).astype(dtype)
    built = model([node("Identity", ["x"], ["y"])], [value("x", ["n"], number)], [value("y", ["n"], number)])
    result = weft.load(built)(array)
    assert result.dtype == array.dtype
    np.testing.assert_array_equal(result, array)


# -- whose memory a result is ----------------------------------------------------------------------------------------


def test_results_do_not_alias_inputs_or_weights() -> None:
    constant = np.arange(4, dtype=np.float32)
    built = model(
        [
            node("Identity", ["x"], ["same"]),
            node("Identity", ["w"], ["weights"]),
            node("Transpose", ["x"], ["turned"]),
            node("Slice", ["w", "start", "end"], ["part"]),
            node("Reshape", ["w", "square"], ["reshaped"]),
            node("Expand", ["x", "large"], ["repeated"]),
            node("Add", ["x", "x"], ["sum"]),
            node("Identity", ["sum"], ["again"]),
        ],
        [value("x", [2, 2])],
        [value(name, None) for name in ("same", "weights", "turned", "part", "reshaped", "repeated", "sum", "again")],
        [tensor("w", constant), tensor("start", [1]), tensor("end", [3]), tensor("square", [2, 2]),
         tensor("large", [3, 2, 2])],
    )  # fmt: skip
    loaded = weft.load(built)
    x = random(2, 2)
    original = x.copy()
    first = loaded.run({"x": x})
    expected = {name: array.copy() for name, array in first.items()}
    for name, array in first.items():
        others = {other: content.copy() for other, content in first.items() if other != name}
        array[...] = 99
        for other, content in others.items():
            np.testing.assert_array_equal(first[other], content, err_msg=f"{name} shares memory with {other}")
    np.testing.assert_array_equal(x, original)
    for name, array in loaded.run({"x": x}).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    del first


def test_results_in_sequences_do_not_alias() -> None:
    built = model(
        [node("SplitToSequence", ["x"], ["s"], axis=0), node("SequenceConstruct", ["w", "w"], ["t"])],
        [value("x", [2, 2])],
        [
            helper.make_value_info("s", helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None))),
            helper.make_value_info("t", helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None))),
        ],
        [tensor("w", np.float32([1, 2]))],
    )
    loaded = weft.load(built)
    x = random(2, 2)
    original = x.copy()
    parts, weights = loaded(x)
    parts[0][...] = 99
    weights[0][...] = 99
    np.testing.assert_array_equal(x, original)
    np.testing.assert_array_equal(weights[1], [1, 2])
    np.testing.assert_array_equal(loaded(x)[1][0], [1, 2])


def test_inputs_are_not_modified() -> None:
    built = model(
        [node("ScatterElements", ["x", "i", "u"], ["y"], axis=0)],
        [value("x", [3])],
        [value("y", [3])],
        [tensor("i", [1]), tensor("u", np.float32([5]))],
    )
    x = np.zeros(3, np.float32)
    x.flags.writeable = False
    np.testing.assert_array_equal(weft.load(built)(x), [0, 5, 0])


# -- devices, options, stages ----------------------------------------------------------------------------------------


def test_devices() -> None:
    devices = weft.devices()
    assert "reference" in [device.name for device in devices if device.available]
    assert all(device.description for device in devices)
    assert all(isinstance(device, weft.Device) for device in devices)
    assert weft.load(affine(), device="reference").device == "reference"
    assert weft.load(affine()).device in [device.name for device in devices if device.available]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "nope"}, "no device 'nope'"),
        ({"device": ""}, "no device ''"),
        ({"device": None}, "by its name"),
        ({"threads": 0}, "threads must be a positive number"),
        ({"threads": -1}, "threads must be a positive number"),
        ({"threads": 1.5}, "threads must be a positive number"),
        ({"threads": True}, "threads must be a positive number"),
        ({"precision": "worst"}, "'worst' is not available"),
    ],
)
def test_invalid_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(weft.DeviceError, match=message):
        weft.load(affine(), **options)


@pytest.mark.parametrize("device", [device.name for device in weft.devices() if not device.available])
def test_absent_device_gives_a_reason(device: str) -> None:
    reason = next(entry.description for entry in weft.devices() if entry.name == device)
    with pytest.raises(weft.DeviceError) as caught:
        weft.load(affine(), device=device)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [{"threads": 2}, {"precision": "float32"}, {"precision": "strict"}, {"precision": "tf32"}, {"cache": False}],
)
def test_options(options: dict[str, Any]) -> None:
    np.testing.assert_array_equal(weft.load(affine(), **options)(X)[0], Y)


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_stages_can_be_dumped(device: str, tmp_path: Path) -> None:
    folder = tmp_path / "some" / "stages"
    weft.load(affine(), device=device, dump=folder)
    stages = {path.stem[3:]: path.read_text() for path in sorted(folder.glob("*.txt"))}
    assert list(stages)[:2] == ["graph", "traced"]
    assert "graph" in stages["graph"]
    for name in ("traced", *(apply.__name__ for apply in PIPELINE)):
        assert "input %0: float32[batch, 3]  # x" in stages[name]
    if device == "reference":
        return
    assert [apply.__name__ for apply in FUSING] == list(stages)[-2 - len(FUSING) : -2]
    assert "because" in stages["sections"]
    assert "section 0: arena" in stages["plan"]
    kernels = {path.stem for path in (folder / "kernels").iterdir()}
    assert kernels
    for name in kernels:
        assert name in stages["sections"]
        assert (folder / "kernels" / f"{name}.txt").read_text().startswith(f"kernel {name}(")
        assert f"@{name}(" in (folder / "kernels" / f"{name}.ll").read_text().replace('"', "")
        assert name in (folder / "kernels" / f"{name}.s").read_text()


# -- the cost of importing -------------------------------------------------------------------------------------------


def test_import_loads_few_modules() -> None:
    """The first load imports the rest. `weft bench` measures both."""
    code = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); import weft; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(run.stdout.split())
    assert not {"numpy", "onnx", "rich", "onnxruntime", "google.protobuf"} & modules
    assert {name for name in modules if name.partition(".")[0] == "weft"} == {"weft", "weft.errors"}


def test_public_names_exist() -> None:
    for name in weft.__all__:
        assert getattr(weft, name) is not None
    with pytest.raises(AttributeError, match="nope"):
        _ = weft.nope


def test_options_are_stated_once() -> None:
    """`weft.load` takes the fields of LoadOptions: in its signature, its help, and in calls."""
    fields = {field.name: field.default for field in dataclasses.fields(LoadOptions)}
    source, *options = inspect.signature(weft.load).parameters.values()
    assert source.name == "source"
    assert {option.name: option.default for option in options} == fields
    assert {option.kind for option in options} == {inspect.Parameter.KEYWORD_ONLY}
    assert all(f"\n{name}: " in (weft.load.__doc__ or "") for name in ("source", *fields))
    assert pickle.loads(pickle.dumps(weft.load)) is weft.load
    np.testing.assert_allclose(weft.load(source=affine(), device="reference")(X)[0], Y, rtol=1e-6)
    with pytest.raises(TypeError, match="speed"):
        weft.load(affine(), speed=11)  # type: ignore[call-arg]


def test_options_are_checked_before_anything_is_read() -> None:
    for option in ({"precision": "worst"}, {"prefer": "beauty"}, {"threads": 0}, {"memory_limit": "much"}, {"dump": 5}):
        with pytest.raises(weft.WeftError, match=next(iter(option))):
            weft.load("nowhere.onnx", **option)  # type: ignore[arg-type]
    options = LoadOptions(threads=np.int64(2), memory_limit="1 KiB", dump="x", prefer="speed")  # type: ignore[arg-type]
    assert options.run_options == RunOptions(2, 1024, may_grow=True)
