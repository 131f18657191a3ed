"""wonnx as a peer: models in its form mean what they meant, it computes them, and it is measured on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from models.wonnx_form import products, writer
from models.wonnx_form.network import NoForm
from models.wonnx_form.prepare import prepare_file, wonnx_form
from onnx import NodeProto, TensorProto, helper, numpy_helper

from weft.bench.agreement import difference
from weft.bench.engines import PEERS, Setup
from weft.bench.measure import BenchCase, Options, measure
from weft.bench.processes import EngineProcess
from weft.errors import ExecutionError
from weft.runtime.devices import devices

Array = np.ndarray[Any, Any]

SEED = 0
WONNX = PEERS["wonnx"]
CLOSE = 1e-5


@dataclass(frozen=True, slots=True)
class Small:
    """A few nodes from `x` (and more) to `y`; sizes of inputs and weights, values of other constants."""

    nodes: list[NodeProto]
    inputs: Mapping[str, tuple[int, ...]]
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 13
    outputs: tuple[str, ...] = ("y",)


def one(op: str, *shape: int, opset: int = 13, weights: Any = None, constants: Any = None, **attributes: Any) -> Small:
    """One node on `x` and whatever else is given, in that order."""
    names = ["x", *(weights or {}), *(constants or {})]
    node = helper.make_node(op, names, ["y"], **attributes)
    return Small([node], {"x": shape}, weights or {}, constants or {}, opset)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, ["" if name == "-" else name for name in inputs.split()], outputs.split(), **attributes)


def floats(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


SQUARE = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
CASES: dict[str, Small] = {
    # -- products: sizes that no tile divides
    "odd product": one("MatMul", 3, 7, weights={"w": (7, 5)}),
    "product of 6": one("MatMul", 6, 12, weights={"w": (12, 18)}),
    "row": one("Gemm", 1, 7, weights={"w": (10, 7), "b": (10,)}, transB=1, alpha=0.5, beta=2.0),
    "rows": one("Gemm", 5, 3, weights={"w": (5, 4), "b": (1, 4)}, transA=1),
    "column added": one("Gemm", 4, 8, weights={"w": (8, 12), "b": (4, 1)}),
    "product of three axes": one("MatMul", 2, 3, 8, weights={"w": (8, 4)}),
    "stack": Small([node("MatMul", "x z", "y")], {"x": (2, 3, 4, 5), "z": (2, 3, 5, 7)}),
    "stack of rows": Small([node("MatMul", "x z", "y")], {"x": (6, 1, 8), "z": (6, 8, 12)}),
    # -- convolutions
    "window without bias": one("Conv", 1, 3, 9, 7, weights={"w": (8, 3, 3, 3)}, **SQUARE),
    "dilated with bias": one(
        "Conv", 1, 3, 9, 7, weights={"w": (8, 3, 3, 3), "b": (8,)}, kernel_shape=[3, 3], dilations=[2, 2]
    ),
    "one axis": one("Conv", 2, 3, 11, weights={"w": (6, 3, 3), "b": (6,)}, pads=[1, 2], strides=[2]),
    "automatic pads": one(
        "Conv", 1, 4, 8, 5, weights={"w": (4, 4, 3, 2)}, auto_pad="SAME_UPPER", kernel_shape=[3, 2], strides=[2, 1]
    ),
    "leaky after a general kernel": Small(
        [node("Conv", "x w", "c", strides=[2, 2]), node("LeakyRelu", "c", "y", alpha=0.3)],
        {"x": (1, 3, 9, 9)},
        {"w": (5, 3, 3, 3)},
    ),
    "leaky after a fast kernel": Small(
        [node("Conv", "x w b", "c"), node("LeakyRelu", "c", "y", alpha=0.3)],
        {"x": (1, 16, 5, 5)},
        {"w": (8, 16, 1, 1), "b": (8,)},
    ),
    "upward by 2": one("ConvTranspose", 1, 4, 5, 3, weights={"w": (4, 6, 2, 2), "b": (6,)}, strides=[2, 2]),
    "upward with overlap": one(
        "ConvTranspose", 2, 4, 5, 3, weights={"w": (4, 2, 4, 4)}, strides=[2, 2], pads=[1, 1, 1, 1], group=2
    ),
    "upward and padded": one(
        "ConvTranspose",
        1,
        3,
        5,
        4,
        weights={"w": (3, 2, 3, 3)},
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        output_padding=[1, 1],
    ),
    # -- element by element
    "clip between fractions": one("Clip", 1, 6, 5, constants={"low": floats(-0.25)[0], "high": floats(0.33)[0]}),
    "clip from below": one("Clip", 1, 6, 5, constants={"low": floats(-0.5)[0]}),
    "clip as it was": one("Clip", 1, 6, 5, opset=6, max=0.1),
    "clip by what is computed": Small(
        [node("ReduceMean", "x", "m", keepdims=0), node("Clip", "x m", "y")], {"x": (1, 6, 5)}
    ),
    "maximum": Small([node("Max", "x z", "y")], {"x": (1, 6, 5), "z": (6, 1)}),
    "maximum with a constant": one("Max", 1, 6, 5, constants={"c": floats(-0.2)}),
    "minimum": one("Min", 1, 6, 5, constants={"c": floats(0.123)}),
    "square": one("Pow", 1, 6, 5, constants={"c": floats(2)}),
    "hard sigmoid": one("HardSigmoid", 1, 6, 5, alpha=0.3),
    "hard swish": one("HardSwish", 1, 6, 5, opset=14),
    "sum": Small([node("Sum", "x z x", "y")], {"x": (1, 6, 5), "z": (6, 5)}),
    "dropout": Small([node("Dropout", "x", "d mask"), node("Relu", "d", "y")], {"x": (1, 6, 5)}, opset=9),
    # -- along axes
    "softmax as it was": one("Softmax", 2, 3, 4, opset=11, axis=1),
    "softmax in the middle": one("Softmax", 2, 3, 4, axis=1),
    "mean of later opsets": one("ReduceMean", 2, 3, 4, opset=18, constants={"axes": np.array([-1, 1])}, keepdims=0),
    "sum as it was": one("ReduceSum", 2, 3, 4, opset=11, axes=[1]),
    "batch normalization of rows": one(
        "BatchNormalization",
        3,
        6,
        weights={"s": (6,), "b": (6,), "m": (6,)},
        constants={"v": np.linspace(0.5, 2, 6, dtype=np.float32)},
    ),
    "layer normalization": one("LayerNormalization", 2, 3, 8, opset=17, weights={"s": (8,), "b": (8,)}),
    "greatest of all": one("GlobalMaxPool", 1, 5, 7),
    "local response": one("LRN", 1, 7, 4, 3, size=5, alpha=0.5, beta=0.75, bias=1.5),
    "automatic pads of a pool": one(
        "AveragePool", 1, 4, 7, 6, kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_LOWER"
    ),
    # -- other places
    "concat of inner axes": Small([node("Concat", "x z", "y", axis=-1)], {"x": (2, 3, 4), "z": (2, 3, 2)}),
    "parts that meet others": Small(
        [
            node("Conv", "x w b", "c", **SQUARE),
            node("Split", "c", "s t", axis=1),
            node("Relu", "s", "r"),
            node("Add", "t r", "a"),
            node("Sigmoid", "a", "y"),
        ],
        {"x": (1, 4, 6, 6)},
        {"w": (8, 4, 3, 3), "b": (8,)},
    ),
    "split into unequal parts": Small(
        [node("Split", "x parts", "y z", axis=1)],
        {"x": (2, 6, 5)},
        constants={"parts": np.array([4, 2])},
        outputs=("y", "z"),
    ),
    "slice": one(
        "Slice",
        2,
        6,
        5,
        constants={
            "starts": np.array([-1, 1]),
            "ends": np.array([-100, 5]),
            "axes": np.array([1, 2]),
            "steps": np.array([-2, 1]),
        },
    ),
    "slice as it was": one("Slice", 1, 6, 5, opset=9, starts=[1], ends=[-1], axes=[1]),
    "gather": one("Gather", 2, 6, 5, constants={"places": np.array([[-1, 2]])}, axis=1),
    "expand": one("Expand", 1, 6, 1, constants={"shape": np.array([2, 6, 4])}),
    "tile": one("Tile", 2, 3, constants={"counts": np.array([2, 3])}),
    "pad by more than one": one("Pad", 1, 2, 4, 5, constants={"pads": np.array([0, 0, 1, 0, 0, 3, 2, 1])}),
    "pad as in a mirror": one(
        "Pad", 1, 2, 4, 5, constants={"pads": np.array([0, 0, 1, 0, 0, 0, 2, 1])}, mode="reflect"
    ),
    "squeeze": Small(
        [node("Squeeze", "x axes", "s"), node("Relu", "s", "y")], {"x": (1, 6, 1)}, constants={"axes": np.array([0])}
    ),
    "resize": Small(
        [node("Resize", "x - scales", "y", mode="nearest")],
        {"x": (1, 2, 4, 5)},
        constants={"scales": floats(1, 1, 2, 2)},
    ),
    "resize that rounds": Small(
        [node("Resize", "x - scales", "y", mode="nearest", coordinate_transformation_mode="asymmetric")],
        {"x": (1, 2, 4, 5)},
        constants={"scales": floats(1, 1, 4, 3)},
    ),
    "resize to a size": Small(
        [node("Resize", "x - - sizes", "y", mode="nearest")],
        {"x": (1, 2, 4, 6)},
        constants={"sizes": np.array([1, 2, 6, 4])},
    ),
    "upsample": one("Upsample", 1, 2, 4, 5, opset=9, constants={"scales": floats(1, 1, 2, 3)}),
    "depth to space": one("DepthToSpace", 1, 8, 3, 4, blocksize=2),
    "depth to space, columns first": one("DepthToSpace", 1, 8, 3, 4, blocksize=2, mode="CRD"),
    "flatten to a computed shape": Small(
        [
            node("Shape", "x", "s"),
            node("Gather", "s zero", "n"),
            node("Concat", "n rest", "shape", axis=0),
            node("Reshape", "x shape", "r"),
            node("Relu", "r", "y"),
        ],
        {"x": (2, 3, 4)},
        constants={"zero": np.array([0]), "rest": np.array([-1])},
    ),
}


def model_of(small: Small) -> onnx.ModelProto:
    """Inputs have names for their sizes, as in files that are meant for all sizes."""
    generator = np.random.default_rng(SEED)
    weights = {name: generator.standard_normal(shape, np.float32) for name, shape in small.weights.items()}
    constants = {**weights, **{name: np.asarray(value) for name, value in small.constants.items()}}
    graph = helper.make_graph(
        small.nodes,
        "small",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"{name}_{axis}" for axis in range(len(shape))])
            for name, shape in small.inputs.items()
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in small.outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", small.opset)], ir_version=8)


def inputs_of(small: Small) -> dict[str, Array]:
    generator = np.random.default_rng(SEED + 1)
    return {name: generator.standard_normal(shape, np.float32) for name, shape in small.inputs.items()}


def run_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results: list[Array] = session.run(None, dict(inputs))
    return results


@pytest.mark.parametrize("small", CASES.values(), ids=CASES.keys())
def test_the_form_means_the_same(small: Small) -> None:
    model, inputs = model_of(small), inputs_of(small)
    form = wonnx_form(model, small.inputs)
    assert difference(run_onnxruntime(model, inputs), run_onnxruntime(form, inputs)) < CLOSE


def missing_wonnx() -> str | None:
    if WONNX.missing is not None:
        return WONNX.missing
    here = any(device.available and device.name.startswith("webgpu") for device in devices())
    return None if here else "wonnx finds no GPU here"


needs_wonnx = pytest.mark.skipif(missing_wonnx() is not None, reason=missing_wonnx() or "")


@needs_wonnx
@pytest.mark.parametrize("small", CASES.values(), ids=CASES.keys())
def test_wonnx_computes_the_form(small: Small, tmp_path: Path) -> None:
    model, inputs = model_of(small), inputs_of(small)
    path = tmp_path / "form.onnx"
    onnx.save(wonnx_form(model, small.inputs), path)
    loaded = WONNX.load(Setup(str(path), "", 1))
    outputs = loaded.arrays(loaded.run(loaded.prepare(inputs)))
    assert difference(run_onnxruntime(model, inputs), outputs) < CLOSE


@pytest.mark.parametrize(
    ("small", "message"),
    [
        (one("Erf", 2, 3), "does not support Erf"),
        (Small([node("Greater", "x x", "b"), node("Cast", "b", "y", to=1)], {"x": (2, 3)}), "'b' is bool"),
        (Small([node("NonZero", "x", "n"), node("Cast", "n", "y", to=1)], {"x": (2, 3)}), "depends on data"),
        (one("Resize", 1, 1, 2, 2, constants={"r": floats(), "s": floats(1, 1, 2, 2)}, mode="linear"), "linear"),
    ],
)
def test_models_without_a_form_are_refused(small: Small, message: str) -> None:
    with pytest.raises(NoForm, match=message):
        wonnx_form(model_of(small), small.inputs)


def test_large_matrices_are_multiplied_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 1 << 12
    monkeypatch.setattr(products, "LARGEST_BUFFER", most)
    monkeypatch.setattr(writer, "LARGEST_BUFFER", most)
    small = one("Gemm", 1, 64, weights={"w": (64, 30), "b": (30,)})
    model, inputs = model_of(small), inputs_of(small)
    form = wonnx_form(model, small.inputs)
    assert [item.op_type for item in form.graph.node] == ["Gemm", "Gemm", "Concat"]
    assert max(len(tensor.raw_data) for tensor in form.graph.initializer) <= most
    assert difference(run_onnxruntime(model, inputs), run_onnxruntime(form, inputs)) < CLOSE
    with pytest.raises(NoForm, match="larger than wonnx's buffers"):
        wonnx_form(model_of(one("MatMul", 4, 64, weights={"w": (64, 32)})), {"x": (4, 64)})


def test_a_form_is_written_once(tmp_path: Path) -> None:
    small = one("Relu", 2, 3)
    source, folder = tmp_path / "small.onnx", tmp_path / "forms"
    onnx.save(model_of(small), source)
    first = prepare_file(source, {"x": (2, 3)}, folder)
    modified = first.stat().st_mtime_ns
    assert prepare_file(source, {"x": (2, 3)}, folder) == first
    assert first.stat().st_mtime_ns == modified
    other = prepare_file(source, {"x": (4, 3)}, folder)
    assert list(folder.iterdir()) == [other]


# -- as a peer ---------------------------------------------------------------------------------------------------------


@needs_wonnx
def test_wonnx_is_measured_on_a_form(tmp_path: Path) -> None:
    small = CASES["odd product"]
    path = tmp_path / "form.onnx"
    onnx.save(wonnx_form(model_of(small), small.inputs), path)
    result = measure(BenchCase("form", path, inputs_of(small)), Options("reference", 1, 0.1, (WONNX,), None))
    assert result.failures == {}
    assert [(measurement.engine, measurement.agrees) for measurement in result.measurements] == [
        ("weft", True),
        ("wonnx", True),
    ]


@needs_wonnx
def test_wonnx_says_why_it_takes_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "named sizes.onnx"
    onnx.save(model_of(CASES["odd product"]), path)
    with EngineProcess(WONNX, Setup(str(path), "", 1), tmp_path) as worker, pytest.raises(ExecutionError) as raised:
        worker.load()
    assert "ParametrizedDimensionUnsupported" in raised.value.problem
