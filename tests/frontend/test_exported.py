"""Models that exporters hold in memory load as their files do; what is no ONNX model is told how to become one."""

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


def negating() -> onnx.ModelProto:
    return model([node("Neg", ["x"], ["y"])], [value("x", [2])], [value("y", [2])])


def saved(folder: Path) -> Path:
    """A model whose weights lie in a file beside it."""
    weights = [tensor("w", np.array([1, 2], np.float32))]
    proto = model([node("Add", ["x", "w"], ["y"])], [value("x", [2])], [value("y", [2])], weights)
    onnx.save(proto, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    return folder / "m.onnx"


class Program:
    """What torch.onnx.export gives, as far as it matters."""

    model_proto = property(lambda _: negating())


class Function:
    """As onnxscript has it."""

    def to_model_proto(self) -> onnx.ModelProto:
        return negating()


class Broken:
    @property
    def model_proto(self) -> onnx.ModelProto:
        raise RuntimeError("no weights")


@pytest.fixture
def ir(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A library of the name onnx_ir, whose models hold a ModelProto."""
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
def test_what_gives_a_proto_is_a_model(kind: type) -> None:
    loaded = weft.load(kind())
    assert loaded.file == f"<{kind.__name__}>"
    assert loaded(X).tolist() == [1.5, -2]
    assert pickle.loads(pickle.dumps(loaded))(X).tolist() == [1.5, -2]


def test_a_model_of_onnx_ir(ir: Any) -> None:
    assert weft.load(ir.Model(negating()))(X).tolist() == [1.5, -2]


def test_weights_in_files_are_found(ir: Any, tmp_path: Path) -> None:
    proto = onnx.load(saved(tmp_path), load_external_data=False)
    loaded = weft.load(ir.Model(proto, [ir.ExternalTensor(tmp_path)]))
    assert loaded(X).tolist() == [-0.5, 4]
    with pytest.raises(weft.ModelError, match="in 2 folders"):
        weft.load(ir.Model(proto, [ir.ExternalTensor(tmp_path), ir.ExternalTensor(tmp_path / "other")]))


def test_a_program_that_cannot_be_written() -> None:
    with pytest.raises(weft.InvalidModelError, match="cannot be made a ModelProto: RuntimeError: no weights"):
        weft.load(Broken())


def _of(library: str) -> Any:
    return type("Estimator", (), {"__module__": f"{library}.inner"})()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (_of("torch"), "torch.onnx.export"),
        (type("Net", (type(_of("torch")),), {})(), "torch.onnx.export"),
        (_of("sklearn"), "skl2onnx"),
        (_of("keras"), "tf2onnx"),
        (_of("lightgbm"), "onnxmltools"),
        (_of("onnxruntime"), "path or the bytes"),
        ((negating(), {}), "of a tuple"),
        (Program, "pass a path"),
        (3, "pass a path"),
        (None, "dynamo=False"),
        (weft.Graph("g"), "compile"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_onnx_model(source: Any, said: str) -> None:
    with pytest.raises(weft.ModelError, match=said):
        weft.load(source)


def test_a_loaded_model_is_loaded() -> None:
    with pytest.raises(weft.ModelError, match="it is loaded"):
        weft.load(weft.load(negating()))


# -- the libraries themselves, where they are ------------------------------------------------------------------------


def test_torch_exports_and_weft_loads() -> None:
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
        loaded = weft.load(source, device="cpu")
        found = loaded(x)
        np.testing.assert_allclose(found, net(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(weft.ModelError, match=r"torch\.onnx\.export"):
        weft.load(net)


def test_onnx_ir_reads_and_weft_loads(tmp_path: Path) -> None:
    library = pytest.importorskip("onnx_ir", reason="onnx_ir is not installed")
    assert weft.load(library.load(saved(tmp_path)))(X).tolist() == [-0.5, 4]


def test_a_function_of_onnxscript() -> None:
    library = pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    op = library.opset18

    @library.script(default_opset=op)
    def double(x):
        return op.Add(x, x)

    proto = double.to_model_proto(input_types=[library.FLOAT["n"]], output_types=[library.FLOAT["n"]])
    assert weft.load(proto)(X).tolist() == [-3, 4]
    double.to_model_proto = lambda: proto
    assert weft.load(double)(X).tolist() == [-3, 4]
