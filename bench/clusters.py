"""Run one model over many rows with Ray, Spark and Dask on this machine, and compare with one process.

    .clients/bin/python bench/clusters.py [--rows 100000] [--engines ray,spark,dask]

Each engine runs in a process of its own, first over a few rows, so that its start-up does not count. A single process
runs before and after each. Reported are the rows per second, whether all bits equal those of the single process, and
the memory of the packed weights: each process maps all of them (`resident`), and together they have one copy (`shared`,
by PSS). Needs .clients (scripts/setup-clients).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow.dataset import dataset
from pyarrow.parquet import write_table

import weft

FEATURES, HIDDEN, CLASSES = 256, 4096, 16
FILES = 48
ENGINES = ("ray", "spark", "dask")


def write_files(folder: Path, rows: int) -> None:
    """Write a model with 71 MB of weights, and tables of rows: few for the start, then all."""
    random = np.random.default_rng(0)
    graph = weft.Graph("classifier")
    value = graph.input("x", ("batch", FEATURES), "float32")
    for layer, (size, width) in enumerate(((FEATURES, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, CLASSES))):
        weights = random.normal(scale=size**-0.5, size=(size, width)).astype(np.float32)
        value = value @ graph.parameter(f"w{layer}", weights)
        value = weft.ops.softmax(value) if layer == 2 else weft.ops.relu(value)
    graph.output(value, "y")
    graph.to_onnx(folder / "model.onnx")
    for name, count in (("few", 20 * FILES), ("all", rows)):
        (folder / name).mkdir()
        for number, ids in enumerate(np.array_split(np.arange(count), FILES)):
            cells = pa.array(random.normal(size=len(ids) * FEATURES).astype(np.float32))
            offsets = pa.array(np.arange(len(ids) + 1, dtype=np.int32) * FEATURES)
            table = pa.table({"id": ids, "x": pa.ListArray.from_arrays(offsets, cells)})
            write_table(table, folder / name / f"{number:03}.parquet")


# -- engines: each returns a function from a folder of tables to columns `id` and `y` --------------------------------


@contextmanager
def start_alone(model: Path) -> Iterator[Callable[[Path], Any]]:
    predict = weft.batch(model)

    def run(folder: Path) -> Any:
        batches = dataset(folder).to_batches()
        return pa.Table.from_batches([predict(batch).select(["id", "y"]) for batch in batches if batch.num_rows])

    yield run


@contextmanager
def start_ray(model: Path) -> Iterator[Callable[[Path], Any]]:
    import ray

    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR", _node_ip_address="127.0.0.1")
    ray.data.DataContext.get_current().enable_progress_bars = False
    predict = weft.batch(model)

    def run(folder: Path) -> Any:
        tables = ray.data.read_parquet(str(folder)).repartition(FILES)  # else one task has all rows
        rows = tables.map_batches(predict, batch_format="pyarrow", batch_size=None)
        batches = rows.select_columns(["id", "y"]).iter_batches(batch_format="pyarrow", batch_size=None)
        return pa.concat_tables(list(batches))

    yield run
    ray.shutdown()


@contextmanager
def start_spark(model: Path) -> Iterator[Callable[[Path], Any]]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{os.cpu_count()}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.sql.files.openCostInBytes", 0).config("spark.sql.files.maxPartitionBytes", "8m")
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    predict = weft.spark_udf(model)

    def run(folder: Path) -> Any:
        return session.read.parquet(str(folder)).select("id", predict("x").alias("y")).toArrow()

    yield run
    session.stop()


@contextmanager
def start_dask(model: Path) -> Iterator[Callable[[Path], Any]]:
    import dask.dataframe

    predict = weft.batch(model, threads=1)  # Dask's processes have no setting of their own
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:

        def run(folder: Path) -> Any:
            rows = dask.dataframe.read_parquet(folder, dtype_backend="pyarrow")
            frame = rows.map_partitions(predict)[["id", "y"]].compute(scheduler="processes", pool=pool, chunksize=1)
            return pa.Table.from_pandas(frame, preserve_index=False)

        yield run


# -- measurements ----------------------------------------------------------------------------------------------------


class WeightSampler:
    """Watches how much memory the processes of this machine map of the files in a cache."""

    def __init__(self, cache: Path) -> None:
        self._name = str(cache / "models")
        self.processes, self.resident, self.shared = 0, 0, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.3):
            sizes = [self._read(process) for process in Path("/proc").iterdir() if process.name.isdigit()]
            mapped = [size for size in sizes if size[0]]
            resident, shared = (sum(size[kind] for size in mapped) for kind in (0, 1))
            if resident > self.resident:
                self.processes, self.resident, self.shared = len(mapped), resident, shared

    def _read(self, process: Path) -> tuple[int, int]:
        """Return the resident and the proportional bytes of the mapped entries of a process."""
        totals = {"Rss:": 0, "Pss:": 0}
        with suppress(OSError):
            is_entry = False
            for line in (process / "smaps").read_text().splitlines():
                word, _, rest = line.partition(" ")
                if "-" in word:
                    is_entry = self._name in rest
                elif is_entry and word in totals:
                    totals[word] += int(rest.split()[0]) << 10
        return totals["Rss:"], totals["Pss:"]

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


def measure(engine: str, folder: Path) -> None:
    """Run an engine, and print its rows per second, a digest of its results, and the memory of the weights."""
    start = {"alone": start_alone, "ray": start_ray, "spark": start_spark, "dask": start_dask}[engine]
    began = time.perf_counter()
    with start(folder / "model.onnx") as run:
        run(folder / "few")
        started = time.perf_counter()
        sampler = WeightSampler(folder / "cache")
        table = run(folder / "all")
        seconds = time.perf_counter() - started
        sampler.end()
    table = table.sort_by("id")
    scores = table["y"].combine_chunks()
    values = scores.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
    result = {
        "engine": engine,
        "start": started - began,
        "rows": table.num_rows,
        "rows_per_second": table.num_rows / seconds,
        "digest": sha256(table["id"].to_numpy().tobytes() + values.tobytes()).hexdigest(),
        "processes": sampler.processes,
        "resident": sampler.resident,
        "shared": sampler.shared,
    }
    (folder / f"{engine}.json").write_text(json.dumps(result))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.folder is not None:
        measure(args.engines, args.folder)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["WEFT_CACHE"] = str(folder / "cache")
        write_files(folder, args.rows)
        alone, rounds = [run_engine("alone", folder)], []
        for engine in args.engines.split(","):
            rounds.append(run_engine(engine, folder))
            alone.append(run_engine("alone", folder))
    print(f"{'engine':8} {'rows/s':>7} {'alone':>7} {'ratio':>6} {'start':>7} same bits  processes  resident  shared")
    is_same = True
    for result, before, after in zip(rounds, alone, alone[1:]):
        speed, usual = result["rows_per_second"], (before["rows_per_second"] + after["rows_per_second"]) / 2
        has_same_bits = (result["digest"], result["rows"]) == (alone[0]["digest"], args.rows)
        is_same = is_same and has_same_bits
        print(
            f"{result['engine']:8} {speed:7.0f} {usual:7.0f} {speed / usual:6.2f} {result['start']:6.1f}s "
            f"{'yes' if has_same_bits else 'NO':9}  {result['processes']:9}  {result['resident'] / 1e6:5.1f} MB  "
            f"{result['shared'] / 1e6:.1f} MB"
        )
    return 0 if is_same else 1


def run_engine(engine: str, folder: Path) -> Any:
    command = [sys.executable, __file__, "--engines", engine, "--folder", str(folder)]
    with (folder / f"{engine}.log").open("wb") as log:
        finished = subprocess.run(command, stdout=log, stderr=log, timeout=600, check=False)
    if finished.returncode:
        sys.exit((folder / f"{engine}.log").read_text()[-3000:])
    return json.loads((folder / f"{engine}.json").read_text())


if __name__ == "__main__":
    sys.exit(main())
