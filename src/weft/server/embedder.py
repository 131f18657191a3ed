"""Embeddings of texts: folders of sentence-transformers and optimum with an encoder as ONNX.

    embedder = open_embedder(Path("folder"))
    matrix, counts = await embedder.embed(run, ["a text", "another"])

A text has the same bits alone and beside others: only texts with the same number of tokens share a run, so that nothing
is padded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from weft.errors import InputError, UnsupportedModelError, WeftError
from weft.generation.genai_folder import GENAI_CONFIG
from weft.generation.tokenizer import Tokenizer
from weft.server.embedding_folder import (
    EmbeddingFolder,
    find_model_file,
    has_embedding_files,
    is_encoder_config,
    read_embedding_folder,
)

if TYPE_CHECKING:
    from weft.runtime.model import Model

Array = np.ndarray[Any, Any]
Run = Callable[[Mapping[str, Array]], Awaitable[Mapping[str, Array]]]
Text = Union[str, Sequence[int]]

IDS, MASK, TYPES, POSITIONS = "input_ids", "attention_mask", "token_type_ids", "position_ids"
SENTENCE, HIDDEN = "sentence_embedding", ("last_hidden_state", "token_embeddings")
POOLED = ("pooler_output", "text_embeds")
TOKENS_PER_RUN = 8192
RUNS_AT_ONCE = 4
SMALLEST_NORM = 1e-12
HINT = "export it again: optimum-cli export onnx --model MODEL --task feature-extraction FOLDER"


class TextTooLongError(InputError):
    """A text has more tokens than the model can read. `index`: its place among the inputs."""

    def __init__(self, index: int, tokens: int, limit: int) -> None:
        super().__init__(
            f"input {index} has {tokens:,} tokens, and this model reads at most {limit:,}",
            hint="shorten it, or divide it into several inputs",
        )
        self.index = index


class Embedder:
    """Computes embeddings of texts with a model that other requests can share.

    folder: the folder with tokenizer.json and the configuration. model: the encoder, of that folder.
    """

    def __init__(self, folder: Path, model: Model) -> None:
        self.model = model
        self.tokenizer = Tokenizer.open(folder)
        self.folder: EmbeddingFolder = read_embedding_folder(folder)
        self._inputs = {spec.name: spec.dtype for spec in model.inputs}
        unknown = [name for name in self._inputs if name not in (IDS, MASK, TYPES, POSITIONS)]
        if unknown or IDS not in self._inputs:
            problem = f"its encoder takes {', '.join(self._inputs)}; weft passes {IDS}, {MASK}, {TYPES} and {POSITIONS}"
            raise UnsupportedModelError(problem, file=str(folder), hint=HINT)
        self.output, self._is_pooled = self._choose_output()

    def __repr__(self) -> str:
        return f"<embedder: {self.folder.path.name}, up to {self.folder.max_tokens or 'any number of'} tokens>"

    def _choose_output(self) -> tuple[str, bool]:
        """Return the output that embeddings come from, and whether it has one row for each text."""
        ranks = {spec.name: len(spec.shape) for spec in self.model.outputs if spec.shape is not None}
        if ranks.get(SENTENCE) == 2:
            return SENTENCE, True
        if self.folder.unsupported_module is not None:
            problem = f"its module {self.folder.unsupported_module} is not in the ONNX file, which has no {SENTENCE}"
            raise UnsupportedModelError(problem, file=str(self.folder.path), hint=HINT)
        hidden = [name for name in HIDDEN if ranks.get(name) == 3] or [name for name in ranks if ranks[name] == 3]
        pooled = [name for name in POOLED if ranks.get(name) == 2] or [name for name in ranks if ranks[name] == 2]
        if hidden:
            return hidden[0], False
        if pooled:
            return pooled[0], True
        problem = f"none of its outputs ({', '.join(ranks)}) is an embedding"
        raise UnsupportedModelError(problem, file=str(self.folder.path), hint=HINT)

    async def embed(self, run: Run, inputs: Sequence[Text]) -> tuple[Array, list[int]]:
        """Return a float32 matrix with a row for each input, and the numbers of their tokens.

        run: runs the model on arrays by name, and returns outputs by name.
        inputs: texts, or token ids as the tokenizer gives them.
        """
        loop = asyncio.get_running_loop()
        tokens = await loop.run_in_executor(None, self._encode, inputs)
        by_length: dict[int, list[int]] = {}
        for index, entry in enumerate(tokens):
            by_length.setdefault(len(entry), []).append(index)
        gate = asyncio.Semaphore(RUNS_AT_ONCE)
        rows: list[Array] = [np.empty(0, np.float32)] * len(tokens)

        async def compute(indices: Sequence[int]) -> None:
            async with gate:
                outputs = await run(self._make_arrays([tokens[index] for index in indices]))
                matrix = await loop.run_in_executor(None, self._pool, outputs[self.output])
            for index, row in zip(indices, matrix, strict=True):
                rows[index] = row

        chunks = []
        for length, indices in by_length.items():
            size = max(1, TOKENS_PER_RUN // length)
            chunks += [indices[start : start + size] for start in range(0, len(indices), size)]
        tasks = [asyncio.ensure_future(compute(chunk)) for chunk in chunks]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return np.stack(rows), [len(entry) for entry in tokens]

    def _encode(self, inputs: Sequence[Text]) -> list[list[int]]:
        """Return the tokens of all inputs; InputError if the model cannot read one of them."""
        encoded = []
        for index, text in enumerate(inputs):
            if isinstance(text, str):
                prefixed = self.folder.prompt + text
                tokens = self.tokenizer.encode(prefixed.lower() if self.folder.is_lower_case else prefixed)
            else:
                tokens = [int(token) for token in text]
                unknown = next((token for token in tokens if not 0 <= token < self.tokenizer.vocabulary), None)
                if unknown is not None:
                    problem = f"input {index} has the token {unknown}, which is not in the vocabulary"
                    raise InputError(problem, hint="use the tokens of this model's tokenizer")
            if not tokens:
                raise InputError(f"input {index} has no tokens", hint="pass a text that is not empty")
            limit = self.folder.max_tokens
            if limit is not None and len(tokens) > limit:
                raise TextTooLongError(index, len(tokens), limit)
            encoded.append(tokens)
        return encoded

    def _make_arrays(self, tokens: Sequence[Sequence[int]]) -> dict[str, Array]:
        """Return the inputs of a run on texts of one length."""
        ids = np.array(tokens)
        contents = {
            IDS: ids,
            MASK: np.ones_like(ids),
            TYPES: np.zeros_like(ids),
            POSITIONS: np.broadcast_to(np.arange(ids.shape[1]), ids.shape),
        }
        return {name: contents[name].astype(dtype) for name, dtype in self._inputs.items()}

    def _pool(self, output: Array) -> Array:
        """Return the embeddings [texts, size] of the model's output."""
        rows = [row.astype(np.float64) if self._is_pooled else self.folder.pool(row) for row in output]
        if self.output != SENTENCE and self.folder.is_normalized:
            rows = [normalize(row) for row in rows]
        return np.stack(rows).astype(np.float32)


def normalize(row: Array) -> Array:
    """Return a vector with the length 1."""
    row = row.astype(np.float64)
    scaled: Array = row / max(float(np.sqrt((row * row).sum())), SMALLEST_NORM)
    return scaled


def is_embedding_folder(path: Path) -> bool:
    """Whether a folder holds an embedding model, and not one that generates text."""
    if not path.is_dir() or (path / GENAI_CONFIG).is_file() or not (path / "tokenizer.json").is_file():
        return False
    try:
        return find_model_file(path) is not None and (has_embedding_files(path) or is_encoder_config(path))
    except WeftError:
        return False


def open_embedder(path: Path, **options: Any) -> Embedder:
    """Open a folder and load its model, with options of `weft.load`."""
    from weft.loading import load

    file = find_model_file(path)
    if file is None:
        raise UnsupportedModelError(f"{path} has no model.onnx, neither in the folder nor in onnx/", hint=HINT)
    return Embedder(path, load(file, **{"precision": "strict", **options}))
