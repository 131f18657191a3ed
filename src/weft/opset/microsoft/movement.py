"""Earlier forms of ops that are now part of ONNX."""

from __future__ import annotations

from weft.ir.dims import floordiv
from weft.opset.indexing import gather_nd, unique
from weft.opset.language import Element, Tensor, build, constant, expand_dims, gather
from weft.opset.microsoft.domain import op
from weft.opset.movement import pad_11, range_, trilu
from weft.opset.registry import REQUIRED, Sizes, Static, normalize_axis, require
from weft.opset.sampling import grid_sample


@op("ExpandDims")
def expand_dims_(x: Tensor, axis: Static) -> Tensor:
    return expand_dims(x, [int(axis.item())])


@op("GatherND")
def gather_nd_(x: Tensor, indices: Tensor) -> Tensor:
    return gather_nd(x, indices)


@op("Pad")
def pad_(x: Tensor, pads: Sizes, value: Tensor | None = None, *, mode: str = "constant") -> Tensor:
    return pad_11(x, pads, value, mode=mode)


@op("Range")
def range__(start: Tensor, limit: Tensor, delta: Tensor | None = None) -> Tensor:
    return range_(start, limit, constant(1, start.dtype) if delta is None else delta)


@op("Trilu")
def trilu_(x: Tensor, k: Tensor | None = None, *, upper: int = 1) -> Tensor:
    return trilu(x, k, upper=upper)


@op("Unique")
def unique_(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the values in order of first occurrence, the value index of each element, and the counts."""
    values, _, indices, counts = unique(x, sorted=0)
    return values, indices, counts


@op("UnfoldTensor")
def unfold(x: Tensor, *, dim: int = -1, size: int = REQUIRED, step: int = 1) -> Tensor:
    """Take slices of `size` along a dimension, `step` apart, each as a new last dimension."""
    axis = normalize_axis(dim, x.rank)
    require(size > 0 and step > 0, f"slices of {size} in steps of {step}")
    count = floordiv(x.shape[axis] - size, step) + 1

    def element(*i: Element) -> Element:
        return x.at(*i[:axis], i[axis] * step + i[-1], *i[axis + 1 : -1])

    return build((*x.shape[:axis], count, *x.shape[axis + 1 :], size), element)


@op("GridSample")
def grid_sample_(
    x: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros"
) -> Tensor:
    return grid_sample(x, grid, mode=mode, padding_mode=padding_mode, align_corners=align_corners)


@op("TorchEmbedding")
def torch_embedding(
    weight: Tensor, indices: Tensor, padding_idx: Tensor | None = None, scale_grad_by_freq: Tensor | None = None
) -> Tensor:
    """Gather rows of a table; the other inputs matter for gradients only."""
    return gather(weight, indices, 0)
