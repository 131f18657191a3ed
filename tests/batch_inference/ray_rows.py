"""Run the models of a folder over rows with Ray Data and Ray Serve, as its users do, and write the results to a file.

Usage: python ray_rows.py FOLDER, with dense.onnx, ragged.onnx, rows.parquet and ragged.parquet.
"""

from __future__ import annotations

import json
import pickle
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import serve

import weft

BODIES = ['{"x": [[1, 2, 3, 4]]}', "{", "[]", '{"z": 1}', '{"x": [[1, 2]]}', '{"x": "a"}', '{"x": [["a", 2, 3, 4]]}']


def count_threads(_: Any) -> dict[str, Any]:
    from weft.threads import usable_cores

    return {"threads": [usable_cores()]}


def map_rows(folder: Path) -> dict[str, Any]:
    rows = ray.data.read_parquet(str(folder / "rows.parquet"))
    ragged = ray.data.read_parquet(str(folder / "ragged.parquet"))
    predict, states = weft.batch(folder / "dense.onnx"), weft.batch(folder / "ragged.onnx")
    results = {}
    for batch_format in ("numpy", "pandas", "pyarrow"):
        results[batch_format] = rows.map_batches(predict, batch_format=batch_format, batch_size=70).take_all()
    results["ragged"] = ragged.map_batches(states, batch_format="numpy").take_all()
    arguments = {"outputs": ["y"], "ship": "path"}
    results["actors"] = rows.map_batches(
        weft.BatchFunction,
        fn_constructor_args=[str(folder / "dense.onnx")],
        fn_constructor_kwargs=arguments,
        compute=ray.data.ActorPoolStrategy(size=1),  # the other core reads the rows
        batch_format="numpy",
        batch_size=70,
    ).take_all()
    results["threads"] = rows.map_batches(count_threads, num_cpus=1).take_all()[0]["threads"]
    return results


def post(body: str, port: int) -> tuple[int, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", body.encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def serve_rows(folder: Path) -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    handle = serve.run(weft.ray_deployment(folder / "dense.onnx", threads=1).bind())
    rows = np.load(folder / "rows.npy")
    answers = [handle.remote({"x": row[None]}) for row in rows[:40]]
    results = {"handle": [answer.result() for answer in answers], "http": [post(body, port) for body in BODIES]}
    serve.shutdown()
    return results


if __name__ == "__main__":
    target = Path(sys.argv[1])
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", _node_ip_address="127.0.0.1"
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    (target / "results.pickle").write_bytes(pickle.dumps({**map_rows(target), **serve_rows(target)}))
    ray.shutdown()
