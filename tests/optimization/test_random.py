"""Random models out of realistic pieces mean the same to onnxruntime after they are optimised, at several sizes."""

from __future__ import annotations

import numpy as np
import pytest
from attack.compose import composed
from attack.drawn import draw, filled, resized
from optimization.judging import as_written, compare

from weft.optimization.optimize import optimize

SEED = 15
CASES = 48
SIZES = (1, 2, 3, 5, 8)  # onnxruntime itself ends on some of these without elements
TOLERANCE = 1e-3  # of the largest magnitude: pieces follow each other in ways that no trained model has


@pytest.mark.parametrize("part", range(4))
def test_random_models(part: int) -> None:
    for number in range(part * CASES // 4, (part + 1) * CASES // 4):
        random = np.random.default_rng([SEED, number])
        case, declared = composed(random, int(random.integers(1, 9)))
        model = filled(case.model)
        report = optimize(model)
        assert optimize(report.model).done == {}, (SEED, number)
        before, after = as_written(model), as_written(report.model)
        sizes = {
            name: int(random.choice(SIZES)) for shape in declared.values() for name in shape if isinstance(name, str)
        }
        other = {
            name: resized(given, [sizes.get(size, size) if isinstance(size, str) else size for size in declared[name]])
            for name, given in case.feeds.items()
        }
        for feeds in (case.feeds, other):
            arrays = {name: draw(given) for name, given in feeds.items()}
            try:
                expected = before.run(None, arrays)
            except Exception:  # these sizes do not fit each other
                continue
            try:
                compare(expected, after.run(None, arrays), TOLERANCE)
            except Exception as error:
                raise AssertionError(f"seed {SEED}, case {number}: {case.name}") from error
