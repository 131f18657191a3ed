"""Pickles of models, results and errors. The receiver loads the model again and gets the same bits."""

from __future__ import annotations

import copy
import gc
import inspect
import multiprocessing
import pickle
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import onnx
import pytest
from joblib import Parallel, delayed
from onnx import TensorProto, helper, numpy_helper

import weft
from weft import errors
from weft.compat import onnxruntime as drop_in
from weft.errors import Attempt, ChangedFileError, DeviceFallbackError, InputError, WeftError
from weft.runtime import worker_cache

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def product(factor: float = 2.0, rows: int = 4) -> onnx.ModelProto:
    weights = numpy_helper.from_array(np.eye(rows, 4, dtype=np.float32) * factor, "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", rows])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(product(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def again(content: Any) -> Any:
    return pickle.loads(pickle.dumps(content))


# -- models ----------------------------------------------------------------------------------------------------------


def test_relative_paths_survive_a_change_of_folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path.parent / "elsewhere").mkdir()
    monkeypatch.chdir(path.parent)
    model = weft.load("model.onnx", device="cpu")
    monkeypatch.chdir("elsewhere")
    onnx.save(product(3.0), "model.onnx")  # of the same name, and another model
    other = again(model)
    assert other.run({"x": X})["y"].tolist() == (X * 2).tolist()
    assert other.file == "model.onnx"


def test_pickle_of_a_loaded_file_has_no_weights(tmp_path: Path) -> None:
    onnx.save(product(rows=2000), tmp_path / "large.onnx")
    assert len(pickle.dumps(weft.load(tmp_path / "large.onnx", device="cpu"))) < 1000
    model = weft.load((tmp_path / "large.onnx").read_bytes(), device="cpu")
    assert len(pickle.dumps(model)) > 2000 * 16
    (tmp_path / "large.onnx").unlink()
    ones = np.ones((1, 2000), np.float32)
    assert again(model)(ones).tobytes() == model(ones).tobytes()


def test_options_are_pickled_except_dump(path: Path, tmp_path: Path) -> None:
    model = weft.load(path, device="cpu", threads=1, precision="strict", prefer="speed", dump=tmp_path / "dump")
    options = again(model).pool.options
    assert (options.threads, options.precision, options.prefer, options.dump) == (1, "strict", "speed", None)
    assert again(weft.load(path, device="cpu", outputs=["y"])).pool.options.outputs == ("y",)


def test_receiver_chooses_its_own_device(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DEVICE", "cpu")
    content = pickle.dumps(weft.load(path))
    monkeypatch.setenv("WEFT_DEVICE", "reference")
    assert pickle.loads(content).device == "reference"
    chain = again(weft.load(path, device=["cpu", "reference"]))
    assert [chain.device, *chain._fallbacks] == ["cpu", "reference"]


def test_a_model_of_a_graph() -> None:
    from weft import ops

    graph = weft.Graph()
    x = graph.input("x", (None, 4), np.float32)
    graph.output(ops.mat_mul(x, np.eye(4, dtype=np.float32) * 2), "y")
    model = graph.compile(device="cpu")
    assert again(model)(X).tolist() == (X * 2).tolist()


def test_saved_program_must_be_unchanged(path: Path, tmp_path: Path) -> None:
    saved = tmp_path / "model.weft"
    weft.compile(path, saved, device="cpu")
    content = pickle.dumps(weft.load(saved))
    assert len(content) < 1000
    assert pickle.loads(content)(X).tolist() == (X * 2).tolist()
    onnx.save(product(3.0), path)
    weft.compile(path, saved, device="cpu")
    with pytest.raises(ChangedFileError, match="has other content"):
        pickle.loads(content)


def test_changed_weights_are_pickled(path: Path) -> None:
    model = weft.load(path, device="cpu")
    model.set_weight("w", np.eye(4, dtype=np.float32) * np.float32(1.1))
    other = again(again(model))
    assert other(X).tobytes() == model(X).tobytes()
    weights = again(model.weights)
    assert type(weights) is dict
    assert weights["w"].tobytes() == model.weights["w"].tobytes()


# -- processes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor


def test_round_trip_through_a_process_pool(pool: ProcessPoolExecutor, path: Path) -> None:
    model = weft.load(path, device="cpu")
    batches = [{"x": X + number} for number in range(3)]
    for feeds, result in zip(batches, pool.map(model.run, batches)):
        assert result["y"].tobytes() == model.run(feeds)["y"].tobytes()
    failure = pool.submit(model.run, {"x": X[:, :3]}).exception()
    assert isinstance(failure, InputError)
    assert failure.file == str(path)
    with pytest.raises(InputError) as here:
        model.run({"x": X[:, :3]})
    assert (str(failure), failure.hint, failure.value) == (str(here.value), here.value.hint, here.value.value)
    lost = pool.submit(weft.load, path.with_name("none.onnx")).exception()
    assert isinstance(lost, weft.ModelError)
    assert str(lost.file).endswith("none.onnx")


@pytest.mark.skipif(sys.platform == "win32", reason="slow to start there")
def test_joblib(path: Path) -> None:
    model = weft.load(path, device="cpu")
    batches = [{"x": X + number} for number in range(4)]
    results = Parallel(n_jobs=2)(delayed(model.run)(feeds) for feeds in batches)
    assert [one["y"].tolist() for one in results] == [model.run(feeds)["y"].tolist() for feeds in batches]
    other = cloudpickle.loads(cloudpickle.dumps(lambda x: model(x)))
    assert other(X).tolist() == model(X).tolist()


# -- the stand-in for onnxruntime ------------------------------------------------------------------------------------


def test_sessions_of_the_drop_in(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path.parent / "elsewhere").mkdir()
    monkeypatch.chdir(path.parent)
    session = drop_in.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    monkeypatch.chdir("elsewhere")
    other = again(session)
    assert other.run(None, {"x": X})[0].tolist() == (X * 2).tolist()
    assert other.get_providers() == session.get_providers()
    onnx.save(product(3.0), path)
    with pytest.raises(Exception, match="has other content"):
        again(session)


# -- what models give ------------------------------------------------------------------------------------------------


def test_tensors_on_devices_become_arrays(path: Path) -> None:
    model = weft.load(path, device="cpu")
    outputs = model.run({"x": X}, keep=True)
    assert isinstance(outputs["y"], weft.DeviceTensor)
    sent = again(outputs)
    assert type(sent["y"]) is np.ndarray
    assert model(sent["y"]).tolist() == model(outputs["y"]).tolist()
    for other in (copy.copy(outputs["y"]), copy.deepcopy(outputs["y"])):
        assert isinstance(other, weft.DeviceTensor)
        other.release()
    assert outputs["y"].numpy().tolist() == (X * 2).tolist()
    outputs["y"].release()
    with pytest.raises(weft.DeviceError, match="released"):
        pickle.dumps(outputs)


def test_reports_survive_pickling(path: Path) -> None:
    model = weft.load(path, device="cpu")
    reports = (model.inputs, model.metadata, model.memory(), model.profile({"x": X}, repeat=2), model.report())
    for one in (*reports, weft.devices(), weft.DevicePolicy()):
        assert again(one) == one
        assert type(again(one)) is type(one)


def test_cancellations_cannot_be_pickled() -> None:
    token = weft.Cancellation()
    assert copy.deepcopy(token) is copy.copy(token) is token
    with pytest.raises(InputError, match="its own process"):
        pickle.dumps(token)


# -- errors ----------------------------------------------------------------------------------------------------------


def kinds(kind: type[WeftError]) -> Iterator[type[WeftError]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from kinds(inner)


@pytest.mark.parametrize("kind", sorted(set(kinds(WeftError)), key=lambda kind: kind.__name__))
def test_errors_keep_their_fields(kind: type[WeftError]) -> None:
    if "problem" in inspect.signature(kind).parameters:
        error = kind("what is wrong", hint="do this", file="m.onnx", node="n", value="v")
    elif kind is DeviceFallbackError:
        error = DeviceFallbackError([Attempt("one", "loading", "so"), Attempt("two", "running", "so")], file="m.onnx")
    else:
        pytest.skip(f"made by weft alone: {kind.__name__}")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        for other in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error), copy.deepcopy(error)):
            assert type(other) is kind
            assert (vars(other), other.args, str(other)) == (vars(error), error.args, str(error))


class TwiceError(WeftError):
    """A user-defined error whose argument is not a string."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__(f"{left} and {right}", hint="neither")
        self.both = left, right


def test_errors_of_other_signatures() -> None:
    other = copy.deepcopy(TwiceError(1, 2))
    assert (other.both, other.problem, other.args) == ((1, 2), "1 and 2", ("1 and 2",))


def test_every_error_and_warning_is_covered() -> None:
    public = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, Exception)]
    assert {kind for kind in public if issubclass(kind, WeftError)} <= set(kinds(WeftError))
    for kind in public:
        if issubclass(kind, Warning):
            assert again(kind("said")).args == ("said",)


# -- workers ---------------------------------------------------------------------------------------------------------


def test_workers_cache_the_last_model(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = pickle.dumps(weft.load(path, device="cpu"))
    assert pickle.loads(content).session() is not pickle.loads(content).session()  # no worker
    monkeypatch.setattr(worker_cache, "is_pool_worker", lambda: True)
    monkeypatch.setattr(worker_cache, "_cached", [])
    first, second = pickle.loads(content), pickle.loads(content)
    session = weakref.ref(first.session())
    assert session() is second.session()
    second.set_weight("w", np.zeros((4, 4), np.float32))
    assert second(X).tolist() == (X * 0).tolist()
    assert first(X).tolist() == pickle.loads(content)(X).tolist() == (X * 2).tolist()
    changed = again(second)
    assert changed(X).tolist() == (X * 0).tolist()
    assert again(weft.load(path, device="cpu", threads=1)).pool.options.threads == 1
    del first, second, changed
    gc.collect()
    assert session() is None
    onnx.save(product(3.0), path)
    with pytest.raises(ChangedFileError, match="has other content"):
        pickle.loads(content)
