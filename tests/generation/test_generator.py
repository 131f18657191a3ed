"""`weft.Generator` on the model that ships with weft: text, streams, chats, options and errors."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.samples import model, node, tensor, value

import weft

pytest.importorskip("tokenizers")
PROMPT = "The function returns"


@pytest.fixture(scope="module")
def generator() -> Iterator[weft.Generator]:
    with weft.Generator(device="cpu") as opened:
        yield opened


def test_answers_are_strings(generator: weft.Generator) -> None:
    answer = generator(PROMPT, max_new_tokens=20, temperature=0)
    assert isinstance(answer, str)
    assert answer == answer.text == generator.tokenizer.decode(answer.tokens)
    assert answer.finish_reason in ("stop", "length")
    assert answer.prompt_tokens == len(generator.tokenizer.encode(PROMPT))
    copy = pickle.loads(pickle.dumps(answer))
    assert (copy, copy.tokens, copy.finish_reason) == (answer, answer.tokens, answer.finish_reason)


def test_several_prompts_and_answers(generator: weft.Generator) -> None:
    prompts = [PROMPT, "A list is", "Return"]
    answers = generator(prompts, max_new_tokens=10, temperature=0)
    assert answers == [generator(prompt, max_new_tokens=10, temperature=0) for prompt in prompts]
    samples = generator(PROMPT, n=3, seed=5, temperature=1.0, max_new_tokens=12)
    assert len(samples) == 3
    assert len(set(samples)) > 1
    assert samples == generator(PROMPT, n=3, seed=5, temperature=1.0, max_new_tokens=12)
    assert samples[0] == generator(PROMPT, seed=5, temperature=1.0, max_new_tokens=12)


def test_prompts_can_be_arrays(generator: weft.Generator) -> None:
    tokens = generator.tokenizer.encode(PROMPT)
    expected = generator(tokens, max_new_tokens=5, temperature=0)
    array = np.array(tokens, np.int32)
    assert generator(array, max_new_tokens=5, temperature=0) == expected
    assert generator([array, array[:2]], max_new_tokens=5, temperature=0)[0] == expected
    assert "".join(generator.stream(array, max_new_tokens=5, temperature=0)) == expected


def test_prompts_are_computed_once(generator: weft.Generator) -> None:
    prompt = PROMPT + " a list of all names that are" * 6
    generator(prompt, max_new_tokens=2, temperature=0)
    before = generator.statistics
    generator(prompt, n=4, seed=1, temperature=1.0, max_new_tokens=2)
    after = generator.statistics
    length = len(generator.tokenizer.encode(prompt))
    assert after.shared - before.shared >= 4 * (length - 17)
    assert after.computed - before.computed <= 4 * (16 + 2)


def test_streams_join_to_the_answer(generator: weft.Generator) -> None:
    options: dict[str, Any] = {"max_new_tokens": 30, "temperature": 0.8, "seed": 3}
    stream = generator.stream(PROMPT, **options)
    pieces = list(stream)
    assert "".join(pieces) == generator(PROMPT, **options)
    assert stream.finish_reason is not None
    assert stream.answer() == "".join(pieces)


def test_async_streams(generator: weft.Generator) -> None:
    async def collect(seed: int) -> str:
        pieces = [piece async for piece in generator.stream(PROMPT, seed=seed, temperature=1.0, max_new_tokens=20)]
        return "".join(pieces)

    async def main() -> list[str]:
        answer = await generator.generate_async(PROMPT, seed=0, temperature=1.0, max_new_tokens=20)
        return [answer, *await asyncio.gather(*(collect(seed) for seed in range(5)))]

    answers = asyncio.run(main())
    assert answers[0] == answers[1]
    assert answers[1:] == [generator(PROMPT, seed=seed, temperature=1.0, max_new_tokens=20) for seed in range(5)]


def test_stop_strings_are_never_shown(generator: weft.Generator) -> None:
    whole = generator(PROMPT, max_new_tokens=40, temperature=0)
    stop = whole[10:14]
    stream = generator.stream(PROMPT, max_new_tokens=40, temperature=0, stop=[stop])
    shown = ""
    for piece in stream:
        shown += piece
        assert stop not in shown
    assert shown == whole[: whole.index(stop)]
    assert stream.finish_reason == "stop"


def test_cancelled_streams_end(generator: weft.Generator) -> None:
    stream = generator.stream(PROMPT, temperature=0, logit_bias=dict.fromkeys(generator.folder.end_tokens, -1e9))
    for count, _ in enumerate(stream):
        if count == 3:
            stream.cancel()
    assert stream.finish_reason == "cancelled"
    assert len(stream.tokens) < 100
    left = generator.stream(PROMPT, temperature=0)
    for _ in left:
        break  # leaving the loop cancels, too
    while left.finish_reason is None:
        generator(PROMPT, max_new_tokens=1, temperature=0)


def test_timeouts_raise(generator: weft.Generator) -> None:
    bias = dict.fromkeys(generator.folder.end_tokens, -1e9)
    with pytest.raises(weft.RunTimeoutError, match="timeout"):
        generator(PROMPT, temperature=0, timeout=1e-4, logit_bias=bias)


def test_chat_uses_the_template(generator: weft.Generator) -> None:
    messages = [{"role": "user", "content": "What does math.sqrt do?"}]
    answer = generator.chat(messages, max_new_tokens=30, temperature=0)
    prompt = generator.tokenizer.chat(messages)
    tokens = generator.tokenizer.encode(prompt, special=False)
    assert answer == generator(tokens, max_new_tokens=30, temperature=0)
    assert "".join(generator.stream(messages, max_new_tokens=30, temperature=0)) == answer


def test_schemas_and_expressions_constrain_answers(generator: weft.Generator) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    answer = generator("{", json_schema=schema, seed=1, temperature=1.0, max_new_tokens=60)
    assert json.loads(answer)["a"] in (1, 2)
    assert generator(PROMPT, regex="(yes|no)!", temperature=0) in ("yes!", "no!")


def test_logprobs_and_processors(generator: weft.Generator) -> None:
    answer = generator(PROMPT, max_new_tokens=5, temperature=0, logprobs=3)
    assert [entry.token for entry in answer.logprobs] == list(answer.tokens)
    assert all(entry.top[0][0] == entry.token and entry.top[0][1] == entry.logprob for entry in answer.logprobs)
    allowed = generator.tokenizer.encode(" the", special=False)[0]

    def only_the(tokens: Any, logits: Any) -> Any:
        assert len(tokens) >= answer.prompt_tokens
        return np.where(np.arange(len(logits)) == allowed, logits, -np.inf)

    assert set(generator(PROMPT, max_new_tokens=4, processors=[only_the], temperature=0).tokens) == {allowed}


def test_errors_of_processors_reach_the_caller_alone(generator: weft.Generator) -> None:
    def fail(tokens: Any, logits: Any) -> Any:
        raise RuntimeError("processor failed")

    other = generator.stream(PROMPT, max_new_tokens=40, temperature=0)
    with pytest.raises(RuntimeError, match="processor failed"):
        generator(PROMPT, processors=[fail])
    assert other.answer() == generator(PROMPT, max_new_tokens=40, temperature=0)


def test_threads_share_a_generator(generator: weft.Generator) -> None:
    results: dict[int, str] = {}

    def work(seed: int) -> None:
        results[seed] = generator(PROMPT, seed=seed, temperature=0.9, max_new_tokens=15)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, answer in results.items():
        assert answer == generator(PROMPT, seed=seed, temperature=0.9, max_new_tokens=15)


def test_wrong_arguments_say_what_to_do(generator: weft.Generator) -> None:
    for prompt, message in ((3, "a prompt is a text"), ([], "a prompt is a text"), ([10**9], "is not one of the")):
        with pytest.raises(weft.InputError, match=message):
            generator(prompt)  # type: ignore[arg-type]
    for prompt in (b"bytes", np.array([[1, 2]]), np.array([], int), {1: 2}):
        with pytest.raises(weft.InputError, match="a prompt is a text"):
            generator(prompt)
    for prompt in ([1.0, 2.0], [None], [1, "a"], np.array([1.5])):
        with pytest.raises(weft.InputError, match="in the place of a token id"):
            generator(prompt)
    with pytest.raises(weft.UnknownOptionError, match="max_new_tokens"):
        generator(PROMPT, max_tokens=3)
    with pytest.raises(weft.InputError, match="max_length is 10,000"):
        weft.Generator(device="cpu", max_length=10_000)
    for options in ({"max_length": 0}, {"max_length": -5}, {"max_batch": 0}, {"chunk": "many"}):
        with pytest.raises(weft.InputError, match=next(iter(options))):
            weft.Generator(device="cpu", **options)  # type: ignore[arg-type]
    with pytest.raises(weft.MissingFileError):
        weft.Generator("no-such-folder")


def test_closed_generators_refuse(generator: weft.Generator) -> None:
    with weft.Generator(device="cpu") as other:
        assert other(PROMPT, max_new_tokens=2, temperature=0) == generator(PROMPT, max_new_tokens=2, temperature=0)
    with pytest.raises(weft.ExecutionError, match="closed"):
        other(PROMPT)


def test_generators_are_not_pickled(generator: weft.Generator) -> None:
    with pytest.raises(weft.ExecutionError, match="make one in each process"):
        pickle.dumps(generator)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
def test_memory_does_not_grow() -> None:
    """In a process of its own: the memory of other tests must not count."""
    output = subprocess.run([sys.executable, "-c", MANY_REQUESTS], capture_output=True, check=True, text=True).stdout
    before, after = map(int, output.split())
    assert after - before < 4 << 20, f"after 500 and 2,000 requests: {before:,} and {after:,} bytes"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_forked_processes_generate(generator: weft.Generator) -> None:
    expected = generator(PROMPT, max_new_tokens=8, temperature=0)
    other = generator.stream(PROMPT, temperature=0, logit_bias=dict.fromkeys(generator.folder.end_tokens, -1e9))
    child = os.fork()
    if not child:
        signal.alarm(60)
        answers = [generator(PROMPT, max_new_tokens=8, temperature=0) for _ in range(2)]
        os._exit(0 if answers == [expected, expected] else 1)
    assert os.waitpid(child, 0)[1] == 0
    other.cancel()
    assert generator(PROMPT, max_new_tokens=8, temperature=0) == expected


def test_ctrl_c_cancels_the_answers_that_a_call_waits_for(generator: weft.Generator) -> None:
    bias = dict.fromkeys(generator.folder.end_tokens, -1e9)
    timer = threading.Timer(0.05, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        generator(PROMPT, temperature=1.0, seed=1, n=64, logit_bias=bias)
    timer.join()
    end = time.monotonic() + 60
    while generator._engine.pool.used and time.monotonic() < end:
        time.sleep(0.01)
    assert generator._engine.pool.used == 0


def test_deleted_generators_finish_their_streams() -> None:
    generator = weft.Generator(device="cpu")
    streams = [generator.stream(PROMPT, seed=seed, temperature=1.0, max_new_tokens=50) for seed in range(3)]
    del generator
    gc.collect()
    assert all(stream.answer().finish_reason in ("stop", "length") for stream in streams)


MANY_REQUESTS = """
import re
from pathlib import Path
import numpy as np
import weft

