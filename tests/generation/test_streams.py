"""What servers need of a generator: streams of one prompt, what is new of an answer, and facts about its queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from generation.small_encoder_decoders import write_encoder_decoder

import weft
from weft.errors import InputError

PROMPT = "Return True if"


@pytest.fixture(scope="module")
def generator() -> Iterator[weft.Generator]:
    with weft.Generator(max_batch=4) as generator:
        yield generator


def test_streams_are_the_answers_of_the_generator(generator: weft.Generator) -> None:
    options = {"n": 3, "temperature": 1.0, "seed": 5, "max_new_tokens": 20}
    expected = generator(PROMPT, **options)
    assert len(set(expected)) == 3
    streams = generator.streams(PROMPT, **options)
    assert [stream.answer() for stream in streams] == expected
    messages = [{"role": "user", "content": "What is a list?"}]
    (single,) = generator.streams(messages, max_new_tokens=9)
    assert single.answer() == generator.chat(messages, max_new_tokens=9)
    with pytest.raises(InputError, match="`streams` with n"):
        generator.stream(PROMPT, n=2)


def test_new_tokens_and_logprobs(generator: weft.Generator) -> None:
    stream = generator.stream(PROMPT, logprobs=1, max_new_tokens=12)
    answer = stream.answer()
    assert answer.logprobs is not None
    for first in (0, 5, 12, 99):
        assert stream.tokens_from(first) == list(answer.tokens[first:])
        assert stream.logprobs_from(first) == list(answer.logprobs[first:])


def test_cached_tokens(generator: weft.Generator) -> None:
    tokens = list(range(20, 90))
    counts = []
    for _ in range(2):
        stream = generator.stream(tokens, max_new_tokens=2)
        stream.answer()
        counts.append(stream.cached_tokens)
    assert counts == [0, 64]  # whole blocks of 16 tokens


def test_a_loop_that_is_closed_while_an_answer_goes_on(generator: weft.Generator) -> None:
    """The engine goes on for other requests, and for the abandoned one."""
    loop = asyncio.new_event_loop()
    stream = generator.stream(PROMPT, max_new_tokens=450, logit_bias={3: -100, 0: -100})
    pieces = stream.__aiter__()
    assert loop.run_until_complete(pieces.__anext__())
    loop.close()
    beside = generator("A list is", max_new_tokens=5)
    assert len(beside.tokens) == 5
    while stream.finish_reason is None:
        time.sleep(0.002)
    assert stream.finish_reason == "length"


def test_facts(generator: weft.Generator, tmp_path: Path) -> None:
    assert (generator.max_batch, generator.vocabulary, generator.takes_text) == (4, 2048, True)
    options = {"max_new_tokens": 450, "logit_bias": dict.fromkeys(generator.folder.end_tokens, float("-inf"))}
    streams = generator.streams(PROMPT, n=9, **options)
    next(iter(streams[0]))
    statistics = generator.statistics
    assert (statistics.running, statistics.waiting) == (4, 5)
    for stream in streams:
        stream.cancel()
    for stream in streams:
        stream.answer()
    statistics = generator.statistics
    assert (statistics.running, statistics.waiting) == (0, 0)
    for kind in ("text", "speech"):
        with weft.Generator(write_encoder_decoder(tmp_path / kind, kind, "merged")) as other:
            assert other.takes_text == (kind == "text")
