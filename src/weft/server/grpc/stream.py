"""Streams of inference requests: many requests at a time, and generated text piece by piece.

Responses come in the order of their requests, as Triton's do, except for those of generators: each piece is sent when
it is there. Requests of a sequence run in their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.server.grpc.calls import ENDING, CallHandlers, hold_memory
from weft.server.grpc.messages import INFERENCE, load_inference_messages
from weft.server.grpc.requests import limit_time, read_request, render_response
from weft.server.grpc.service import SERVICE, parse_message
from weft.server.grpc.status import describe_error
from weft.server.http import HttpError
from weft.server.served_model import ServedModel
from weft.server.v2.inference import InferenceRequest, answer
from weft.server.v2.text import TextRequest, generate, text_array

if TYPE_CHECKING:
    from weft.server.asgi import Application

PATH = f"/{INFERENCE}.{SERVICE}/ModelStreamInfer"
MOST_REQUESTS = 128  # of one stream at a time; a client that sends more waits
FINAL = "triton_final_response"
WANTS_FINAL = "triton_enable_empty_final_response"


class InferenceStreams:
    """The open streams of a server."""

    def __init__(self, app: Application, end_of_stream: Any) -> None:
        self._app = app
        self._end_of_stream = end_of_stream
        self._streams: set[InferenceStream] = set()

    def add_calls(self, handlers: CallHandlers) -> None:
        """Add the call that opens a stream."""
        handlers.add_stream(PATH, self._serve)

    def end(self) -> None:
        """Let all streams end when the requests that have arrived are answered."""
        for stream in self._streams:
            stream.end()

    async def _serve(self, context: Any) -> None:
        stream = InferenceStream(self._app, context, self._end_of_stream)
        self._streams.add(stream)
        try:
            await stream.serve()
        finally:
            self._streams.discard(stream)


@dataclass(frozen=True, slots=True)
class _Call:
    """A request of a stream, for a model that is ready."""

    served: ServedModel
    request: InferenceRequest
    wants_final: bool


class InferenceStream:
    """One stream of requests, and its stream of responses."""

    def __init__(self, app: Application, context: Any, end_of_stream: Any) -> None:
        self._app = app
        self._context = context
        self._end_of_stream = end_of_stream
        self._messages = load_inference_messages()
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(MOST_REQUESTS)
        self._write_turn = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._last: asyncio.Task[None] | None = None  # the request whose response comes before the next one's
        self._problem: Exception | None = None  # why the stream cannot go on

    async def serve(self) -> None:
        """Answer requests until the client has sent its last one, or the server ends."""
        self._reader = self._loop.create_task(self._read())
        try:
            await asyncio.wait({self._reader})
            while self._tasks:
                await asyncio.wait(set(self._tasks))
        finally:
            self._reader.cancel()
            for task in self._tasks:
                task.cancel()
        if self._problem is not None:
            raise self._problem
        if self._reader.cancelled():
            raise HttpError(503, ENDING)
        self._reader.result()

    def end(self) -> None:
        """Read no more requests."""
        if self._reader is not None:
            self._reader.cancel()

    # -- requests ----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            await self._slots.acquire()
            content = await self._context.read()
            if content is self._end_of_stream:
                return
            self._begin(content)

    def _begin(self, content: bytes) -> None:
        """Start to answer a request."""
        resources = ExitStack()
        identifier = ""
        try:
            resources.enter_context(hold_memory(self._app.budget, len(content)))
            message = parse_message(self._messages["ModelInferRequest"], content)
            identifier = message.id
            call = self._prepare(message)
        except Exception as error:
            task = self._loop.create_task(self._refuse(error, identifier, self._last))
            is_ordered = True
        else:
            is_ordered = call.served.generator is None
            run = self._answer(call, self._last) if is_ordered else self._generate(call)
            task = self._loop.create_task(run)
        if is_ordered:
            self._last = task
        self._tasks.add(task)
        self._app.active += 1

        def finish(task: asyncio.Task[None]) -> None:
            resources.close()
            self._app.active -= 1
            self._slots.release()
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._fail(error)

        task.add_done_callback(finish)

    def _prepare(self, message: Any) -> _Call:
        served = self._app.repository.get(message.model_name, message.model_version)
        request = read_request(message, served.interface)
        limit_time(request, self._context, self._app.settings)
        return _Call(served, request, request.parameters.get(WANTS_FINAL) is True)

    # -- responses ---------------------------------------------------------------------------------------------------

    async def _answer(self, call: _Call, before: asyncio.Task[None] | None) -> None:
        """Run a model, and send its response after that of the request before."""
        if call.request.sequence is not None:
            await _wait_for(before)
        try:
            response = self._render(call, await answer(call.served, call.request, self._app.settings), is_final=True)
        except Exception as error:
            await self._refuse(error, call.request.id, before)
            return
        await _wait_for(before)
        await self._send(response)

    async def _generate(self, call: _Call) -> None:
        """Generate a text: one response for each piece if the request wants that, else one response."""
        settings, request = self._app.settings, call.request
        try:
            text = TextRequest(request.arrays, request.parameters)
            if not text.streams:
                results = await answer(call.served, request, settings)
                await self._send(self._render(call, results, is_final=True))
                return
            timeout = settings.timeout if request.timeout is None else request.timeout
            pieces = generate(call.served, text, settings.max_queue, timeout)
            try:
                async for piece in pieces:
                    await self._send(self._render(call, {"text_output": text_array(piece)}, is_final=False))
            finally:
                await pieces.aclose()
        except Exception as error:
            await self._refuse(error, request.id, None)
            return
        if call.wants_final:
            final = self._messages["ModelInferResponse"](
                model_name=call.served.name, model_version=call.served.version, id=request.id
            )
            await self._send(_mark(final, is_final=True))

    async def _refuse(self, error: Exception, identifier: str, before: asyncio.Task[None] | None) -> None:
        """Send an error in the place of a response; the stream goes on."""
        _, text = describe_error(error, PATH)
        response = _mark(self._messages["ModelInferResponse"](id=identifier), is_final=True)
        await _wait_for(before)
        await self._send(response, text)

    def _render(self, call: _Call, results: Mapping[str, Any], is_final: bool) -> Any:
        return _mark(render_response(call.served, call.request, results), is_final)

    async def _send(self, response: Any, error: str = "") -> None:
        """Send a response when the client is ready for it; end the stream if it never is."""
        content = self._messages["ModelStreamInferResponse"](infer_response=response, error_message=error)
        text = content.SerializeToString()
        async with self._write_turn:
            timer = self._loop.call_later(self._app.settings.body_timeout, self._fail, _slow_client_error())
            try:
                await self._context.write(text)
            except Exception:  # the call has ended: its client left, or its time is over
                raise asyncio.CancelledError from None
            finally:
                timer.cancel()

    def _fail(self, error: BaseException) -> None:
        """End the stream with an error, and all its requests."""
        if self._problem is None and isinstance(error, Exception):
            self._problem = error
        self.end()
        for task in self._tasks:
            task.cancel()


def _slow_client_error() -> HttpError:
    return HttpError(408, "the client does not read the responses of its stream")


def _mark(response: Any, is_final: bool) -> Any:
    """Say in a response whether it is the last one of its request."""
    response.parameters[FINAL].bool_param = is_final
    return response


async def _wait_for(task: asyncio.Task[None] | None) -> None:
    """Wait until a task is done, however it ends."""
    if task is not None and not task.done():
        await asyncio.wait({task})
