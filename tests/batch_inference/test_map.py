"""`Model.map`: results equal single runs to the bit, in order, from sources of every kind, in bounded memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from batch_inference.small_models import assert_same_bits, model, ragged_rows, random_seed, run_alone

import weft

WAIT_SECONDS = 20.0  # for something that happens in another thread


def wait_until(is_so: Callable[[], bool]) -> None:
    for _ in range(int(WAIT_SECONDS * 100)):
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError("nothing happened")


def count_helpers() -> int:
    return sum(thread.name == "weft-helper" for thread in threading.enumerate())


class CountingSource:
    """Rows without end, and how many of them were taken."""

    def __init__(self) -> None:
        self.count = 0
        self.is_closed = False

    def __iter__(self) -> Iterator[Any]:
        try:
            while True:
                self.count += 1
                yield np.full(4, self.count, np.float32)
        finally:
            self.is_closed = True


# -- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [None, 1, 7, 64])
@pytest.mark.parametrize("workers", [None, 3])
def test_rows_have_the_bits_of_single_runs(batch_size: int | None, workers: int | None) -> None:
    generator = np.random.default_rng(random_seed())
    rows = generator.normal(size=(150, 4)).astype(np.float32)
    results = list(model("dense").map(rows, batch_size, workers))
    assert len(results) == len(rows)
    for row, result in zip(rows, results):
        assert_same_bits(result, run_alone(model("dense"), {"x": row}))
    expected = np.exp(rows.astype(np.float64) @ model("dense").weights["w"].astype(np.float64))
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(np.stack([result["y"] for result in results]), expected, rtol=1e-5)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("batch_size", [1, 5, 16, None])
def test_ragged_rows_keep_their_order_and_bits(batch_size: int | None, workers: int) -> None:
    rows = ragged_rows(120, np.random.default_rng(random_seed()))
    results = list(model("ragged").map(iter(rows), batch_size, workers))
    assert len(results) == len(rows)
    for row, result in zip(rows, results):
        assert_same_bits(result, run_alone(model("ragged"), row))


def test_rows_of_a_model_that_mixes_them_run_alone() -> None:
    rows = np.random.default_rng(random_seed()).normal(size=(9, 4)).astype(np.float32)
    results = list(model("mixing").map(rows))
    for row, result in zip(rows, results, strict=True):
        assert_same_bits(result, run_alone(model("mixing"), {"x": row}))
        np.testing.assert_array_equal(result["y"], row * row)


@pytest.mark.parametrize("has_batch_dim", [False, True])
def test_a_model_for_one_row(has_batch_dim: bool) -> None:
    rows = np.random.default_rng(random_seed()).normal(size=(5, 2, 3)).astype(np.float32)
    results = list(model("single").map([row[None] if has_batch_dim else row for row in rows]))
    for row, result in zip(rows, results, strict=True):
        assert_same_bits(result, run_alone(model("single"), {"x": row}))


def test_shared_inputs() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    results = list(model("scaled").map(rows, shared={"rate": 3}))
    np.testing.assert_array_equal([result["y"] for result in results], rows * 3)
    own_rates = model("scaled").map([{"x": row, "rate": number % 2} for number, row in enumerate(rows)], batch_size=4)
    np.testing.assert_array_equal([result["y"] for result in own_rates], rows * (np.arange(6) % 2)[:, None])


def test_no_rows() -> None:
    assert list(model("dense").map([])) == []
    assert list(model("dense").map(np.empty((0, 4), np.float32))) == []
    assert list(model("dense").map({"x": []})) == []
    assert list(model("dense").map(iter(()))) == []


# -- sources ---------------------------------------------------------------------------------------------------------


class Dataset:
    """What torch's map-style datasets are: a length and items."""

    def __init__(self, rows: Any, broken: int = -1) -> None:
        self.rows, self.broken = rows, broken

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Any:
        if row == self.broken:
            raise OSError("no such picture")
        return self.rows[row], row % 2


