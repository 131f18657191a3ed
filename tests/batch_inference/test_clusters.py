"""Spark and Ray compute the bits of single runs, in programs as their users write them (`.clients`)."""

from __future__ import annotations

import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batch_inference.small_models import GRAPHS, assert_same_bits, model, ragged_rows, random_seed, run_alone
from waiting import LONG_PATIENCE, require_client

HERE = Path(__file__).parent
ROWS = 200


def run_program(name: str, module: str, folder: Path) -> tuple[dict[str, Any], Any, list[dict[str, Any]]]:
    """Return the results of a program, and the rows that it had."""
    python = require_client(module)
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    generator = np.random.default_rng(random_seed())
    rows = generator.normal(size=(ROWS, 4)).astype(np.float32)
    examples = ragged_rows(ROWS, generator)
    for graph in ("dense", "ragged"):
        GRAPHS[graph]().to_onnx(folder / f"{graph}.onnx")
    np.save(folder / "rows.npy", rows)
    parquet.write_table(arrow.table({"id": range(ROWS), "x": list(rows)}), folder / "rows.parquet")
    columns = {name: [row[name] for row in examples] for name in ("tokens", "gain")}
    parquet.write_table(arrow.table({"id": range(ROWS), **columns}), folder / "ragged.parquet")
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    command = [python, HERE / name, folder]
    finished = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=LONG_PATIENCE, check=False
    )
    assert finished.returncode == 0, finished.stderr[-5000:]
    return pickle.loads((folder / "results.pickle").read_bytes()), rows, examples


def check_rows(rows: Any, examples: Any, name: str, outputs: dict[str, str], graph: str) -> None:
    """Compare rows, which may come in any order, with single runs."""
    records = rows.to_dict("records") if hasattr(rows, "to_dict") else rows
    assert sorted(record["id"] for record in records) == list(range(ROWS)), name
    for record in records:
        row = examples[record["id"]]
        single = run_alone(model(graph), row if isinstance(row, dict) else {"x": row})
        for output, column in outputs.items():
            content = record[column]
            array = np.asarray([list(each) for each in content] if output == "state" else content)
            assert_same_bits({output: array.astype(single[output].dtype)}, {output: single[output]})


def test_spark(tmp_path: Path) -> None:
    results, rows, examples = run_program("spark_rows.py", "pyspark", tmp_path)
    for method in ("mapInPandas", "mapInArrow", "udf"):
        check_rows(results[method], rows, method, {"y": "scores"}, "dense")
    check_rows(results["sql"], rows, "sql", {"best": "best"}, "dense")
    check_rows(results["struct"], examples, "struct", {"state": "state", "total": "total"}, "ragged")
    assert results["types"] == ["struct<state:array<array<float>>,total:float>", "bigint"]
    assert set(results["threads"]["threads"]) == {1}
    assert "InputError" in results["error"]
    assert "row 0: input 'x' must have size 4" in results["error"]


def test_ray(tmp_path: Path) -> None:
    results, rows, examples = run_program("ray_rows.py", "ray", tmp_path)
    for batch_format in ("numpy", "pandas", "pyarrow"):
        check_rows(results[batch_format], rows, batch_format, {"y": "y", "best": "best"}, "dense")
    check_rows(results["ragged"], examples, "ragged", {"state": "state", "total": "total"}, "ragged")
    check_rows(results["actors"], rows, "actors", {"y": "y"}, "dense")
    assert results["threads"] == 1
    for row, answer in zip(rows, results["handle"]):
        assert_same_bits({name: array[0] for name, array in answer.items()}, run_alone(model("dense"), {"x": row}))
    (status, answer), *refusals = results["http"]
    assert status == 200
    single = run_alone(model("dense"), {"x": np.array([1, 2, 3, 4], np.float32)})
    assert np.float32(answer["y"]).tobytes() == single["y"].tobytes()
    assert answer["best"] == [int(single["best"])]
    assert [status for status, _ in refusals] == [400] * 6
    assert "the model has no input 'z'" in refusals[2][1]["error"]
