"""Strings, which are processed on the host."""

from __future__ import annotations

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.types import TensorType
from weft.opset.language import Tensor, assume_equal, broadcast_shapes, fresh_symbol, host
from weft.opset.registry import REQUIRED, op, require


@op("StringConcat", since=20)
def string_concat(x: Tensor, y: Tensor) -> Tensor:
    _require_strings(x, y)
    return host("string_concat", [x, y], [TensorType(DType.string, broadcast_shapes(x.shape, y.shape))])[0]


@op("RegexFullMatch", since=20)
def regex_full_match(x: Tensor, *, pattern: str = "") -> Tensor:
    _require_strings(x)
    return host("regex_full_match", [x], [TensorType(DType.bool, x.shape)], pattern=pattern)[0]


@op("StringSplit", since=20)
def string_split(x: Tensor, *, delimiter: str = "", maxsplit: int = -1) -> tuple[Tensor, Tensor]:
    _require_strings(x)
    types = [TensorType(DType.string, (*x.shape, fresh_symbol("parts"))), TensorType(DType.int64, x.shape)]
    parts, counts = host("string_split", [x], types, delimiter=delimiter, maxsplit=maxsplit)
    return parts, counts


@op("StringNormalizer", since=10)
def string_normalizer(
    x: Tensor,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str = "",
    stopwords: tuple[str, ...] = (),
) -> Tensor:
    _require_strings(x)
    require(
        case_change_action in ("NONE", "LOWER", "UPPER"),
        f"case_change_action must be NONE, LOWER or UPPER, not {case_change_action!r}",
    )
    require(x.rank in (1, 2), f"strings of shape [C] or [1, C] are normalized, not {x.type}")
    if x.rank == 2:
        assume_equal(x.shape[0], 1, "strings of shape [C] or [1, C] are normalized")
    count: Dim = fresh_symbol("kept") if stopwords else dims.maximum(x.shape[-1], 1)
    return host(
        "string_normalize",
        [x],
        [TensorType(DType.string, (*(1 for _ in x.shape[:-1]), count))],
        case=case_change_action.lower(),
        stopwords=tuple(stopwords),
        case_sensitive=bool(is_case_sensitive),
        locale=locale,
    )[0]


@op("TfIdfVectorizer", since=9)
def tf_idf_vectorizer(
    x: Tensor,
    *,
    max_gram_length: int = REQUIRED,
    max_skip_count: int = REQUIRED,
    min_gram_length: int = REQUIRED,
    mode: str = REQUIRED,
    ngram_counts: tuple[int, ...] = REQUIRED,
    ngram_indexes: tuple[int, ...] = REQUIRED,
    pool_int64s: tuple[int, ...] | None = None,
    pool_strings: tuple[str, ...] | None = None,
    weights: tuple[float, ...] | None = None,
) -> Tensor:
    require(x.rank in (1, 2), f"n-grams are counted in tensors of rank 1 or 2, not {x.rank}")
    require(mode in ("TF", "IDF", "TFIDF"), f"mode must be TF, IDF or TFIDF, not {mode!r}")
    pool = pool_strings if pool_int64s is None else pool_int64s
    require(pool is not None, "the n-grams to look for are missing: pool_int64s or pool_strings")
    require(weights is None or len(weights) == len(ngram_indexes), "there must be one weight for each n-gram")
    require(1 <= min_gram_length <= max_gram_length, f"n-grams of {min_gram_length} to {max_gram_length} elements")
    return host(
        "tf_idf",
        [x],
        [TensorType(DType.float32, (*x.shape[:-1], max(ngram_indexes) + 1))],
        lengths=(min_gram_length, max_gram_length),
        skips=max_skip_count,
        counted=mode != "IDF",
        weights=None if mode == "TF" else weights,
        starts=ngram_counts,
        places=ngram_indexes,
        pool=pool,
    )[0]


def _require_strings(*tensors: Tensor) -> None:
    for tensor in tensors:
        require(tensor.dtype is DType.string, f"a tensor of strings is needed, not {tensor.type}")
