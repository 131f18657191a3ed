"""Several processes that serve the same models on the same ports.

The supervisor binds the ports, starts the workers and starts those again that end. Each worker loads the models (the
cache has their code and weights, which are in memory once) and accepts connections for itself. Over a channel to the
supervisor, workers learn the counters of the others, and load and unload models together.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from weft.errors import ExecutionError, WeftError
from weft.server.asgi import Application
from weft.server.channel import Channel, ChannelError
from weft.server.discovery import Models, read_catalog
from weft.server.http import HttpError
from weft.server.memory import default_limit
from weft.server.run import (
    Listeners,
    Server,
    bind_sockets,
    end_on_signals,
    new_event_loop,
    raise_file_limit,
    reserve_port,
)
from weft.server.settings import ServerSettings

LOG = logging.getLogger("weft.server")
PATIENCE = 10.0  # seconds for an answer of a worker that may hang
RESTART_SECONDS = 1.0  # between starts of a worker that ends at once
EXTRA_SECONDS = 5.0  # after the time to drain, before a worker is killed


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What a worker is started with; sockets by the numbers of their files."""

    models: Models
    settings: ServerSettings
    listeners: Listeners
    sockets: Mapping[str, int]
    channel: int
    log_format: str


class _Worker:
    """A worker process, as the supervisor sees it."""

    def __init__(self, number: int, process: subprocess.Popen[bytes], channel: Channel) -> None:
        self.number = number
        self.process = process
        self.channel = channel
        self.started = time.monotonic()
        self.ready: asyncio.Future[Mapping[str, int]] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        """Return the exit status when the process has ended."""
        return await asyncio.get_running_loop().run_in_executor(None, self.process.wait)


class Supervisor:
    """Starts workers, passes requests between them, and ends them."""

    def __init__(self, plan: WorkerPlan, count: int, sockets: Mapping[str, socket.socket]) -> None:
        self.plan = plan
        self.listeners = plan.listeners
        self.ports: dict[str, int] = {}
        self._count = count
        self._sockets = sockets
        self._workers: dict[int, _Worker] = {}
        self._end = asyncio.Event()
        self._error: str | None = None

    def end(self) -> None:
        """Ask all workers to end after they have answered what has arrived."""
        self._end.set()

    async def run(self, on_ready: Callable[[Any], None] | None) -> None:
        """Run the workers until `end` is called. The first compiles what the cache lacks, the others follow it."""
        tasks = [asyncio.get_running_loop().create_task(self._keep(0))]
        if await self._is_ready(tasks[0]):
            tasks += [asyncio.get_running_loop().create_task(self._keep(number)) for number in range(1, self._count)]
            if on_ready is not None:
                on_ready(self)
            await self._end.wait()
        for worker in self._workers.values():
            with suppress(ProcessLookupError):
                worker.process.send_signal(signal.SIGTERM)
        limit = self.plan.listeners.drain + self.plan.listeners.drain_delay + EXTRA_SECONDS
        _, late = await asyncio.wait(tasks, timeout=limit)
        for worker in self._workers.values():
            if late:
                worker.process.kill()
        await asyncio.gather(*tasks)
        if self._error is not None:
            raise ExecutionError(self._error)

    async def _is_ready(self, task: asyncio.Task[None]) -> bool:
        """Wait for the first worker; False if it ended instead, or if the supervisor was told to end."""
        end = asyncio.get_running_loop().create_task(self._end.wait())
        while not task.done() and not end.done():
            await asyncio.wait({task, end}, timeout=0.02, return_when=asyncio.FIRST_COMPLETED)
            worker = self._workers.get(0)
            if worker is not None and worker.ready.done():
                self.ports = dict(worker.ready.result())
                return True
        end.cancel()
        self._end.set()
        return False

    async def _keep(self, number: int) -> None:
        """Start a worker, and again when it ends, until the supervisor ends."""
        was_ready = False
        while not self._end.is_set():
            worker = await self._start(number)
            self._workers[number] = worker
            status = await worker.wait()
            self._workers.pop(number)
            worker.channel.close()
            was_ready = was_ready or worker.ready.done()
            if self._end.is_set():
                return
            if not was_ready:
                self._error = f"a worker ended with status {status} before it was ready; the log says why"
                return
            LOG.error("worker %d ended with status %d and is started again", number, status)
            pause = RESTART_SECONDS - (time.monotonic() - worker.started)
            if pause > 0:
                with suppress(TimeoutError, asyncio.TimeoutError):
                    await asyncio.wait_for(self._end.wait(), pause)

    async def _start(self, number: int) -> _Worker:
        own, other = socket.socketpair()
        plan = replace(self.plan, channel=other.fileno())
        command = [sys.executable, "-m", "weft.server.workers"]
        files = [other.fileno(), *plan.sockets.values()]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=files)
        other.close()

        async def answer(what: str, content: Any) -> Any:
            return await self._answer(worker, what, content)

        worker = _Worker(number, process, Channel(answer))
        assert process.stdin is not None
        with suppress(OSError):  # it has ended already
            process.stdin.write(pickle.dumps(plan))
            process.stdin.close()
        await worker.channel.open(own)
        return worker

    async def _answer(self, sender: _Worker, what: str, content: Any) -> Any:
        """Answer a worker: it is ready, or has a request for all others."""
        if what == "ready":
            if not sender.ready.done():
                sender.ready.set_result(content)
            return None
        others = [worker for worker in self._workers.values() if worker is not sender and worker.ready.done()]
        asks = [asyncio.wait_for(worker.channel.ask(what, content), PATIENCE) for worker in others]
        answers = await asyncio.gather(*asks, return_exceptions=True)
        failures = [str(answer) for answer in answers if isinstance(answer, Exception)]
        return {"answers": [each for each in answers if not isinstance(each, BaseException)], "failures": failures}


