"""`Sampler`: logits on the device in, one chosen token per row out; only chosen tokens travel.

Rows of a batch are grouped by the `Variant` that their own options need, and each group is one run of a small model
(`sampling_graph.py`), compiled on first use and cached on disk like any other. A row therefore always runs the same
code, which computes each row on its own: its choice depends on its logits, options, seed and position, not on the
batch.

The order is that of transformers: bias and penalties, constraint, temperature, top-k, top-p, min-p, typical; processors
come before all of them.
Log probabilities are those of the model: the log-softmax of the logits before all of this, as OpenAI reports them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError, short_repr
from weft.generation.options import GenerationOptions
from weft.generation.penalties import LogitEdits, needs_edits
from weft.generation.sampling_graph import (
    INCOMPLETE,
    OFF,
    SMALL_TOP_K,
    WORD,
    Variant,
    build_choice,
    build_likeliest,
    build_logprobs,
    build_selection,
)
from weft.ir.tensors import DeviceTensor
from weft.runtime.model import Model

_MASK64 = (1 << 64) - 1
_LARGEST_COUNT = np.iinfo(np.int32).max
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(slots=True, eq=False)
class SampledRow:
    """A request as the sampler sees it; one object follows the request through all its steps.

    options: of the request.
    seed: of its random numbers.
    tokens: prompt and answer. It may grow between calls, or lose tokens at its end; after a change of other tokens
        call `rollback`.
    prompt_length: number of tokens of the prompt.
    allowed: bits of the tokens that a constraint allows next, [ceil(vocabulary / 32)] uint32, lowest bit first.
    """

    options: GenerationOptions
    seed: int
    tokens: Sequence[int]
    prompt_length: int
    allowed: NDArray[np.uint32] | None = None
    is_plain: bool = field(init=False)  # greedy without edits, processors and log probabilities
    variant: Variant = field(init=False)  # without dtype and mask
    numbers: tuple[Any, ...] = field(init=False)
    edits: LogitEdits | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        options = self.options
        if needs_edits(options):
            self.edits = LogitEdits(options, self.prompt_length)
        if options.greedy:
            self.variant = Variant(edits=self.edits is not None)
        else:
            self.variant = Variant(
                sample=True,
                top_k=options.top_k > 0,
                has_candidates=0 < options.top_k <= SMALL_TOP_K
                or (options.top_k == 0 and options.top_p < 1 and options.typical_p == 1),
                top_p=options.top_p < 1,
                typical=options.typical_p < 1,
                edits=self.edits is not None,
            )
        self.numbers = _convert_options(options)
        self.is_plain = options.greedy and self.edits is None and not options.processors and options.logprobs is None

    @property
    def is_independent(self) -> bool:
        """Whether the choice depends on the tokens so far only by their number, and needs nothing from the host."""
        options = self.options
        return self.edits is None and self.allowed is None and not options.processors and options.logprobs is None

    def rollback(self, length: int) -> None:
        """Forget what the tokens from position `length` on did to penalties."""
        if self.edits is not None:
            self.edits.rollback(length)


@dataclass(frozen=True, slots=True)
class Choices:
    """One token per row, and log probabilities if a row asked for them.

    tokens: int64 [rows]; -1 for a row without a token to choose: all are excluded, or a logit is +inf or NaN.
    logprobs: float32 [rows]: of the chosen tokens; NaN for rows that did not ask.
    top_tokens, top_logprobs: [rows, n], the likeliest first, for the largest n that a row asked for.
    """

    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float32] | None = None
    top_tokens: NDArray[np.int64] | None = None
    top_logprobs: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class PendingTokens:
    """Tokens that the device has yet to choose.

    tensor: int64 [rows], on the device, for the next step.
    read: waits for them, but for nothing that was submitted later.
    """

    tensor: DeviceTensor
    read: Callable[[], NDArray[np.int64]]


class Sampler:
    """Choose tokens of a vocabulary on one device."""

    def __init__(self, vocabulary: int, device: str) -> None:
        self.vocabulary = vocabulary
        self.device = device
        self._words = (vocabulary + WORD - 1) // WORD
        self._models: dict[tuple[Any, ...], Model] = {}
        self._greedy: dict[Any, Model] = {}  # by dtype

    def prepare(self, row: SampledRow, dtype: np.dtype[Any]) -> None:
        """Load what rows of these options need, so that their first token does not wait for it."""
        self.choose(np.zeros((1, self.vocabulary), dtype), [row])

    def check_options(self, options: GenerationOptions) -> None:
        """Raise an error if options name tokens outside of the vocabulary."""
        for token in options.logit_bias:
            if token >= self.vocabulary:
                hint = f"ids are 0 to {self.vocabulary - 1}"
                raise InputError(f"logit_bias has token {token}, which is not in the vocabulary", hint=hint)

    def choose(self, logits: Any, rows: Sequence[SampledRow]) -> Choices:
        """Choose one token per row of the logits."""
        for row in rows:
            if not row.is_plain or row.allowed is not None:
                return self._choose_in_groups(logits, rows)
        model = self._greedy.get(logits.dtype) or self._greedy_model(logits)
        return Choices(model.run({"logits": logits})["tokens"])

    def submit(self, logits: Any, rows: Sequence[SampledRow], ahead: int = 0) -> PendingTokens | None:
        """Let the device choose one token per row, and do not wait; None where the host has to take part.

        ahead: how many tokens of each row are chosen and not yet appended to it.
        """
        variant = rows[0].variant
        if not isinstance(logits, DeviceTensor) or not all(row.is_independent for row in rows):
            return None
        if any(row.variant != variant for row in rows):
            return None
        feeds: dict[str, Any] = {"logits": logits}
        if variant.sample:
            _add_numbers(feeds, rows, variant, ahead)
        tensor = self._choice_model(replace(variant, dtype=str(logits.dtype))).run(feeds, keep=True)["tokens"]
        return PendingTokens(tensor, tensor.start_read())

    def _greedy_model(self, logits: Any) -> Model:
        self._check_logits(logits)
        model = self._choice_model(Variant(str(logits.dtype)))
        self._greedy[logits.dtype] = model
        return model

    def _choose_in_groups(self, logits: Any, rows: Sequence[SampledRow]) -> Choices:
        self._check_logits(logits, len(rows))
        dtype = str(logits.dtype)
        groups: dict[tuple[Variant, bool, bool], list[int]] = {}
        for index, row in enumerate(rows):
            key = row.variant, row.allowed is not None, bool(row.options.processors)
            groups.setdefault(key, []).append(index)
        if len(groups) == 1:
            (key,) = groups
            tokens = self._choose_group(logits, dtype, rows, *key)
        else:
            tokens = np.empty(len(rows), np.int64)
            for key, indices in groups.items():
                selection = self._select_rows(logits, dtype, indices)
                tokens[indices] = self._choose_group(selection, dtype, [rows[index] for index in indices], *key)
        indices = [index for index, row in enumerate(rows) if row.options.logprobs is not None]
        return self._add_logprobs(logits, dtype, rows, tokens, indices) if indices else Choices(tokens)

    def _choose_group(
        self,
        logits: Any,
        dtype: str,
        rows: Sequence[SampledRow],
        variant: Variant,
        has_mask: bool,
        has_processors: bool,
    ) -> NDArray[np.int64]:
        """Choose tokens for rows of the same variant."""
        if has_processors:
            logits, dtype = _process(logits, rows), "float32"
        model = self._choice_model(replace(variant, dtype=dtype, mask=has_mask))
        feeds: dict[str, Any] = {"logits": logits}
        if variant.edits:
            feeds["edit_ids"], feeds["edits"] = _collect_edits(rows)
        if has_mask:
            feeds["mask"] = self._collect_masks(rows)
        if variant.sample:
            _add_numbers(feeds, rows, variant)
        tokens: NDArray[np.int64] = model.run(feeds)["tokens"]
        if variant.has_candidates and not variant.top_k:
            indices = np.flatnonzero(tokens == INCOMPLETE).tolist()
            if indices:
                tokens = tokens.copy()
                key = replace(variant, has_candidates=False), has_mask, False
                selection = self._select_rows(logits, dtype, indices) if len(indices) < len(rows) else logits
                tokens[indices] = self._choose_group(selection, dtype, [rows[index] for index in indices], *key)
        return tokens

    def _collect_masks(self, rows: Sequence[SampledRow]) -> NDArray[np.uint32]:
        for row in rows:
            shape = getattr(row.allowed, "shape", None)
            if shape != (self._words,):
                raise InputError(f"a mask of tokens must have the shape ({self._words},), not {short_repr(shape)}")
        return np.stack([np.asarray(row.allowed) for row in rows]).view(np.uint32)

    def _add_logprobs(
        self, logits: Any, dtype: str, rows: Sequence[SampledRow], tokens: NDArray[np.int64], indices: list[int]
    ) -> Choices:
        if len(indices) < len(rows):
            logits = self._select_rows(logits, dtype, indices)
        model = self._model(("logprobs", dtype), build_logprobs, dtype)
        results = model.run({"logits": logits, "tokens": np.maximum(tokens[indices], 0)[:, None]})
        normalizer = results["normalizer"]
        logprobs = np.full(len(rows), np.nan, np.float32)
        logprobs[indices] = (results["chosen"] - normalizer)[:, 0]
        count = min(max(row.options.logprobs or 0 for row in rows), self.vocabulary)
        top_tokens = np.zeros((len(rows), count), np.int64)
        top_logprobs = np.full((len(rows), count), np.nan, np.float32)
        if count:
            room = min(1 << (count - 1).bit_length(), self.vocabulary)  # few sizes: few models
            model = self._model(("likeliest", dtype, room), build_likeliest, dtype, room)
            results = model.run({"logits": logits})
            top_tokens[indices] = results["tokens"][:, :count]
            top_logprobs[indices] = (results["values"] - normalizer)[:, :count]
        return Choices(tokens, logprobs, top_tokens, top_logprobs)

    def _select_rows(self, logits: Any, dtype: str, indices: Sequence[int]) -> Any:
        if not isinstance(logits, DeviceTensor):
            return logits[list(indices)]
        model = self._model(("select", dtype), build_selection, dtype)
        feeds = {"logits": logits, "indices": np.array(indices, np.int64)}
        return model.run(feeds, keep=True)["selection"]

    def _choice_model(self, variant: Variant) -> Model:
        return self._model(("choose", variant), build_choice, variant)

    def _model(self, key: tuple[Any, ...], build: Any, *arguments: Any) -> Model:
        model = self._models.get(key)
        if model is None:
            model = self._models[key] = build(self.vocabulary, *arguments).compile(device=self.device)
        return model

    def _check_logits(self, logits: Any, rows: int | None = None) -> None:
        shape = tuple(logits.shape)
        if len(shape) != 2 or shape[1] != self.vocabulary or (rows is not None and shape[0] != rows):
            expectation = f"[{'rows' if rows is None else rows}, {self.vocabulary}]"
            raise InputError(f"logits must have the shape {expectation}, not {list(shape)}")
        if str(logits.dtype) not in ("float32", "float16", "bfloat16"):
            raise InputError(f"logits must be float32, float16 or bfloat16, not {logits.dtype}")


def make_key(seed: int, position: int) -> tuple[int, int]:
    """Return the 64-bit key of the random numbers of a step: SplitMix64 of the seed and the position in the answer."""
    x = (_mix(seed & _MASK64) + (position + 1) * 0x9E3779B97F4A7C15) & _MASK64
    x = _mix(x)
    return x & 0xFFFFFFFF, x >> 32


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def _convert_options(options: GenerationOptions) -> tuple[float, float, int, float, float]:
    """Return what the graphs take: inverse temperature, limit of distances, k, shares of top-p and typical."""
    inverse = 0.0 if options.greedy else min(1 / options.temperature, _LARGEST)
    distance = -math.log(options.min_p) if options.min_p > 0 else math.inf
    top_k = min(options.top_k, _LARGEST_COUNT) or _LARGEST_COUNT
    top_p = options.top_p if options.top_p < 1 else OFF
    typical_p = options.typical_p if options.typical_p < 1 else OFF
    return inverse, distance, top_k, top_p, typical_p


def _add_numbers(feeds: dict[str, Any], rows: Sequence[SampledRow], variant: Variant, ahead: int = 0) -> None:
    keys = [make_key(row.seed, len(row.tokens) + ahead - row.prompt_length) for row in rows]
    feeds["key"] = np.array(keys, np.uint32)
    inverse, distance, top_k, top_p, typical_p = zip(*[row.numbers for row in rows])
    feeds["inverse_temperature"] = np.array(inverse, np.float32)[:, None]
    feeds["distance_limit"] = np.array(distance, np.float32)[:, None] + np.float32(0)  # no -0.0: its bits are negative
    if variant.top_k:
        feeds["top_k"] = np.array(top_k, np.int32)[:, None]
    if variant.top_p:
        feeds["top_p"] = np.array(top_p, np.float32)[:, None]
    if variant.typical:
        feeds["typical_p"] = np.array(typical_p, np.float32)[:, None]


def _collect_edits(rows: Sequence[SampledRow]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the edits of rows, filled up to one power of two by repeating the first edit of a row."""
    edits = [row.edits for row in rows if row.edits is not None]
    for row, edit in zip(rows, edits):
        edit.follow(row.tokens)
    room = 1 << max(max(edit.size for edit in edits) - 1, 15).bit_length()
    ids = np.empty((len(edits), room), np.int64)
    values = np.empty((3, len(edits), room), np.float32)
    for index, edit in enumerate(edits):
        size = edit.size
        ids[index, :size] = edit.ids[:size]
        ids[index, size:] = edit.ids[0]
        values[:, index, :size] = edit.values[:, :size]
        values[:, index, size:] = edit.values[:, :1]
    return ids, values


