"""Run the models of a folder over rows with Spark, as its users do, and write the results to a file.

Usage: python spark_rows.py FOLDER, with dense.onnx, ragged.onnx, rows.parquet and ragged.parquet.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyspark
from pyspark.sql import SparkSession

import weft

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
    "spark.sql.shuffle.partitions": "2",
}


def count_threads(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    from weft.threads import usable_cores

    for _ in frames:
        yield pd.DataFrame({"threads": [usable_cores()]})


def results(folder: Path, spark: Any) -> dict[str, Any]:
    frame = spark.read.parquet(str(folder / "rows.parquet")).repartition(4)
    ragged = spark.read.parquet(str(folder / "ragged.parquet")).repartition(3)
    predict = weft.batch(folder / "dense.onnx", outputs={"y": "scores"})
    schema = "id long, x array<float>, scores array<float>"
    classify = weft.spark_udf(folder / "dense.onnx", outputs=["best"])
    spark.udf.register("classify", classify)
    frame.createOrReplaceTempView("rows")
    error = ""
    try:
        frame.select(classify("id")).collect()
    except pyspark.errors.PythonException as raised:
        error = str(raised)
    return {
        "mapInPandas": frame.mapInPandas(predict, schema).toPandas(),
        "mapInArrow": frame.mapInArrow(predict, schema).toPandas(),
        "udf": frame.withColumn("scores", weft.spark_udf(folder / "dense.onnx", outputs=["y"])("x")).toPandas(),
        "sql": spark.sql("SELECT id, classify(x) AS best FROM rows").toPandas(),
        "struct": ragged.select("id", weft.spark_udf(folder / "ragged.onnx")("tokens", "gain").alias("r"))
        .select("id", "r.state", "r.total")
        .toPandas(),
        "types": [
            str(weft.spark_udf(folder / "ragged.onnx").returnType.simpleString()),
            str(classify.returnType.simpleString()),
        ],
        "threads": frame.mapInPandas(count_threads, "threads long").toPandas(),
        "error": error,
    }


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    for name, setting in SETTINGS.items():
        builder = builder.config(name, setting)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    target = Path(sys.argv[1])
    (target / "results.pickle").write_bytes(pickle.dumps(results(target, session)))
    session.stop()
