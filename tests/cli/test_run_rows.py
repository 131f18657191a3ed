"""`weft run` on the rows of tables and the files of folders."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batch_inference.small_models import GRAPHS, assert_same_bits, model, ragged_rows, random_seed, run_alone

import weft
from weft import ops
from weft.cli import main, table_files

Capture = pytest.CaptureFixture[str]
ROWS = 60


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(random_seed())


@pytest.fixture
def folder(generator: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with dense.onnx, and the rows of `x` as tables of every kind."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(table_files, "PART_ROWS", 16)
    GRAPHS["dense"]().to_onnx(tmp_path / "dense.onnx")
    rows = generator.normal(size=(ROWS, 4)).astype(np.float32)
    np.save("rows.npy", rows)
    table = arrow.table({"id": range(ROWS), "x": list(rows), "label": ["ä"] * ROWS})
    parquet.write_table(table, "rows.parquet", row_group_size=25)
    write_arrow(table, "rows.arrow")
    with Path("rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "a", "b", "c", "d"])
        writer.writerows([number, *row.tolist()] for number, row in enumerate(rows))
    return tmp_path


def write_arrow(table: Any, path: str) -> None:
    with pytest.importorskip("pyarrow").ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=20)


def read_results(path: str) -> list[dict[str, Any]]:
    """Read results with other programs than weft."""
    suffix = Path(path).suffix
    if suffix == ".parquet":
        return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    if suffix in (".arrow", ".feather"):
        return pytest.importorskip("pyarrow.feather").read_table(path).to_pylist()
    if suffix == ".jsonl":
        return [json.loads(line) for line in Path(path).read_text().splitlines()]
    with Path(path).open(newline="") as file:
        return [
            {
                name: json.loads(cell) if name in ("x", "y", "id", "best") and cell else cell
                for name, cell in row.items()
            }
            for row in csv.DictReader(file)
        ]


def run_json(capsys: Capture, *arguments: object, status: int = 0) -> Any:
    assert main(["run", *map(str, arguments), "--json"]) == status
    return json.loads(capsys.readouterr().out)


def fail(capsys: Capture, *arguments: object) -> str:
    assert main(["run", *map(str, arguments)]) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("source", ["rows.parquet", "rows.arrow"])
@pytest.mark.parametrize("target", ["out.parquet", "out.arrow", "out.feather", "new/out.csv", "out.jsonl"])
def test_tables_in_and_out(source: str, target: str, folder: Path, capsys: Capture) -> None:
    record = run_json(capsys, "dense.onnx", source, "-o", target)
    assert (record["rows"], record["failed"], record["errors"], record["saved"]) == (ROWS, 0, [], target)
    assert record["outputs"][0] == {"name": "y", "dtype": "float32", "shape": [3]}
    results = read_results(target)
    assert list(results[0]) == ["id", "x", "label", "y", "best"]
    assert {(row["id"], row["label"]) for row in results} == {(number, "ä") for number in range(ROWS)}
    for row, result in zip(np.load("rows.npy"), results, strict=True):
        single = run_alone(model("dense"), {"x": row})
        assert np.float32(result["y"]).tobytes() == single["y"].tobytes()
        assert result["best"] == single["best"]
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == []


def test_csv_columns_make_one_input(folder: Path, capsys: Capture) -> None:
    for target in ("out.csv", "out.parquet"):
        run_json(capsys, "dense.onnx", "rows.csv", "-o", target, "--columns", "x=a,b,c,d")
        results = read_results(target)
        assert [result["id"] for result in results] == list(range(ROWS))
        for row, result in zip(np.load("rows.npy"), results, strict=True):
            assert np.float32(result["y"]).tobytes() == run_alone(model("dense"), {"x": row})["y"].tobytes()


def test_ragged_rows_and_inputs_that_all_share(generator: np.random.Generator, folder: Path, capsys: Capture) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    examples = ragged_rows(ROWS, generator)
    parquet.write_table(
        arrow.table({name: [row[name] for row in examples] for name in ("tokens", "gain")}), "r.parquet"
    )
    GRAPHS["ragged"]().to_onnx("ragged.onnx")
    run_json(capsys, "ragged.onnx", "r.parquet", "-o", "out.parquet")
    for row, result in zip(examples, read_results("out.parquet"), strict=True):
        outputs = {"state": np.asarray(result["state"], np.float32), "total": np.float32(result["total"])}
        assert_same_bits(outputs, run_alone(model("ragged"), row))
    GRAPHS["scaled"]().to_onnx("scaled.onnx")
    run_json(capsys, "scaled.onnx", "rows.parquet", "-i", "rate=3", "-o", "out.jsonl")
    scaled = np.asarray([result["y"] for result in read_results("out.jsonl")], np.float32)
    np.testing.assert_array_equal(scaled, np.load("rows.npy") * np.float32(3))


@pytest.mark.parametrize("target", ["out.parquet", "out.arrow", "out.csv", "out.jsonl"])
@pytest.mark.parametrize("all_fail", [False, True])
def test_rows_that_fail_are_empty_and_listed(target: str, all_fail: bool, folder: Path, capsys: Capture) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows: list[Any] = [None if all_fail else list(row) for row in np.load("rows.npy")]
    rows[3], rows[20] = None, [1.0, 2.0]
    parquet.write_table(arrow.table({"x": arrow.array(rows, arrow.list_(arrow.float32()))}), "bad.parquet")
    record = run_json(capsys, "dense.onnx", "bad.parquet", "-o", target, status=1)
    failed = list(range(ROWS)) if all_fail else [3, 20]
    assert record["failed"] == len(failed)
    assert [error["row"] for error in record["errors"]] == failed
    assert "column 'x' is empty" in record["errors"][0]["error"]
    results = read_results(target)
    assert [number for number, result in enumerate(results) if result["y"] in (None, "")] == failed
    if not all_fail:
        single = run_alone(model("dense"), {"x": np.load("rows.npy")[21]})
        assert np.float32(results[21]["y"]).tobytes() == single["y"].tobytes()
    assert main(["run", "dense.onnx", "bad.parquet", "-o", target]) == 1
    printed = capsys.readouterr()
    assert f"{len(failed)} of {ROWS} rows failed" in printed.err
    assert "row 3: column 'x' is empty" in printed.err
    assert "rows" in printed.out


def test_empty_tables(folder: Path, capsys: Capture) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(parquet.read_table("rows.parquet").slice(0, 0), "empty.parquet")
    for target in ("out.parquet", "out.arrow"):
        assert run_json(capsys, "dense.onnx", "empty.parquet", "-o", target)["rows"] == 0
        table = (
            pytest.importorskip("pyarrow.feather").read_table(target)
            if "arrow" in target
            else parquet.read_table(target)
        )
        assert table.schema.names == ["id", "x", "label", "y", "best"]
        assert table.schema.field("y").type == arrow.list_(arrow.float32())


def test_a_table_can_replace_itself(folder: Path, capsys: Capture) -> None:
    run_json(capsys, "dense.onnx", "rows.parquet", "-o", "rows.parquet")
    run_json(capsys, "dense.onnx", "rows.parquet", "-o", "rows.parquet")
    assert list(read_results("rows.parquet")[0]) == ["id", "x", "label", "y", "best"]


# -- folders ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def pictures(generator: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    graph = weft.Graph("brightness")
    x = graph.input("x", ("batch", 3, 8, 8), "float32")
    graph.output(ops.reduce_mean(x, np.array([2, 3]), keepdims=0), "y")
    graph.to_onnx(tmp_path / "brightness.onnx")
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(5):
        pixels = generator.integers(0, 256, (12 + number, 16, 3)).astype(np.uint8)
        image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "notes.txt").write_text("not an image")
    return folder


@pytest.mark.parametrize("target", ["out.jsonl", "out.parquet"])
def test_folders_give_the_results_of_single_files(target: str, pictures: Path, capsys: Capture) -> None:
    if target == "out.parquet":
        pytest.importorskip("pyarrow")
    (pictures / "2.png").write_bytes((pictures / "2.png").read_bytes()[:60])  # truncated
    record = run_json(capsys, "brightness.onnx", "pictures", "-o", target, status=1)
    assert [(error["row"], error["file"]) for error in record["errors"]] == [(2, str(Path("pictures", "2.png")))]
    results = read_results(target)
    assert [Path(result["file"]).name for result in results] == [f"{number}.png" for number in range(5)]
    loaded = weft.load("brightness.onnx")
    for result in results:
        if result["y"] is None:
            assert result["file"].endswith("2.png")
            continue
        single = loaded.run(weft.read_inputs(loaded, result["file"]))["y"][0]
        assert np.float32(result["y"]).tobytes() == single.tobytes()


# -- arguments -------------------------------------------------------------------------------------------------------


def test_wrong_arguments(folder: Path, capsys: Capture) -> None:
    (folder / "empty").mkdir()
    (folder / "damaged.parquet").write_bytes(b"PAR1 is all that is right")
    assert "are written to a file" in fail(capsys, "dense.onnx", "rows.parquet")
    assert "out.npz: the results of rows are a table" in fail(capsys, "dense.onnx", "rows.parquet", "-o", "out.npz")
    assert "one table or folder, not 2" in fail(capsys, "dense.onnx", "rows.parquet", "rows.arrow", "-o", "o.csv")
    assert "one table or folder, not none" in fail(capsys, "dense.onnx", "-o", "out.jsonl")
    assert "--repeat is not for rows" in fail(capsys, "dense.onnx", "rows.parquet", "-o", "o.csv", "--repeat", "3")
    assert "missing.parquet: no such file" in fail(capsys, "dense.onnx", "missing.parquet", "-o", "out.jsonl")
    assert "without images or audio" in fail(capsys, "dense.onnx", "empty", "-o", "out.jsonl")
    assert "neither a folder nor a table" in fail(capsys, "dense.onnx", "rows.npy", "-o", "out.jsonl")
    assert "damaged.parquet: cannot be read" in fail(capsys, "dense.onnx", "damaged.parquet", "-o", "out.jsonl")
    assert "no column 'x'" in fail(capsys, "dense.onnx", "rows.csv", "-o", "out.jsonl")
    assert "--columns z=a: names no input" in fail(
        capsys, "dense.onnx", "rows.csv", "-o", "out.jsonl", "--columns", "z=a"
    )
    assert "no column 'e'" in fail(capsys, "dense.onnx", "rows.csv", "-o", "out.jsonl", "--columns", "x=a,b,c,e")
    assert "for tables, not for a folder" in fail(capsys, "dense.onnx", "empty", "-o", "o.jsonl", "--columns", "x=a")
    assert sorted(path.name for path in folder.glob(".*")) == []
    assert not (folder / "out.jsonl").exists()


def test_pyarrow_is_named_when_it_is_missing(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    imported = importlib.import_module

    def refuse(name: str) -> Any:
        if name.partition(".")[0] == "pyarrow":
            raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")
        return imported(name)

    monkeypatch.setattr("weft.batch_inference.optional_packages.import_module", refuse)
    error = fail(capsys, "dense.onnx", "rows.parquet", "-o", "out.csv")
    assert "reading rows.parquet needs the package pyarrow" in error
    assert "pip install weft-onnx[tables]" in error
