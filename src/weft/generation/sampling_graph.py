"""The graphs that choose tokens on the device: greedy choice, sampling with filters, log probabilities.

Every graph takes logits [rows, vocabulary] and one number per row and option, and every row is computed on its own. A
`Variant` states what a graph computes; it follows from the options of a row alone, so that the other rows of a batch
cannot change the code that a row runs.

**Filters** need no sort. Tokens are ordered by their distance from the best logit, `(max - logit) / temperature`. It is
never negative, so its bits order like integers, and top-k is a threshold on those bits: the largest integer that has
less than `k` tokens strictly below it. Top-p is such a threshold on the bits of `exp(-distance)`, and typical on those
of the deviation from the mean distance. Bisection finds each, one bit per reduction over the row. A token stays if the
tokens strictly before it do not reach the limit; equal logits stay or go together.

Where `k` is small, or top-p is the only filter, all else runs on the CANDIDATES likeliest tokens (`_pick_candidates`).
With a small `k` they are enough, but no more than these stay of equal logits. Of top-p without top-k the graph reports
rows whose candidates lack mass, which the sampler repeats on the whole vocabulary.

**Random numbers** are a hash of the token and of the row's 64-bit key (`sampler.make_key`), in 32-bit integers: the
finalizer of MurmurHash3, with a half of the key added before each of its rounds. The 32 random bits of a token give a
standard exponential number `E`. The token with the smallest `E * exp(distance)` wins, which draws from the softmax (an
exponential race, the same as Gumbel-max). Probabilities are exact to some 2^-32 per token, and without filters no sum
over the vocabulary decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weft import ops
from weft.builder.graph import Graph
from weft.builder.tensor import Tensor

OPSET = 26  # the first with BitCast
DISTANCE_BITS = 31  # of a float32 that is not negative
MASS_BITS = 30  # of a float32 from 0 to 1
CANDIDATES = 128
SMALL_TOP_K = 64  # leaves room for tokens that are as likely as the last
CHUNK = 64  # of tokens with a common maximum
INCOMPLETE = -2  # the token of a row that needs more candidates
WORD = 32  # tokens in a word of a mask
OFF = 2.0  # a share of the mass that no set of tokens reaches


@dataclass(frozen=True, slots=True)
class Variant:
    """What a graph computes for its rows."""

    dtype: str = "float32"
    sample: bool = False
    top_k: bool = False
    has_candidates: bool = False  # k is small, or top-p is the only filter
    top_p: bool = False
    typical: bool = False
    edits: bool = False  # of single logits: penalties, biases, bans
    mask: bool = False  # of tokens that a constraint allows


def build_choice(vocabulary: int, variant: Variant) -> Graph:
    """Build the graph that chooses one token per row.

    It returns `tokens` [rows]: int64, -1 for a row whose largest logit is infinite or NaN, -2 for a row that needs more
    candidates.
    """
    graph = Graph("choose", opset=OPSET)
    logits = graph.input("logits", ("rows", vocabulary), variant.dtype)
    needs_float32 = variant.sample or variant.edits or variant.mask
    if variant.dtype != "float32" and needs_float32:
        logits = ops.cast(logits, to="float32")
    if variant.edits:
        logits = _edit(graph, logits)
    if variant.mask:
        logits = _mask(graph, logits, vocabulary)
    if variant.sample:
        best = ops.reduce_max(logits, [-1], keepdims=1)
        tokens = _sample(graph, logits, best, vocabulary, variant)
    else:
        tokens = ops.arg_max(logits, axis=-1, keepdims=0)
        best = ops.cast(ops.gather_elements(logits, ops.unsqueeze(tokens, [-1]), axis=1), to="float32")
    is_finite = ops.abs(ops.squeeze(best, [-1])) < np.float32(np.inf)  # False for NaN
    graph.output(ops.where(is_finite, tokens, np.int64(-1)), "tokens")
    return graph


def build_logprobs(vocabulary: int, dtype: str) -> Graph:
    """Build the graph that returns the log of each row's sum of exponentials, and the logit of a token."""
    graph = Graph("logprobs", opset=OPSET)
    logits = graph.input("logits", ("rows", vocabulary), dtype)
    tokens = graph.input("tokens", ("rows", 1), "int64")
    logits = ops.cast(logits, to="float32")
    best = ops.reduce_max(logits, [-1], keepdims=1)
    total = ops.reduce_sum(ops.exp(logits - best), [-1], keepdims=1)
    graph.output(best + ops.log(total), "normalizer")
    graph.output(ops.gather_elements(logits, tokens, axis=1), "chosen")
    return graph


