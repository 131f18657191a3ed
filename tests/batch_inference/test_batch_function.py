"""`weft.batch`: columns in and out of tables of every kind, and pickles for other processes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batch_inference.small_models import GRAPHS, assert_same_bits, model, ragged_rows, random_seed, run_alone

import weft
from weft.batch_inference import shipped_model
from weft.threads import usable_cores

TESTS = Path(__file__).parents[1]


@pytest.fixture
def rows() -> Any:
    return np.random.default_rng(random_seed()).normal(size=(37, 4)).astype(np.float32)


@pytest.fixture(autouse=True)
def _no_loaded_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped_model, "_loaded", {})


def make_table(kind: str, columns: dict[str, Any]) -> Any:
    if kind == "dict":
        return {name: np.asarray(column) for name, column in columns.items()}
    lists = {name: list(column) for name, column in columns.items()}
    if kind == "pandas":
        return pytest.importorskip("pandas").DataFrame(lists, index=np.arange(len(next(iter(lists.values())))) + 7)
    if kind == "polars":
        return pytest.importorskip("polars").DataFrame(lists)
    table = pytest.importorskip("pyarrow").table(lists)
    return table if kind == "arrow" else table.combine_chunks().to_batches()[0]


KINDS = ("dict", "pandas", "polars", "arrow", "record batch")


def column_of(table: Any, name: str) -> list[Any]:
    column = table[name]
    return column.to_pylist() if hasattr(column, "to_pylist") else list(column)


# -- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [None, 5])
def test_the_same_kind_comes_back_with_other_columns_and_outputs(kind: str, batch_size: int | None, rows: Any) -> None:
    table = make_table(kind, {"id": range(37), "pixels": rows, "label": ["a", "b"] * 18 + ["c"]})
    function = weft.batch(model("dense"), columns={"x": "pixels"}, outputs={"y": "scores"}, batch_size=batch_size)
    result = function(table)
    assert type(result) is type(table)
    names = (
        list(result)
        if kind in ("dict", "pandas")
        else list(result.schema.names if "a" in kind and kind != "polars" else result.columns)
    )
    assert names == ["id", "pixels", "label", "scores"]
    assert column_of(result, "label") == ["a", "b"] * 18 + ["c"]
    for row, scores in zip(rows, column_of(result, "scores"), strict=True):
        single = run_alone(model("dense"), {"x": row})["y"]
        assert np.asarray(scores, np.float32).tobytes() == single.tobytes()
    if kind == "pandas":
        assert list(result.index) == list(table.index)


@pytest.mark.parametrize("kind", KINDS)
def test_all_outputs_of_ragged_rows(kind: str) -> None:
    examples = ragged_rows(40, np.random.default_rng(random_seed()))
    columns = {name: [row[name] for row in examples] for name in ("tokens", "gain")}
    if kind == "dict":
        tokens = np.empty(40, object)
        tokens[:] = columns["tokens"]
        table: Any = {"tokens": tokens, "gain": np.array(columns["gain"])}
    else:
        table = make_table(kind, columns)
    result = weft.batch(model("ragged"), batch_size=8)(table)
    states, totals = column_of(result, "state"), column_of(result, "total")
    for row, state, total in zip(examples, states, totals, strict=True):
        single = run_alone(model("ragged"), row)
        flat = np.asarray([list(each) for each in state], np.float32)
        assert_same_bits({"state": flat, "total": np.float32(total)}, single)


@pytest.mark.parametrize("kind", KINDS)
def test_empty_tables_have_the_columns_of_outputs(kind: str, rows: Any) -> None:
    function = weft.batch(model("dense"))
    full = make_table(kind, {"x": rows})
    empty = {"x": rows[:0]} if kind == "dict" else full.iloc[:0] if kind == "pandas" else full[:0]
    result, expected = function(empty), function(full)
    if kind in ("arrow", "record batch"):
        assert result.schema == expected.schema
    elif kind in ("pandas", "polars"):
        assert list(result.dtypes) == list(expected.dtypes)
    else:
        assert {name: (array.dtype, array.shape[1:]) for name, array in result.items()} == {
            name: (array.dtype, array.shape[1:]) for name, array in expected.items()
        }


@pytest.mark.parametrize("kind", KINDS)
def test_several_columns_are_one_input(kind: str, rows: Any) -> None:
    table = make_table(kind, {name: rows[:, index].astype(np.float64) for index, name in enumerate("abcd")})
    result = weft.batch(model("dense"), columns={"x": list("abcd")}, outputs=["best"])(table)
    expected = [int(run_alone(model("dense"), {"x": row})["best"]) for row in rows]
    assert [int(each) for each in column_of(result, "best")] == expected
    broken = make_table("pandas", {"a": [1.0], "b": ["u"], "c": [1.0], "d": [None]})
    with pytest.raises(weft.InputError, match="row 0: columns 'a', 'b'"):
        weft.batch(model("dense"), columns={"x": list("abcd")})(broken)


def test_iterators_of_tables_are_read_as_they_are_needed(rows: Any) -> None:
    read = []

    def tables() -> Any:
        for start in range(0, 37, 10):
            read.append(start)
            yield make_table("pandas", {"x": rows[start : start + 10]})

    results = weft.batch(model("dense"))(tables())
    assert len(next(results)) == 10
    assert read == [0]
    assert [len(each) for each in results] == [10, 10, 7]


def test_text_outputs_and_shared_inputs() -> None:
    table = make_table("arrow", {"text": ["a", "ä", ""], "x": [[1.0, 2.0]] * 3})
    assert weft.batch(model("text"))(table).column("same").to_pylist() == ["a", "ä", ""]
    scaled = weft.batch(model("scaled"), shared={"rate": 3})({"x": np.ones((2, 2), np.float32)})
    np.testing.assert_array_equal(scaled["y"], np.full((2, 2), 3.0))


def test_a_selected_output_is_all_that_is_computed(tmp_path: Path, rows: Any) -> None:
    GRAPHS["dense"]().to_onnx(tmp_path / "dense.onnx")
    for source in (tmp_path / "dense.onnx", weft.load(tmp_path / "dense.onnx")):
        function = weft.batch(source, outputs=["best"])
        assert list(function({"x": rows})) == ["x", "best"]
        assert [spec.name for spec in function._shipped.load().outputs] == ["best"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"columns": {"z": "a"}}, "columns names 'z'"),
        ({"columns": ["x"]}, "columns must be a dict"),
        ({"columns": {"x": []}}, "the column of input 'x'"),
        ({"columns": {"x": {}}}, "the column of input 'x'"),
        ({"outputs": "y"}, "outputs must be a list"),
        ({"outputs": ["z"]}, "'z'"),
        ({"outputs": []}, "outputs"),
        ({"outputs": {"y": "a", "best": "a"}}, "names the column 'a' twice"),
        ({"batch_size": 0}, "batch_size"),
        ({"ship": "mail"}, "ship must be"),
        ({"ship": "path"}, "without a file"),
        ({"threads": 1}, "has its own threads"),
        ({"shared": {"z": 1}}, "no input 'z'"),
    ],
    ids=str,
)
def test_wrong_arguments(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(weft.WeftError, match=problem):
        weft.batch(model("dense"), **arguments)


def test_wrong_tables(rows: Any) -> None:
    function = weft.batch(model("dense"))
    for wrong in (rows, [1], 3, None, "x", [{"x": rows}]):
        with pytest.raises(weft.InputError, match="takes tables, not"):
            function(wrong)
    with pytest.raises(weft.InputError, match="no column 'x'"):
        function(make_table("pandas", {"y": rows}))
    with pytest.raises(weft.InputError, match="row 3: "):
        function({"x": [[1.0] * 4] * 3 + [[1.0] * 3]})
    frame = make_table("pandas", {"x": rows, "z": rows})
    with pytest.raises(weft.InputError, match="two columns named 'x'"):
        function(frame.set_axis(["x", "x"], axis=1))


# -- pickles ---------------------------------------------------------------------------------------------------------


PROGRAM = """
import pickle, sys
import numpy as np
import weft.threads
function = pickle.load(open(sys.argv[1], "rb"))
try:
    result = function({"x": np.load(sys.argv[2])})
