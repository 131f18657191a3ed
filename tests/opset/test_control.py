"""Control flow, sequences, optionals and strings: small graphs, traced and (with fixed sizes broken) run eagerly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser
from opset.oracle import check, node_model, random_array, run_onnxruntime, run_weft

import weft
from weft.backends.reference.interpret import Interpreter
from weft.frontend import read_model
from weft.ir.program import Host, Late
from weft.opset.lower import run_eagerly

Array = np.ndarray[Any, Any]


def both_ways(text: str, inputs: dict[str, Any], opset: int = 21) -> list[Any]:
    """The outputs of a graph, which must be the same traced and eager."""
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n{text}')
    traced = list(weft.load(model).run(inputs).values())
    eager = run_eagerly(read_model(model).graph, Interpreter(), inputs)
    for a, b in zip(traced, eager, strict=True):
        for x, y in zip(a, b, strict=True) if isinstance(a, list) else [(a, b)]:
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)
    return traced


LOOP = """
agraph (int64 n, float[K] x) => (float[K] last, float[T, K] all) {
  going = Constant<value_int = 1>()
  yes = Cast<to = 9>(going)
  last, all = Loop <body = step (int64 i, bool c, float[K] state) => (bool again, float[K] next, float[K] row) {
    again = Identity(c)
    next = Add(state, x)
    row = Mul(state, state)
  }> (n, yes, x)
}
"""


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_loop(trips: int) -> None:
    x = np.array([1, 2], np.float32)
    last, rows = both_ways(LOOP, {"n": np.array(trips), "x": x})
    np.testing.assert_array_equal(last, x * (trips + 1))
    np.testing.assert_array_equal(rows, np.array([(x * k) ** 2 for k in range(1, trips + 1)]).reshape(trips, 2))


OPEN_CONDITION = """
agraph (int64 n, float[K] x, bool start) => (float[K] last, bool stopped) {
  yes = Constant<value = bool {1}>()
  last, stopped = Loop <body = step (int64 i, bool c, float[K] state, bool stop)
      => (bool again, float[K] next, bool found) {
    next = Add(state, x)
    sum = ReduceSum<keepdims = 0>(next)
    limit = Constant<value = float {9}>()
    large = Less(limit, sum)
    found = If (large) <
      then_branch = large () => (bool there) { there = Constant<value = bool {1}>() },
      else_branch = small () => (bool[1] here) { axes = Constant<value = int64[1] {0}>() here = Unsqueeze(stop, axes) }
    >
    again = Not(found)
  }> (n, yes, x, start)
}
"""


@pytest.mark.parametrize("trips", [0, 2, 9])
def test_loop_whose_condition_has_an_unknown_rank(trips: int) -> None:
    x = np.array([1, 2], np.float32)
    feeds = {"n": np.array(trips), "x": x, "start": np.array(False)}
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{OPEN_CONDITION}')
    last, stopped = weft.load(model).run(feeds).values()
    np.testing.assert_array_equal(last, x * min(trips + 1, 4))
    assert bool(stopped) == (trips > 2)


SCAN = """
agraph (float[K] start, float[T, K] rows) => (float[K] total, float[T, K] sums) {
  total, sums = Scan <num_scan_inputs = 1, body = step (float[K] state, float[K] row)
      => (float[K] next, float[K] out) {
    next = Add(state, row)
    out = Identity(next)
  }> (start, rows)
}
"""


@pytest.mark.parametrize("count", [0, 1, 5])
def test_scan(count: int) -> None:
    rows = random_array(1, (count, 3)).round()
    total, sums = both_ways(SCAN, {"start": np.ones(3, np.float32), "rows": rows})
    np.testing.assert_allclose(total, 1 + rows.sum(axis=0))
    np.testing.assert_allclose(sums, 1 + np.cumsum(rows, axis=0))


SCAN_8 = """
agraph (int64[B] ends, float[B, K] start, float[B, T, K] rows) => (float[B, K] total, float[B, T, K] sums) {
  total, sums = Scan <num_scan_inputs = 1, DIRECTIONS body = step (float[K] state, float[K] row)
      => (float[K] next, float[K] out) {
    next = Add(state, row)
    out = Identity(next)
  }> (ENDS, start, rows)
}
"""


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limited", [False, True])
def test_scan_with_a_batch(reverse: bool, limited: bool) -> None:
    text = SCAN_8.replace("DIRECTIONS", "directions = [1]," if reverse else "")
    text = text.replace("ENDS", "ends" if limited else "")
    rows = random_array(2, (2, 4, 3)).round()
    ends = np.array([2, 4]) if limited else np.array([4, 4])
    inputs = {"ends": ends, "start": np.zeros((2, 3), np.float32), "rows": rows}
    total, sums = both_ways(text, inputs, opset=8)
    for b, end in enumerate(ends):
        part = rows[b, :end][::-1] if reverse else rows[b, :end]
        np.testing.assert_allclose(total[b], part.sum(axis=0))
        np.testing.assert_allclose(sums[b, :end], np.cumsum(part, axis=0))


BRANCH = """
agraph (bool c, float[N] x) => (float[M] y) {
  y = If (c) <
    then_branch = yes () => (float[M] a) { a = Concat<axis = 0>(x, x) },
    else_branch = no () => (float[M] b) { b = Neg(x) }
  >
}
"""


@pytest.mark.parametrize("condition", [True, False])
def test_branches_of_different_sizes(condition: bool) -> None:
    x = np.array([1, 2], np.float32)
    (y,) = both_ways(BRANCH, {"c": np.array(condition), "x": x})
    np.testing.assert_array_equal(y, np.concatenate([x, x]) if condition else -x)


SPLIT = """
agraph (float[6, N] x) => (float[A, N] y, int64 count) {
  two = Constant<value_int = 2>()
  one = Constant<value_int = -1>()
  parts = SplitToSequence<axis = 0>(x, two)
  grown = SequenceInsert(parts, x, two)
  shorter = SequenceErase(grown, one)
  picked = SequenceAt(shorter, one)
  y = ConcatFromSequence<axis = 0>(shorter)
  count = SequenceLength(shorter)
}
"""


def test_sequences_of_known_elements_leave_no_host_steps() -> None:
    x = random_array(3, (6, 2))
    y, count = both_ways(SPLIT, {"x": x})
    np.testing.assert_array_equal(y, np.concatenate([x[:4], x]))
    assert count == 3
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{SPLIT}')
    steps = weft.load(model).program.steps
    assert not [step for step in steps if isinstance(step.primitive, (Host, Late))]


GROW = """
agraph (int64 n, float[K] x) => (float[T, K] y) {
  going = Constant<value_int = 1>()
  yes = Cast<to = 9>(going)
  none = SequenceEmpty<dtype = 1>()
  all = Loop <body = step (int64 i, bool c, seq(float[K]) before) => (bool again, seq(float[K]) after) {
    again = Identity(c)
    f = Cast<to = 1>(i)
    row = Mul(x, f)
    after = SequenceInsert(before, row)
  }> (n, yes, none)
  y = ConcatFromSequence<axis = 0, new_axis = 1>(all)
}
"""


def test_a_loop_that_grows_a_sequence() -> None:
    x = np.array([1, 2], np.float32)
    (y,) = both_ways(GROW, {"n": np.array(3), "x": x})
    np.testing.assert_array_equal(y, [x * 0, x, x * 2])


MAP = """
agraph (seq(float[K]) xs, float s) => (seq(float[K]) ys) {
  ys = SequenceMap <body = scale (float[K] x, float f) => (float[K] y) { y = Mul(x, f) }> (xs, s)
}
"""


@pytest.mark.parametrize("count", [0, 3])
def test_sequence_map(count: int) -> None:
    xs = [random_array(k, (k + 1,)) for k in range(count)]
    (ys,) = both_ways(MAP, {"xs": xs, "s": np.array(2, np.float32)})
    for x, y in zip(xs, ys, strict=True):
        np.testing.assert_array_equal(y, x * 2)


OPTIONAL = """
agraph (optional(float[K]) x) => (float[K] y) {
  there = OptionalHasElement(x)
  y = If (there) <
    then_branch = yes () => (float[K] a) { a = OptionalGetElement(x) },
    else_branch = no () => (float[K] b) { b = Constant<value_floats = [7.0]>() }
  >
}
"""


@pytest.mark.parametrize("present", [True, False])
def test_optionals(present: bool) -> None:
    x = np.array([1, 2], np.float32)
    (y,) = both_ways(OPTIONAL, {"x": x if present else None})
    np.testing.assert_array_equal(y, x if present else [7])


def text(*strings: str) -> Array:
    return np.array(strings, object)


def test_string_concat_broadcasts() -> None:
    expected = np.array([["ax", "bx"], ["ay", "by"]], object)
    check("StringConcat", [text("a", "b"), text("x", "y").reshape(2, 1)], opset=20, expected=[expected])


@pytest.mark.parametrize(("delimiter", "limit"), [(None, None), (",", None), (",", 1), ("", 1)])
def test_string_split(delimiter: str | None, limit: int | None) -> None:
    x = text("a,b c", "  d e ,f ", "g", ",,")
    attributes: dict[str, Any] = {} if delimiter is None else {"delimiter": delimiter}
    attributes |= {} if limit is None else {"maxsplit": limit}
    check("StringSplit", [x], opset=20, outputs=2, **attributes)


def test_regex_full_match() -> None:
    x = text("www.google.com", "a@b.org", "a@b.org ")
    check("RegexFullMatch", [x], opset=20, pattern=r"[\w]+@[\w]+\.org")


@pytest.mark.parametrize("case", ["NONE", "LOWER", "UPPER"])
@pytest.mark.parametrize("sensitive", [0, 1])
@pytest.mark.parametrize("stopwords", [[], ["Monday"], ["monday", "tuesday", "WEDNESDAY"]])
def test_string_normalizer(case: str, sensitive: int, stopwords: list[str]) -> None:
    attributes: dict[str, Any] = {"case_change_action": case, "is_case_sensitive": sensitive, "locale": "C"}
    attributes |= {"stopwords": stopwords} if stopwords else {}
    for x in (text("monday", "Tuesday"), text("monday", "tuesday").reshape(1, 2)):
        check("StringNormalizer", [x], opset=10, **attributes)


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("skips", [0, 1, 5])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 2), (2, 2), (2, 3)])
@pytest.mark.parametrize("kind", ["int32", "int64", "string"])
def test_tf_idf(mode: str, skips: int, lengths: tuple[int, int], kind: str) -> None:
    pool = [2, 3, 5, 4, 5, 6, 7, 8, 6, 7, 1, 2, 3]
    words = {"pool_strings": [f"w{n}" for n in pool]} if kind == "string" else {"pool_int64s": pool}
    numbers = random_array(4, (3, 12), np.int64, 1, 8)
    numbers[0, :6] = [1, 2, 3, 5, 4, 6]
    x = np.array([[f"w{n}" for n in row] for row in numbers], object) if kind == "string" else numbers.astype(kind)
    check(
        "TfIdfVectorizer",
        [x],
        opset=9,
        mode=mode,
        min_gram_length=lengths[0],
        max_gram_length=lengths[1],
        max_skip_count=skips,
        ngram_counts=[0, 4, 10],
        ngram_indexes=[0, 1, 2, 3, 4, 5, 6, 7],
        weights=[0.5, 1.0, 2.0, 3.0, 4.0, 0.25, 1.5, 2.5],
        **words,
    )


def test_optional_of_a_loop_result_is_the_same_in_onnxruntime() -> None:
    x = random_array(5, (3,))
    model = node_model("SequenceConstruct", [x, x], opset=11)
    assert [y.tolist() for y in run_weft(model, [x, x])[0]] == [y.tolist() for y in run_onnxruntime(model, [x, x])[0]]