def build_likeliest(vocabulary: int, dtype: str, count: int) -> Graph:
    """Build the graph that returns the tokens with the largest logits, in order, lower ids first among equals."""
    graph = Graph("likeliest", opset=OPSET)
    logits = graph.input("logits", ("rows", vocabulary), dtype)
    logits = ops.cast(logits, to="float32")
    values, tokens = _pick_candidates(graph, logits, vocabulary, CANDIDATES)
    graph.output(values[:, :count], "values")
    graph.output(tokens[:, :count], "tokens")
    return graph


def build_selection(vocabulary: int, dtype: str) -> Graph:
    """Build the graph that copies some rows of a batch."""
    graph = Graph("select_rows", opset=OPSET)
    logits = graph.input("logits", ("batch", vocabulary), dtype)
    indices = graph.input("indices", ("rows",), "int64")
    graph.output(ops.gather(logits, indices, axis=0), "selection")
    return graph


def _edit(graph: Graph, logits: Tensor) -> Tensor:
    """Change single logits: add a bias, apply the repetition penalty, subtract a charge."""
    ids = graph.input("edit_ids", ("rows", "edits"), "int64")
    edits = graph.input("edits", (3, "rows", "edits"), "float32")
    value = ops.gather_elements(logits, ids, axis=1) + edits[0]
    penalty = edits[1]
    value = ops.where(value < np.float32(0), value * penalty, value / penalty) - edits[2]
    return ops.scatter_elements(logits, ids, value, axis=1, name="edited_logits")


def _mask(graph: Graph, logits: Tensor, vocabulary: int) -> Tensor:
    words = (vocabulary + WORD - 1) // WORD
    mask = graph.input("mask", ("rows", words), "uint32")
    bits = ops.bit_shift(ops.unsqueeze(mask, [-1]), np.arange(WORD, dtype=np.uint32), direction="RIGHT")
    is_allowed = ops.cast(ops.bitwise_and(bits, np.uint32(1)), to="bool")
    is_allowed = ops.reshape(is_allowed, (0, words * WORD))
    if words * WORD != vocabulary:
        is_allowed = is_allowed[:, :vocabulary]
    return ops.where(is_allowed, logits, np.float32(-np.inf))


def _sample(graph: Graph, logits: Tensor, best: Tensor, vocabulary: int, variant: Variant) -> Tensor:
    inverse_temperature = graph.input("inverse_temperature", ("rows", 1), "float32")
    min_p_limit = graph.input("distance_limit", ("rows", 1), "float32")
    vocabulary_logits = logits
    if variant.has_candidates:
        logits, tokens = _pick_candidates(graph, logits, vocabulary, CANDIDATES)
        tokens = ops.identity(tokens, name="candidates")
    else:
        with graph:
            tokens = ops.unsqueeze(ops.range(np.int32(0), np.int32(vocabulary), np.int32(1)), [0])
    distance = (best - logits) * inverse_temperature
    is_kept = distance <= min_p_limit
    mass = ops.exp(-distance)
    is_complete: Tensor | None = None
    if variant.top_k:
        count = graph.input("top_k", ("rows", 1), "int32")
        bits = ops.bit_cast(distance, to="int32")
        limit = _bisect(
            DISTANCE_BITS, lambda bound: ops.reduce_sum(ops.cast(bits < bound, to="int32"), [-1], keepdims=1) < count
        )
        is_in_top_k = bits <= limit
        is_kept = ops.and_(is_kept, is_in_top_k)
        mass = ops.where(is_in_top_k, mass, np.float32(0))
    if variant.top_p:
        share = graph.input("top_p", ("rows", 1), "float32")
        limit = ops.reduce_sum(mass, [-1], keepdims=1) * share
        if variant.has_candidates and not variant.top_k:
            limit = ops.reduce_sum(ops.exp((vocabulary_logits - best) * inverse_temperature), [-1], keepdims=1) * share
            last = ops.reduce_min(mass, [-1], keepdims=1)
            is_complete = _sum_where(mass > last, mass) >= limit  # also with the equals of the last
        is_kept = ops.and_(is_kept, _keep_top_p(mass, limit))
    if variant.typical:
        is_kept = _keep_typical(graph, distance, mass, is_kept)
    race = _draw_exponentials(graph, tokens) * ops.exp(distance)
    winner = ops.arg_min(ops.where(is_kept, race, np.float32(np.inf), name="race"), axis=-1, keepdims=1)
    if variant.has_candidates:
        winner = ops.gather_elements(tokens, winner, axis=1)
    if is_complete is not None:
        winner = ops.where(is_complete, winner, np.int64(INCOMPLETE))
    return ops.squeeze(winner, [-1])


