"""Pairwise coupling: class probabilities from one-versus-one probabilities, by Wu, Lin and Weng's second method.

The iteration is written twice, for one row in plain Python and for many in numpy, with the same operations in the same
order: the results are the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import combinations
from operator import add, mul
from typing import Any

import numpy as np

from weft.ir.arrays import Array

FEW = 16  # elements of the result; plain Python is faster for so few


def couple_probabilities(probabilities: Array, *, count: int) -> tuple[Array]:
    """Return class probabilities [rows, classes] from the probability [rows, pairs] of each pair's first class."""
    rows = probabilities.shape[0]
    if rows * count <= FEW:
        try:
            coupled = [_couple_row(row, count) for row in probabilities.tolist()]
            return (np.array(coupled, np.float32).reshape(rows, count),)
        except ZeroDivisionError:  # numpy returns infinity
            pass
    return (_couple_rows(probabilities.T.astype(np.float64), count).T.astype(np.float32),)


def _quadratic_form(probabilities: Any, count: int, zero: Any) -> list[list[Any]]:
    """Return the quadratic form that the probabilities minimise."""
    pairs = [[zero] * count for _ in range(count)]
    for probability, (first, second) in zip(probabilities, combinations(range(count), 2)):
        pairs[first][second], pairs[second][first] = probability, 1.0 - probability
    sums = [reduce(add, [pairs[j][i] * pairs[j][i] for j in range(count)]) for i in range(count)]
    return [[sums[i] if i == j else -pairs[j][i] * pairs[i][j] for j in range(count)] for i in range(count)]


def _couple_row(probabilities: list[float], count: int) -> list[float]:
    form = _quadratic_form(probabilities, count, 0.0)
    result = [1.0 / count] * count
    for _ in range(max(100, count)):
        product = [reduce(add, map(mul, line, result)) for line in form]
        total = reduce(add, map(mul, result, product))
        if not max([abs(each - total) for each in product]) >= 0.005 / count:
            break
        for place, line in enumerate(form):
            pivot, current = line[place], product[place]
            change = (total - current) / pivot
            result[place] += change
            scale = 1.0 + change
            total = (total + change * (change * pivot + 2.0 * current)) / scale / scale
            product = [(each + change * factor) / scale for each, factor in zip(product, line)]
            result = [each / scale for each in result]
    return result


def _couple_rows(probabilities: Array, count: int) -> Array:
    """Couple columns of probabilities at once; a column that has converged no longer changes."""
    rows = probabilities.shape[1]
    form = np.array(_quadratic_form(probabilities, count, np.zeros(rows)))
    result = np.full((count, rows), 1.0 / count)
    for _ in range(max(100, count)):
        product = reduce(add, [form[:, place] * result[place] for place in range(count)])
        total = reduce(add, [result[place] * product[place] for place in range(count)])
        active = np.abs(product - total).max(axis=0, initial=0.0) >= 0.005 / count
        if not active.any():
            break
        before = result
        result = result.copy()
        for place in range(count):
            pivot, factor = form[place, place], product[place]
            change = (total - factor) / pivot
            result[place] += change
            scale = 1.0 + change
            total = (total + change * (change * pivot + 2.0 * factor)) / scale / scale
            product = (product + change * form[place]) / scale
            result /= scale
        if not active.all():
            result = np.where(active, result, before)
    return result


COUPLING: dict[str, Callable[..., tuple[Any, ...]]] = {"couple_probabilities": couple_probabilities}
