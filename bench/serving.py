"""Measure `weft serve` beside onnxruntime behind FastAPI, bare runs, and an HTTP server that does nothing.

`python bench/serving.py NAME=MODEL.onnx... [--connections 64] [--seconds 5] [--rounds 3] [-o FILE.json]`; wrk, a
package of Debian, makes the load. All engines take turns in each round; the table has medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np

import weft
from weft.server.v2.datatypes import DATATYPES

ECHO = """
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body = b""
    message = {"more_body": True}
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
"""
FASTAPI = """
import os

import numpy as np
import onnxruntime
from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(os.environ["BENCH_THREADS"])
session = onnxruntime.InferenceSession(os.environ["BENCH_MODEL"], options, providers=["CPUExecutionProvider"])
dtypes = {"tensor(float)": np.float32, "tensor(int32)": np.int32, "tensor(int64)": np.int64}
shapes = eval(os.environ["BENCH_SHAPES"])
app = FastAPI()


@app.post("/infer")
async def infer(request: Request) -> Response:
    body = await request.body()
    feeds, start = {}, 0
    for each in session.get_inputs():
        dtype, shape = np.dtype(dtypes[each.type]), shapes[each.name]
        count = int(np.prod(shape))
        feeds[each.name] = np.frombuffer(body, dtype, count, start).reshape(shape)
        start += count * dtype.itemsize
    outputs = await run_in_threadpool(session.run, None, feeds)
    return Response(b"".join(output.tobytes() for output in outputs), media_type="application/octet-stream")
"""
LUA = """
wrk.method = "POST"
local file = io.open(os.getenv("BENCH_BODY"), "rb")
wrk.body = file:read("*a")
file:close()
if os.getenv("BENCH_LENGTH") then
  wrk.headers["Inference-Header-Content-Length"] = os.getenv("BENCH_LENGTH")
