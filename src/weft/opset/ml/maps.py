"""Maps from keys to numbers, which are processed on the host."""

from __future__ import annotations

from weft.errors import InvalidModelError
from weft.ir.dtypes import DType
from weft.ir.types import MapType, SequenceType, TensorType
from weft.opset.language import Tensor, assume_equal, fresh_symbol, host
from weft.opset.ml.domain import op
from weft.opset.registry import require


@op("CastMap")
def cast_map(x: Tensor, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Tensor:
    dtypes = {"TO_FLOAT": DType.float32, "TO_STRING": DType.string, "TO_INT64": DType.int64}
    require(cast_to in dtypes, f"cast_to must be one of {', '.join(dtypes)}, not {cast_to!r}")
    require(map_form in ("DENSE", "SPARSE"), f"map_form must be DENSE or SPARSE, not {map_form!r}")
    size = max_map if map_form == "SPARSE" else None
    type = TensorType(dtypes[cast_to], (1, fresh_symbol("count") if size is None else size))
    return host("map_to_row", [x], [type], dtype=dtypes[cast_to].value, size=size)[0]


@op("DictVectorizer")
def dict_vectorizer(
    x: Tensor, *, int64_vocabulary: tuple[int, ...] | None = None, string_vocabulary: tuple[str, ...] | None = None
) -> Tensor:
    vocabulary = string_vocabulary if int64_vocabulary is None else int64_vocabulary
    if vocabulary is None:
        raise InvalidModelError("a dictionary is vectorized with int64_vocabulary or string_vocabulary")
    dtype = (x.type.value.dtype if isinstance(x.type, MapType) else None) or DType.float32
    type = TensorType(dtype, (1, len(vocabulary)))
    return host("map_to_vocabulary", [x], [type], vocabulary=tuple(vocabulary), dtype=dtype.value)[0]


@op("ZipMap")
def zip_map(
    x: Tensor, *, classlabels_int64s: tuple[int, ...] | None = None, classlabels_strings: tuple[str, ...] | None = None
) -> Tensor:
    keys = classlabels_strings or classlabels_int64s
    if not keys:
        raise InvalidModelError("a map needs its keys: classlabels_int64s or classlabels_strings")
    require(x.rank in (1, 2), f"maps are built from tensors of rank 1 or 2, not {x.rank}")
    assume_equal(x.shape[-1], len(keys), "there must be one column for each key")
    key = DType.string if classlabels_strings else DType.int64
    type = SequenceType(MapType(key, TensorType(DType.float32, ())))
    return host("zip_map", [x], [type], keys=tuple(keys))[0]
