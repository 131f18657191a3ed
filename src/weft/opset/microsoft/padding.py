"""Removing the padding of batches of sequences, and restoring it."""

from __future__ import annotations

from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.opset.functions import cast
from weft.opset.language import Tensor, build, check_range, cumulate, full, observe, pad, reduce, reshape, scatter, sort
from weft.opset.microsoft.domain import op
from weft.opset.registry import require


@op("RemovePadding")
def remove_padding(x: Tensor, sequence_token_count: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the tokens, their positions (followed by those of padding), the cumulated lengths, and the largest."""
    require(x.rank == 3, f"sequences in a batch have three dimensions, not {x.type}")
    batch, length, _ = x.shape
    counts = check_range(sequence_token_count, 0, length, "sequence_token_count")
    padded = build((batch, length), lambda b, s: cast(s >= counts.at(b), DType.int32))
    _, positions = sort(reshape(padded, (batch * length,)), 0)
    total = reduce("sum", counts, [0])
    (tokens,) = observe(total, "tokens")
    offsets = cast(reshape(positions, (batch, length)), DType.int32)
    packed = remove_padding_rows(x, offsets, tokens)
    cumulated = pad(cumulate("sum", sequence_token_count, 0), [(1, 0)])
    return packed, offsets, cumulated, reduce("maximum", sequence_token_count, [0], keep=True)


@op("RestorePadding")
def restore_padding(x: Tensor, token_offset: Tensor) -> Tensor:
    """Put tokens at the positions that `token_offset` begins with, and zeros elsewhere."""
    require(x.rank == 2 and token_offset.rank == 2, f"tokens {x.type} and offsets {token_offset.type} must be matrices")
    batch, length = token_offset.shape
    tokens, hidden = x.shape
    positions = reshape(token_offset, (batch * length,))
    rows = full((batch * length, hidden), 0, x.dtype)
    rows = scatter(rows, (tokens, hidden), lambda t, h: ((cast(positions.at(t), DType.int64), h), x.at(t, h)))
    return reshape(rows, (batch, length, hidden))


def remove_padding_rows(x: Tensor, token_offset: Tensor, tokens: Dim) -> Tensor:
    """Take the first `tokens` rows that the offsets point to from [batch, sequence, hidden]."""
    batch, length, hidden = x.shape
    rows, positions = reshape(x, (batch * length, hidden)), reshape(token_offset, (batch * length,))
    return build((tokens, hidden), lambda t, h: rows.at(positions.at(t), h, checked=True))


def compute_lengths(cumulated: Tensor) -> Tensor:
    """Compute lengths from their running sum, which starts with 0."""
    return build((cumulated.shape[0] - 1,), lambda b: cumulated.at(b + 1) - cumulated.at(b))


def find_owners(tokens: Dim, ends: Tensor) -> Tensor:
    """Find the sequence of each packed token, from the running sum of the lengths, which starts with 0."""
    ended = build((tokens, ends.shape[0] - 1), lambda t, b: cast(ends.at(b + 1) <= t, DType.int64))
    return reduce("sum", ended, [1])
