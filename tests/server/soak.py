"""Load a server for minutes, with clients that behave badly: `scripts/soak-server --minutes 10 --connections 10000`.

`weft serve` runs in a process of its own, over a folder whose files change. Clients send random requests and compare
each answer, bit for bit, with a run of the model here; others stop in the middle of a body, do not read, leave, send
damaged requests, and load and unload models. At the end, the server gets SIGTERM under load. Exits with 1 after a wrong
answer, a lost request, a failure of the server, or if its memory grows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from server import models

import weft

CLIENTS = 12
GROWTH = 1.1  # of the resident memory from the first quarter to the last
PATIENCE = 120.0
BAD_BODIES = (b"{", b"[]", b"\xff\xfe", b'{"inputs": [{"name": 1}]}', b"[" * 50_000, b'{"inputs": ' + b"[{}," * 2000)


class Soak:
    """The server, its models, and what its clients have seen."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.is_ending = False
        self.resident: list[int] = []
        self.local: dict[str, list[weft.Model]] = {}
        for name, write in (
            ("dense", models.write_dense),
            ("lengths", models.write_sequence_model),
            ("encoder", models.write_encoder),
            ("changing", models.write_dense),
        ):
            path = write(folder / f"{name}.onnx")
            self.local[name] = [weft.load(path, device="cpu")]
        self.other = models.write_dense(folder.parent / "other.onnx", seed=99)
        self.first = folder.parent / "first.onnx"
        shutil.copy(folder / "changing.onnx", self.first)
        self.local["changing"].append(weft.load(self.other, device="cpu"))

    def start(self) -> None:
        """Start the server."""
        command = [sys.executable, "-m", "weft", "serve", str(self.folder), "--device", "cpu", "--poll", "0.5s"]
        command += ["--http", "0", "--grpc", "off", "--metrics", "off", "--max-queue", "200"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("HTTP"):
                self.port = int(line.rpartition(":")[2])
                break
        else:
            raise SystemExit("the server did not start")
        threading.Thread(target=self._read_log, daemon=True).start()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if "Traceback" in line or " failed" in line:
                self.problems.append(f"log: {line.strip()}")

    # -- clients -----------------------------------------------------------------------------------------------------

    async def run(self, seconds: float, connections: int) -> None:
        """Run all clients for some seconds, then end the server under load."""
        idle = await self._open_idle(connections)
        tasks = [asyncio.create_task(self._client(number)) for number in range(CLIENTS)]
        tasks += [asyncio.create_task(client()) for client in (self._bad, self._leaving, self._stalling)]
        tasks += [asyncio.create_task(client()) for client in (self._changing, self._loading)]
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            self.resident.append(self._resident())
            await asyncio.sleep(min(1.0, seconds / 20))
        self.is_ending = True
        self.process.send_signal(signal.SIGTERM)
        for task in tasks[CLIENTS:]:
            task.cancel()
        await asyncio.wait(tasks, timeout=PATIENCE)
        for writer in idle:
            writer.close()
        status = await asyncio.get_running_loop().run_in_executor(None, self.process.wait)
        if status:
            self.problems.append(f"the server ended with status {status}")

    async def _open_idle(self, count: int) -> list[asyncio.StreamWriter]:
        writers = []
        for _ in range(count):
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writers.append(writer)
        return writers

    async def _client(self, number: int) -> None:
        """Send random requests on one connection after the other, and compare the answers."""
        draw = np.random.default_rng((self.seed, number))
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                return  # the server has ended
            try:
                for _ in range(int(draw.integers(1, 50))):
                    name = str(draw.choice(list(self.local)))
                    inputs = self._inputs(name, draw)
                    status, headers, content = await self._request(reader, writer, name, inputs)
                    self.counts[f"status {status}"] += 1
                    if status == 200:
                        self._compare(name, inputs, headers, content)
                    elif status not in (429, 503) and not (name == "lengths" and status == 400):  # it is being unloaded
                        self.problems.append(f"{name}: {status} {content[:200]!r}")
                    if headers.get("connection") == "close":
                        break
            except (OSError, asyncio.IncompleteReadError) as error:
                self.problems.append(f"a request was lost: {error!r}")
                return
            finally:
                writer.close()
            if self.is_ending and self.process.poll() is not None:
                return

    def _inputs(self, name: str, draw: np.random.Generator) -> dict[str, Any]:
        rows = int(draw.integers(1, 5))
        if name == "encoder":
            length = int(draw.integers(1, 40))
            return {
                "input_ids": draw.integers(0, 50, (rows, length)),
                "attention_mask": np.ones((rows, length), np.int64),
            }
        shape = (rows, int(draw.integers(1, 5)), 4) if name == "lengths" else (rows, 8)
        return {"x": draw.normal(size=shape).astype(np.float32)}

    async def _request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str, inputs: dict[str, Any]
    ) -> tuple[int, dict[str, str], bytes]:
        entries = [
            {
                "name": key,
                "datatype": "INT64" if array.dtype == np.int64 else "FP32",
                "shape": list(array.shape),
                "parameters": {"binary_data_size": array.nbytes},
            }
            for key, array in inputs.items()
        ]
        header = json.dumps({"inputs": entries, "parameters": {"binary_data_output": True}}).encode()
        body = header + b"".join(array.tobytes() for array in inputs.values())
        writer.write(_head(name, len(body), f"Inference-Header-Content-Length: {len(header)}\r\n") + body)
        return await _read_answer(reader)

    def _compare(self, name: str, inputs: dict[str, Any], headers: dict[str, str], content: bytes) -> None:
        start = int(headers["inference-header-content-length"])
        bits = content[start:]
        results = [b"".join(array.tobytes() for array in model.run(inputs).values()) for model in self.local[name]]
        if bits not in results:
            self.problems.append(f"{name}: a wrong answer")

    async def _bad(self) -> None:
        draw = random.Random(self.seed)
        while True:
            await self._send_raw(_head("dense", len(body := draw.choice(BAD_BODIES))) + body, "bad")
            await asyncio.sleep(0.02)

    async def _send_raw(self, content: bytes, kind: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(content)
        status, _, text = await _read_answer(reader)
        self.counts[f"{kind} {status}"] += 1
        if status >= 500:
            self.problems.append(f"{kind}: {status} {text[:200]!r}")
        writer.close()

    async def _leaving(self) -> None:
        """Close connections before their answers."""
        body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [0.0] * 8}]}).encode()
        while True:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(_head("dense", len(body)) + body)
            await writer.drain()
            writer.transport.abort()
            self.counts["left"] += 1
            await asyncio.sleep(0.02)

    async def _stalling(self) -> None:
        """Stop in the middle of headers and bodies, and do not read answers."""
        stalled: list[asyncio.StreamWriter] = []
        texts = (b"POST /v2/mod", _head("dense", 10_000) + b"{", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
        draw = random.Random(self.seed)
        while True:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(draw.choice(texts))
            stalled.append(writer)
            if len(stalled) > 50:
                stalled.pop(0).close()
            self.counts["stalled"] += 1
            await asyncio.sleep(0.05)

    async def _changing(self) -> None:
        """Replace a file with another, and back."""
        sources = [self.other, self.first]
        while True:
            await asyncio.sleep(2)
            shutil.copy(sources[0], self.folder / "changing.new")
            (self.folder / "changing.new").replace(self.folder / "changing.onnx")
            sources.reverse()
            self.counts["changed"] += 1

    async def _loading(self) -> None:
        """Unload a model, and load it again."""
        while True:
            await asyncio.sleep(3)
            for what in ("unload", "load"):
                head = f"POST /v2/repository/models/lengths/{what} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
                await self._send_raw(head.encode(), what)

    def _resident(self) -> int:
        try:
            text = Path(f"/proc/{self.process.pid}/statm").read_text()
        except OSError:
            return 0
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def check_memory(self) -> None:
        """Note a problem if the memory has grown."""
        quarter = max(len(self.resident) // 4, 1)
        early, late = sorted(self.resident[quarter : 2 * quarter]), sorted(self.resident[-quarter:])
        if early and late and late[len(late) // 2] > GROWTH * early[len(early) // 2]:
            self.problems.append(f"the memory grew from {early[len(early) // 2]:,} to {late[len(late) // 2]:,} bytes")


def _head(name: str, length: int, more: str = "") -> bytes:
    return f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: x\r\n{more}Content-Length: {length}\r\n\r\n".encode()


async def _read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)).decode("latin-1").split("\r\n")
    headers = {name.lower(): text for name, _, text in (line.partition(": ") for line in head[1:] if line)}
    content = await asyncio.wait_for(reader.readexactly(int(headers.get("content-length", 0))), PATIENCE)
    return int(head[0].split()[1]), headers, content


def soak(seconds: float, connections: int = 0, seed: int = 28) -> Soak:
    """Load a server, and return what happened."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "models"
        folder.mkdir()
        run = Soak(folder, seed)
        run.start()
        try:
            asyncio.run(run.run(seconds, connections))
        finally:
            run.process.kill()
            run.process.wait()
        run.check_memory()
    return run


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=0, help="idle connections that are open all the time")
    parser.add_argument("--seed", type=int, default=28)
    args = parser.parse_args()
    from weft.server.run import raise_file_limit

    raise_file_limit()
    run = soak(args.minutes * 60, args.connections, args.seed)
    for name, number in sorted(run.counts.items()):
        print(f"{name:<12} {number:>10,}")
    sizes = run.resident or [0]
    print(f"resident     {sizes[0]:,} to {sizes[-1]:,} bytes, at most {max(sizes):,}")
    for problem, number in Counter(run.problems).most_common(20):
        print(f"problem ({number}): {problem}")
    return 1 if run.problems else 0


if __name__ == "__main__":
    sys.exit(main())
