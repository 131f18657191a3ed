"""An independent sampler in numpy's float64, with sorts, that tests compare with."""

from __future__ import annotations

import math

import numpy as np

from weft.generation.options import GenerationOptions

MARGIN = 1e-5  # of a mass in float32


def edit_logits(logits: np.ndarray, tokens: list[int], prompt_length: int, options: GenerationOptions) -> np.ndarray:
    """Apply bias, penalties and the ban of repeated n-grams, from scratch."""
    result = logits.astype(np.float64)
    for token, bias in options.logit_bias.items():
        result[token] += bias
    for token in set(tokens):
        factor = options.repetition_penalty
        result[token] = result[token] * factor if result[token] < 0 else result[token] / factor
    answer = tokens[prompt_length:]
    for token in set(answer):
        result[token] -= options.presence_penalty + options.frequency_penalty * answer.count(token)
    size = options.no_repeat_ngram_size
    if size and len(tokens) >= size:
        context = tuple(tokens[len(tokens) - size + 1 :])
        for start in range(len(tokens) - size + 1):
            if tuple(tokens[start : start + size - 1]) == context:
                result[tokens[start + size - 1]] = -np.inf
    return result


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max())
    return np.asarray(exponentials / exponentials.sum())


def keep_best(order: np.ndarray, mass: np.ndarray, limit: float) -> tuple[np.ndarray, np.ndarray]:
    """Return which tokens have less than `limit` of mass strictly before them, and which are too close to say."""
    _, ranks = np.unique(order, return_inverse=True)
    sums = np.bincount(ranks, mass)
    before = (np.cumsum(sums) - sums)[ranks]
    return before < limit, (np.abs(before - limit) < MARGIN) & (before != limit)


def filter_tokens(logits: np.ndarray, options: GenerationOptions) -> tuple[np.ndarray, np.ndarray]:
    """Return which tokens the filters keep, and which are too close to a limit to say."""
    distance = (logits.max() - logits.astype(np.float64)) / options.temperature
    is_kept, unclear = np.isfinite(distance), np.zeros(len(logits), bool)

    def narrow(order: np.ndarray, limit: float, mass: np.ndarray | None = None) -> None:
        nonlocal is_kept, unclear
        if mass is None:
            mass = softmax(np.where(is_kept, -distance, -np.inf))
        result, close = keep_best(order, mass, limit)
        is_kept, unclear = is_kept & result, unclear | close

    if 0 < options.top_k <= 64:  # from 128 candidates
        is_kept[np.argsort(distance, kind="stable")[128:]] = False
    if options.top_k:
        narrow(distance, options.top_k, np.ones(len(logits)))
    if options.top_p < 1:
        narrow(distance, options.top_p)
    if options.min_p > 0:
        limit = -math.log(options.min_p)
        unclear |= np.abs(distance - limit) < MARGIN
        is_kept &= distance <= limit
    if options.typical_p < 1:
        probabilities = softmax(np.where(is_kept, -distance, -np.inf))
        information = -np.log(np.where(probabilities > 0, probabilities, 1))
        entropy = float((probabilities * information).sum())
        narrow(np.where(is_kept, np.abs(information - entropy), np.inf), options.typical_p)
    return is_kept, unclear
