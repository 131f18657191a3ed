"""Ops that ONNX took up later, in the form that they had before."""

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
    result: Tensor = gather_nd(x, indices)
    return result


@op("Pad")
def pad_(x: Tensor, pads: Sizes, value: Tensor | None = None, *, mode: str = "constant") -> Tensor:
    result: Tensor = pad_11(x, pads, value, mode=mode)
    return result


@op("Range")
def range__(start: Tensor, limit: Tensor, delta: Tensor | None = None) -> Tensor:
    result: Tensor = range_(start, limit, constant(1, start.dtype) if delta is None else delta)
    return result


@op("Trilu")
def trilu_(x: Tensor, k: Tensor | None = None, *, upper: int = 1) -> Tensor:
    result: Tensor = trilu(x, k, upper=upper)
    return result


@op("Unique")
def unique_(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The values in the order of their first occurrence, which of them each element is, and how often each occurs."""
    values, _, indices, counts = unique(x, sorted=0)
    return values, indices, counts


@op("UnfoldTensor")
def unfold(x: Tensor, *, dim: int = -1, size: int = REQUIRED, step: int = 1) -> Tensor:
    """Slices of `size` along a dimension, `step` apart, each as a new last dimension."""
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
    result: Tensor = grid_sample(x, grid, mode=mode, padding_mode=padding_mode, align_corners=align_corners)
    return result


@op("TorchEmbedding")
def torch_embedding(
    weight: Tensor, indices: Tensor, padding_idx: Tensor | None = None, scale_grad_by_freq: Tensor | None = None
) -> Tensor:
    """Rows of a table; what else is given matters to gradients only."""
    return gather(weight, indices, 0)