def make_sources() -> dict[str, Callable[[Any], Any]]:
    def polars_frame(rows: Any) -> Any:
        return pytest.importorskip("polars").DataFrame({"x": rows, "label": ["a"] * len(rows)})

    def pandas_frame(rows: Any) -> Any:
        pandas = pytest.importorskip("pandas")
        return pandas.DataFrame({"label": "a", "x": list(rows)}, index=np.arange(len(rows)) * 2.5)

    def arrow_table(rows: Any, **options: Any) -> Any:
        arrow = pytest.importorskip("pyarrow")
        return arrow.table({"x": arrow.array(list(rows), **options), "label": ["a"] * len(rows)})

    def fixed_lists(rows: Any) -> Any:
        arrow = pytest.importorskip("pyarrow")
        lists = arrow.FixedSizeListArray.from_arrays(arrow.array(rows.reshape(-1)), 4)
        return arrow.table({"x": arrow.chunked_array([lists.slice(0, 11), lists.slice(11)])}).slice(0)

    def tensors(rows: Any) -> Any:
        arrow = pytest.importorskip("pyarrow")
        return arrow.table({"x": arrow.FixedShapeTensorArray.from_numpy_ndarray(rows)})

    def dataset(rows: Any) -> Any:
        return pytest.importorskip("pyarrow.dataset").dataset(arrow_table(rows))

    return {
        "array": lambda rows: rows,
        "list of arrays": list,
        "list of lists": lambda rows: rows.tolist(),
        "generator": lambda rows: (row for row in rows),
        "dicts": lambda rows: [{"x": row, "label": 1} for row in rows],
        "tuples": lambda rows: [(row, 1) for row in rows],
        "dataset": Dataset,
        "dict of arrays": lambda rows: {"x": rows, "label": np.arange(len(rows))},
        "dict of lists": lambda rows: {"x": rows.tolist()},
        "dict of doubles": lambda rows: {"x": rows.astype(np.float64)},
        "pandas": pandas_frame,
        "polars": polars_frame,
        "arrow": arrow_table,
        "arrow slice": lambda rows: arrow_table(np.concatenate([rows[:3] + 1, rows])).slice(3),
        "arrow doubles": lambda rows: arrow_table(rows.astype(np.float64)),
        "arrow fixed lists": fixed_lists,
        "arrow tensors": tensors,
        "arrow reader": lambda rows: arrow_table(rows).to_reader(max_chunksize=7),
        "arrow batches": lambda rows: arrow_table(rows).to_batches(max_chunksize=9),
        "arrow dataset": dataset,
        "series": lambda rows: pandas_frame(rows)["x"],
        "dict of series": lambda rows: {"x": pandas_frame(rows)["x"]},
        "polars series": lambda rows: polars_frame(rows)["x"],
        "arrow column": lambda rows: arrow_table(rows)["x"],
        "dict of arrow columns": lambda rows: {"x": arrow_table(rows)["x"].combine_chunks()},
        "frames": lambda rows: [pandas_frame(rows[:20]), pandas_frame(rows[20:])],
    }


@pytest.mark.parametrize("kind", make_sources())
def test_sources_of_every_kind(kind: str) -> None:
    rows = np.random.default_rng(random_seed()).normal(size=(40, 4)).astype(np.float32)
    results = list(model("dense").map(make_sources()[kind](rows), batch_size=16))
    assert len(results) == 40
    for row, result in zip(rows, results):
        assert_same_bits(result, run_alone(model("dense"), {"x": row}))


def test_ragged_columns_of_tables() -> None:
    pandas, arrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    rows = ragged_rows(50, np.random.default_rng(random_seed()))
    columns = {name: [row[name].tolist() for row in rows] for name in ("tokens", "gain")}
    expected = [run_alone(model("ragged"), row) for row in rows]
    tables = [columns, pandas.DataFrame(columns), arrow.table(columns), arrow.table(columns).to_batches()[0]]
    for table in tables:
        for result, single in zip(model("ragged").map(table, batch_size=8), expected, strict=True):
            assert_same_bits(result, single)