def serve_with_workers(
    models: Models,
    listeners: Listeners,
    settings: ServerSettings,
    count: int,
    on_ready: Callable[[Any], None] | None,
    log_format: str,
) -> None:
    """Serve models in several processes until SIGTERM or Ctrl-C."""
    read_catalog(models)  # so that errors come before any process
    limit = default_limit() if settings.memory_limit is None else settings.memory_limit
    settings = replace(settings, memory_limit=limit // count)
    raise_file_limit()
    sockets = bind_sockets(listeners)
    if listeners.grpc is not None:
        sockets["grpc"] = reserve_port(listeners.host, listeners.grpc)
        listeners = replace(listeners, grpc=sockets["grpc"].getsockname()[1])
    files = {name: bound.fileno() for name, bound in sockets.items() if name != "grpc"}
    plan = WorkerPlan(models, settings, listeners, files, -1, log_format)
    loop = new_event_loop()

    async def run() -> None:
        supervisor = Supervisor(plan, count, sockets)
        end_on_signals(supervisor.end)
        await supervisor.run(on_ready)

    try:
        loop.run_until_complete(run())
    finally:
        for bound in sockets.values():
            bound.close()
        loop.close()


# -- workers ---------------------------------------------------------------------------------------------------------


class Peers:
    """The other workers, as one worker sees them."""

    def __init__(self, app: Application, on_end: Callable[[], None]) -> None:
        """`on_end`: called when the supervisor has ended."""
        self._app = app
        self._channel = Channel(self._answer, on_end)

    async def open(self, connection: socket.socket) -> None:
        """Begin to answer the other workers."""
        await self._channel.open(connection)

    async def tell_ready(self, ports: Mapping[str, int]) -> None:
        """Tell the supervisor that this worker answers requests."""
        await self._channel.ask("ready", dict(ports))

    async def collect_statistics(self) -> list[Any]:
        """Return the counters of all other workers that answer."""
        try:
            answers: list[list[Any]] = (await self._channel.ask("statistics"))["answers"]
        except ChannelError:
            return []
        return [record for records in answers for record in records]

    async def repeat(self, what: str, model: str) -> None:
        """Load or unload a model in all other workers; HttpError if one fails."""
        try:
            failures = (await self._channel.ask(what, model))["failures"]
        except ChannelError as error:
            failures = [str(error)]
        if failures:
            raise HttpError(500, f"another worker failed to {what} {model!r}: {failures[0]}")

    async def _answer(self, what: str, content: Any) -> Any:
        if what == "statistics":
            return self._app.own_statistics()
        if what == "load":
            await self._app.repository.load(content)
        elif what == "unload":
            await self._app.repository.unload(content)
        return None


async def _work(plan: WorkerPlan) -> None:
    app = Application(read_catalog(plan.models), plan.settings)
    server = Server(app, plan.listeners, owns_process=True, shares_ports=True)
    peers = app.peers = Peers(app, server.end)
    sockets = {name: socket.socket(fileno=number) for name, number in plan.sockets.items()}
    await peers.open(socket.socket(fileno=plan.channel))
    end_on_signals(server.end)
    await server.start(sockets)
    await peers.tell_ready(server.ports)
    await server.serve()


def main() -> int:
    """Run a worker, as standard input says."""
    from weft.server.log_format import configure_log

    plan: WorkerPlan = pickle.loads(sys.stdin.buffer.read())
    configure_log(plan.log_format)
    raise_file_limit()
    loop = new_event_loop()
    try:
        loop.run_until_complete(_work(plan))
    except WeftError as error:
        LOG.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
