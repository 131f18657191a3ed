"""Embeddings through the `openai` client, compared with onnxruntime and pooling in float64."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from server.openai.conftest import NORMALIZE, Served
from server.openai.folders import DEMO, MOST_TOKENS, VOCABULARY, write_embedding_folder
from tokenizers import Tokenizer

from weft.errors import InvalidModelError, UnsupportedModelError, WeftError
from weft.server.embedder import TOKENS_PER_RUN, Embedder, is_embedding_folder, open_embedder

TEXTS = ["The quick brown fox", "jumps over the lazy dog. 0123", "The quick brown dog", "a", "Grüße aus Zürich"]
Array = np.ndarray[Any, Any]


def run_reference(folder: Path, texts: list[str]) -> list[tuple[dict[str, Array], int]]:
    """Return the outputs of onnxruntime for each text alone, and the number of its tokens."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(folder / "onnx" / "model.onnx"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    names = [output.name for output in session.get_outputs()]
    results = []
    for text in texts:
        ids = np.array([tokenizer.encode(text).ids])
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        outputs = session.run(names, feeds)
        results.append(({name: output[0].astype(np.float64) for name, output in zip(names, outputs)}, ids.shape[1]))
    return results


def scale(row: Array) -> Array:
    return row / np.linalg.norm(row)


def expect(folder: Path, texts: list[str], pool: Callable[[dict[str, Array]], Array]) -> tuple[Array, int]:
    results = run_reference(folder, texts)
    return np.stack([pool(outputs) for outputs, _ in results]), sum(count for _, count in results)


def create(served: Served, model: str, texts: Any, **options: Any) -> tuple[Array, Any]:
    answer = served.client.embeddings.create(model=model, input=texts, **options)
    assert [entry.index for entry in answer.data] == list(range(len(answer.data)))
    return np.array([entry.embedding for entry in answer.data]), answer.usage


POOLINGS: dict[str, Callable[[dict[str, Array]], Array]] = {
    "mean": lambda outputs: scale(outputs["last_hidden_state"].mean(axis=0)),
    "cls": lambda outputs: np.concatenate([outputs["last_hidden_state"][0], outputs["last_hidden_state"].max(axis=0)]),
}


@pytest.mark.parametrize("model", POOLINGS)
def test_embeddings_are_those_of_onnxruntime(served: Served, model: str) -> None:
    expected, tokens = expect(served.folders[model], TEXTS, POOLINGS[model])
    matrix, usage = create(served, model, TEXTS)  # the client asks for base64
    np.testing.assert_allclose(matrix, expected, atol=2e-6)
    assert (usage.prompt_tokens, usage.total_tokens) == (tokens, tokens)
    floats, _ = create(served, model, TEXTS, encoding_format="float")
    assert np.array_equal(floats.astype(np.float32), matrix.astype(np.float32))
    tokenizer = Tokenizer.from_file(str(served.folders[model] / "tokenizer.json"))
    from_tokens, _ = create(served, model, [tokenizer.encode(text).ids for text in TEXTS])
    assert np.array_equal(from_tokens, matrix)
    single, _ = create(served, model, tokenizer.encode(TEXTS[1]).ids)
    assert np.array_equal(single, matrix[1:2])


def test_prompts_and_sentence_embeddings(served: Served) -> None:
    """The default prompt stands before each text, and a model that pools by itself is not normalised again."""
    texts = [f"fox {text}" for text in TEXTS]
    expected, tokens = expect(served.folders["pooled"], texts, lambda outputs: outputs["sentence_embedding"])
    matrix, usage = create(served, "pooled", TEXTS)
    np.testing.assert_allclose(matrix, expected, atol=2e-6)
    assert usage.prompt_tokens == tokens


def test_dimensions(served: Served) -> None:
    expected, _ = expect(served.folders["mean"], TEXTS, POOLINGS["mean"])
    matrix, _ = create(served, "mean", TEXTS, dimensions=5)
    np.testing.assert_allclose(matrix, np.stack([scale(row[:5]) for row in expected]), atol=2e-6)
    whole, _ = create(served, "mean", TEXTS, dimensions=12)
    assert np.array_equal(whole, create(served, "mean", TEXTS)[0])


def test_base64_is_little_endian_float32(served: Served) -> None:
    matrix, _ = create(served, "mean", TEXTS, encoding_format="float")
    answer = served.post("embeddings", model="mean", input=TEXTS, encoding_format="base64")
    for entry, row in zip(answer["data"], matrix, strict=True):
        assert np.array_equal(np.frombuffer(base64.b64decode(entry["embedding"]), "<f4"), row.astype(np.float32))


def test_bits_do_not_depend_on_other_texts(served: Served) -> None:
    random = np.random.default_rng(2)
    print("seed 2")
    words = ["fox", "dog", "lazy", "The", "0123", "Zürich"]
    texts = [" ".join(random.choice(words, size=random.integers(1, 9))) for _ in range(60)]
    alone = np.concatenate([create(served, "mean", text)[0] for text in texts])
    together, _ = create(served, "mean", texts)
    assert np.array_equal(alone, together)

    async def ask() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            calls = (client.embeddings.create(model="mean", input=texts[at : at + 3]) for at in range(0, 60, 3))
            return await asyncio.gather(*calls)

    concurrent = [entry.embedding for answer in asyncio.run(ask()) for entry in answer.data]
    assert np.array_equal(np.array(concurrent), together)


