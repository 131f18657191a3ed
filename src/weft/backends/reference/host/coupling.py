"""Class probabilities from those of duels between two classes each: Wu, Lin and Weng's second method.

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

Array = np.ndarray[Any, Any]
FEW = 16  # numbers in all rows, up to which Python is quicker


def couple_probabilities(chances: Array, *, count: int) -> tuple[Array]:
    """[rows, classes] that agree best with the chances [rows, duels] of the first of each two."""
    rows = chances.shape[0]
    if rows * count <= FEW:
        try:
            coupled = [_coupled(row, count) for row in chances.tolist()]
            return (np.array(coupled, np.float32).reshape(rows, count),)
        except ZeroDivisionError:  # of which numpy makes an infinite number
            pass
    return (_coupled_rows(chances.T.astype(np.float64), count).T.astype(np.float32),)


def _form(chances: Any, count: int, nothing: Any) -> list[list[Any]]:
    """The quadratic form that the probabilities minimize."""
    duels = [[nothing] * count for _ in range(count)]
    for chance, (first, second) in zip(chances, combinations(range(count), 2)):
        duels[first][second], duels[second][first] = chance, 1.0 - chance
    sums = [reduce(add, [duels[j][i] * duels[j][i] for j in range(count)]) for i in range(count)]
    return [[sums[i] if i == j else -duels[j][i] * duels[i][j] for j in range(count)] for i in range(count)]


def _coupled(chances: list[float], count: int) -> list[float]:
    form = _form(chances, count, 0.0)
    result = [1.0 / count] * count
    for _ in range(max(100, count)):
        product = [reduce(add, map(mul, line, result)) for line in form]
        total = reduce(add, map(mul, result, product))
        if not max([abs(each - total) for each in product]) >= 0.005 / count:
            break
        for place, line in enumerate(form):
            pivot, own = line[place], product[place]
            change = (total - own) / pivot
            result[place] += change
            scale = 1.0 + change
            total = (total + change * (change * pivot + 2.0 * own)) / scale / scale
            product = [(each + change * factor) / scale for each, factor in zip(product, line)]
            result = [each / scale for each in result]
    return result


def _coupled_rows(chances: Array, count: int) -> Array:
    """The same for columns of chances; one that has converged stands still."""
    rows = chances.shape[1]
    form = np.array(_form(chances, count, np.zeros(rows)))
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
            pivot, own = form[place, place], product[place]
            change = (total - own) / pivot
            result[place] += change
            scale = 1.0 + change
            total = (total + change * (change * pivot + 2.0 * own)) / scale / scale
            product = (product + change * form[place]) / scale
            result /= scale
        if not active.all():
            result = np.where(active, result, before)
    return result


COUPLING: dict[str, Callable[..., tuple[Any, ...]]] = {"couple_probabilities": couple_probabilities}
