"""Tile products as plain statements, run on this CPU with a thread for each lane, against numpy in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
from backends.llvm.emulated import run_kernel
from backends.llvm.tile_products import Product

from weft.ir.dtypes import DType
from weft.ir.kernel_verify import verify_kernel
from weft.kernels.lower.barriers import insert_barriers
from weft.kernels.lower.expand_tiles import expand_tiles

SMALL = Product("product", shape=(16, 24, 96), tiles=(16, 24, 32), lanes=16)
CASES = [
    SMALL,
    replace(SMALL, left=DType.float16, right=DType.float16, transposed_left=True),
    replace(SMALL, left=DType.float32, right=DType.float32, transposed_right=True),
    replace(SMALL, left=DType.int8, right=DType.int8, stages=3),
    replace(SMALL, left=DType.uint8, right=DType.int8, bring="puts"),
    replace(SMALL, left=DType.float8e4m3fn, right=DType.float8e5m2, bring="whole"),
    replace(SMALL, shape=(40, 56, 104), bring="both", scaled=True),
    replace(SMALL, shape=(24, 40, 40), parts=True, transposed_left=True, transposed_right=True),
    replace(SMALL, lanes=20, parts=True, scaled=True),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_products(number: int) -> None:
    product = CASES[number]
    kernel = product.kernel
    verify_kernel(kernel)
    for plain in (expand_tiles(kernel), expand_tiles(insert_barriers(kernel))):
        actual = run_kernel(plain, product.arrays, product.blocks)[-1]
        product.check(actual)


def test_kernels_without_tiles_stay() -> None:
    plain = expand_tiles(SMALL.kernel)
    assert expand_tiles(plain) is plain
