"""Barriers between writes to tiles and the products that read them."""

from __future__ import annotations

from weft.ir.dtypes import DType
from weft.ir.kernel import Barrier, Buffer, Kernel, MultiplyTiles, Number, PutTile, Statement, Sums, TileForm, lane
from weft.ir.kernel_verify import verify_kernel
from weft.kernels.lower.barriers import insert_barriers

LANES = 32
HALF = DType.float16


def put(tile: str, first: int) -> PutTile:
    return PutTile(tile, lane(LANES), first, (Number(1.0, HALF),) * 8)


def test_barriers_only_where_tiles_are_read() -> None:
    form = TileForm(32, 16)
    buffers = tuple(Buffer(name, HALF, True, 32 * 16, form) for name in ("left", "right"))
    body: tuple[Statement, ...] = (
        Sums("sums", 32, 32, DType.float32),
        *(put(name, first) for name in ("left", "right") for first in (0, 8)),
        MultiplyTiles("sums", "left", "right"),
        put("left", 0),
        put("left", 8),
        MultiplyTiles("sums", "left", "right"),
    )
    kernel = insert_barriers(Kernel("tiles", buffers, (), LANES, body))
    verify_kernel(kernel)
    places = [number for number, statement in enumerate(kernel.body) if isinstance(statement, Barrier)]
    assert places == [5, 7, 10]  # before the first product, the next puts, and the second product
