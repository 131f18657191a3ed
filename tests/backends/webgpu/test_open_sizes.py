"""Models with dynamic sizes or ranks on a GPU."""

from __future__ import annotations

import pytest
from open_sizes import ARITHMETIC, FIXED, KERNELS, RANKS, Case

CASES: dict[str, tuple[Case, str]] = {
    **{f"constants say: {name}": (case, "names") for name, case in FIXED.items()},
    **{f"open kernel: {name}": (case, "names") for name, case in KERNELS.items()},
    **{f"shapes: {name}": (case, "names") for name, case in ARITHMETIC.items()},
    **{f"ranks: {name}": (case, "no rank") for name, case in RANKS.items()},
}


@pytest.mark.parametrize("name", CASES)
def test_dynamic_sizes(name: str) -> None:
    case, form = CASES[name]
    case.check(form, "webgpu:0")