except Exception as error:
    print(type(error).__name__, error, sep=": ")
else:
    sys.stdout.write(result["y"].tobytes().hex())
"""


def run_in_process(function: bytes, rows: Any, folder: Path, **environment: str) -> str:
    (folder / "function.pickle").write_bytes(function)
    np.save(folder / "rows.npy", rows)
    command = [sys.executable, "-c", PROGRAM, str(folder / "function.pickle"), str(folder / "rows.npy")]
    finished = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=120)
    assert not finished.stderr, finished.stderr
    return finished.stdout


@pytest.mark.parametrize("ship", ["auto", "path", "bytes"])
def test_another_process_computes_the_same_bits(ship: Any, tmp_path: Path, rows: Any) -> None:
    path = tmp_path / "dense.onnx"
    GRAPHS["dense"]().to_onnx(path)
    function = weft.batch(path, ship=ship)
    pickled = pickle.dumps(function)
    if ship != "path":
        path.unlink()
    assert run_in_process(pickled, rows, tmp_path) == function({"x": rows})["y"].tobytes().hex()


def test_a_file_that_changed_is_refused(tmp_path: Path, rows: Any) -> None:
    path = tmp_path / "dense.onnx"
    GRAPHS["dense"]().to_onnx(path)
    pickled = pickle.dumps(weft.batch(path, ship="path"))
    GRAPHS["mixing"]().to_onnx(path)
    assert "ChangedFileError" in run_in_process(pickled, rows, tmp_path)
    path.unlink()
    assert "ChangedFileError" in run_in_process(pickled, rows, tmp_path)


def test_another_version_of_weft_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped_model, "__version__", "0.0.1")
    pickled = pickle.dumps(weft.batch(model("dense")))
    monkeypatch.undo()
    with pytest.raises(weft.InputError, match=r"pickled by weft 0\.0\.1, and this process has"):
        pickle.loads(pickled)


def test_damaged_bytes_are_refused() -> None:
    pickled = pickle.dumps(weft.batch(model("dense")))
    weights = model("dense").weights["w"].tobytes()
    assert pickled.count(weights) == 1
    with pytest.raises(weft.InputError, match="damaged"):
        pickle.loads(pickled.replace(weights, bytes(len(weights))))


def test_large_bytes_are_stored_once_on_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: Any) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shipped_model, "STORED_BYTES", 1)
    function = weft.batch(model("dense"))
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(function, protocol=5, buffer_callback=buffers.append)
    assert len(buffers) == 1  # which frameworks send without a copy
    received = [pickle.loads(pickled, buffers=buffers) for _ in range(2)]
    (stored,) = (tmp_path / "cache" / "shipped").iterdir()
    assert stored.read_bytes() == bytes(buffers[0])
    assert received[0]._shipped.source.content is None
    again = pickle.loads(pickle.dumps(received[1]))  # sent on by a worker
    assert again({"x": rows})["y"].tobytes() == function({"x": rows})["y"].tobytes()
    os.utime(stored, (0, 0))
    shipped_model._remove_unused(stored.parent)
    assert not stored.exists()
    stored.write_bytes(bytes(buffers[0].raw().nbytes))  # another content under this name
    shipped_model._loaded.clear()
    with pytest.raises(weft.ChangedFileError):
        pickle.loads(pickled, buffers=buffers)({"x": rows})


def test_weights_that_were_set_and_external_files_travel(tmp_path: Path, rows: Any) -> None:
    changed = GRAPHS["dense"]().compile(device="cpu")
    changed.set_weight("w", changed.weights["w"] * 2)
    function = pickle.loads(pickle.dumps(weft.batch(changed)))
    for row, scores in zip(rows, function({"x": rows})["y"]):
        assert_same_bits({"y": scores}, {"y": run_alone(changed, {"x": row})["y"]})
    local = weft.batch(changed)
    changed.set_weight("w", changed.weights["w"] * 3)  # later than the function
    assert local({"x": rows})["y"].tobytes() == function({"x": rows})["y"].tobytes()
    onnx = pytest.importorskip("onnx")
    proto = GRAPHS["dense"]().to_onnx()
    onnx.save_model(proto, tmp_path / "external.onnx", save_as_external_data=True, location="data", size_threshold=0)
    pickled = pickle.dumps(weft.batch(tmp_path / "external.onnx"))
    (tmp_path / "data").unlink()
    assert run_in_process(pickled, rows, tmp_path) == weft.batch(model("dense"))({"x": rows})["y"].tobytes().hex()


def test_a_process_loads_a_model_once(monkeypatch: pytest.MonkeyPatch, rows: Any) -> None:
    loads = []
    load_pickled = shipped_model.load_pickled
    monkeypatch.setattr(shipped_model, "load_pickled", lambda *arguments: loads.append(1) or load_pickled(*arguments))
    pickled = pickle.dumps(weft.batch(model("dense")))
    shipped_model._loaded.clear()
    results: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: results.append(pickle.loads(pickled)({"x": rows})["y"].tobytes()))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(loads) == 1
    assert results == [weft.batch(model("dense"))({"x": rows})["y"].tobytes()] * 6
    for _ in range(shipped_model.MOST_LOADED + 2):
        weft.batch(GRAPHS["dense"]().compile(device="cpu"))
    assert len(shipped_model._loaded) <= shipped_model.MOST_LOADED


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_uses_the_model_of_its_parent(rows: Any) -> None:
    function = weft.batch(model("dense"))
    expected = function({"x": rows})["y"].tobytes()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if function({"x": rows})["y"].tobytes() == expected else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_device_of_the_workers_may_be_missing_here(tmp_path: Path, rows: Any) -> None:
    if any(device.name.startswith("cuda") and device.available for device in weft.devices()):
        pytest.skip("this machine has the device")
    GRAPHS["dense"]().to_onnx(tmp_path / "dense.onnx")
    function = weft.batch(tmp_path / "dense.onnx", device="cuda")
    assert pickle.loads(pickle.dumps(function))._shipped.options.device == "cuda"
    with pytest.raises(weft.DeviceError, match="cuda"):
        function({"x": rows})


# -- threads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "limit"),
    [("1", 1), (" 1 ", 1), ("1,4", 1), ("", 0), ("0", 0), ("-3", 0), ("many", 0), ("²", 0), ("100000", 0)],
)
def test_omp_num_threads_limits_the_cores(text: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = usable_cores()
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert usable_cores() == (limit or cores)


def test_threads_of_a_model_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    programs: list[Any] = [
        GRAPHS["dense"]().compile(device="cpu", threads=threads).session().whole for threads in (None, 2)
    ]
    assert [program.threads for program in programs] == [1, 2]


# -- Dask ------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
def test_dask_finds_the_columns_and_computes_partitions(scheduler: str, tmp_path: Path, rows: Any) -> None:
    dask = pytest.importorskip("dask")
    frames = pytest.importorskip("dask.dataframe")
    frame = make_table("pandas", {"id": range(37), "x": rows})
    frame.to_parquet(tmp_path / "rows.parquet")
    function = weft.batch(model("dense"))
    expected = function(frame)
    with dask.config.set({"dataframe.convert-string": False}):
        for partitions in (frames.from_pandas(frame, npartitions=3), frames.read_parquet(tmp_path / "rows.parquet")):
            planned = partitions.map_partitions(function)
            assert {name: str(kind) for name, kind in planned.dtypes.items()} == {
                name: str(kind) for name, kind in expected.dtypes.items()
            }
            result = planned.compute(scheduler=scheduler)
            assert np.stack(list(result["y"])).tobytes() == np.stack(list(expected["y"])).tobytes()
            assert list(result["best"]) == list(expected["best"])
    numbers = make_table("pandas", {name: rows[:, index] for index, name in enumerate("abcd")})
    stacked = weft.batch(model("dense"), columns={"x": list("abcd")}, outputs=["best"])
    result = frames.from_pandas(numbers, npartitions=4).map_partitions(stacked).compute(scheduler=scheduler)
    assert list(result["best"]) == list(expected["best"])


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_arrays_that_dask_made_texts_are_refused_with_advice(rows: Any) -> None:
    dask, frames = pytest.importorskip("dask"), pytest.importorskip("dask.dataframe")
    frame = make_table("pandas", {"x": rows})
    with dask.config.set({"dataframe.convert-string": True}), pytest.raises(ValueError, match="has texts"):
        frames.from_pandas(frame, npartitions=2).map_partitions(weft.batch(model("dense"))).compute()