def test_columns_of_text_and_empty_cells() -> None:
    pandas, arrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    columns = {"text": ["a", None, "ä\N{GRINNING FACE}"], "x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}
    for table in (pandas.DataFrame(columns), arrow.table(columns), columns):
        first, second, third = model("text").map(table, errors="return")
        assert (first["same"], third["same"]) == ("a", "ä\N{GRINNING FACE}")
        np.testing.assert_array_equal(third["y"], [10.0, 12.0])
        assert "row 1: column 'text' is empty" in str(second)


def test_large_tables_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.batch_inference.rows.PART_ROWS", 16)
    frame = pytest.importorskip("pandas").DataFrame({"x": list(np.arange(400, dtype=np.float32).reshape(100, 4))})
    frame.at[50, "x"] = None
    results = list(model("dense").map(frame, errors="return"))
    assert [row for row, result in enumerate(results) if isinstance(result, weft.WeftError)] == [50]
    assert_same_bits(results[99], run_alone(model("dense"), {"x": frame["x"][99]}))


# -- errors ----------------------------------------------------------------------------------------------------------


def test_errors_name_their_row_and_other_rows_have_results() -> None:
    good = np.ones(4, np.float32)
    rows: list[Any] = [good, good[:3], good, "text", {"z": 1}, None, (), good.astype(np.complex64), good * 2]
    results = list(model("dense").map(rows, errors="return"))
    assert [isinstance(result, weft.InputError) for result in results] == [0, 1, 0, 1, 1, 1, 1, 1, 0]
    assert all(f"row {row}: " in str(result) for row, result in enumerate(results) if isinstance(result, Exception))
    assert_same_bits(results[8], run_alone(model("dense"), {"x": good * 2}))
    stopped = model("dense").map(rows)
    next(stopped)
    with pytest.raises(weft.InputError, match="row 1: "):
        next(stopped)


def test_rows_that_only_the_run_refuses() -> None:
    generator = np.random.default_rng(random_seed())
    rows = ragged_rows(40, generator)
    rows[17]["tokens"] = rows[17]["tokens"] + 100  # no such embedding
    results = list(model("ragged").map(rows, batch_size=16, errors="return"))
    assert [row for row, result in enumerate(results) if isinstance(result, weft.WeftError)] == [17]
    assert_same_bits(results[18], run_alone(model("ragged"), rows[18]))
    stopped = model("ragged").map(rows, batch_size=16)
    for row in rows[:17]:
        assert_same_bits(next(stopped), run_alone(model("ragged"), row))
    with pytest.raises(weft.WeftError, match="row 17: "):
        next(stopped)


def test_an_error_of_the_source_follows_the_rows_before_it() -> None:
    def rows() -> Iterator[Any]:
        for _ in range(13):
            yield np.ones(4, np.float32)
        raise LookupError("the disk is gone")

    results = model("dense").map(rows(), batch_size=5)
    assert [len(next(results)["y"]) for _ in range(13)] == [3] * 13
    with pytest.raises(LookupError, match="the disk is gone"):
        next(results)
    wait_until(lambda: not count_helpers())


def test_an_item_of_a_dataset_that_fails_is_the_error_of_its_row() -> None:
    results = list(model("dense").map(Dataset(np.ones((6, 4), np.float32), broken=2), errors="return"))
    assert [type(result).__name__ for result in results] == ["dict", "dict", "InputError", "dict", "dict", "dict"]
    assert "row 2: the dataset raised OSError: no such picture" in str(results[2])
    error: Any = results[2]
    assert isinstance(error.__cause__, OSError)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"rows": 3}, "rows cannot be read from 3"),
        ({"rows": "model.npy"}, "rows cannot be read from 'model.npy'"),
        ({"rows": {}}, "no column 'x'"),
        ({"rows": {"y": [1]}}, "no column 'x'"),
        ({"rows": {"x": np.float32(1)}}, "has no rows"),
        ({"rows": {"x": "abcd"}}, "has no rows: it is a str"),
        ({"rows": {"x": np.ones((3, 4)), "z": [1]}}, "column 'z' has 1 rows"),
        ({"rows": np.float32(1)}, "at least one dimension|cannot be read"),
        ({"rows": np.ones((2, 2, 4), np.float32)}, "rows of shape"),
        ({"rows": [], "batch_size": 0}, "batch_size"),
        ({"rows": [], "batch_size": 2.5}, "batch_size"),
        ({"rows": [], "workers": -1}, "workers"),
        ({"rows": [], "errors": "ignore"}, "errors must be"),
        ({"rows": [], "shared": {"z": 1}}, "no input 'z'"),
        ({"rows": [], "shared": 3}, "shared must be"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_by_the_call(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(weft.InputError, match=problem):
        model("dense").map(**arguments)


# -- memory and threads ----------------------------------------------------------------------------------------------


def test_a_loop_that_is_left_ends_the_helpers_and_reads_no_further() -> None:
    source = CountingSource()
    for number, _ in enumerate(model("dense").map(source, batch_size=8, workers=2)):
        if number == 20:
            break
    wait_until(lambda: source.is_closed and not count_helpers())
    assert source.count <= 8 * (3 + 2 + 2 + 1)


def test_a_slow_consumer_bounds_the_rows_ahead() -> None:
    source = CountingSource()
    results = model("dense").map(source, batch_size=8, workers=2)
    next(results)
    time.sleep(0.3)  # in which the helpers would take rows, if they could
    assert source.count <= 8 * 6
    del results
    gc.collect()
    wait_until(lambda: source.is_closed and not count_helpers())


def test_a_source_that_waits_does_not_block_who_drops_the_results() -> None:
    gate = threading.Event()

    def rows() -> Iterator[Any]:
        yield np.ones(4, np.float32)
        gate.wait()

    results = model("dense").map(rows(), batch_size=1)
    next(results)
    closing = threading.Thread(target=results.close)  # type: ignore[attr-defined]
    closing.start()
    closing.join(WAIT_SECONDS)
    assert not closing.is_alive()
    gate.set()
    wait_until(lambda: not count_helpers())


def test_results_that_are_never_read_take_nothing() -> None:
    source = CountingSource()
    results = model("dense").map(source)
    del results
    gc.collect()
    assert source.count == 0


def test_map_inside_of_map() -> None:
    rows = np.random.default_rng(random_seed()).normal(size=(60, 4)).astype(np.float32)
    inner = (result["y"] @ np.ones((3, 4), np.float32) for result in model("dense").map(rows, batch_size=7))
    results = list(model("dense").map(inner, batch_size=9))
    expected = [
        run_alone(model("dense"), {"x": run_alone(model("dense"), {"x": row})["y"] @ np.ones((3, 4), np.float32)})
        for row in rows
    ]
    for result, single in zip(results, expected, strict=True):
        assert_same_bits(result, single)
    pairs = [next(iter(model("dense").map(rows[:2]))) for _ in model("dense").map(rows[:5])]
    assert len(pairs) == 5


def test_several_threads_map_the_same_model() -> None:
    rows = np.random.default_rng(random_seed()).normal(size=(100, 4)).astype(np.float32)
    expected = [result["y"].tobytes() for result in model("dense").map(rows)]
    results: list[Any] = []
    threads = [
        threading.Thread(
            target=lambda size=size: results.append([each["y"].tobytes() for each in model("dense").map(rows, size)])
        )
        for size in (1, 3, 10, 33)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert results == [expected] * 4


def test_a_thread_may_take_over_from_one_that_ended() -> None:
    results = model("dense").map((np.ones(4, np.float32) for _ in range(50)), batch_size=1)
    first: list[Any] = []
    thread = threading.Thread(target=lambda: first.append(next(results)))
    thread.start()
    thread.join(WAIT_SECONDS)
    time.sleep(1.3)  # longer than idle helpers wait before they look for their owner
    assert len(first) + len(list(results)) == 50


def test_an_interrupt_in_the_source_ends_the_map() -> None:
    def rows() -> Iterator[Any]:
        yield np.ones(4, np.float32)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(model("dense").map(rows()))
    wait_until(lambda: not count_helpers())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_maps_by_itself_and_is_refused_its_parents_results() -> None:
    rows = np.random.default_rng(random_seed()).normal(size=(30, 4)).astype(np.float32)
    expected = [result["y"].tobytes() for result in model("dense").map(rows)]
    results = model("dense").map(rows, batch_size=1)
    next(results)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            own = [result["y"].tobytes() for result in model("dense").map(rows, batch_size=4)]
            try:
                next(results)
            except weft.ExecutionError as error:
                status = 0 if own == expected and "forked" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [result["y"].tobytes() for result in results] == expected[1:]


PROGRAM = """
import itertools, os, signal, sys, threading, time
import numpy as np
import weft
graph = weft.Graph("dense")
x = graph.input("x", ("batch", 4), "float32")
graph.output(x + x, "y")
model = graph.compile(device="cpu")
results = model.map(np.ones(4, np.float32) for _ in itertools.count())
next(results)
"""
INTERRUPT = """
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    for _ in results: pass
except KeyboardInterrupt:
    print("interrupted")
"""
DAEMON = """
threading.Thread(target=lambda: [None for _ in results], daemon=True).start()
time.sleep(0.2)
print("done")
"""
ENDINGS = {
    "suspended": ("print('done')", "done"),
    "in another thread": ("threading.Thread(target=lambda: print(len(list(zip(range(9), results))))).start()", "9"),
    "interrupted": (INTERRUPT, "interrupted"),
    "in a daemon": (DAEMON, "done"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_ends_while_results_are_open(ending: str) -> None:
    code, printed = ENDINGS[ending]
    command = [sys.executable, "-c", PROGRAM + code]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (finished.stdout.strip(), finished.stderr, finished.returncode) == (printed, "", 0)