end
wrk.headers["Content-Type"] = "application/octet-stream"
"""
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


@dataclass(frozen=True)
class Load:
    """A request that is sent again and again."""

    path: str
    body: Path
    length: str | None = None


@dataclass(frozen=True)
class Measured:
    """What one engine reached in one round."""

    requests: float  # a second
    p50: float
    p99: float
    failures: int


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@contextmanager
def run_server(command: list[str], port: int, path: str, environment: dict[str, str] | None = None) -> Iterator[None]:
    """Run a server, and wait until it answers."""
    process = subprocess.Popen(command, env={**os.environ, **(environment or {})}, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while True:
            try:
                urlopen(Request(f"http://127.0.0.1:{port}{path}"), timeout=5).read()
                break
            except OSError as error:
                if getattr(error, "code", None) in (404, 405):
                    break
                if time.monotonic() > end or process.poll() is not None:
                    raise
                time.sleep(0.1)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def run_wrk(port: int, load: Load, connections: int, seconds: float, folder: Path) -> Measured:
    """Send requests for some seconds."""
    script = folder / "load.lua"
    script.write_text(LUA)
    environment = {**os.environ, "BENCH_BODY": str(load.body)}
    if load.length is not None:
        environment["BENCH_LENGTH"] = load.length
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "30s", "--latency", "-s", str(script)]
    text = subprocess.run(
        [*command, f"http://127.0.0.1:{port}{load.path}"], env=environment, capture_output=True, text=True, check=True
    ).stdout

    def find(pattern: str) -> str:
        match = re.search(pattern, text)
        return match[1] if match else "0"

    def latency(percentile: int) -> float:
        match = re.search(rf"{percentile}%\s+([\d.]+)(us|ms|s|m)", text)
        return float(match[1]) * UNITS[match[2]] if match else float("nan")

    failures = int(find(r"Non-2xx or 3xx responses: (\d+)")) + int(find(r"timeout (\d+)"))
    return Measured(float(find(r"Requests/sec:\s+([\d.]+)")), latency(50), latency(99), failures)


def run_bare(model: weft.Model, inputs: dict[str, Any], seconds: float) -> Measured:
    """Run the model in a loop, without a server."""
    times = []
    end = time.perf_counter() + seconds
    begin = time.perf_counter()
    while time.perf_counter() < end:
        start = time.perf_counter()
        model.run(inputs)
        times.append(time.perf_counter() - start)
    rate = len(times) / (time.perf_counter() - begin)
    return Measured(rate, statistics.median(times), float(np.percentile(times, 99)), 0)


def measure(name: str, path: Path, args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Measure all engines on one model."""
    model = weft.load(path, device="cpu", threads=args.threads)
    inputs = weft.random_inputs(model, batch=1) if args.batch is None else weft.random_inputs(model, batch=args.batch)
    raw = b"".join(np.ascontiguousarray(array).tobytes() for array in inputs.values())
    entries = [
        {
            "name": key,
            "datatype": DATATYPES[array.dtype],
            "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes},
        }
        for key, array in inputs.items()
    ]
    header = json.dumps({"inputs": entries, "parameters": {"binary_data_output": True}}).encode()
    (folder / "raw").write_bytes(raw)
    (folder / "binary").write_bytes(header + raw)
    (folder / "echo.py").write_text(ECHO)
    (folder / "fast.py").write_text(FASTAPI)
    weft_load, raw_load = Load(f"/v2/models/{name}/infer", folder / "binary", str(len(header))), folder / "raw"
    environment = {
        "BENCH_MODEL": str(path),
        "BENCH_THREADS": str(args.threads),
        "BENCH_SHAPES": repr({key: array.shape for key, array in inputs.items()}),
    }
    uvicorn = [sys.executable, "-m", "uvicorn", "--no-access-log", "--log-level", "error", "--app-dir", str(folder)]
    serve = [sys.executable, "-m", "weft", "serve", f"{name}={path}", "--grpc", "off", "--metrics", "off"]
    serve += ["--device", "cpu", "--threads", str(args.threads)]
    engines = {  # the command, a path that answers when the server is ready, and the load
        "weft": ([*serve, "--http"], "/v2/health/ready", weft_load),
        "weft, no batching": ([*serve, "--no-batching", "--http"], "/v2/health/ready", weft_load),
        "onnxruntime, FastAPI": ([*uvicorn, "fast:app", "--port"], "/docs", Load("/infer", raw_load)),
        "HTTP alone": ([*uvicorn, "echo:app", "--port"], "/", Load("/", raw_load)),
    }
    results: dict[str, list[Measured]] = {engine: [] for engine in ("bare runs", *engines)}
    with ExitStack() as stack:
        ports = {engine: free_port() for engine in engines}
        for engine, (command, probe, _) in engines.items():
            stack.enter_context(run_server([*command, str(ports[engine])], ports[engine], probe, environment))
        for _ in range(args.rounds):
            results["bare runs"].append(run_bare(model, inputs, args.seconds))
            for engine, (_, _, load) in engines.items():
                run_wrk(ports[engine], load, args.connections, 1, folder)  # warm up
                results[engine].append(run_wrk(ports[engine], load, args.connections, args.seconds, folder))
    rows = []
    for engine, rounds in results.items():
        rows.append(
            {
                "model": name,
                "engine": engine,
                "connections": 1 if engine == "bare runs" else args.connections,
                "requests": statistics.median(each.requests for each in rounds),
                "p50_ms": statistics.median(each.p50 for each in rounds) * 1e3,
                "p99_ms": statistics.median(each.p99 for each in rounds) * 1e3,
                "failures": sum(each.failures for each in rounds),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL.onnx")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--batch", type=int, help="rows of a request")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    rows = []
    for each in args.models:
        name, _, path = each.partition("=")
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(name, Path(path).absolute(), args, Path(folder))
        for row in rows[-5:]:
            print(
                f"{row['model']:<12} {row['engine']:<22} {row['requests']:>10,.1f}/s  p50 {row['p50_ms']:>8.2f} ms  "
                f"p99 {row['p99_ms']:>8.2f} ms  failures {row['failures']}",
                flush=True,
            )
    if args.output is not None:
        args.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
