"""Which taps of a convolution's windows meet its input: all but at the edges, and few where windows are wide for it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import prod

from weft.ir.dims import Dim
from weft.ir.program import Convolve
from weft.records import dataclass

_MOST_RUNS = 3  # along an axis
_WORTH = 0.8  # of all products, at most, that are left where runs are told apart


@dataclass(frozen=True, slots=True)
class TapRun:
    """Outputs from `first` on, `count` of them, that all meet the input with the same `taps` from `tap` on."""

    first: int
    count: int
    tap: int
    taps: int


def worthwhile_runs(
    primitive: Convolve, sizes: Sequence[Dim], kernel: Sequence[Dim], outputs: Sequence[Dim]
) -> list[list[TapRun]] | None:
    """The runs along each axis; None where sizes are not known, or hardly a product is saved by telling them apart."""
    if primitive.transposed:
        return None
    found: list[list[TapRun]] = []
    share = 1.0
    axes = zip(sizes, kernel, outputs, primitive.strides, primitive.dilations, primitive.pads)
    for size, taps, count, stride, dilation, (pad, _) in axes:
        if not (isinstance(size, int) and isinstance(taps, int) and isinstance(count, int) and isinstance(pad, int)):
            return None
        runs = tap_runs(size, taps, count, stride, dilation, pad)
        if len(runs) > _MOST_RUNS or any(run.taps <= 0 for run in runs) or not runs:
            return None
        share *= sum(run.count * run.taps for run in runs) / (count * taps)
        found.append(runs)
    return found if share <= _WORTH else None


def share_of_products(runs: Sequence[Sequence[TapRun]], kernel: Sequence[int]) -> float:
    """The part of all products that is left."""
    return prod(
        sum(run.count * run.taps for run in along) / (sum(run.count for run in along) * taps)
        for along, taps in zip(runs, kernel)
    )


def tap_runs(size: int, taps: int, count: int, stride: int, dilation: int, pad: int) -> list[TapRun]:
    """All outputs along an axis, in runs, or the first few of more; those that meet nothing have no taps."""

    def met(output: int) -> tuple[int, int]:
        """The first tap that meets the input and the one after the last; neither grows with the output."""
        start = output * stride - pad
        first = min(max(-(start // dilation), 0), taps)
        return first, min(max((size - 1 - start) // dilation + 1, first), taps)

    runs: list[TapRun] = []
    output = 0
    while output < count and len(runs) <= _MOST_RUNS:
        tap, end = met(output)
        after = output + bisect_left(range(output, count), True, key=lambda later: met(later) != (tap, end))
        runs.append(TapRun(output, after - output, tap if end > tap else 0, end - tap))
        output = after
    return runs
