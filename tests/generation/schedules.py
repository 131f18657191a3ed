"""Random schedules of requests, whose answers must have the bits of answers alone."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import weft
from weft.generation.blocks import BlockPool
from weft.generation.engine import Engine

REGEX = r"[a-z ]{3,40}(\.|[0-9]{1,3})"


@dataclass(frozen=True)
class Reply:
    """The tokens of one answer, and log probabilities where the request has them."""

    tokens: tuple[int, ...]
    logprobs: tuple[Any, ...]
    finish: str | None


@dataclass
class Request:
    prompt: list[int]
    options: dict[str, Any]
    delay: float
    cancel_after: int | None = None
    replies: list[Reply] = field(default_factory=list)
    error: BaseException | None = None


@dataclass
class Schedule:
    """Requests, and the engine that serves them: its cache, its batch and its chunks."""

    seed: int
    requests: list[Request]
    blocks: int
    max_rows: int
    chunk: int
    speculate: bool
    log: dict[str, int] = field(default_factory=dict)


def random_schedule(seed: int, vocabulary: int, longest: int, block_size: int, *, constrains: bool = False) -> Schedule:
    """Return a schedule with shared prefixes, mixed options, cancellations, and a cache that is often too small.

    constrains: some answers must match a regular expression.
    """
    choice = random.Random(seed)
    prefixes = [[choice.randrange(vocabulary) for _ in range(choice.randrange(1, longest // 2))] for _ in range(2)]
    requests = []
    for _ in range(choice.randrange(2, 9)):
        prompt = [choice.randrange(vocabulary) for _ in range(choice.randrange(1, longest // 3))]
        if choice.random() < 0.5:
            prompt = choice.choice(prefixes) + prompt
        if choice.random() < 0.3:
            prompt = (prompt[:6] * 4)[: longest // 2]  # repeats, for speculation
        answer = longest // choice.choice([2, 4])
        options: dict[str, Any] = {"max_new_tokens": choice.randrange(1, answer), "temperature": 0}
        if choice.random() < 0.5:
            options |= {"temperature": 0.8, "seed": choice.randrange(1000)}
            options |= choice.choice([{"top_p": 0.9, "top_k": 20}, {"min_p": 0.05}, {"typical_p": 0.9}, {}])
        if choice.random() < 0.2:
            options |= choice.choice([{"repetition_penalty": 1.2}, {"no_repeat_ngram_size": 3}])
        if choice.random() < 0.1:
            options |= {"frequency_penalty": 0.5, "presence_penalty": 0.3, "logit_bias": {prompt[0]: 2.0}}
        if choice.random() < 0.15:
            options |= {"n": choice.randrange(2, 4)}
        if constrains and choice.random() < 0.15:
            options |= {"regex": REGEX}
        if choice.random() < 0.4:
            options |= {"logprobs": 2}
        if choice.random() < 0.3:
            options |= {"priority": choice.randrange(3)}
        cancel = choice.randrange(1, 5) if choice.random() < 0.15 else None
        requests.append(Request(prompt, options, choice.random() * 0.02, cancel))
    most = max(-(-(len(r.prompt) + r.options["max_new_tokens"]) // block_size) for r in requests)
    blocks = most + choice.choice([0, 1, choice.randrange(0, 2 * most + 1)])
    return Schedule(
        seed, requests, blocks, choice.choice([1, 2, 4, 64]), choice.choice([1, 7, 16, 33, 512]), choice.random() < 0.5
    )


def run_schedule(generator: weft.Generator, schedule: Schedule) -> None:
    """Serve a schedule with an engine of its own, and store the answers in its requests."""
    engine = generator._engine
    decoder = engine.decoder
    fresh = Engine(
        decoder, engine.sampler, max_rows=schedule.max_rows, chunk=schedule.chunk, speculate=schedule.speculate
    )
    fresh.pool = BlockPool(min(schedule.blocks, decoder.blocks), decoder.block_size)
    generator._engine = fresh
    try:
        threads = [threading.Thread(target=_serve, args=(generator, request)) for request in schedule.requests]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive(), f"seed {schedule.seed}: a request hangs"
        schedule.log = dict(fresh.counts)
        assert fresh.pool.used == 0, f"seed {schedule.seed}: {fresh.pool.used} blocks are still in use"
    finally:
        fresh.close()
        generator._engine = engine


def _serve(generator: weft.Generator, request: Request) -> None:
    time.sleep(request.delay)
    try:
        request.replies = _collect(generator, request.prompt, request.options, request.cancel_after)
    except BaseException as error:
        request.error = error


def _collect(
    generator: weft.Generator, prompt: list[int], options: dict[str, Any], cancel_after: int | None = None
) -> list[Reply]:
    replies = []
    for stream in generator._start(prompt, generator._merge(options)):
        for _ in stream:
            if cancel_after is not None and len(stream.tokens) >= cancel_after:
                stream.cancel()
        logprobs = tuple((entry.token, entry.logprob, entry.top) for entry in stream._logprobs)  # type: ignore[union-attr]
        replies.append(Reply(stream.tokens, logprobs, stream.finish_reason))
    return replies


def answer_alone(generator: weft.Generator, request: Request) -> list[Reply]:
    """Return the answers of a request, each alone, without speculation and shared prefixes."""
    engine = generator._engine
    replies = []
    for number in range(request.options.get("n", 1)):
        plain = Engine(engine.decoder, engine.sampler, speculate=False)
        generator._engine = plain
        options = {**request.options, "n": 1, "seed": request.options.get("seed", 0) + number}
        try:
            replies += _collect(generator, request.prompt, options)
        finally:
            plain.close()
            generator._engine = engine
    return replies


def check_schedule(generator: weft.Generator, schedule: Schedule) -> dict[str, int]:
    """Check a schedule, and return how often what happened in it."""
    run_schedule(generator, schedule)
    counts = {**schedule.log, "answers": 0, "cancelled": 0, "constrained": 0}
    for number, request in enumerate(schedule.requests):
        where = f"seed {schedule.seed}, request {number}"
        if request.error is not None:
            raise AssertionError(where) from request.error
        for reply, alone in zip(request.replies, answer_alone(generator, request), strict=True):
            if reply.finish == "cancelled":
                assert reply.tokens == alone.tokens[: len(reply.tokens)], where
                assert reply.logprobs == alone.logprobs[: len(reply.logprobs)], where
            else:
                assert reply == alone, where
            counts["answers"] += 1
            counts["cancelled"] += reply.finish == "cancelled"
            counts["constrained"] += "regex" in request.options
    return counts


def check_schedules(generator: weft.Generator, seeds: Sequence[int], vocabulary: int, longest: int) -> dict[str, int]:
    """Check schedules, and return what happened in them, summed up."""
    totals: dict[str, int] = {}
    for seed in seeds:
        schedule = random_schedule(seed, vocabulary, longest, generator._decoder.block_size)
        for name, value in check_schedule(generator, schedule).items():
            totals[name] = totals.get(name, 0) + value
    return totals