def _pick_candidates(graph: Graph, logits: Tensor, vocabulary: int, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest logits in order and their tokens, lower ids first among equals.

    The tokens are among the chunks with the largest maxima: no other chunk has a larger logit than any of these maxima.
    If more than `count` chunks share a maximum, the last of the candidates are some of these equals.
    """
    chunks = -(-vocabulary // CHUNK)
    size = graph.constant(np.array([min(count, vocabulary)], np.int64))
    if chunks <= 2 * count:
        return ops.top_k(logits, size, axis=-1)
    padding = chunks * CHUNK - vocabulary
    full = ops.pad(logits, [0, 0, 0, padding], np.float32(-np.inf)) if padding else logits
    maxima = ops.reduce_max(ops.reshape(full, (0, chunks, CHUNK)), [-1], keepdims=0)
    _, best_chunks = ops.top_k(maxima, size, axis=-1)
    best_chunks, _ = ops.top_k(best_chunks, size, axis=-1, largest=0)  # in the order of ids
    tokens = ops.unsqueeze(best_chunks, [-1]) * np.int64(CHUNK) + np.arange(CHUNK, dtype=np.int64)
    tokens = ops.reshape(tokens, (0, count * CHUNK))
    values = ops.gather_elements(logits, ops.min(tokens, np.int64(vocabulary - 1)) if padding else tokens, axis=1)
    if padding:
        values = ops.where(tokens < np.int64(vocabulary), values, np.float32(-np.inf))
    values, places = ops.top_k(values, size, axis=-1)
    return values, ops.gather_elements(tokens, places, axis=1)


def _keep_typical(graph: Graph, distance: Tensor, mass: Tensor, is_kept: Tensor) -> Tensor:
    """Keep the tokens whose information is nearest to the entropy: `|distance - mean distance|` is smallest."""
    share = graph.input("typical_p", ("rows", 1), "float32")
    candidates = ops.where(is_kept, mass, np.float32(0))
    weighted = ops.where(candidates > np.float32(0), candidates * distance, np.float32(0))
    total = ops.reduce_sum(candidates, [-1], keepdims=1)
    mean = ops.reduce_sum(weighted, [-1], keepdims=1) / total
    deviation = ops.where(is_kept, ops.abs(distance - mean), np.float32(np.inf))
    bits = ops.bit_cast(deviation, to="int32")
    limit = _bisect(DISTANCE_BITS, lambda bound: _sum_where(bits < bound, candidates) < total * share)
    return ops.and_(is_kept, bits <= limit)


def _keep_top_p(mass: Tensor, limit: Tensor) -> Tensor:
    """Keep the largest masses until they reach a limit."""
    bits = ops.bit_cast(mass, to="int32")
    return bits >= _bisect(MASS_BITS, lambda bound: _sum_where(bits >= bound, mass) >= limit)


def _sum_where(condition: Tensor, mass: Tensor) -> Tensor:
    return ops.reduce_sum(ops.where(condition, mass, np.float32(0)), [-1], keepdims=1)


def _bisect(width: int, is_below: Callable[[Tensor | np.int32], Tensor]) -> Tensor:
    """Return the largest integer of some bits for which a predicate holds that holds for all smaller ones, or 0."""
    result: Tensor | None = None
    for position in reversed(range(width)):
        bit = np.int32(1 << position)
        # `result` must occur once per step: the expression would double with each otherwise.
        step = ops.where(is_below(bit if result is None else result + bit), bit, np.int32(0))
        result = step if result is None else result + step
    assert result is not None
    return result


def _draw_exponentials(graph: Graph, tokens: Tensor) -> Tensor:
    """Draw a standard exponential number per token."""
    key = graph.input("key", ("rows", 2), "uint32")

    def shift_xor(x: Tensor, count: int) -> Tensor:
        return ops.bitwise_xor(x, ops.bit_shift(x, np.uint32(count), direction="RIGHT"))

    x = shift_xor(ops.cast(tokens, to="uint32") * np.uint32(0x9E3779B9) + key[:, 0:1], 16)
    x = shift_xor(x * np.uint32(0x85EBCA6B) + key[:, 1:2], 13)
    x = shift_xor(x * np.uint32(0xC2B2AE35), 16)
    # Uniform in (0, 1], and dense near 0, where the winners are.
    uniform = ops.cast(x, to="float32") * np.float32(2.0**-32) + np.float32(2.0**-33)
    near = uniform * (1 + uniform * (0.5 + uniform * (np.float32(1 / 3) + uniform * 0.25)))
    far = -ops.log(np.float32(1) - ops.min(uniform, np.float32(1 - 2.0**-24)))
    return ops.where(uniform < np.float32(2.0**-6), near, far)
