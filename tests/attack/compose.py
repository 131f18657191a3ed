"""Random models out of pieces that real ones have: convolution blocks, attention, recurrent layers, quantized products,
integer arithmetic, and glue between them, with sizes that may be symbolic.

Shapes are tracked for one choice of the symbolic sizes; constants that hold a size are computed by the model where the
size is symbolic, most of the time.
"""

from __future__ import annotations

from collections.abc import Callable

from attack.composer import INTS, Composer, Random
from attack.edits import pick
from attack.glue import (
    binary,
    concat,
    cumulated,
    cut,
    gather,
    integers,
    pad,
    product_of_two,
    reduction,
    reshape,
    scatter,
    selection,
    shuffled,
    softmax,
    split,
    transpose,
    unary,
    unit,
    where,
)
from attack.layers import (
    attention,
    convolution,
    linear,
    normalized,
    pool,
    quantized,
    recurrent,
    resize,
    squeeze_excite,
    transposed,
)
from attack.regions import Case


def compose_model(random: Random, count: int) -> tuple[Case, dict[str, list[int | str]]]:
    """Compose a model of about this many layers, with its inputs declared in one of several forms."""
    composer = Composer(random, int(pick(random, (13, 17, 18, 20, 21, 21, 22, 23))))
    kind = pick(random, ("image", "image", "sequence", "sequence", "recurrent", "vector", "integers", "mixed"))
    symbolic = random.random() < 0.6

    def dim(size: int, name: str) -> tuple[int, str | None]:
        return size, name if symbolic and random.random() < 0.7 else None

    if kind in ("image", "mixed"):
        side = int(random.integers(4, 20))
        channels = int(pick(random, (1, 3, 4, 8, 16, 17, 32)))
        width = side if random.random() < 0.5 else int(random.integers(3, 24))
        composer.input(
            "float32", [dim(int(random.integers(1, 4)), "n"), (channels, None), dim(side, "h"), dim(width, "w")]
        )
    if kind in ("sequence", "recurrent", "mixed"):
        width = int(pick(random, (4, 6, 8, 16, 24, 32)))
        composer.input(
            "float32", [dim(int(random.integers(1, 4)), "b"), dim(int(random.integers(1, 13)), "s"), (width, None)]
        )
    if kind == "vector":
        composer.input("float32", [dim(int(random.integers(1, 9)), "n"), (int(random.integers(1, 33)), None)])
        composer.input("float32", [dim(int(random.integers(1, 9)), "m")])
    if kind == "integers":
        dtype = str(pick(random, INTS))
        composer.input(
            dtype, [dim(int(random.integers(1, 6)), "n"), dim(int(random.integers(1, 9)), "m")], low=0, high=20
        )
        composer.input("float32", [dim(int(random.integers(1, 6)), "n"), (int(random.integers(1, 9)), None)])
    pieces = PIECES[kind]
    done = []
    for _ in range(6 * count):
        piece = pick(random, pieces if random.random() < 0.7 else GLUE)
        before = len(composer.nodes)
        piece(composer)
        if len(composer.nodes) > before:
            done.append(piece.__name__)
        if len(done) == count:
            break
    if not composer.nodes:
        unary(composer)
    return composer.case(f"{kind} {' '.join(done)}"), composer.declared


Piece = Callable[[Composer], None]


GLUE: tuple[Piece, ...] = (
    unary, unary, binary, binary, transpose, reshape, unit, cut, pad, concat, split, reduction, softmax, gather,
    selection, scatter, where, cumulated, product_of_two, integers, normalized,
)  # fmt: skip


IMAGE: tuple[Piece, ...] = (
    convolution, convolution, convolution, transposed, pool, squeeze_excite, resize, normalized, concat, quantized,
    shuffled, binary,
)  # fmt: skip


SEQUENCE: tuple[Piece, ...] = (attention, attention, linear, normalized, linear, quantized, binary)


PIECES: dict[str, tuple[Piece, ...]] = {
    "image": IMAGE,
    "sequence": SEQUENCE,
    "recurrent": (recurrent, recurrent, linear, normalized),
    "vector": (linear, quantized, unary, reduction, binary),
    "integers": (integers, integers, integers, linear),
    "mixed": (*IMAGE, *SEQUENCE, recurrent),
}
