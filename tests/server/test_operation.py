"""Operating a server: access, limits of bodies, changed files, sequences, connections that stall, and its end."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from server import models
from waiting import PATIENCE, wait_for

import weft
import weft.server
from weft.errors import InputError, MissingFileError, ModelError, UnknownOptionError
from weft.server.run import BackgroundServer


def start(path: Path | dict[str, Any], **settings: Any) -> BackgroundServer:
    return weft.server.start(path, **{"grpc": None, "device": "cpu", "poll": 0, **settings})


def body_of(x: np.ndarray[Any, Any], name: str = "x", **parameters: Any) -> dict[str, Any]:
    entry = {"name": name, "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    return {"inputs": [entry], "parameters": parameters}


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    return models.write_dense(tmp_path / "dense.onnx")


# -- access ----------------------------------------------------------------------------------------------------------


def test_api_key(dense: Path) -> None:
    with start(dense, api_key="secret") as server, httpx.Client(base_url=server.url) as http:
        assert http.get("/v2/health/ready").status_code == 200
        answer = http.get("/v2/models/dense")
        assert answer.status_code == 401
        assert "key" in answer.json()["error"]
        assert http.get("/v1/models").json()["error"]["type"] == "authentication_error"
        for headers, status in (
            ({"Authorization": "Bearer secret"}, 200),
            ({"X-Api-Key": "secret"}, 200),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": "Basic secret"}, 401),
        ):
            assert http.get("/v2/models/dense", headers=headers).status_code == status
    assert "secret" not in repr(server.app.settings)


def test_pages_of_other_origins_are_refused(dense: Path) -> None:
    with start(dense) as server, httpx.Client(base_url=server.url) as http:
        own = {"Origin": server.url}
        assert http.get("/v2/models/dense", headers=own).status_code == 200
        other = {"Origin": "http://evil.example"}
        assert http.post("/v2/repository/models/dense/unload", headers=other).status_code == 403
        assert http.get("/v2/models/dense").status_code == 200
    with start(dense, allow_origins=("http://good.example",)) as server, httpx.Client(base_url=server.url) as http:
        answer = http.get("/v2/models/dense", headers={"Origin": "http://good.example"})
        assert answer.headers["access-control-allow-origin"] == "http://good.example"
        preflight = {"Origin": "http://good.example", "Access-Control-Request-Method": "POST"}
        assert http.options("/v2/models/dense/infer", headers=preflight).status_code == 204
        assert http.get("/v2/models/dense", headers={"Origin": "http://evil.example"}).status_code == 403


def test_large_bodies_are_refused(dense: Path) -> None:
    with start(dense, max_body=10_000) as server, httpx.Client(base_url=server.url) as http:
        assert http.post("/v2/models/dense/infer", content=b" " * 10_001).status_code == 413

        def stream() -> Iterator[bytes]:
            for _ in range(20):
                yield b" " * 1000

        assert http.post("/v2/models/dense/infer", content=stream()).status_code == 413
        assert http.post("/v2/models/dense/infer", json=body_of(np.zeros((1, 8)))).status_code == 200


def test_settings_are_checked(dense: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="does not exist"):
        weft.server.app(tmp_path / "none.onnx")
    with pytest.raises(UnknownOptionError, match="max_bach"):
        weft.server.app(dense, max_bach=3)
    with pytest.raises(InputError, match="max_batch"):
        weft.server.app(dense, max_batch=0)
    with pytest.raises(InputError, match="two models"):
        weft.server.app([dense, dense])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="no model"):
        weft.server.app(tmp_path / "empty")
    (tmp_path / "bad.onnx").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"bad\.onnx"):
        start(tmp_path / "bad.onnx")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with pytest.raises(InputError, match="cannot be used"):
            start(dense, http=listening.getsockname()[1])


def test_model_that_exceeds_the_memory_limit_is_not_served(tmp_path: Path) -> None:
    path = models.write_slow(tmp_path / "m.onnx", 512)
    with pytest.raises(ModelError, match="memory-limit"):
        start(path, memory_limit="100kB")


# -- changed files ---------------------------------------------------------------------------------------------------


def test_changed_files_are_loaded_without_a_lost_request(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    path = models.write_dense(folder / "m.onnx", seed=0)
    x = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)
    expected = []
    for seed in range(3):
        other = models.write_dense(tmp_path / f"{seed}.onnx", seed=seed)
        expected.append(weft.load(other, device="cpu")(x).tobytes())
    answers: list[tuple[int, bytes]] = []
    ended = threading.Event()

    def send(url: str) -> None:
        with httpx.Client(base_url=url, timeout=PATIENCE) as http:
            while not ended.is_set():
                answer = http.post("/v2/models/m/infer", json=body_of(x))
                content = (
                    np.float32(answer.json()["outputs"][0]["data"]).tobytes() if answer.is_success else answer.content
                )
                answers.append((answer.status_code, content))

    with start(folder, poll=0.05) as server, httpx.Client(base_url=server.url) as http:
        threads = [threading.Thread(target=send, args=(server.url,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for seed in (1, 2):
            (tmp_path / f"{seed}.onnx").replace(path)
            wait_for(lambda seed=seed: bool(answers) and answers[-1][1] == expected[seed], "the new file is served")
        shutil.copy(path, folder / "more.onnx")
        wait_for(lambda: http.get("/v2/models/more/ready").status_code == 200, "a new file is served")
        path.write_bytes(b"damaged")
        time.sleep(0.5)
        assert http.post("/v2/models/m/infer", json=body_of(x)).status_code == 200  # the last that could be loaded
        (folder / "more.onnx").unlink()
        wait_for(lambda: http.get("/v2/models/more/ready").status_code == 404, "a file that is gone is not served")
        ended.set()
        for thread in threads:
            thread.join()
    assert {status for status, _ in answers} == {200}
    assert {content for _, content in answers} == set(expected)


# -- sequences -------------------------------------------------------------------------------------------------------


def test_sequences_keep_their_state(tmp_path: Path) -> None:
    path = models.write_counter(tmp_path / "counter.onnx")
    random = np.random.default_rng(3)
    with start(path) as server, httpx.Client(base_url=server.url) as http:

        def send(x: np.ndarray[Any, Any], **parameters: Any) -> Any:
            return http.post("/v2/models/counter/infer", json=body_of(x, **parameters))

        totals = {1: np.zeros((1, 3), np.float32), "b": np.zeros((2, 3), np.float32)}
        for step in range(6):
            for key, total in totals.items():
                x = random.normal(size=total.shape).astype(np.float32)
                total += x
                answer = send(x, sequence_id=key, sequence_start=step == 0, sequence_end=step == 5).json()
                names = [output["name"] for output in answer["outputs"]]
                assert names == ["y"]  # the state stays on the server
                np.testing.assert_array_equal(np.float32(answer["outputs"][0]["data"]).reshape(total.shape), total)
        ended = send(np.zeros((1, 3)), sequence_id=1)
        assert ended.status_code == 400
        assert "sequence_start" in ended.json()["error"]
        x = np.ones((1, 3), np.float32)
        body = {"inputs": [*body_of(x)["inputs"], *body_of(x, "state")["inputs"]]}
        assert http.post("/v2/models/counter/infer", json=body).json()["outputs"][1]["data"] == [2.0] * 3
        assert "'state'" in http.post("/v2/models/counter/infer", json=body_of(x)).json()["error"]


def test_idle_sequences_are_dropped(tmp_path: Path) -> None:
    path = models.write_counter(tmp_path / "counter.onnx")
    with start(path, sequence_idle=0.05) as server, httpx.Client(base_url=server.url) as http:
        x = np.ones((1, 3), np.float32)
        assert http.post("/v2/models/counter/infer", json=body_of(x, sequence_id=4, sequence_start=True)).is_success
        time.sleep(0.2)
        answer = http.post("/v2/models/counter/infer", json=body_of(x, sequence_id=4))
        assert answer.status_code == 400
        assert server.app.budget.reserved == server.app.repository.get("counter").memory


# -- connections -----------------------------------------------------------------------------------------------------


def _connect(server: BackgroundServer) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.ports["http"]))
    connection.settimeout(PATIENCE)
    return connection


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"POST /v2/models/dense/infer HTTP/1.1\r\nHost: x\r\nContent-Le",
        b"POST /v2/models/dense/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n",
        b"POST /v2/models/dense/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{",
        b"POST /v2/models/dense/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
    ],
    ids=["nothing", "half a header", "no body", "half a body", "half a chunk"],
)
def test_clients_that_stop_are_disconnected(dense: Path, text: bytes) -> None:
    with start(dense, body_timeout=0.3) as server:
        connection = _connect(server)
        connection.sendall(text)
        content = b""
        while chunk := connection.recv(4096):
            content += chunk
        if b"Content-Length: 500" in text or b"chunked" in text:
            assert b" 408 " in content
        with httpx.Client(base_url=server.url) as http:
            assert http.get("/v2/health/live").status_code == 200


def test_clients_that_do_not_read_are_disconnected(tmp_path: Path) -> None:
    path = models.write_identity(tmp_path / "m.onnx", "float32")
    with start(path, body_timeout=0.5) as server:
        connection = _connect(server)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        x = np.zeros((4000, 1000), np.float32)
        entry = {"name": "x", "datatype": "FP32", "shape": [4000, 1000], "parameters": {"binary_data_size": x.nbytes}}
        header = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
        length = len(header) + x.nbytes
        connection.sendall(
            b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n"
            + f"Inference-Header-Content-Length: {len(header)}\r\nContent-Length: {length}\r\n\r\n".encode()
            + header
            + x.tobytes()
        )
        with httpx.Client(base_url=server.url) as http:
            wait_for(
                lambda: http.get("/v2/models/m/stats").json()["model_stats"][0]["inference_count"] > 0,
                "it was computed",
            )
        wait_for(lambda: not server.connections, "the connection ends")
        connection.close()


def test_client_that_leaves_cancels_its_request(tmp_path: Path) -> None:
    path = models.write_slow(tmp_path / "m.onnx")
    with start(path, max_batch=1) as server, httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
        served = server.app.repository.get("m")
        body = json.dumps(body_of(np.zeros((20, 1400), np.float32))).encode()  # 20 runs
        request = f"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        connections = [_connect(server) for _ in range(8)]
        for connection in connections:
            connection.sendall(request)
        wait_for(lambda: served.requests == 8, "all have arrived")
        for connection in connections:
            connection.close()
        wait_for(lambda: served.requests == 0, "all have ended")
        assert served.statistics.cancel.count == 8
        assert http.post("/v2/models/m/infer", content=body).status_code == 200


def test_many_connections(dense: Path) -> None:
    with start(dense) as server:

        async def check() -> None:
            opened = [await asyncio.open_connection("127.0.0.1", server.ports["http"]) for _ in range(400)]
            request = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
            for _, writer in opened:
                writer.write(request)
            for reader, writer in opened:
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
                writer.close()

        asyncio.run(check())


# -- processes -------------------------------------------------------------------------------------------------------


@contextmanager
def serve_process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `weft serve`, and yield the process and its address when it is ready."""
    command = [sys.executable, "-m", "weft", "serve", *arguments, "--http", "0", "--grpc", "off", "--metrics", "off"]
    process = subprocess.Popen([*command, "--device", "cpu"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("HTTP"):
                break
        else:
            pytest.fail("".join(lines))
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield process, line.split()[1]
    finally:
        process.kill()
        process.wait()


def test_sigterm_under_load_loses_no_request(tmp_path: Path) -> None:
    path = models.write_slow(tmp_path / "m.onnx", 700)
    x = np.random.default_rng(1).normal(size=(1, 700)).astype(np.float32)
    expected = weft.load(path, device="cpu")(x)
    content = json.dumps(body_of(x)).encode()
    outcomes: list[Any] = []

    def send(url: str) -> None:
        with httpx.Client(base_url=url, timeout=PATIENCE) as http:
            while True:
                try:
                    answer = http.post("/v2/models/m/infer", content=content)
                except httpx.ConnectError:
                    return  # the server takes no new connections
                except httpx.HTTPError as error:
                    outcomes.append(error)
                    return
                outcomes.append(answer)

    with serve_process(str(path)) as (process, url):
        threads = [threading.Thread(target=send, args=(url,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(outcomes) > 20, "requests are answered")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        for thread in threads:
            thread.join()
    for outcome in outcomes:
        assert isinstance(outcome, httpx.Response), outcome
        assert outcome.status_code == 200, outcome.text
        result = np.float32(outcome.json()["outputs"][0]["data"])
        assert result.tobytes() == expected.tobytes()


def test_command_reports_what_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "weft", "serve"]
    for arguments, word in (
        ([str(tmp_path / "none.onnx")], "does not exist"),
        (["m.onnx", "--max-wait", "soon"], "not a time"),
        (["m.onnx", "--http", "70000"], "not a port"),
    ):
        result = subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False)
        assert result.returncode != 0
        assert word in result.stderr
        assert "Traceback" not in result.stderr


def test_interrupted_while_loading(tmp_path: Path) -> None:
    path = models.write_slow(tmp_path / "m.onnx")
    process = subprocess.Popen([sys.executable, "-m", "weft", "serve", str(path), "--http", "0", "--grpc", "off"])
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) in (0, 130, -signal.SIGINT)


def test_mounted_in_another_app(dense: Path) -> None:
    fastapi = pytest.importorskip("fastapi", reason="fastapi is not installed")
    testclient = pytest.importorskip("fastapi.testclient", reason="the test client of fastapi is not installed")
    app = fastapi.FastAPI()
    app.mount("/models", weft.server.app(dense, device="cpu"))
    with testclient.TestClient(app) as http:
        assert http.get("/models/v2/models/dense").json()["name"] == "dense"
        answer = http.post("/models/v2/models/dense/infer", json=body_of(np.zeros((1, 8), np.float32)))
        assert answer.json()["outputs"][0]["shape"] == [1, 4]
