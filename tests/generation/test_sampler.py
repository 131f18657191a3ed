"""The sampler against transformers (filters.json), against float64 in numpy, and against itself in other batches."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from generation.sampling_oracle import edit_logits, filter_tokens, softmax

from weft.errors import InputError
from weft.generation.options import GenerationOptions
from weft.generation.penalties import LogitEdits
from weft.generation.sampler import Choices, SampledRow, Sampler, _add_numbers, _collect_edits, make_key
from weft.generation.sampling_graph import Variant

VOCABULARY = 211
DEVICES = pytest.mark.parametrize("device", ["cpu", "webgpu:0"])
CASES = json.loads(Path(__file__).with_name("filters.json").read_text())
SAMPLERS: dict[tuple[str, int], Sampler] = {}


def get_sampler(device: str, vocabulary: int = VOCABULARY) -> Sampler:
    return SAMPLERS.setdefault((device, vocabulary), Sampler(vocabulary, device))


def make_row(seed: int = 0, tokens: list[int] | None = None, prompt_length: int = 0, **keywords: Any) -> SampledRow:
    return SampledRow(GenerationOptions.merge(keywords), seed, [] if tokens is None else tokens, prompt_length)


def find_kept(sampler: Sampler, logits: np.ndarray, rows: list[SampledRow]) -> np.ndarray:
    """Return which tokens the filters of the device keep, for rows of the same options."""
    variant = rows[0].variant
    if not variant.top_k:
        variant = replace(variant, has_candidates=False)
    model = sampler._choice_model(variant)
    feeds: dict[str, Any] = {"logits": logits}
    _add_numbers(feeds, rows, variant)
    outputs = model.run(feeds, outputs=["race", "candidates"] if variant.has_candidates else ["race"])
    is_kept = np.asarray(outputs["race"] < np.inf)
    if variant.has_candidates:
        of_candidates, is_kept = is_kept, np.zeros(logits.shape, bool)
        np.put_along_axis(is_kept, outputs["candidates"], of_candidates, axis=1)
    return is_kept


def edit_on_device(sampler: Sampler, logits: np.ndarray, row: SampledRow) -> np.ndarray:
    model = sampler._choice_model(Variant(edits=True))
    ids, values = _collect_edits([row])
    feeds = {"logits": logits[None], "edit_ids": ids, "edits": values}
    return np.asarray(model.run(feeds, outputs=["edited_logits"])["edited_logits"][0])


def make_logits(seed: int, scale: float) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(size=VOCABULARY).astype(np.float32) * np.float32(scale)
    return np.round(logits * 8) / 8 if seed % 2 else logits


@pytest.mark.parametrize("case", [case for case in CASES if "changes" not in case], ids=range(112))
def test_filters_of_transformers(case: dict[str, Any]) -> None:
    has_ties = case["seed"] % 2
    if has_ties and "top_p" in case["options"] and "typical_p" in case["options"]:
        return  # transformers keeps some of equal logits in top-p, so that typical starts from another set
    logits = make_logits(case["seed"], case["scale"])
    is_kept = find_kept(get_sampler("cpu"), logits[None], [make_row(**case["options"])])[0]
    bits = int(case["tokens"], 16)
    expected = np.array([bool(bits >> token & 1) for token in range(VOCABULARY)])
    expected = np.isin(logits, logits[expected])  # weft keeps equal logits together
    assert np.array_equal(is_kept, expected)


@pytest.mark.parametrize("case", [case for case in CASES if "changes" in case], ids=range(56))
def test_penalties_of_transformers(case: dict[str, Any]) -> None:
    logits = make_logits(case["seed"], case["scale"])
    tokens = np.random.default_rng(case["seed"]).integers(0, 12, 40).tolist()
    edited = edit_on_device(get_sampler("cpu"), logits, make_row(tokens=tokens, **case["options"]))
    expected = logits.copy()
    for token, value in case["changes"].items():
        expected[int(token)] = -np.inf if value is None else value
    np.testing.assert_allclose(edited, expected, rtol=1e-6)


FILTERS: list[dict[str, Any]] = [
    {},
    {"top_k": 7},
    {"top_p": 0.7},
    {"min_p": 0.1},
    {"top_k": 30, "top_p": 0.9, "temperature": 0.6},
    {"top_k": 3, "top_p": 0.5, "min_p": 0.3, "typical_p": 0.9, "temperature": 3.0},
    {"typical_p": 0.5},
    {"min_p": 1.0},
    {"top_k": 100, "top_p": 0.95},
]


@DEVICES
@pytest.mark.parametrize("keywords", FILTERS, ids=str)
def test_filters(device: str, keywords: dict[str, Any]) -> None:
    random = np.random.default_rng(5)
    logits = (random.normal(size=(40, VOCABULARY)) * random.uniform(0.1, 8, (40, 1))).astype(np.float32)
    logits[::4] = np.round(logits[::4])  # many equal logits
    logits[5, 3:] = -np.inf
    logits[6] = 2.5
    rows = [make_row(seed, **keywords) for seed in range(40)]
    is_kept = find_kept(get_sampler(device), logits, rows)
    chosen = get_sampler(device).choose(logits, rows).tokens
    for index, row in enumerate(rows):
        expected, unclear = filter_tokens(logits[index], row.options)
        assert np.array_equal(is_kept[index] | unclear, expected | unclear), index
        assert is_kept[index, chosen[index]]
        assert expected.any()


@DEVICES
@pytest.mark.parametrize("vocabulary", [20_011, 16_448])
@pytest.mark.parametrize("keywords", [{"top_k": 50, "top_p": 0.9}, {"top_k": 64}, {"top_k": 1}], ids=str)
def test_candidates_of_a_large_vocabulary(device: str, vocabulary: int, keywords: dict[str, Any]) -> None:
    """The likeliest tokens come from the chunks with the largest logits; the last chunk may be short."""
    if device != "cpu" and keywords.get("top_p") is None:
        return
    random = np.random.default_rng(9)
    logits = (random.normal(size=(12, vocabulary)) * 3).astype(np.float32)
    logits[4:8] = np.round(logits[4:8] * 64) / 64
    logits[0, -5:] = 20
    logits[1, 640:700] = random.normal(size=60) + 12  # all in one chunk
    logits[2, 100:] = -np.inf
    rows = [make_row(seed, logprobs=100, **keywords) for seed in range(12)]
    sampler = get_sampler(device, vocabulary)
    is_kept = find_kept(sampler, logits, rows)
    for index, row in enumerate(rows):
        expected, unclear = filter_tokens(logits[index], row.options)
        assert np.array_equal(is_kept[index] | unclear, expected | unclear), index
    top_tokens = sampler.choose(logits, rows).top_tokens
    assert top_tokens is not None
    assert np.array_equal(top_tokens, np.argsort(-logits, axis=1, kind="stable")[:, :100])


@DEVICES
def test_top_p_takes_as_many_candidates_as_it_needs(device: str) -> None:
    random = np.random.default_rng(6)
    sampler = get_sampler(device, 1000)
    logits = (random.normal(size=(60, 1000)) * np.linspace(0.1, 8, 60)[:, None]).astype(np.float32)
    logits[::5] = np.round(logits[::5])
    rows = [make_row(seed, top_p=0.8) for seed in range(60)]
    variant = rows[0].variant
    feeds: dict[str, Any] = {"logits": logits}
    _add_numbers(feeds, rows, variant)
    tokens = sampler._choice_model(variant).run(feeds)["tokens"]
    expected = sampler._choice_model(replace(variant, has_candidates=False)).run(feeds)["tokens"]
    sizes = np.array([filter_tokens(row, rows[0].options)[0].sum() for row in logits])
    assert (tokens[sizes > 128] == -2).all()
    assert (tokens[sizes < 90] == expected[sizes < 90]).all()
    assert (sizes > 128).any()
    assert (sizes < 90).any()
    assert sampler.choose(logits, rows).tokens.tolist() == expected.tolist()


def check_fit(counts: np.ndarray, probabilities: np.ndarray) -> None:
    """Compare counts with probabilities by a chi-square test, at five standard deviations."""
    expected = probabilities * counts.sum()
    rare = expected < 8
    groups = [(counts[rare].sum(), expected[rare].sum())] if rare.any() else []
    groups += list(zip(counts[~rare], expected[~rare]))
    statistic = sum((count - mean) ** 2 / mean for count, mean in groups if mean > 0)
    freedom = len(groups) - 1
    assert abs(statistic - freedom) < 5 * max(2 * freedom, 8) ** 0.5, (statistic, freedom)


@pytest.mark.parametrize(
    "keywords", [{}, {"temperature": 0.5}, {"top_k": 20, "top_p": 0.8}, {"typical_p": 0.6}, {"min_p": 0.1}], ids=str
)
@pytest.mark.parametrize("over", ["seeds", "positions"])
def test_samples_follow_the_softmax(keywords: dict[str, Any], over: str) -> None:
    random = np.random.default_rng(11)
    logits = (random.normal(size=VOCABULARY) * 2).astype(np.float32)
    options = GenerationOptions.merge(keywords)
    draws = 20_000
    tokens = [0] * draws
    rows = [
        SampledRow(options, number, [], 0) if over == "seeds" else SampledRow(options, 7, tokens[:number], 0)
        for number in range(draws if over == "seeds" else 4000)
    ]
    chosen = get_sampler("cpu").choose(np.tile(logits, (len(rows), 1)), rows).tokens
    is_kept, _ = filter_tokens(logits, options)
    scaled = np.where(is_kept, logits.astype(np.float64) / options.temperature, -np.inf)
    check_fit(np.bincount(chosen, minlength=VOCABULARY), softmax(scaled))
    # Choices of steps that follow each other are independent.
    buckets = chosen % 5
    pairs = np.bincount(buckets[:-1] * 5 + buckets[1:], minlength=25)
    share = np.bincount(np.arange(VOCABULARY) % 5, softmax(scaled), 5)
    check_fit(pairs, np.outer(share, share).ravel())


def test_samples_of_a_large_vocabulary() -> None:
    vocabulary = 50_000
    rows = [make_row(seed) for seed in range(4000)]
    logits = np.zeros((500, vocabulary), np.float32)
    sampler = get_sampler("cpu", vocabulary)
    chosen = np.concatenate([sampler.choose(logits, rows[start : start + 500]).tokens for start in range(0, 4000, 500)])
    check_fit(np.bincount(chosen * 50 // vocabulary, minlength=50), np.full(50, 1 / 50))
    check_fit(np.bincount(chosen % 64, minlength=64), np.bincount(np.arange(vocabulary) % 64) / vocabulary)
    assert len(set(chosen.tolist())) > 3700  # about 3844 different ones are expected


@pytest.mark.parametrize("temperature", [1.0, 0.05, 1e-6, 1e-30, 1e-300, 50.0])
def test_extreme_temperatures(temperature: float) -> None:
    logits = np.array([[1.0, 3.0, 3.0 - 2**-20, -80.0, -np.inf] + [0.0] * (VOCABULARY - 5)], np.float32)
    rows = [make_row(seed, temperature=temperature) for seed in range(200)]
    chosen = get_sampler("cpu").choose(np.tile(logits, (200, 1)), rows).tokens
    assert 4 not in chosen
    assert temperature > 1e-5 or set(chosen.tolist()) <= ({1, 2} if temperature == 1e-6 else {1})


ROW_OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "repetition_penalty": 1.3, "logprobs": 2},
    {},
    {"temperature": 0.8, "top_k": 10},
    {"top_p": 0.8, "min_p": 0.01},
    {"top_k": 40, "top_p": 0.9, "logprobs": 3},
    {"typical_p": 0.7, "frequency_penalty": 0.5},
    {"presence_penalty": 1.0, "no_repeat_ngram_size": 2, "logit_bias": {5: 3.0}, "top_k": 50},
    {"processors": lambda _, logits: logits * np.float32(0.5)},
]


def list_logprobs(choices: Choices) -> tuple[np.ndarray, ...]:
    assert choices.logprobs is not None
    assert choices.top_tokens is not None
    assert choices.top_logprobs is not None
    return np.repeat(choices.logprobs[:, None], 20, axis=1), choices.top_tokens, choices.top_logprobs


@DEVICES
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_row_is_the_same_in_any_batch(device: str, dtype: str) -> None:
    random = np.random.default_rng(3)
    sampler = get_sampler(device)
    choices = ROW_OPTIONS if device == "cpu" else [ROW_OPTIONS[index] for index in (0, 2, 5, 7)]
    batches = 200 if device == "cpu" else 20
    data = (random.normal(size=(64, VOCABULARY)) * 2).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    rows = []
    for _ in range(64):
        tokens = random.integers(0, VOCABULARY, random.integers(1, 30)).tolist()
        row = make_row(
            int(random.integers(1 << 40)), tokens, len(tokens) // 2, **choices[random.integers(len(choices))]
        )
        if random.random() < 0.2:
            row.allowed = random.integers(0, 1 << 32, 7).astype(np.uint32)
        rows.append(row)
    alone = [sampler.choose(data[index : index + 1], [row]) for index, row in enumerate(rows)]
    for _ in range(batches):
        order = random.permutation(64)[: random.integers(1, 65)]
        together = sampler.choose(data[order], [rows[index] for index in order])
        assert together.tokens.tolist() == [alone[index].tokens[0] for index in order]
        for place, index in enumerate(order):
            count = rows[index].options.logprobs
            if count is not None:
                single = alone[index]
                for batched, single in zip(list_logprobs(together), list_logprobs(alone[index])):
                    assert np.array_equal(batched[place, :count], single[0, :count])


@DEVICES
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_greedy(device: str, dtype: str) -> None:
    random = np.random.default_rng(1)
    logits = random.normal(size=(9, VOCABULARY)).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    logits[3, 50] = logits[3, 90] = 9
    rows = [make_row(temperature=0) for _ in range(9)]
    sampler = get_sampler(device)
    tokens = sampler.choose(logits, rows).tokens
    assert tokens.tolist() == logits.astype(np.float32).argmax(1).tolist()
    on_device = sampler._choice_model(Variant(dtype)).to_device(logits)
    assert sampler.choose(on_device, rows).tokens.tolist() == tokens.tolist()
    rows[4] = make_row(temperature=0, logit_bias={7: 50.0})
    mixed = sampler.choose(on_device, rows).tokens
    assert mixed[4] == 7
    assert np.delete(mixed, 4).tolist() == np.delete(tokens, 4).tolist()


@DEVICES
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_masks(device: str, temperature: float) -> None:
    random = np.random.default_rng(2)
    logits = random.normal(size=(20, VOCABULARY)).astype(np.float32)
    allowed = random.random((20, VOCABULARY)) < 0.1
    rows = []
    for index in range(20):
        row = make_row(index, temperature=temperature)
        bits = np.zeros(224, bool)
        bits[:VOCABULARY] = allowed[index]
        row.allowed = np.packbits(bits, bitorder="little").view(np.uint32)
        rows.append(row)
    tokens = get_sampler(device).choose(logits, rows).tokens
    assert allowed[np.arange(20), tokens].all()
    if not temperature:
        assert tokens.tolist() == np.where(allowed, logits, -np.inf).argmax(1).tolist()
    rows[3].allowed = np.zeros(7, np.uint32)
    again = get_sampler(device).choose(logits, rows).tokens
    assert again[3] == -1
    assert np.delete(again, 3).tolist() == np.delete(tokens, 3).tolist()
    rows[3].allowed = np.zeros(6, np.uint32)
    with pytest.raises(InputError, match=r"\(7,\)"):
        get_sampler(device).choose(logits, rows)


@DEVICES
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits(device: str, temperature: float) -> None:
    logits = np.zeros((4, VOCABULARY), np.float32)
    logits[1, 5] = np.nan
    logits[2] = -np.inf
    logits[3, 8] = np.inf
    rows = [make_row(seed, temperature=temperature) for seed in range(4)]
    tokens = get_sampler(device).choose(logits, rows).tokens
    assert tokens[0] >= 0
    assert tokens[1:].tolist() == [-1, -1, -1]


@DEVICES
def test_logprobs(device: str) -> None:
    random = np.random.default_rng(4)
    logits = (random.normal(size=(6, VOCABULARY)) * 5).astype(np.float32)
    counts = [None, 0, 1, 5, 20, None]
    rows = [make_row(seed, temperature=0.7, top_k=5, logprobs=count) for seed, count in enumerate(counts)]
    choices = get_sampler(device).choose(logits, rows)
    _, top_tokens, top_logprobs = list_logprobs(choices)
    assert choices.logprobs is not None
    assert top_tokens.shape == (6, 20)
    for index, count in enumerate(counts):
        if count is None:
            assert np.isnan(choices.logprobs[index])
            continue
        expected = np.log(softmax(logits[index].astype(np.float64)))
        assert abs(choices.logprobs[index] - expected[choices.tokens[index]]) < 1e-5
        order = np.argsort(-expected, kind="stable")[:count]
        assert top_tokens[index, :count].tolist() == order.tolist()
        np.testing.assert_allclose(top_logprobs[index, :count], expected[order], atol=1e-5)


EDITS: list[dict[str, Any]] = [
    {"frequency_penalty": 0.4},
    {"presence_penalty": -0.7},
    {"repetition_penalty": 1.4, "frequency_penalty": 0.3, "presence_penalty": 0.2, "logit_bias": {3: 1.0, 200: -2.0}},
    {"no_repeat_ngram_size": 3, "repetition_penalty": 1.1},
    {"no_repeat_ngram_size": 1, "logit_bias": {2: 4.0}},
    {"no_repeat_ngram_size": 2, "logit_bias": {2: 4.0, 5: float("-inf")}},
]


@pytest.mark.parametrize("keywords", EDITS, ids=str)
def test_edits_follow_tokens(keywords: dict[str, Any]) -> None:
    """Tokens come and go; the arrays always give what a computation from scratch gives."""
    random = np.random.default_rng(8)
    logits = make_logits(8, 3.0)
    tokens = random.integers(0, 9, 12).tolist()
    row = make_row(tokens=tokens, prompt_length=10, **keywords)
    sampler = get_sampler("cpu")
    for step in range(60):
        edited = edit_on_device(sampler, logits, row)
        np.testing.assert_allclose(edited, edit_logits(logits, tokens, 10, row.options), rtol=1e-5, atol=1e-6)
        if step % 7 == 6:
            del tokens[len(tokens) - 5 :]
        elif step % 11 == 10:
            row.rollback(len(tokens) - 2)
            tokens[-2:] = random.integers(0, 30, 2).tolist()
        else:
            tokens += random.integers(0, 9 if step % 2 else VOCABULARY, random.integers(1, 5)).tolist()


def test_edits_grow_by_new_tokens_alone() -> None:
    class Tokens(list[int]):
        reads = 0

        def __getitem__(self, index: Any) -> Any:
            self.reads += 1
            return super().__getitem__(index)

    edits = LogitEdits(GenerationOptions(repetition_penalty=1.2, no_repeat_ngram_size=3), 0)
    tokens = Tokens(range(1000))
    edits.follow(tokens)
    tokens.reads = 0
    tokens.append(7)
    edits.follow(tokens)
    assert tokens.reads == 1


def test_processors() -> None:
    calls = []

    def favour(tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        calls.append(tokens.tolist())
        logits[11] = np.inf
        return logits

    logits = np.zeros((2, VOCABULARY), np.float32)
    rows = [make_row(tokens=[1, 2], processors=[favour]), make_row(tokens=[4], temperature=0)]
    assert get_sampler("cpu").choose(logits, rows).tokens.tolist() == [11, 0]
    assert calls == [[1, 2]]
    assert not logits.any()


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (None, "None"),
        (np.zeros(3), r"\[3\]"),
        (np.full(VOCABULARY, np.nan), "NaN"),
        (np.array(["a"] * VOCABULARY), "<U1"),
    ],
    ids=["none", "shape", "nan", "text"],
)
def test_wrong_processors(result: Any, problem: str) -> None:
    def break_logits(tokens: np.ndarray, logits: np.ndarray) -> Any:
        return result

    with pytest.raises(InputError, match=problem) as caught:
        get_sampler("cpu").choose(np.zeros((1, VOCABULARY), np.float32), [make_row(processors=[break_logits])])
    assert "break_logits" in str(caught.value)


def test_wrong_logits() -> None:
    sampler = get_sampler("cpu")
    with pytest.raises(InputError, match=r"\[1, 211\]"):
        sampler.choose(np.zeros((2, VOCABULARY), np.float32), [make_row()])
    with pytest.raises(InputError, match="float64"):
        sampler.choose(np.zeros((1, VOCABULARY)), [make_row()])
    with pytest.raises(InputError, match="211"):
        sampler.choose(np.zeros((1, 5), np.float32), [make_row()])
    with pytest.raises(InputError, match="logit_bias has token 211"):
        sampler.check_options(GenerationOptions(logit_bias={211: 1.0}))


def test_keys_differ() -> None:
    keys = {make_key(seed, position) for seed in range(100) for position in range(100)}
    assert len(keys) == 10_000
    assert make_key(5, 0) == make_key(5 + (1 << 64), 0)
