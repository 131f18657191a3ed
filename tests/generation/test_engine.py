"""Requests that run together have the tokens of requests alone, and those of onnxruntime."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from generation.schedules import check_schedules
from generation.small_decoders import POSITIONS, VARIANTS, VOCABULARY, Variant, merge_branches, write_decoder

import weft
from weft.generation.decoder import PagedDecoder, StateDecoder

FORMS = (
    "llama-int4",
    "qwen3",
    "gemma2",
    "optimum",
    "optimum-window",
    "optimum-alibi",
    "phi3-long",
    "optimum-dynamic",
    "mixture",
)
WHOLE_PROMPTS = ("optimum-alibi", "optimum-dynamic")  # their numbers depend on the number of tokens in a step
QUANTIZED_CACHES = ("llama-int8-cache", "qwen3-int4-cache")
LONGEST = 100
SCHEDULES = 40
CACHE_DTYPES = {"tensor(float)": np.float32, "tensor(int8)": np.int8, "tensor(uint8)": np.uint8}


def has_device(name: str) -> bool:
    return any(device.name == name and device.available for device in weft.devices())


@pytest.fixture(scope="module")
def generators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a function from the name of a variant and a device to its generator."""
    opened: dict[tuple[str, str], weft.Generator] = {}
    folder = tmp_path_factory.mktemp("decoders")

    def open_generator(name: str, device: str = "cpu") -> weft.Generator:
        if (name, device) not in opened:
            file = folder / f"{name}.onnx"
            if not file.exists():
                write_decoder(VARIANTS[name], file)
            opened[name, device] = weft.Generator(file, device=device, max_length=128)
        return opened[name, device]

    yield open_generator
    for generator in opened.values():
        generator.close()


class Oracle:
    """Logits of onnxruntime, computed for the whole sequence in each step."""

    def __init__(self, file: Path) -> None:
        self.session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])

    def logits(self, tokens: list[int]) -> np.ndarray[Any, Any]:
        """Return the logits after the last token, in float64."""
        feeds: dict[str, Any] = {}
        for value in self.session.get_inputs():
            if value.name == "input_ids":
                feeds[value.name] = np.array([tokens], np.int64)
            elif value.name == "attention_mask":
                feeds[value.name] = np.ones((1, len(tokens)), np.int64)
            elif value.name == "position_ids":
                feeds[value.name] = np.arange(len(tokens))[None]
            else:
                shape = [size if isinstance(size, int) else 1 for size in value.shape]
                shape[2] = 0
                feeds[value.name] = np.zeros(shape, CACHE_DTYPES[value.type])
        logits: np.ndarray[Any, Any] = self.session.run(["logits"], feeds)[0][0, -1].astype(np.float64)
        return logits

    def logprobs(self, tokens: list[int]) -> np.ndarray[Any, Any]:
        logits = self.logits(tokens)
        shifted = logits - logits.max()
        result: np.ndarray[Any, Any] = shifted - math.log(np.exp(shifted).sum())
        return result


def make_prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).tolist()


@pytest.mark.parametrize("name", [*FORMS, *QUANTIZED_CACHES])
def test_schedules_give_the_bits_of_requests_alone(generators: Any, name: str) -> None:
    first = FORMS.index(name) * SCHEDULES if name in FORMS else 0
    count = SCHEDULES if name in FORMS else SCHEDULES // 4
    generator = generators(name)
    totals = check_schedules(generator, range(first, first + count), VOCABULARY, LONGEST)
    computes_chunks = name not in WHOLE_PROMPTS
    assert generator._decoder.takes_chunks == computes_chunks
    for event in ("shared", "preempted", "cancelled") if computes_chunks else ("preempted", "cancelled"):
        assert totals[event] > 0, f"no schedule has a token or sequence that is {event}: {totals}"


@pytest.mark.parametrize("name", ["llama-int4", "optimum", "mixture"])
def test_schedules_on_webgpu(generators: Any, name: str) -> None:
    if not has_device("webgpu:0"):
        pytest.skip("no WebGPU adapter")
    check_schedules(generators(name, "webgpu:0"), range(5), VOCABULARY, 60)


@pytest.mark.parametrize("name", [name for name in FORMS if name != "optimum-dynamic"])  # the oracle has other ranges
def test_batches_have_the_logprobs_of_onnxruntime(generators: Any, name: str) -> None:
    generator = generators(name)
    oracle = Oracle(Path(generator.folder.decoder))
    prompts = [make_prompt(seed, length) for seed, length in enumerate((1, 3, 17, 40, 64))]
    answers = generator(prompts, max_new_tokens=12, temperature=1.0, seed=3, logprobs=5)
    for prompt, answer in zip(prompts, answers):
        tokens = list(prompt)
        for entry in answer.logprobs:
            expected = oracle.logprobs(tokens)
            assert entry.logprob == pytest.approx(expected[entry.token], abs=1e-4)
            for token, logprob in entry.top:
                assert logprob == pytest.approx(expected[token], abs=1e-4)
            tokens.append(entry.token)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "optimum", "phi3-long"])