def embed(embedder: Embedder, texts: list[Any]) -> tuple[Array, list[int]]:
    async def run(arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        shapes.append(arrays["input_ids"].shape)
        return embedder.model.run(arrays)

    shapes: list[tuple[int, ...]] = []
    matrix, counts = asyncio.run(embedder.embed(run, texts))
    assert all(rows * length <= TOKENS_PER_RUN for rows, length in shapes)
    return matrix, counts


@pytest.mark.parametrize(
    ("config", "pool"),
    [
        ({"pooling_mode": "lasttoken"}, lambda rows: rows[-1]),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, lambda rows: rows.sum(axis=0) / np.sqrt(len(rows))),
        ({"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True},
         lambda rows: np.concatenate([rows.max(axis=0), rows.mean(axis=0)])),
        ({"pooling_mode_weightedmean_tokens": True},
         lambda rows: np.average(rows, axis=0, weights=np.arange(1, len(rows) + 1))),
        ({"pooling_mode_mean_tokens": False}, lambda rows: rows.mean(axis=0)),
    ],
    ids=["lasttoken", "sqrt", "max-mean", "weighted", "none"],
)  # fmt: skip
def test_pooling_modes(tmp_path: Path, config: dict[str, Any], pool: Callable[[Array], Array]) -> None:
    folder = write_embedding_folder(tmp_path / "m", modules__json=NORMALIZE[:2], **{"1_Pooling___config__json": config})
    matrix, _ = embed(open_embedder(folder), TEXTS)
    assert matrix.dtype == np.float32
    expected, _ = expect(folder, TEXTS, lambda outputs: pool(outputs["last_hidden_state"]))
    np.testing.assert_allclose(matrix, expected, atol=2e-6)


def test_outputs_without_a_configuration(tmp_path: Path) -> None:
    folder = write_embedding_folder(tmp_path / "m", "pooler_output")
    expected, _ = expect(folder, TEXTS, lambda outputs: scale(outputs["pooler_output"]))
    np.testing.assert_allclose(embed(open_embedder(folder), TEXTS)[0], expected, atol=2e-6)


def test_many_texts_of_one_length(tmp_path: Path) -> None:
    """More texts than one run takes."""
    embedder = open_embedder(write_embedding_folder(tmp_path / "m"))
    tokens = [[5 + number % 150, 7, 9] for number in range(3000)]
    matrix, counts = embed(embedder, tokens)
    assert counts == [3] * 3000
    assert np.array_equal(matrix[150:300], matrix[:150])
    assert not np.array_equal(matrix[0], matrix[1])


def test_folders(tmp_path: Path) -> None:
    folder = write_embedding_folder(tmp_path / "bert")
    assert is_embedding_folder(folder)
    assert not is_embedding_folder(DEMO)
    assert not is_embedding_folder(tmp_path)
    assert not is_embedding_folder(folder / "tokenizer.json")
    (folder / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    assert not is_embedding_folder(folder)
    (folder / "modules.json").write_text("[]")
    assert is_embedding_folder(folder)
    (folder / "onnx" / "model.onnx").rename(folder / "other.onnx")
    assert not is_embedding_folder(folder)


@pytest.mark.parametrize(
    ("output", "configs", "error", "message"),
    [
        ("last_hidden_state", {"modules__json": {"a": 1}}, InvalidModelError, "not a list of modules"),
        ("last_hidden_state", {"modules__json": [{"type": "x.Pooling", "path": "../a"}]}, InvalidModelError, "not"),
        ("last_hidden_state", {"modules__json": [*NORMALIZE, {"type": "x.Dense", "path": "3_Dense"}]},
         UnsupportedModelError, "module Dense is not in the ONNX file"),
        ("last_hidden_state", {"1_Pooling___config__json": {"include_prompt": False}}, UnsupportedModelError, "prompt"),
        ("last_hidden_state", {"1_Pooling___config__json": {"pooling_mode": "odd"}}, InvalidModelError, "one of cls"),
        ("last_hidden_state", {"sentence_bert_config__json": {"max_seq_length": "x"}}, InvalidModelError, "an integer"),
    ],
    ids=["modules", "path", "dense", "prompt", "pooling", "length"],
)  # fmt: skip
def test_wrong_folders(
    tmp_path: Path, output: str, configs: dict[str, Any], error: type[WeftError], message: str
) -> None:
    folder = write_embedding_folder(tmp_path / "m", output, **configs)
    with pytest.raises(error, match=message):
        open_embedder(folder)


@pytest.mark.parametrize(
    ("options", "parameter", "message"),
    [
        ({"input": ""}, "input", "none of them empty"),
        ({"input": []}, "input", "none of them empty"),
        ({"input": ["a", 3]}, "input", "none of them empty"),
        ({"input": {"a": 1}}, "input", "none of them empty"),
        ({"input": ["x"] * 2049}, "input", "the most are 2,048"),
        ({"input": [[VOCABULARY + 900]]}, "input", "not in the vocabulary"),
        ({"input": [[-1]]}, "input", "not in the vocabulary"),
        ({"input": ["a", "0 " * MOST_TOKENS]}, "input", "input 1 has 65 tokens, and this model reads at most 64"),
        ({"input": "\ud800"}, "input", "surrogate"),
        ({"encoding_format": "hex"}, "encoding_format", 'must be "float"'),
        ({"dimensions": 0}, "dimensions", "from 1"),
        ({"dimensions": 13}, "dimensions", "have 12"),
        ({"model": "demo"}, "model", "generates text"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)  # fmt: skip
def test_wrong_requests(served: Served, options: dict[str, Any], parameter: str, message: str) -> None:
    body = json.dumps({"model": "mean", "input": "x", **options}).encode()
    with pytest.raises(openai.BadRequestError) as caught:
        served.client.post("/embeddings", content=body, cast_to=object)
    assert message in caught.value.message
    assert caught.value.param == parameter
    if "tokens" in message:
        assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError, match="no model"):
        create(served, "none", "x")
