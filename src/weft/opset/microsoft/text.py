"""Tokens and words: tokenizing, hashing, character embeddings, and blocking repeated n-grams."""

from __future__ import annotations

from math import inf
from typing import Any

from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.types import TensorType
from weft.opset.functions import bit_or, bit_xor, bitcast, cast, equal, shift_left, shift_right, tanh, where
from weft.opset.language import (
    Element,
    Tensor,
    assume_equal,
    build,
    convolve,
    elementwise,
    expand_dims,
    gather,
    host,
    literal,
    reduce,
    scatter,
)
from weft.opset.microsoft.domain import op
from weft.opset.registry import REQUIRED, require
from weft.opset.tensor import current_trace


@op("Tokenizer")
def tokenizer(
    x: Tensor,
    *,
    mark: int = REQUIRED,
    mincharnum: int = REQUIRED,
    pad_value: str = REQUIRED,
    separators: tuple[str, ...] = (),
    tokenexp: str = "",
) -> Tensor:
    """Split each string into tokens along a new last axis, padded to the longest row."""
    require(x.dtype is DType.string, f"strings are split into tokens, not {x.type}")
    require(x.rank in (1, 2), f"strings of shape [C] or [N, C] are split into tokens, not {x.type}")
    require(bool(separators) != bool(tokenexp), "a tokenizer takes separators or an expression for tokens")
    require(mincharnum > 0, f"mincharnum must be positive, not {mincharnum}")
    require(mincharnum == 1 or (tokenexp != "." and tuple(separators) != ("",)), "mincharnum applies only to words")
    result = TensorType(DType.string, (*x.shape, current_trace.get().fresh_symbol("tokens")))
    splitting = {"separators": tuple(separators), "expression": tokenexp}
    return host("tokens", [x], [result], marked=bool(mark), least=mincharnum, pad=pad_value, **splitting)[0]


@op("MurmurHash3")
def murmur_hash_3(x: Tensor, *, positive: int = 1, seed: int = 0) -> Tensor:
    """Compute MurmurHash3_x86_32 of each element's bytes."""
    dtype = DType.uint32 if positive else DType.int32
    if x.dtype is DType.string:
        return host("murmur_hash_3", [x], [TensorType(dtype, x.shape)], seed=seed % 2**32, signed=not positive)[0]
    require(x.dtype.bits in (32, 64), f"{x.dtype} cannot be hashed")
    return elementwise(lambda v: bitcast(_hash_words(_split_words(v), seed % 2**32), dtype), x)


def _split_words(v: Element) -> list[Any]:
    """Split an element into words of 32 bits, the lowest first."""
    if v.dtype.bits == 32:
        return [v if v.dtype is DType.uint32 else bitcast(v, DType.uint32)]
    bits = v if v.dtype is DType.uint64 else bitcast(v, DType.uint64)
    return [cast(bit_word, DType.uint32) for bit_word in (bits % 2**32, shift_right(bits, 32))]


def _hash_words(words: list[Any], seed: int) -> Any:
    state: Any = literal(seed, DType.uint32)
    for word in words:
        mixed = _rotate_bits(word * 0xCC9E2D51, 15) * 0x1B873593
        state = _rotate_bits(bit_xor(state, mixed), 13) * 5 + 0xE6546B64
    state = bit_xor(state, 4 * len(words))
    state = bit_xor(state, shift_right(state, 16)) * 0x85EBCA6B
    state = bit_xor(state, shift_right(state, 13)) * 0xC2B2AE35
    return bit_xor(state, shift_right(state, 16))


def _rotate_bits(word: Any, count: int) -> Any:
    return bit_or(shift_left(word, count), shift_right(word, 32 - count))


@op("NGramRepeatBlock")
def n_gram_repeat_block(input_ids: Tensor, scores: Tensor, *, ngram_size: int = REQUIRED) -> Tensor:
    """Set the score of each token that would repeat an n-gram to -inf."""
    require(ngram_size > 0, f"ngram_size is {ngram_size}")
    require(
        input_ids.rank == 2 and scores.rank == 2, f"tokens {input_ids.type} and scores {scores.type} must have rank 2"
    )
    batch, length = input_ids.shape
    prefix = ngram_size - 1

    def place(b: Element, start: Element) -> tuple[list[Any], Element]:
        token = cast(input_ids.at(b, start + prefix), DType.int64)
        for offset in range(prefix):
            same = equal(input_ids.at(b, start + offset), input_ids.at(b, length - prefix + offset))
            token = where(same, token, -1)
        return [b, token], literal(-inf, scores.dtype)

    return scatter(scores, (batch, dims.maximum(length - prefix, 0)), place, checked=False)


@op("WordConvEmbedding")
def word_conv_embedding(
    sequence: Tensor,
    weights: Tensor,
    bias: Tensor,
    characters: Tensor,
    *,
    char_embedding_size: int | None = None,
    conv_window_size: int | None = None,
    embedding_size: int | None = None,
) -> Tensor:
    """Embed words [words, characters] by the maxima of a convolution over their character embeddings; 0 ends a word."""
    require(sequence.rank == 2 and weights.rank == 4, f"words {sequence.type}, or weights {weights.type}, do not fit")
    filters, _, window, width = weights.shape
    for size, declared in ((width, char_embedding_size), (window, conv_window_size), (filters, embedding_size)):
        assume_equal(size, size if declared is None else declared, "sizes as declared by attributes")
    embedded = expand_dims(gather(characters, sequence, 0), [1])
    sums = convolve(embedded, weights, strides=(1, 1), dilations=(1, 1), pads=((0, 0), (0, 0)))
    lengths = reduce("sum", elementwise(lambda c: cast(c > 0, DType.int64), sequence), [1])

    def element(word: Element, filter: Element, position: Element) -> Element:
        used = (position < 1) | (position + window <= lengths.at(word))
        return where(used, tanh(sums.at(word, filter, position, 0) + bias.at(filter)), -inf)

    best = reduce("maximum", build(sums.shape[:3], element), [2])
    return build(best.shape, lambda word, filter: where(sequence.at(word, 0) > 0, best.at(word, filter), 0.0))