def test_greedy_tokens_are_those_of_onnxruntime(generators: Any, name: str) -> None:
    generator = generators(name)
    oracle = Oracle(Path(generator.folder.decoder))
    prompt = make_prompt(7, 20)
    answer = generator(prompt, max_new_tokens=100, temperature=0)
    tokens = list(prompt)
    for token in answer.tokens:
        logits = oracle.logits(tokens)
        assert logits[token] >= logits.max() - 1e-4
        tokens.append(token)
    assert len(answer.tokens) == 100


def search_beams(oracle: Oracle, prompt: list[int], width: int, count: int) -> list[tuple[float, list[int]]]:
    """Return the best sequences of `count` tokens that a beam search without end tokens finds."""
    beams = [(0.0, list(prompt))]
    for _ in range(count):
        grown = [
            (score + logprob, [*tokens, token])
            for score, tokens in beams
            for token, logprob in enumerate(oracle.logprobs(tokens))
        ]
        beams = sorted(grown, key=lambda entry: -entry[0])[:width]
    return beams


@pytest.mark.parametrize("name", ["llama", "optimum", "phi3-long"])
@pytest.mark.parametrize("width", [2, 5])
def test_beams_are_those_of_a_search_with_onnxruntime(generators: Any, name: str, width: int) -> None:
    generator = generators(name)
    prompt = make_prompt(width, 40)
    answers = generator(prompt, num_beams=width, n=width, max_new_tokens=9, temperature=0)
    expected = search_beams(Oracle(Path(generator.folder.decoder)), prompt, width, 9)
    assert [list(answer.tokens) for answer in answers] == [tokens[len(prompt) :] for _, tokens in expected]
    assert generator._engine.pool.used == 0


def test_beams_run_beside_other_requests(generators: Any) -> None:
    generator = generators("llama")
    prompt, other = make_prompt(1, 25), make_prompt(2, 30)
    alone = generator(prompt, num_beams=3, n=3, max_new_tokens=20, temperature=0)
    single = generator(other, max_new_tokens=60, temperature=0)
    stream = generator.stream(other, max_new_tokens=60, temperature=0)
    together = generator(prompt, num_beams=3, n=3, max_new_tokens=20, temperature=0)
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]
    assert stream.answer().tokens == single.tokens


@pytest.mark.parametrize("chunk", [16, 64])
def test_memory_of_whole_prompts(chunk: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"device": "cpu", "max_length": 64, "max_batch": 2, "chunk": chunk}
    file = write_decoder(VARIANTS["optimum-alibi"], tmp_path / "decoder.onnx")
    with weft.Generator(file, **options) as generator:
        plan = generator._decoder.memory(1, 64, 0)
        assert plan is not None
        memory = generator.memory()
        assert memory.step >= plan.peak - plan.weights > 0
    with weft.Generator(file, **options, memory_limit=memory.peak) as generator:
        assert generator.memory().peak <= memory.peak


@pytest.mark.parametrize("name", ["qwen3", "optimum-alibi"])
def test_decoders_that_cannot_be_paged(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.generation.generator.load_programs", lambda *_: None)
    file = write_decoder(VARIANTS[name], tmp_path / "decoder.onnx")
    prompt = make_prompt(3, 30)
    with weft.Generator(file, device="cpu", max_length=128, max_batch=3) as generator:
        assert isinstance(generator._decoder, StateDecoder)
        check_schedules(generator, range(8), VOCABULARY, LONGEST)
        answers = generator(prompt, num_beams=3, n=3, max_new_tokens=9, temperature=0)
        assert not generator._decoder._states
    expected = search_beams(Oracle(file), prompt, 3, 9)
    assert [list(answer.tokens) for answer in answers] == [tokens[len(prompt) :] for _, tokens in expected]


def test_merged_decoders_are_paged(tmp_path: Path, generators: Any) -> None:
    model = onnx.load(write_decoder(VARIANTS["optimum"], tmp_path / "decoder.onnx"))
    folder = tmp_path / "merged"
    folder.mkdir()
    onnx.save(merge_branches(model), folder / "decoder_model_merged.onnx")
    config = {"model_type": "llama", "vocab_size": VOCABULARY, "max_position_embeddings": 128, "eos_token_id": []}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    prompts = [make_prompt(seed, length) for seed, length in enumerate((1, 20, 45))]
    with weft.Generator(folder, device="cpu") as generator:
        assert isinstance(generator._decoder, PagedDecoder)
        answers = generator(prompts, max_new_tokens=20, temperature=0)
    expected = generators("optimum")(prompts, max_new_tokens=20, temperature=0)
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in expected]


@pytest.mark.parametrize("name", QUANTIZED_CACHES)
def test_quantized_caches_have_the_first_logprobs_of_onnxruntime(generators: Any, name: str) -> None:
    """Of short prompts: in longer ones, a rounding error of a key sooner or later changes its code."""
    generator = generators(name)
    oracle = Oracle(Path(generator.folder.decoder))
    for seed in range(6):
        prompt = make_prompt(seed, 4)
        (entry,) = generator(prompt, max_new_tokens=1, temperature=0, logprobs=0).logprobs
        assert entry.logprob == pytest.approx(oracle.logprobs(prompt)[entry.token], abs=1e-4)


