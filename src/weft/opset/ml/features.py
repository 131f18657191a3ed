"""Features: extracting, scaling, imputing, joining."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan

from weft.ir.dtypes import DType
from weft.opset.functions import absolute, cast, equal, is_nan, sqrt, where
from weft.opset.language import Element, Tensor, concat, constant, elementwise, gather, pad, reduce, reshape
from weft.opset.ml.domain import as_float, op
from weft.opset.registry import require


@op("ArrayFeatureExtractor")
def array_feature_extractor(x: Tensor, indices: Tensor) -> Tensor:
    require(x.rank > 0, "features are extracted from at least one dimension")
    rows = x if x.rank > 1 else reshape(x, (1, x.shape[0]))
    return gather(rows, reshape(indices, (indices.size,)), rows.rank - 1)


@op("Binarizer")
def binarizer(x: Tensor, *, threshold: float = 0.0) -> Tensor:
    if x.dtype.is_float:
        return elementwise(lambda v: cast(v > threshold, x.dtype), x)
    return elementwise(lambda v: cast(cast(v, DType.float32) > threshold, x.dtype), x)


@op("FeatureVectorizer")
def feature_vectorizer(*inputs: Tensor, inputdimensions: tuple[int, ...] | None = None) -> Tensor:
    require(bool(inputs), "there are no features to join")
    widths = [None] * len(inputs) if inputdimensions is None else list(inputdimensions)
    require(len(widths) == len(inputs), f"there are {len(widths)} sizes for {len(inputs)} inputs")
    columns = []
    for x, width in zip(inputs, widths):
        require(x.rank in (1, 2), f"features of rank 1 or 2 are joined, not {x.rank}")
        matrix = cast(x if x.rank == 2 else reshape(x, (1, x.shape[0])), DType.float32)
        missing = 0 if width is None else width - matrix.shape[1]
        columns.append(pad(matrix, [(0, 0), (0, missing)]))
    return concat(columns, 1)


@op("Imputer")
def imputer(
    x: Tensor,
    *,
    imputed_value_floats: tuple[float, ...] | None = None,
    imputed_value_int64s: tuple[int, ...] | None = None,
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Tensor:
    imputed = (imputed_value_floats if x.dtype.is_float else imputed_value_int64s) or ()
    require(bool(imputed), f"there is no value to put into features of {x.dtype}")
    has_one_for_all = x.rank > 0 and isinstance(x.shape[-1], int) and len(imputed) != x.shape[-1]
    values = constant(imputed[:1] if has_one_for_all else imputed, x.dtype)
    replaced = replaced_value_float if x.dtype.is_float else replaced_value_int64
    missing: Callable[[Element], Element] = is_nan if isnan(replaced) else lambda v: equal(v, replaced)
    return elementwise(lambda v, value: where(missing(v), value, v), x, values)


@op("Scaler")
def scaler(x: Tensor, *, offset: tuple[float, ...] = (0.0,), scale: tuple[float, ...] = (1.0,)) -> Tensor:
    offsets, scales = constant(offset or (0.0,), DType.float32), constant(scale or (1.0,), DType.float32)
    return elementwise(lambda v, o, s: (cast(v, DType.float32) - o) * s, x, offsets, scales)


@op("Normalizer")
def normalizer(x: Tensor, *, norm: str = "MAX") -> Tensor:
    require(norm in ("MAX", "L1", "L2"), f"norm must be MAX, L1 or L2, not {norm!r}")
    wide = as_float(x)
    axes = [wide.rank - 1]
    match norm:
        case "MAX":
            divisor = reduce("maximum", wide, axes, keep=True)
        case "L1":
            divisor = reduce("sum", absolute(wide), axes, keep=True)
        case _:
            divisor = sqrt(reduce("sum", elementwise(lambda v: v * v, wide), axes, keep=True))
    return elementwise(lambda v, d: cast(where(equal(d, 0.0), v, v / d), DType.float32), wide, divisor)
