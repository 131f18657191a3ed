"""Several processes on the same ports: counters, loading, the end of one of them, and memory of the weights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from server import models
from server.test_operation import body_of, serve_process
from waiting import PATIENCE, wait_for

import weft

WORKERS = 3
SIZE = 384  # of a row


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.write_slow(tmp_path_factory.mktemp("workers") / "m.onnx", SIZE)


@pytest.fixture(scope="module")
def served(path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with serve_process(str(path), "--workers", str(WORKERS)) as (process, url):
        wait_for(lambda: len(_children(process.pid)) == WORKERS, "all workers have started")
        wait_for(lambda: len(_answering(url)) == WORKERS, "all workers answer")
        yield process, url


def _children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _answering(url: str) -> set[str]:
    """Return the prefixes of request ids, of which each process has its own."""
    return {httpx.get(f"{url}/v2/health/live").headers["x-request-id"].partition("-")[0] for _ in range(30)}


def _send(url: str, x: np.ndarray[Any, Any]) -> httpx.Response:
    return httpx.post(f"{url}/v2/models/m/infer", json=body_of(x), timeout=PATIENCE)


def test_counters_are_added_up(served: tuple[subprocess.Popen[str], str]) -> None:
    _, url = served
    before = httpx.get(f"{url}/v2/models/m/stats").json()["model_stats"][0]["inference_count"]
    x = np.ones((1, SIZE), np.float32)
    for _ in range(12):  # each by a new connection, so by any of the workers
        assert _send(url, x).status_code == 200
    for _ in range(5):
        statistics = httpx.get(f"{url}/v2/models/m/stats").json()["model_stats"]
        assert len(statistics) == 1
        assert statistics[0]["inference_count"] == before + 12
    assert f'nv_inference_count{{model="m",version="1"}} {before + 12}.0' in httpx.get(f"{url}/metrics").text


def test_models_are_loaded_and_unloaded_by_all(served: tuple[subprocess.Popen[str], str]) -> None:
    _, url = served
    assert httpx.post(f"{url}/v2/repository/models/m/unload", timeout=PATIENCE).status_code == 200
    assert {httpx.get(f"{url}/v2/models/m/ready").status_code for _ in range(20)} == {503}
    assert httpx.post(f"{url}/v2/repository/models/m/load", timeout=PATIENCE).status_code == 200
    assert {httpx.get(f"{url}/v2/models/m/ready").status_code for _ in range(20)} == {200}


def test_weights_are_in_memory_once(served: tuple[subprocess.Popen[str], str], path: Path) -> None:
    process, url = served
    x = np.ones((1, SIZE), np.float32)
    for _ in range(20):
        _send(url, x)
    weights = path.stat().st_size
    children = _children(process.pid)
    resident = [_measure_weights(child, weights, "Rss:") for child in children]
    shares = [_measure_weights(child, weights, "Pss:") for child in children]
    assert min(resident) >= weights
    assert sum(shares) <= 1.1 * max(resident)  # PSS divides a page by the number of processes that have it


def _measure_weights(pid: int, weights: int, measure: str) -> int:
    """Return the bytes of mapped files that are as large as the weights; libraries do not count."""
    total = 0
    is_large = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            begin, end = (int(number, 16) for number in words[0].split("-"))
            is_file = len(words) > 5 and words[5].startswith("/") and ".so" not in words[5]
            is_large = is_file and end - begin >= weights
        elif words[0] == measure and is_large:
            total += int(words[1]) * 1024
    return total


def test_worker_that_is_killed_is_replaced(served: tuple[subprocess.Popen[str], str], path: Path) -> None:
    process, url = served
    x = np.random.default_rng(0).normal(size=(1, SIZE)).astype(np.float32)
    expected = weft.load(path, device="cpu")(x).tobytes()
    victim = _children(process.pid)[1]
    wrong: list[Any] = []
    answered = 0
    ended = threading.Event()

    def send() -> None:
        nonlocal answered
        while not ended.is_set():
            try:
                answer = _send(url, x)
            except httpx.HTTPError:
                continue  # the connection was to the process that was killed
            if answer.status_code != 200 or np.float32(answer.json()["outputs"][0]["data"]).tobytes() != expected:
                wrong.append(answer.text)
            answered += 1

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: victim not in _children(process.pid), "the worker has ended")
    at_death = answered
    wait_for(lambda: answered > at_death + 10, "the others go on")
    wait_for(lambda: len(_children(process.pid)) == WORKERS, "it is started again")
    wait_for(lambda: len(_answering(url)) == WORKERS, "it answers")
    ended.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_workers_end_with_their_supervisor(path: Path) -> None:
    with serve_process(str(path), "--workers", "2") as (process, url):
        wait_for(lambda: len(_answering(url)) == 2, "both answer")
        workers = _children(process.pid)
        process.kill()
        wait_for(lambda: not any(_is_running(worker) for worker in workers), "the workers have ended")


def test_sigterm_ends_all(path: Path) -> None:
    with serve_process(str(path), "--workers", "2") as (process, _):
        workers = _children(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert not any(_is_running(worker) for worker in workers)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_model_that_cannot_be_loaded_ends_all(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    command = [sys.executable, "-m", "weft", "serve", str(tmp_path / "m.onnx"), "--workers", "2", "--http", "0"]
    result = subprocess.run(
        [*command, "--grpc", "off", "--metrics", "off"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert "m.onnx" in result.stderr
    assert "Traceback" not in result.stderr
