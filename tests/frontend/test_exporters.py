"""In-memory models of exporters load like their files; other objects raise an error that says how to export them."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import model, node, tensor, value

import weft

X = np.array([-1.5, 2], np.float32)


def negation_model() -> onnx.ModelProto:
    return model([node("Neg", ["x"], ["y"])], [value("x", [2])], [value("y", [2])])


def save_with_external_data(folder: Path) -> Path:
    """Save a model with its weights in a second file."""
    weights = [tensor("w", np.array([1, 2], np.float32))]
    proto = model([node("Add", ["x", "w"], ["y"])], [value("x", [2])], [value("y", [2])], weights)
    onnx.save(proto, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    return folder / "m.onnx"


class Program:
    """The part of torch's ONNXProgram that weft uses."""

    model_proto = property(lambda _: negation_model())


class Function:
    """The part of an onnxscript function that weft uses."""

    def to_model_proto(self) -> onnx.ModelProto:
        return negation_model()


class Broken:
    @property
    def model_proto(self) -> onnx.ModelProto:
        raise RuntimeError("no weights")


@pytest.fixture
def ir(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for the onnx_ir library, whose models hold a ModelProto."""
    library = ModuleType("onnx_ir")

    class Model:
        def __init__(self, proto: onnx.ModelProto, tensors: Any = ()) -> None:
            self.proto = proto
            values = {str(number): SimpleNamespace(const_value=tensor) for number, tensor in enumerate(tensors)}
            self.graph = SimpleNamespace(initializers=values)

    class ExternalTensor:
        def __init__(self, base_dir: Path) -> None:
            self.base_dir = base_dir

    Model.__module__ = "onnx_ir"
    library.Model, library.ExternalTensor, library.to_proto = Model, ExternalTensor, lambda ir: ir.proto
    monkeypatch.setitem(sys.modules, "onnx_ir", library)
    return library


@pytest.mark.parametrize("kind", [Program, Function])
def test_objects_that_convert_to_a_model_proto(kind: type) -> None:
    loaded = weft.load(kind())
    assert loaded.file == f"<{kind.__name__}>"
    assert loaded(X).tolist() == [1.5, -2]
    assert pickle.loads(pickle.dumps(loaded))(X).tolist() == [1.5, -2]


def test_onnx_ir_model(ir: Any) -> None:
    assert weft.load(ir.Model(negation_model()))(X).tolist() == [1.5, -2]


def test_onnx_ir_model_with_external_weights(ir: Any, tmp_path: Path) -> None:
    proto = onnx.load(save_with_external_data(tmp_path), load_external_data=False)
    loaded = weft.load(ir.Model(proto, [ir.ExternalTensor(tmp_path)]))
    assert loaded(X).tolist() == [-0.5, 4]
    with pytest.raises(weft.ModelError, match="in 2 folders"):
        weft.load(ir.Model(proto, [ir.ExternalTensor(tmp_path), ir.ExternalTensor(tmp_path / "other")]))


def test_a_failing_conversion() -> None:
    with pytest.raises(weft.InvalidModelError, match="cannot be converted to a ModelProto: RuntimeError: no weights"):
        weft.load(Broken())


def object_of(library: str) -> Any:
    return type("Estimator", (), {"__module__": f"{library}.inner"})()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (object_of("torch"), "torch.onnx.export"),
        (type("Net", (type(object_of("torch")),), {})(), "torch.onnx.export"),
        (object_of("sklearn"), "skl2onnx"),
        (object_of("keras"), "tf2onnx"),
        (object_of("lightgbm"), "onnxmltools"),
        (object_of("onnxruntime"), "path or the bytes"),
        ((negation_model(), {}), "of a tuple"),
        (Program, "pass a path"),
        (3, "pass a path"),
        (None, "dynamo=False"),
        (weft.Graph("g"), "compile"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_objects_that_are_not_onnx_models(source: Any, message: str) -> None:
    with pytest.raises(weft.ModelError, match=message):
        weft.load(source)


def test_loading_a_loaded_model() -> None:
    with pytest.raises(weft.ModelError, match="it is already loaded"):
        weft.load(weft.load(negation_model()))


# -- the real libraries, if they are installed -----------------------------------------------------------------------


def test_torch_export() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("onnxscript", reason="torch exports with onnxscript, which is not installed")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(8, 4)

        def forward(self, x: Any) -> Any:
            return torch.tanh(self.inner(x))

    net, x = Net().eval(), torch.randn(2, 8)
    program = torch.onnx.export(net, (x,), dynamo=True, verbose=False)
    for source in (program, program.model, program.model_proto):
        result = weft.load(source, device="cpu")(x)
        np.testing.assert_allclose(result, net(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(weft.ModelError, match=r"torch\.onnx\.export"):
        weft.load(net)


def test_model_that_onnx_ir_read(tmp_path: Path) -> None:
    library = pytest.importorskip("onnx_ir", reason="onnx_ir is not installed")
    assert weft.load(library.load(save_with_external_data(tmp_path)))(X).tolist() == [-0.5, 4]


def test_onnxscript_function() -> None:
    library = pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    op = library.opset18

    @library.script(default_opset=op)
    def double(x):
        return op.Add(x, x)

    proto = double.to_model_proto(input_types=[library.FLOAT["n"]], output_types=[library.FLOAT["n"]])
    assert weft.load(proto)(X).tolist() == [-3, 4]
    double.to_model_proto = lambda: proto
    assert weft.load(double)(X).tolist() == [-3, 4]