def _process(logits: Any, rows: Sequence[SampledRow]) -> NDArray[np.float32]:
    """Fetch the logits and apply the Python functions of each row."""
    host = logits.numpy() if isinstance(logits, DeviceTensor) else np.asarray(logits)
    results = host.astype(np.float32)
    for index, row in enumerate(rows):
        for processor in row.options.processors:
            tokens = np.asarray(row.tokens, np.int64)
            results[index] = _check_processed(processor, processor(tokens, results[index].copy()), results[index])
    return results


def _check_processed(processor: Any, output: Any, logits: NDArray[np.float32]) -> NDArray[np.float32]:
    name = getattr(processor, "__qualname__", None) or type(processor).__name__
    hint = "a processor takes the tokens so far and the logits, two arrays of one axis, and returns logits"
    if output is None:
        raise InputError(f"the processor {name} returned None", hint=f"return the logits; {hint}")
    array = np.asarray(output)
    if array.shape != logits.shape:
        problem = f"the processor {name} returned the shape {list(array.shape)} for logits of {list(logits.shape)}"
        raise InputError(problem, hint=hint)
    if array.dtype.kind not in "fiu" and str(array.dtype) != "bfloat16":
        raise InputError(f"the processor {name} returned {array.dtype}, not numbers", hint=hint)
    array = array.astype(np.float32)
    if np.isnan(array).any() and not np.isnan(logits).any():
        raise InputError(f"the processor {name} returned NaN", hint="return -inf to exclude a token")
    array[array > _LARGEST] = _LARGEST  # +inf forces a token
    return array
