"""Attention biases that depend on the distance between query and key."""

from __future__ import annotations

from math import log as logarithm

from weft.ir import dims
from weft.ir.dtypes import DType
from weft.opset.functions import absolute, cast, log, maximum, minimum, sigmoid, where, wide_dtype
from weft.opset.language import Element, Tensor, build, contract, reduce, reshape
from weft.opset.microsoft.domain import op
from weft.opset.microsoft.padding import restore_padding
from weft.opset.registry import REQUIRED, Sizes, require


@op("RelativePositionBias")
def relative_position_bias(
    bias_table: Tensor,
    query_length: Sizes,
    key_length: Sizes,
    *,
    is_bidirectional: int = 0,
    max_distance: int = REQUIRED,
) -> Tensor:
    """Look up biases [1, heads, queries, keys]: small distances have a bucket each, larger ones share wider buckets.

    The table is declared as [buckets, heads] but is stored by columns.
    """
    buckets, heads = bias_table.shape
    require(isinstance(buckets, int) and buckets >= 2, f"a table of {bias_table.type} has too few buckets")
    assert isinstance(buckets, int)
    table = reshape(bias_table, (heads, buckets))
    usable = buckets // 2 if is_bidirectional else buckets
    near = usable // 2
    width = (usable - near) / logarithm(max_distance / near)

    def element(_: Element, head: Element, query: Element, key: Element) -> Element:
        behind = query - key
        distance = absolute(behind) if is_bidirectional else maximum(behind, 0)
        steps = log(cast(maximum(distance, near), DType.float32) / float(near)) * width
        far = minimum(cast(steps, DType.int64) + near, usable - 1)
        bucket = where(distance < near, distance, far)
        if is_bidirectional:
            bucket = where(behind < 0, bucket + usable, bucket)
        return table.at(head, bucket)

    return build((1, heads, query_length[0], key_length[0]), element)


@op("GatedRelativePositionBias")
def gated_relative_position_bias(
    query_layer: Tensor,
    query_bias: Tensor,
    rel_pos: Tensor,
    weight: Tensor,
    bias: Tensor,
    eco_a: Tensor,
    token_offset: Tensor | None = None,
    *,
    num_heads: int = REQUIRED,
) -> Tensor:
    """Scale position biases [1, heads, sequence, sequence] by a gate per query and head."""
    if token_offset is not None:
        query_layer = restore_padding(query_layer, token_offset)
    require(query_layer.rank == 3, f"queries of {query_layer.type} have no batch and sequence")
    batch, length, hidden = query_layer.shape
    size = dims.floordiv(hidden, num_heads)
    wide = wide_dtype(query_layer.dtype)

    def query(b: Element, n: Element, s: Element, h: Element) -> Element:
        column = n * size + h
        return cast(query_layer.at(b, s, column), wide) + cast(query_bias.at(column), wide)

    queries = build((batch, num_heads, length, size), query)
    columns = weight.shape[1]
    half = dims.floordiv(columns, 2)
    gates = contract(queries, cast(weight, wide), "bnsh", "hd", "bnsd")
    biased = build(gates.shape, lambda b, n, s, d: gates.at(b, n, s, d) + cast(bias.at(d), wide))
    sums = reduce("sum", reshape(biased, (batch, num_heads, length, 2, half)), [4])

    def element(b: Element, n: Element, s: Element, t: Element) -> Element:
        update, reset = sigmoid(sums.at(b, n, s, 0)), sigmoid(sums.at(b, n, s, 1))
        gate = update * (reset * cast(eco_a.at(0, n, 0, 0), wide) - 1.0) + 2.0
        return cast(gate * cast(rel_pos.at(0, n, s, t), wide), query_layer.dtype)

    return build((batch, num_heads, length, rel_pos.shape[3]), element)
