"""Plans of the catalog: arenas close to the lower bound, and no larger than the file's order needs.

`pytest tests/plan/test_catalog.py -s` prints the figures.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from counting import lines_run
from models.catalog import CatalogModel, dim_groups, load_catalog, random_inputs

import weft
from weft.plan.sections import make_plan
from weft.plan.verify import verify_plan

LARGEST = 1.01  # times the lower bound
MOST_LINES = 4000  # of Python for each task, and for 100 of them at least


def sizes_of(entry: CatalogModel, model: weft.Model) -> dict[str, Any]:
    """Return the sample shapes: files use one name for dims that differ, so names of dims are not enough."""
    del model
    return {name: array.shape for name, array in random_inputs(entry).items()}


@pytest.mark.models
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("unverified")
@pytest.mark.parametrize("entry", [pytest.param(model, id=model.name) for model in load_catalog()])
def test_arena_is_close_to_the_lower_bound(entry: CatalogModel) -> None:
    if entry.missing:
        pytest.skip(entry.missing)
    model = weft.load(entry.file, device="cpu")
    memory = model.memory(sizes_of(entry, model))
    plan, sizes = model.plan(sizes_of(entry, model))
    assert memory.arena <= LARGEST * memory.lower_bound
    assert memory.guessed == ()
    file_bound = 0
    for part in plan.sections:
        own_order = [(number,) for number in range(len(part.section.tasks))]
        file_bound = max(file_bound, make_plan(part.section, part.constants, sizes, own_order).lower_bound)
        verify_plan(part.section, part.plan, part.constants, sizes)
        lines = lines_run(partial(make_plan, part.section, part.constants, sizes))
        assert lines < MOST_LINES * max(len(part.section.tasks), 100)
    assert memory.lower_bound <= file_bound
    print(
        f"\n{entry.name}: arena {memory.arena:,}, {memory.arena / max(memory.lower_bound, 1):.4f} × the lower bound, "
        f"{memory.lower_bound / max(file_bound, 1):.3f} × the file's order, "
        f"{memory.without_reuse / max(memory.arena, 1):.1f} × less than without reuse, peak {memory.peak:,}"
    )


@pytest.mark.models
@pytest.mark.parametrize("entry", [pytest.param(m, id=m.name) for m in load_catalog() if dim_groups(m)])
def test_plan_for_default_sizes(entry: CatalogModel) -> None:
    """`weft plan MODEL` works for every model, with guessed sizes."""
    if entry.missing:
        pytest.skip(entry.missing)
    memory = weft.load(entry.file, device="cpu").memory()
    assert memory.guessed
    assert memory.arena <= LARGEST * memory.lower_bound