def test_positions_of_three_kinds(tmp_path: Path) -> None:
    tokens = []
    for kinds in (1, 3):
        variant = Variant(joint=False, rotary="node", position_kinds=kinds)
        with weft.Generator(
            write_decoder(variant, tmp_path / f"{kinds}.onnx"), device="cpu", max_length=128
        ) as generator:
            assert isinstance(generator._decoder, PagedDecoder)
            answers = generator([make_prompt(0, 20), make_prompt(1, 7)], max_new_tokens=30, temperature=0)
            tokens.append([answer.tokens for answer in answers])
    assert tokens[0] == tokens[1]


def test_a_draft_changes_no_token(tmp_path: Path, generators: Any) -> None:
    file = write_decoder(VARIANTS["llama"], tmp_path / "model.onnx")
    drafts = {name: write_decoder(VARIANTS[name], tmp_path / f"{name}.onnx") for name in ("llama-int8", "qwen2")}
    alone = generators("llama")
    for draft in drafts.values():
        with weft.Generator(file, device="cpu", max_length=128, draft=draft) as generator:
            for options in ({"temperature": 0}, {"temperature": 1.0, "seed": 4, "top_p": 0.9}):
                for seed in range(3):
                    prompt = make_prompt(seed, 10 + 20 * seed)
                    expected = alone(prompt, max_new_tokens=40, **options)
                    assert generator(prompt, max_new_tokens=40, **options).tokens == expected.tokens
            assert generator.statistics.proposed > generator.statistics.accepted > 0


def test_cache_has_the_predicted_bytes(generators: Any) -> None:
    for name in (*FORMS, *QUANTIZED_CACHES):
        generator = generators(name)
        actual = sum(pool.nbytes for pool in generator._decoder._pools.values())
        assert generator.memory().cache == actual


def test_sequences_that_cannot_fit_are_refused(tmp_path: Path) -> None:
    file = write_decoder(VARIANTS["llama"], tmp_path / "decoder.onnx")
    with weft.Generator(file, device="cpu", max_length=128) as generator:
        with pytest.raises(weft.InputError, match="the prompt has 200 tokens, and max_length is 128"):
            generator(make_prompt(0, 200))
        with pytest.raises(weft.OutOfMemoryError, match=r"need .* of cache; it has"):
            generator(make_prompt(0, 100), num_beams=40, temperature=0)
        assert len(generator(make_prompt(0, 100), temperature=0).tokens) == 28
    with pytest.raises(weft.OutOfMemoryError, match="more than the memory_limit"):
        weft.Generator(file, device="cpu", max_length=128, memory_limit="200KB")


def test_tables_of_positions_limit_the_length(tmp_path: Path) -> None:
    file = write_decoder(VARIANTS["llama"], tmp_path / "decoder.onnx")  # no configuration states its context
    with weft.Generator(file, device="cpu", draft=file) as generator:
        assert generator.max_length == POSITIONS
        assert len(generator(make_prompt(0, 100), temperature=0).tokens) == POSITIONS - 100
    with pytest.raises(weft.InputError, match=f"max_length is 300, and the model has positions for {POSITIONS} tokens"):
        weft.Generator(file, device="cpu", max_length=300)


def test_memory_limit_holds(tmp_path: Path) -> None:
    file = write_decoder(VARIANTS["llama"], tmp_path / "decoder.onnx")
    with weft.Generator(file, device="cpu", max_length=128, memory_limit="40MB", max_batch=4) as generator:
        assert generator.memory().peak <= 40_000_000
        assert generator(make_prompt(0, 100), temperature=0).finish_reason == "length"


def test_prompts_are_admitted_only_with_room_for_them(tmp_path: Path) -> None:
    file = write_decoder(VARIANTS["llama"], tmp_path / "decoder.onnx")
    with weft.Generator(file, device="cpu", max_length=128) as generator:
        blocks = generator._engine.pool.blocks
        prompts = [make_prompt(seed, 70) for seed in range(4 * blocks)]
        answers = generator(prompts, max_new_tokens=8, temperature=0)
        assert [len(answer.tokens) for answer in answers] == [8] * len(prompts)
        assert generator.statistics.preempted == 0


def test_many_requests_leave_nothing_behind(generators: Any) -> None:
    generator = generators("llama-int4")
    choice = np.random.default_rng(11)
    for _ in range(5):
        prompts = [make_prompt(int(choice.integers(1 << 30)), int(choice.integers(1, 90))) for _ in range(40)]
        answers = generator(prompts, max_new_tokens=4, temperature=0)
        assert all(len(answer.tokens) == 4 for answer in answers)
    assert generator._engine.pool.used == 0
    assert not generator._engine._running
    assert not generator._engine._waiting
