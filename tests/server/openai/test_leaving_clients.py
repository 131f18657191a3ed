"""Clients that leave, servers that are full, and models that are unusual."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from generation.folders import write_tokenizer
from generation.small_encoder_decoders import write_encoder_decoder
from server.openai.conftest import Served
from server.openai.folders import write_chat_folder
from server.openai.test_chat import QUESTION, create

import weft
import weft.server
from weft.generation.answers import AnswerStream
from weft.server.http import HttpError, Request
from weft.server.openai import openai_routes
from weft.server.openai.models import TextModelInfo, unknown_model_error
from weft.server.openai.start import AnswerLimits, PromptRequest, open_answers

LONG: dict[str, Any] = {"model": "demo", "messages": QUESTION, "max_tokens": 490, "ignore_eos": True, "n": 64}


def wait_until(condition: Callable[[], bool]) -> bool:
    """Return whether a condition becomes true within a minute or two."""
    for _ in range(12_000):
        if condition():
            return True
        time.sleep(0.005)
    return False


def is_idle(generator: weft.Generator) -> bool:
    statistics = generator.statistics
    return not statistics.running and not statistics.waiting


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_a_client_that_leaves_cancels_its_answers(served: Served, path: str, stream: bool) -> None:
    generator = served.generators["demo"]
    assert wait_until(lambda: is_idle(generator))
    before = generator.statistics.generated
    content = {**LONG, "stream": stream, **({} if path.startswith("chat") else {"prompt": "A list is"})}

    async def leave() -> None:
        async with (
            httpx.AsyncClient(base_url=f"{served.url}/v1/", timeout=120) as client,
            client.stream("POST", path, json=content) as response,
        ):
            async for line in response.aiter_lines():
                assert line.startswith("data: ") or not line
                return

    async def leave_early() -> None:
        task = asyncio.ensure_future(leave())
        while generator.statistics.generated < before + 16 and not task.done():
            await asyncio.sleep(0.002)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(leave() if stream else leave_early())
    assert wait_until(lambda: is_idle(generator))
    assert generator.statistics.generated - before < 32 * 480
    assert create(served, max_tokens=3).choices[0].finish_reason == "length"


def test_full_queue(tmp_path: Path) -> None:
    """One answer runs, two wait, and the next request is refused until these have ended."""
    with (
        weft.Generator(max_batch=1) as generator,
        weft.server.start({"demo": generator}, grpc=None, max_queue=2) as server,
        httpx.Client(base_url=f"{server.url}/v1/", timeout=120) as client,
    ):
        body = {**LONG, "n": 1, "stream": True}
        with client.stream("POST", "chat/completions", json=body) as first:
            next(first.iter_lines())
            with client.stream("POST", "chat/completions", json={**body, "n": 2}) as second:
                assert second.status_code == 200
                assert wait_until(lambda: generator.statistics.waiting == 2)
                refused = client.post("chat/completions", json={**body, "stream": False})
                assert refused.status_code == 429
                assert int(refused.headers["retry-after"]) >= 1
                assert refused.json()["error"]["type"] == "rate_limit_error"
        assert wait_until(lambda: is_idle(generator))
        too_many = client.post("completions", json={"model": "demo", "prompt": ["a"] * 4})
        assert too_many.status_code == 400  # waiting does not help
        assert "takes 3 at a time" in too_many.json()["error"]["message"]
        assert client.post("completions", json={"model": "demo", "prompt": ["a"] * 3}).status_code == 200


def test_errors_within_a_stream(served: Served) -> None:
    """A generator that is closed while it answers ends its streams with an event that says so."""
    generator = weft.Generator(max_batch=2)
    with weft.server.start({"demo": generator}, grpc=None) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        stream = client.chat.completions.create(
            model="demo", messages=QUESTION, stream=True, max_tokens=490, n=64, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        generator.close()
        with pytest.raises(openai.APIError, match="shutting down"):
            for _ in stream:
                pass
        with pytest.raises(openai.APIStatusError):
            client.completions.create(model="demo", prompt="x")


def test_events_have_the_form_of_the_protocol(served: Served) -> None:
    body = {"model": "demo", "messages": QUESTION, "stream": True, "max_tokens": 3}
    response = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=120)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, end = response.text.split("\n\n")
    assert end == ""
    assert events[-1] == "data: [DONE]"
    contents = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert {content["object"] for content in contents} == {"chat.completion.chunk"}
    assert len({content["id"] for content in contents}) == 1
    assert contents[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": "demo", "messages": ' + b"[" * 100_000, b"\xff"])
def test_malformed_bodies(served: Served, body: bytes) -> None:
    for path in ("chat/completions", "completions", "embeddings"):
        response = httpx.post(f"{served.url}/v1/{path}", content=body, timeout=120)
        assert response.status_code == 400
        assert response.json()["error"]["message"]


def test_deep_and_odd_values(served: Served) -> None:
    """Values that nest deeply, and numbers that JSON can write but nothing can use, are refused."""
    deep: Any = 1
    for _ in range(240):
        deep = {"properties": {"a": deep}}
    cases: list[dict[str, Any]] = [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": deep}}},
        {"guided_regex": "(a{1000}){1000}{1000}"},
        {"guided_grammar": "start: start"},
        {"chat_template_kwargs": {"tools_in_user_message": deep}},
        {"seed": 1 << 90},
        {"max_tokens": 1e300},
        {"stop": ["x" * 10] * 5000 + [3]},
    ]
    for case in cases:
        response = httpx.post(
            f"{served.url}/v1/chat/completions",
            json={"model": "demo", "messages": QUESTION, "max_tokens": 4, **case},
            timeout=120,
        )
        assert response.status_code in (200, 400), (case, response.text)
        if response.status_code == 400:
            assert response.json()["error"]["type"] == "invalid_request_error"


def test_encoder_decoders(tmp_path: Path) -> None:
    """Models that translate continue texts; models of speech take no text, and above all no names of files."""
    translator = weft.Generator(write_encoder_decoder(tmp_path / "text", "text", "merged"), max_batch=2)
    speech = weft.Generator(write_encoder_decoder(tmp_path / "speech", "speech", "merged"), max_batch=2)
    secret = tmp_path / "secret.wav"
    secret.write_bytes(b"no audio")
    with translator, speech, weft.server.start({"text": translator, "speech": speech}, grpc=None) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        write_tokenizer(tmp_path / "text", "none")
        write_tokenizer(tmp_path / "speech", "none")
        expected = translator(["quick fox", "lazy dog"], max_new_tokens=6)
        answer = client.completions.create(model="text", prompt=["quick fox", "lazy dog"], max_tokens=6)
        assert [choice.text for choice in answer.choices] == expected
        assert answer.usage is not None
        assert answer.usage.completion_tokens == sum(len(each.tokens) for each in expected)
        for prompt in (str(secret), [5, 6]):
            with pytest.raises(openai.BadRequestError, match="takes no text"):
                client.completions.create(model="speech", prompt=prompt)
        with pytest.raises(openai.BadRequestError, match="takes the texts"):
            client.completions.create(model="text", prompt=[5, 6])
        for model in ("text", "speech"):
            with pytest.raises(openai.BadRequestError, match="does not chat"):
                client.chat.completions.create(model=model, messages=QUESTION)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    folder = write_chat_folder(tmp_path / "m", "x")
    (folder / "tokenizer.json").unlink()
    with weft.Generator(folder) as generator, weft.server.start({"m": generator}, grpc=None) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.APIStatusError, match="has no tokenizer"):
            client.completions.create(model="m", prompt=[5, 6])
        with pytest.raises(openai.APIStatusError, match="has no tokenizer"):
            client.chat.completions.create(model="m", messages=QUESTION)


def test_timeouts() -> None:
    """An answer that takes too long ends with status 504, or with an event that says so."""
    generator = weft.Generator(max_batch=1)
    models = TextRepository({"demo": generator})
    handlers = {route.pattern: route.handler for route in openai_routes(models, 100, 0.01)}
    body = {**LONG, "n": 20}

    async def ask(path: str, content: dict[str, Any]) -> Any:
        return await handlers[path](Request("POST", path, b"", {}, json.dumps(content).encode()))

    async def ask_all() -> None:
        for path, content in (("/v1/chat/completions", body), ("/v1/completions", {**body, "prompt": "A list is"})):
            with pytest.raises(HttpError, match="longer than its timeout") as caught:
                await ask(path, content)
            assert caught.value.status == 504
            response = await ask(path, {**content, "stream": True})
            events = [event async for event in response.body]
            assert "longer than its timeout" in json.loads(events[-1].removeprefix(b"data: "))["error"]["message"]

    with generator:
        asyncio.run(ask_all())
        assert wait_until(lambda: is_idle(generator))
    assert models.ended == 4


def test_a_client_that_leaves_before_its_answers_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that start after their request was cancelled are cancelled, too."""
    generator = weft.Generator(max_batch=8)
    is_preparing, may_start = threading.Event(), threading.Event()
    ended: list[tuple[int, int]] = []

    @dataclass
    class Prepared:
        prompts: list[PromptRequest]

    def prepare() -> Prepared:
        is_preparing.set()
        assert may_start.wait(120)
        return Prepared([PromptRequest([5, 6, 7], {"n": 64, "max_new_tokens": 490, "logit_bias": {3: -100, 0: -100}})])

    async def answer() -> None:
        limits = AnswerLimits(1000)
        async with open_answers(generator, prepare, "prompt", limits, lambda *tokens: ended.append(tokens)):
            pytest.fail("the request was cancelled")

    async def leave() -> None:
        task = asyncio.ensure_future(answer())
        await asyncio.get_running_loop().run_in_executor(None, is_preparing.wait, 120)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        may_start.set()
        while not streams or any(stream.finish_reason is None for stream in streams):
            await asyncio.sleep(0.002)

    def start(*arguments: Any, **options: Any) -> list[AnswerStream]:
        streams.extend(submit(*arguments, **options))
        return streams

    submit, streams = generator.streams, list[AnswerStream]()
    monkeypatch.setattr(generator, "streams", start)
    with generator:
        asyncio.run(leave())
    assert streams[-1].finish_reason == "cancelled"
    assert ended == [(0, 0)]


class TextRepository:
    """The models of a server, as `openai_routes` needs them."""

    def __init__(self, generators: dict[str, weft.Generator]) -> None:
        self.generators = generators
        self.ended = 0

    def generator(self, name: str) -> weft.Generator:
        return self.generators[name]

    def embedder(self, name: str) -> Any:
        raise unknown_model_error(name)

    async def run_embedder(self, name: str, arrays: Any) -> Any:  # noqa: ARG002
        raise unknown_model_error(name)

    def begin_request(self, name: str) -> Any:
        def end(prompt_tokens: int, answer_tokens: int) -> None:
            assert name in self.generators
            assert min(prompt_tokens, answer_tokens) >= 0
            self.ended += 1

        return end

    def text_models(self) -> list[TextModelInfo]:
        return [TextModelInfo(name, "generator") for name in self.generators]
