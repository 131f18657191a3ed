"""Comparisons of contenders whose faults are known: where they are found, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from frontend.samples import model, node, tensor, value
from onnx import TensorProto

import weft
from weft.ir.dtypes import DType
from weft.ir.program import Map, Step, TensorProgram
from weft.ir.scalar import Apply, Literal
from weft.opset.trace import Evaluator
from weft.passes import PIPELINE
from weft.report.comparison import CODE, TOLERANCES, Method, ModelComparison, compare_layers
from weft.report.contenders import Content, InFloat64, Known, OnDevice, Unavailable, all_possible
from weft.report.deviation import difference
from weft.report.layers import ModelLayer, batches, layers

Array = np.ndarray[Any, Any]
X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
NAMES = tuple("abcdef")


# -- differences -----------------------------------------------------------------------------------------------------


def test_the_worst_element_is_named_on_both_sides() -> None:
    left = np.arange(12, dtype=np.float32).reshape(3, 4)
    right = left.copy()
    right[1, 2] += 0.5
    found = difference(left, right)
    assert found.error == pytest.approx(0.5 / 11)
    assert found.worst is not None
    assert (found.worst.index, found.worst.expected, found.worst.found) == ((1, 2), 6.0, 6.5)


@pytest.mark.parametrize(
    ("left", "right", "note"),
    [
        (np.zeros(3), np.zeros(4), "shapes differ"),
        (np.array([1.0, np.nan]), np.array([1.0, 2.0]), "only one is finite"),
        (np.array([np.inf]), np.array([-np.inf]), "only one is finite"),
        (np.array(["a", "b"], object), np.array(["a", "c"], object), "texts differ"),
        ([np.zeros(1)], [], "lengths differ"),
        (None, [], "not the same"),
    ],
    ids=["shapes", "NaN", "infinity", "texts", "lengths", "kinds"],
)
def test_what_cannot_be_measured_is_infinitely_far(left: Any, right: Any, note: str) -> None:
    found = difference(left, right)
    assert found.error == np.inf
    assert note in found.note


@pytest.mark.parametrize(
    "same",
    [np.array([np.nan, np.inf, 1]), np.zeros((0, 3)), np.array(["x"], object), [np.ones(2)], None, np.zeros(2)],
    ids=["not finite", "empty", "texts", "sequence", "nothing", "zeros"],
)
def test_what_is_the_same_has_no_error(same: Any) -> None:
    assert difference(same, same).error == 0


def test_integers_that_float64_cannot_tell_apart() -> None:
    assert difference(np.array([2**60]), np.array([2**60 + 1])).error > 0


def test_narrow_floats_are_compared_as_numbers() -> None:
    left, right = (np.array([1, number], ml_dtypes.bfloat16) for number in (2, 2.5))
    assert difference(left, right).error == pytest.approx(0.2)


# -- contenders that are made up -------------------------------------------------------------------------------------


@dataclass
class Chain:
    """Six layers a to f, each twice the one before; `faults` add to one, by what else is asked for in the same run."""

    name: str = "made up"
    faults: Mapping[str, Callable[[Sequence[str]], float]] = field(default_factory=dict)
    hides: tuple[str, ...] = ()
    asked: list[list[str]] = field(default_factory=list)

    def outputs(self) -> dict[str, Any]:
        return {"f": self._compute([])["f"]}

    def values(self, names: Sequence[str]) -> dict[str, Content]:
        self.asked.append(list(names))
        found = self._compute(names)
        return {name: Unavailable("hidden") if name in self.hides else found[name] for name in names}

    def alone(self, names: Sequence[str], known: Known) -> dict[str, Content]:
        read = {"a": "x", **dict(zip(NAMES[1:], NAMES))}
        return {
            name: 2 * known.given[read[name]] + np.float32(self._fault(name, [name])) * (np.arange(6) == 2)
            for name in names
        }

    def _fault(self, name: str, asked: Sequence[str]) -> float:
        return self.faults[name](asked) if name in self.faults else 0.0

    def _compute(self, asked: Sequence[str]) -> dict[str, Array]:
        content, found = X, {}
        for name in NAMES:
            content = 2 * content
            content[1, 2] += np.float32(self._fault(name, asked))
            found[name] = content
        return found


CHAIN = tuple(
    ModelLayer(name, f"node {name}", "Mul", () if number == 0 else (NAMES[number - 1],), number + 1, 100)
    for number, name in enumerate(NAMES)
)


def compared(other: Chain, base: Chain | None = None, **method: Any) -> ModelComparison:
    return compare_layers(CHAIN, {"x": X}, base or Chain("base"), [other], Method(**method))


def test_contenders_that_agree() -> None:
    (findings,) = compared(Chain()).findings
    assert findings.agrees
    assert (findings.first, findings.wrong, findings.steepest, findings.hidden) == (None, (), None, None)


def test_the_layer_that_is_wrong_is_the_first_to_depart_and_wrong_on_its_own() -> None:
    (findings,) = compared(Chain(faults={"c": lambda _: 1.0})).findings
    assert not findings.agrees
    assert (findings.first, findings.wrong, findings.steepest) == (2, (2,), 2)
    assert findings.deviations[3].departs
    assert not findings.deviations[3].is_wrong
    worst = findings.deviations[2].difference
    assert worst is not None
    assert worst.worst is not None
    assert worst.worst.index == (1, 2)


def test_an_error_below_the_tolerance_is_none_and_tolerances_can_be_asked_for() -> None:
    small = Chain(faults={"c": lambda _: 1e-5})
    assert compared(small).findings[0].first is None
    assert compared(small, tolerance=1e-7).findings[0].first == 2


@pytest.mark.parametrize("batch_bytes", [1, 250, 10_000])
def test_layers_are_asked_for_in_batches(batch_bytes: int) -> None:
    other = Chain(faults={"d": lambda _: 1.0})
    (findings,) = compared(other, batch_bytes=batch_bytes).findings
    assert (findings.first, findings.wrong) == (3, (3,))
    assert [name for asked in other.asked for name in asked] == list(NAMES)
    assert max(map(len, other.asked)) == min(max(batch_bytes // 100, 1), 6)


def test_values_that_are_not_available_are_listed_and_do_not_hide_what_follows() -> None:
    (findings,) = compared(Chain(faults={"c": lambda _: 1.0}, hides=("c",)), alone=False).findings
    assert findings.deviations[2].difference is None
    assert findings.deviations[2].reason == "hidden"
    assert findings.first == 3


def test_what_only_the_unchanged_model_shows_is_found_one_layer_at_a_time() -> None:
    """The fault in c goes away when more than one inner value is asked for."""
    (findings,) = compared(Chain(faults={"c": lambda asked: float(len(set(asked) - {"f"}) <= 1)})).findings
    assert findings.first is None
    assert not findings.agrees
    assert findings.hidden is not None
    assert (findings.hidden.first, findings.hidden.cure) == (2, None)


def test_what_departs_anyway_does_not_hide_it() -> None:
    """b is always off, but not for long; the fault in d shows in the output of the unchanged model alone."""
    faults = {"b": lambda _: 1.0, "c": lambda _: -2.0, "d": lambda asked: float("d" not in asked)}
    (findings,) = compared(Chain(faults=faults)).findings
    assert (findings.first, findings.wrong) == (1, (1, 2))
    assert findings.hidden is not None
    assert findings.hidden.cure == 3


def test_a_value_that_cures_the_model_when_it_is_asked_for_is_named() -> None:
    """A kernel that computes d as a part of something larger is wrong; when d is asked for, there is another."""
    (findings,) = compared(Chain(faults={"d": lambda asked: float("d" not in asked)})).findings
    assert findings.first is None
    assert findings.hidden is not None
    assert (findings.hidden.first, findings.hidden.cure) == (None, 3)


def test_what_fails_for_some_is_given_for_the_others() -> None:
    def give(names: Sequence[str]) -> dict[str, Any]:
        if "c" in names:
            raise weft.ExecutionError("not c")
        return dict.fromkeys(names, 1)

    found = all_possible(NAMES, give)
    assert {name for name, content in found.items() if content == 1} == set(NAMES) - {"c"}
    assert found["c"] == Unavailable("not c")


# -- models ----------------------------------------------------------------------------------------------------------


def test_layers_know_what_shapes_alone_decide() -> None:
    built = model(
        [
            node("Shape", ["x"], ["shape"]),
            node("Neg", ["x"], ["negative"]),
            node("Reshape", ["negative", "shape"], ["y"]),
        ],
        [value("x", ["n", 6])],
    )
    found = layers(weft.load(built, device="reference").source.graph, {"x": X})
    assert [(layer.value, layer.depth, layer.is_fixed) for layer in found] == [
        ("shape", 0, True), ("negative", 1, False), ("y", 2, False)
    ]  # fmt: skip
    assert found[1].bytes == X.nbytes
    assert [len(batch) for batch in batches(found, X.nbytes)] == [1, 1, 1]


def test_values_that_nothing_reads_are_no_layers() -> None:
    built = model(
        [node("Dropout", ["x"], ["kept", "mask"]), node("Neg", ["kept"], ["y"])],
        [value("x", [4, 6])],
        [value("y", None)],
    )
    found = layers(weft.load(built, device="reference").source.graph, {"x": X})
    assert [layer.value for layer in found] == ["kept", "y"]


def quantised() -> Any:
    return model(
        [
            node("QuantizeLinear", ["x", "scale", "zero"], ["codes"]),
            node("DequantizeLinear", ["codes", "scale", "zero"], ["y"]),
            node("ArgMax", ["y"], ["best"]),
        ],
        [value("x", [4, 6])],
        [value("y", [4, 6]), value("best", None, TensorProto.INT64)],
        [tensor("scale", np.float32(0.02)), tensor("zero", np.uint8(128))],
    )


def test_tolerances_follow_types_and_depth() -> None:
    built = quantised()
    graph = weft.load(built, device="reference").source.graph
    others = [OnDevice("cpu", built, "cpu", {"x": X})]
    (findings,) = compare_layers(layers(graph, {"x": X}), {"x": X}, InFloat64(graph, {"x": X}), others).findings
    codes, real, best = findings.deviations
    assert codes.difference is not None
    assert codes.allowed == pytest.approx(1 / codes.difference.scale)  # one step
    assert real.allowed == pytest.approx(CODE * 2**0.5)
    assert best.allowed == 0
    assert findings.agrees


def test_float16_is_allowed_more_than_float32() -> None:
    built = model(
        [node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16), node("Cast", ["half"], ["y"], to=TensorProto.FLOAT)],
        [value("x", [4, 6])],
        [value("y", [4, 6])],
    )
    graph = weft.load(built, device="reference").source.graph
    others = [OnDevice("cpu", built, "cpu", {"x": X})]
    (findings,) = compare_layers(layers(graph, {"x": X}), {"x": X}, InFloat64(graph, {"x": X}), others).findings
    tolerance = TOLERANCES[DType.float16]
    assert [deviation.allowed for deviation in findings.deviations] == pytest.approx([tolerance, tolerance * 2**0.5])
    assert 1e-5 < findings.deviations[1].error < 1e-3  # float64 has not rounded, the device has


def test_a_kernel_that_is_wrong_only_where_nodes_are_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values of one node are off by a hundredth, unless someone asks for them."""

    def spoil(program: TensorProgram, _: Evaluator) -> TensorProgram:
        def spoiled(step: Step) -> Step:
            if step.origin != "culprit" or step.results[0] in program.outputs or not isinstance(step.primitive, Map):
                return step
            factor = Literal(1.01, DType.float32)
            return replace(step, primitive=Map(Apply("multiply", (step.primitive.expression, factor), DType.float32)))

        return replace(program, steps=tuple(map(spoiled, program.steps)))

    monkeypatch.setattr("weft.passes.PIPELINE", (spoil, *PIPELINE))
    names = ["x", "one", "two", "three", "four", "five"]
    built = model(
        [
            node(kind, [source], [result], "culprit" if result == "three" else result)
            for kind, source, result in zip(("Tanh", "Sin", "Exp", "Cos", "Neg"), names, names[1:])
        ],
        [value("x", [4, 6])],
        [value("five", [4, 6])],
        doc_string="of this test alone, in a cache too",
    )
    inputs = {"x": X}
    graph = weft.load(built, device="reference").source.graph
    others = [OnDevice("cpu", built, "cpu", inputs)]
    (findings,) = compare_layers(layers(graph, inputs), inputs, InFloat64(graph, inputs), others).findings
    assert findings.first is None
    assert findings.wrong == ()
    assert not findings.agrees
    assert findings.hidden is not None
    assert findings.hidden.cure == names.index("three") - 1