choice = np.random.default_rng(5)
sizes = []
with weft.Generator(device="cpu") as generator:
    for _ in range(20):
        prompts = [choice.integers(0, 2000, choice.integers(1, 60)) for _ in range(100)]
        answers = generator(prompts, max_new_tokens=int(choice.integers(1, 4)), temperature=0)
        assert len(answers) == 100
        sizes.append(1024 * int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]))
    assert generator._engine.pool.used == 0
print(sizes[4], sizes[-1])
"""


@pytest.mark.parametrize(
    ("inputs", "problem"), [([], "the decoder has no cache"), (["past_key"], "the cache of the decoder has an unknown")]
)
def test_decoders_without_a_usable_cache_are_refused(tmp_path: Path, inputs: list[str], problem: str) -> None:
    nodes = [node("Gather", ["table", "input_ids"], ["rows"])]
    nodes += [node("Add", ["rows", inputs[0]], ["logits"])] if inputs else [node("Identity", ["rows"], ["logits"])]
    graph_inputs = [
        value("input_ids", ["b", "s"], onnx.TensorProto.INT64),
        *(value(name, ["b", 1, 8]) for name in inputs),
    ]
    table = tensor("table", np.ones((8, 8), np.float32))
    file = tmp_path / "decoder.onnx"
    onnx.save(model(nodes, graph_inputs, [value("logits", ["b", "s", 8])], [table]), file)
    with pytest.raises(weft.UnsupportedModelError, match=f"(?s){problem}.*optimum-cli"):
        weft.Generator(file, device="cpu")
