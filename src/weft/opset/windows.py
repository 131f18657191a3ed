"""Windows along spatial axes, for convolutions and pooling.

In: a node's attributes. Out: one number (or pair) per spatial axis, with defaults and automatic padding resolved; sizes
may be symbolic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.ir import dims
from weft.ir.dims import Dim
from weft.opset.language import window_count
from weft.opset.registry import require
from weft.records import dataclass

AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


class ConvAttributes(NamedTuple):
    """The attributes that all convolutions have."""

    auto_pad: str
    dilations: tuple[int, ...] | None
    group: int
    kernel_shape: tuple[int, ...] | None
    pads: tuple[int, ...] | None
    strides: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Windows:
    """The positions of windows: `spatial` of them per axis, window o starting at o * stride - before."""

    window: tuple[Dim, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[Dim, Dim], ...]
    spatial: tuple[Dim, ...]

    @property
    def spans(self) -> tuple[Dim, ...]:
        """The distance from the first to the last element of a window, plus 1."""
        return tuple(dilation * (size - 1) + 1 for size, dilation in zip(self.window, self.dilations))


def resolve_windows(
    sizes: Sequence[Dim],
    window: Sequence[Dim],
    *,
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
    ceil_mode: bool = False,
    may_exceed: bool = False,
) -> Windows:
    """Resolve a node's attributes for spatial axes of these sizes; `may_exceed`: see `_count_fitting`."""
    rank = len(sizes)
    require(len(window) == rank, f"a kernel of {len(window)} dimensions over {rank} spatial axes")
    steps, spacings = per_axis("strides", strides, rank), per_axis("dilations", dilations, rank)
    spans = [d * (k - 1) + 1 for k, d in zip(window, spacings)]
    if is_same_padding(auto_pad):
        spatial = tuple(dims.ceildiv(size, stride) for size, stride in zip(sizes, steps))
        totals = [
            dims.maximum((count - 1) * stride + span - size, 0)
            for size, count, stride, span in zip(sizes, spatial, steps, spans)
        ]
        return Windows(tuple(window), steps, spacings, tuple(split_padding(t, auto_pad) for t in totals), spatial)
    paddings = explicit_pads(pads, rank) if auto_pad == "NOTSET" else ((0, 0),) * rank
    if ceil_mode:
        spatial = tuple(_count_overhanging(*axis) for axis in zip(sizes, spans, steps, paddings))
    elif may_exceed:
        spatial = tuple(_count_fitting(*axis) for axis in zip(sizes, window, steps, spacings, paddings))
    else:
        spatial = tuple(window_count(*axis) for axis in zip(sizes, window, steps, spacings, paddings))
    return Windows(tuple(window), steps, spacings, paddings, spatial)


def per_axis(name: str, values: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Return strides or dilations, by default 1."""
    if not values:
        return (1,) * rank
    require(len(values) == rank and min(values, default=1) > 0, f"{name} {tuple(values)} do not fit {rank} axes")
    return tuple(values)


def explicit_pads(pads: Sequence[int] | None, rank: int) -> tuple[tuple[int, int], ...]:
    """Return ONNX's list of all beginnings, then all ends, as pairs."""
    if not pads:
        return ((0, 0),) * rank
    require(len(pads) == 2 * rank, f"pads {tuple(pads)} do not fit {rank} axes")
    return tuple(zip(pads[:rank], pads[rank:]))


def is_same_padding(auto_pad: str) -> bool:
    require(auto_pad in AUTO_PADS, f"auto_pad is {auto_pad!r}", f"it must be one of {', '.join(AUTO_PADS)}")
    return auto_pad.startswith("SAME")


def split_padding(total: Dim, auto_pad: str) -> tuple[Dim, Dim]:
    """Split padding in two halves; SAME_UPPER puts the larger half of an odd number at the end."""
    less = dims.floordiv(total, 2)
    return (less, total - less) if auto_pad == "SAME_UPPER" else (total - less, less)


def _count_fitting(size: Dim, window: Dim, stride: int, dilation: int, pad: tuple[int, int]) -> Dim:
    """Count the windows that fit, and one that exceeds the whole input by less than a stride, as onnxruntime does."""
    room = size + pad[0] + pad[1] - (dilation * (window - 1) + 1)
    return 1 if isinstance(room, int) and -stride < room < 0 else window_count(size, window, stride, dilation, pad)


def _count_overhanging(size: Dim, span: Dim, stride: int, pad: tuple[int, int]) -> Dim:
    """Count the windows that start before the padding at the end, beyond which they may extend."""
    reached = dims.ceildiv(size + pad[0] + pad[1] - span, stride) + 1
    return dims.maximum(dims.minimum(reached, dims.ceildiv(size + pad[0], stride)), 0)
