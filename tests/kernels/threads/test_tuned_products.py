"""Products with tuned tiles, run on this CPU, against numpy in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernels.epilogues import assert_close, random_array
from kernels.threads.test_tensor_products import F16, F32, expanded, product, target_with
from kernels.threads.works import run_on_cpu

from weft.ir import dims
from weft.ir.dtypes import DType
from weft.ir.layout import row_major
from weft.ir.target import Float32Products, ThreadTarget
from weft.kernels.threads.product_choice import TilingQuery, record_tiling_queries

PARTS = Float32Products.PARTS


def small_target(way: Float32Products) -> ThreadTarget:
    """Return a target with blocks small enough to emulate."""
    return replace(target_with(way, 16, 32), most_block_threads=256)


def tiling_query(
    shape: tuple[object, int, int], sizes: dict[str, int], target: ThreadTarget, dtype: DType = F32
) -> TilingQuery:
    with record_tiling_queries(sizes) as queries:
        product(shape, target, (dtype, dtype))
    (one,) = queries
    return one


@pytest.mark.parametrize(("dtype", "start"), [(F16, "tiles 16x64x"), (F32, "lanes 4x8 of")])
def test_tuned_tiles_compute_the_product(dtype: DType, start: str) -> None:
    """With tiles small enough to emulate."""
    m, n, k = shape = (19, 21, 40)
    target = small_target(Float32Products.EXACT)
    one = tiling_query(shape, {}, target, dtype)
    assert one.chosen == one.candidates[0][0]
    seed = 3
    print(f"seed {seed}")
    name = str(np.random.default_rng(seed).choice([name for name, _ in one.candidates[1:] if name.startswith(start)]))
    tuned = replace(target, tuned=((one.product, name),))
    assert tiling_query(shape, {}, tuned, dtype).chosen == name
    work, result = product(shape, tuned, (dtype, dtype))
    a, b = random_array(1, (m, k), dtype), random_array(2, (k, n), dtype)
    (actual,), _ = run_on_cpu(expanded(work), [(a, row_major(2)), (b, row_major(2))], [result])
    assert_close(actual, a.astype(np.float64) @ b.astype(np.float64), dtype)


def test_tuned_tiles_for_one_size_of_many() -> None:
    """For any size one variant is active, and for the tuned size the tuned one."""
    target = small_target(PARTS)
    shape = (dims.symbol("m"), 24, 40)
    one, other = tiling_query(shape, {"m": 33}, target), tiling_query(shape, {"m": 12}, target)
    assert " 1x33x24x40 " in one.product
    last = one.candidates[-1][0]
    target = replace(target, tuned=tuple(sorted([(one.product, last), (other.product, other.candidates[1][0])])))
    assert tiling_query(shape, {"m": 33}, target).chosen == last
    assert tiling_query(shape, {"m": 12}, target).chosen == other.candidates[1][0]
    assert (
        tiling_query(shape, {"m": 34}, target).chosen
        == tiling_query(shape, {"m": 34}, replace(target, tuned=())).chosen
    )
    work, _ = product(shape, target, (F32, F32))
    for size in (1, 11, 12, 13, 32, 33, 34, 100):
        writers = [
            launch
            for launch in work.launches
            if any(reference.kind == "result" for reference in launch.references)
            and dims.evaluate(launch.blocks, {"m": size})
        ]
        assert len(writers) == 1


def test_unknown_choices_are_ignored() -> None:
    target, shape = target_with(PARTS), (256, 512, 512)
    one = tiling_query(shape, {}, target)
    before, _ = product(shape, target, (F32, F32))
    for name, way in (
        (one.product, "tiles 7x7x7"),
        (one.product.replace("256", "257"), one.candidates[1][0]),
        ("x", "y"),
    ):
        after, _ = product(shape, replace(target, tuned=((name, way),)), (F32, F32))
        assert [launch.kernel for launch in after.launches] == [launch.kernel for launch in before.launches]
    half, _ = product(shape, replace(target, tuned=((one.product, one.candidates[1][0]),)), (F16, F16))
    plain, _ = product(shape, target, (F16, F16))
    assert half.launches == plain.launches
