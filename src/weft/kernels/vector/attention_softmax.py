"""The softmax of a chunk of keys: scores, weights, and the factors that merge it into the sums of earlier chunks."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from weft.ir import dims
from weft.ir.dims import Dim
from weft.ir.dtypes import DType
from weft.ir.kernel import Across, Call, Code, Integer, Register, Statement, When, lane
from weft.ir.scalar import ELEMENT, Placeholder
from weft.kernels.build.loop_nest import Body, Span, build_lane_loop
from weft.kernels.build.multiply_add import multiply_add
from weft.kernels.lower.kernel_builder import assign, fetch, put, unbounded
from weft.kernels.lower.operations import less, logical_not, logical_or
from weft.kernels.vector.attention import KEY_CHUNK, SCORE_ROW, StreamingAttention, call, float32
from weft.kernels.vector.attention_tiles import TileRows
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class KeyChunk:
    """A chunk of the keys: its first key, the number of keys that may be visible, and the end of those that are.

    Positions from `end` on have neither scores nor weights.
    """

    start: Dim
    count: Dim
    end: Register | None

    def guard(self, position: Dim, body: Body) -> Body:
        """Run the body only if the key at a position of the chunk is before the end."""
        if self.end is None:
            return body
        return (When(Call("less", (Integer(position), self.end), DType.bool), body),)


class ChunkSoftmax(StreamingAttention):
    """Adds what happens to the scores of a chunk."""

    def when_visible(self, rows: TileRows, start: Dim, body: Callable[[KeyChunk], Body]) -> Body:
        """Run the body for a chunk up to the last key that a query of the tile sees: others weigh 0.

        A mask with a finite score hides a key only from rows that see another key. If it hides all keys of a row,
        later keys still count.
        """
        places = self.row_places(rows.row)
        if self.axes.rows:
            axis, size = self.axes.rows[-1][0], self.row_sizes[-1]
            places[axis] = dims.minimum(places[axis] + (rows.height - 1), size - 1)
        index = self.lowering(places, []).index
        bounds = [end for end in self.attention.causal_bounds if self.axes.has_monotonic(end.bound)]
        certain = [index(end.bound) for end in bounds if end.score == -inf]
        likely = [index(end.bound) for end in bounds if end.score != -inf]
        set_count, count = self.builder.let("count", dims.minimum(_minimum(self.keys, *certain) - start, KEY_CHUNK))
        conditions: list[Code] = []
        if certain:
            conditions.append(Call("greater", (Integer(unbounded(count)), Integer(0)), DType.bool))
        if likely:
            conditions.append(logical_or(less(start, _minimum(*likely)), self.has_hidden_row(rows)))
        end: Register | None = None
        statements: list[Statement] = [set_count]
        if self.ends is not None:
            past = Call("subtract", (fetch(self.ends, rows.slot), Integer(start)), DType.int64)
            defined, end = self.builder.keep("end", past, varying=False)
            statements.append(defined)
            conditions.append(Call("less", (Integer(0), end), DType.bool))
        if self.begins is not None:
            begin = fetch(self.begins, rows.slot)
            conditions.append(Call("less", (begin, Integer(start + KEY_CHUNK)), DType.bool))
        visible = body(KeyChunk(start, count, end if self.in_place else None))
        for condition in conditions:
            visible = (When(condition, visible),)
        return *statements, *visible

    def has_hidden_row(self, rows: TileRows) -> Code:
        """Test whether all keys so far were hidden from a row of the tile, or had NaN scores."""
        low = max(end.score for end in self.attention.causal_bounds if end.score != -inf)
        smallest: Code = float32(inf)
        for first in range(0, rows.height, self.lanes):
            is_row = less(first + lane(self.lanes), rows.height)
            largest = call("select", is_row, fetch(rows.largest, first + lane(self.lanes)), float32(inf))
            smallest = call("minimum", smallest, Across("minimum", largest))
        return logical_not(Call("greater", (smallest, float32(low / 2)), DType.bool))

    def find_row_maximum(self, rows: TileRows, keys: KeyChunk, number: Dim) -> Body:
        """Compute the scores of a row, and their maximum into `row_values`."""
        plain = isinstance(self.score, Placeholder)
        places = self.row_places(rows.row + number)
        lets = {axis: self.builder.let(f"y{axis}", places[axis]) for axis, _ in self.axes.rows}
        places |= {axis: name for axis, (_, name) in lets.items()}
        begin, largest = self.builder.keep("m", float32(-inf), varying=True)

        def score_keys(position: Dim, mask: Code | None) -> Body:
            statements: list[Statement] = []
            at = number * SCORE_ROW + position
            code: Code = fetch(rows.scores, at)
            if not plain:
                here = {**places, self.last: keys.start + position}
                lowering = self.lowering(here, statements, mask)
                lowering.values = {ELEMENT: code}
                defined, code = self.builder.keep("s", lowering.code(self.score), varying=True)
                statements += [defined, put(rows.scores, at, code, mask=mask)]
            if mask is not None:
                code = call("select", mask, code, float32(-inf))
            statements.append(assign(largest, call("maximum", largest, code)))
            return keys.guard(position - lane(self.lanes), tuple(statements))

        loop = build_lane_loop(self.builder, "j", Span(0, keys.count), self.lanes, score_keys)
        store = put(self.row_values, number, Across("maximum", largest))
        return *(statement for statement, _ in lets.values()), begin, *loop, store

    def compute_weights(self, rows: TileRows, keys: KeyChunk, number: Dim) -> Body:
        """Turn the scores of a row into weights, and put their sum into `row_values`."""
        begin_by, by = self.builder.keep("by", fetch(self.shifts, number), varying=False)
        begin, total = self.builder.keep("t", float32(0.0), varying=True)

        def weigh_keys(position: Dim, mask: Code | None) -> Body:
            at = number * SCORE_ROW + position
            weight: Code = call("exp", call("subtract", fetch(rows.scores, at), by))
            if mask is not None:
                weight = call("select", mask, weight, float32(0.0))
            defined, register = self.builder.keep("w", weight, varying=True)
            stored = put(rows.weights, at, self.round_element(register, "small_half_bits"))
            added = assign(total, call("add", total, register))
            return keys.guard(position - lane(self.lanes), (defined, stored, added))

        loop = build_lane_loop(self.builder, "j", Span(0, keys.count), self.lanes, weigh_keys)
        return begin_by, begin, *loop, put(self.row_values, number, Across("sum", total))

    def update_largest(self, rows: TileRows) -> list[Statement]:
        """Take a chunk's largest scores from `row_values`; a row per lane.

        `shifts` become what is subtracted from the chunk's scores, `factors` those of the sums of earlier chunks, and
        `scales` those of the chunk's sums.
        """

        def update(at: Dim) -> list[Statement]:
            keep = self.builder.keep
            first, chunk = keep("chunk", fetch(self.row_values, at))
            second, before = keep("before", fetch(rows.largest, at))
            third, now = keep("now", call("maximum", before, chunk))
            fourth, by = keep("by", _replace_infinity(now))
            return [
                first,
                second,
                third,
                fourth,
                put(rows.largest, at, now),
                put(self.shifts, at, _replace_infinity(chunk)),
                put(self.factors, at, call("exp", call("subtract", before, by))),
                put(self.scales, at, call("exp", call("subtract", chunk, by))),
            ]

        return self.for_states(update)

    def add_totals(self, rows: TileRows) -> list[Statement]:
        """Merge a chunk's totals of weights from `row_values`."""
        return self.for_states(
            lambda at: [
                put(
                    rows.total,
                    at,
                    self.merge(
                        fetch(rows.total, at),
                        fetch(self.factors, at),
                        fetch(self.row_values, at),
                        fetch(self.scales, at),
                    ),
                )
            ]
        )

    def merge(self, before: Code, factor: Code, chunk: Code, scale: Code) -> Code:
        return multiply_add(self.target, chunk, scale, call("multiply", before, factor))


def _replace_infinity(largest: Code) -> Code:
    """Replace -inf, the largest score of a row without visible keys, by 0."""
    unseen = Call("equal", (largest, float32(-inf)), DType.bool)
    return call("select", unseen, float32(0.0), largest)


def _minimum(*values: Dim) -> Dim:
    smallest, *others = values
    for value in others:
        smallest = dims.minimum(smallest, value)
    return smallest
