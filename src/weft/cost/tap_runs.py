"""Split the outputs of a convolution into runs with the same taps inside the input, to skip the padding."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import prod

from weft.ir.dims import Dim
from weft.ir.program import Convolve
from weft.records import dataclass

_MOST_RUNS = 3  # along an axis
_MOST_REMAINING = 0.8  # limit on the remaining fraction of products


@dataclass(frozen=True, slots=True)
class TapRun:
    """`count` outputs from `first` on whose taps inside the input are the `taps` from `tap` on."""

    first: int
    count: int
    tap: int
    taps: int


def find_worthwhile_runs(
    primitive: Convolve, sizes: Sequence[Dim], kernel: Sequence[Dim], outputs: Sequence[Dim]
) -> list[list[TapRun]] | None:
    """Return the runs along each axis; None if sizes are unknown, or too few products are saved."""
    if primitive.transposed:
        return None
    runs_by_axis: list[list[TapRun]] = []
    share = 1.0
    axes = zip(sizes, kernel, outputs, primitive.strides, primitive.dilations, primitive.pads)
    for size, taps, count, stride, dilation, (pad, _) in axes:
        if not (isinstance(size, int) and isinstance(taps, int) and isinstance(count, int) and isinstance(pad, int)):
            return None
        runs = find_tap_runs(size, taps, count, stride, dilation, pad)
        if len(runs) > _MOST_RUNS or any(run.taps <= 0 for run in runs) or not runs:
            return None
        share *= sum(run.count * run.taps for run in runs) / (count * taps)
        runs_by_axis.append(runs)
    return runs_by_axis if share <= _MOST_REMAINING else None


def remaining_products(runs: Sequence[Sequence[TapRun]], kernel: Sequence[int]) -> float:
    """Return the fraction of products that remains."""
    return prod(
        sum(run.count * run.taps for run in along) / (sum(run.count for run in along) * taps)
        for along, taps in zip(runs, kernel)
    )


def find_tap_runs(size: int, taps: int, count: int, stride: int, dilation: int, pad: int) -> list[TapRun]:
    """Return the runs of outputs along an axis, only the first few if there are many."""

    def taps_inside(output: int) -> tuple[int, int]:
        """Return the first tap inside the input and the one after the last; neither grows with the output."""
        start = output * stride - pad
        first = min(max(-(start // dilation), 0), taps)
        return first, min(max((size - 1 - start) // dilation + 1, first), taps)

    runs: list[TapRun] = []
    output = 0
    while output < count and len(runs) <= _MOST_RUNS:
        tap, end = taps_inside(output)
        after = output + bisect_left(range(output, count), True, key=lambda later: taps_inside(later) != (tap, end))
        runs.append(TapRun(output, after - output, tap if end > tap else 0, end - tap))
        output = after
    return runs
