"""Comparisons of contenders with known faults."""

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
from weft.report.contenders import Content, InFloat64, NodeInputs, OnDevice, Unavailable, collect_available
from weft.report.deviation import difference
from weft.report.layers import ModelLayer, find_layers, split_layers

Array = np.ndarray[Any, Any]
X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
NAMES = tuple("abcdef")


# -- differences -----------------------------------------------------------------------------------------------------


def test_the_worst_element_is_named_on_both_sides() -> None:
    left = np.arange(12, dtype=np.float32).reshape(3, 4)
    right = left.copy()
    right[1, 2] += 0.5
    result = difference(left, right)
    assert result.error == pytest.approx(0.5 / 11)
    assert result.worst is not None
    assert (result.worst.index, result.worst.expected, result.worst.actual) == ((1, 2), 6.0, 6.5)


@pytest.mark.parametrize(
    ("left", "right", "note"),
    [
        (np.zeros(3), np.zeros(4), "shapes differ"),
        (np.array([1.0, np.nan]), np.array([1.0, 2.0]), "only one is finite"),
        (np.array([np.inf]), np.array([-np.inf]), "only one is finite"),
        (np.array(["a", "b"], object), np.array(["a", "c"], object), "texts differ"),
        ([np.zeros(1)], [], "lengths differ"),
        (None, [], "not equal"),
    ],
    ids=["shapes", "NaN", "infinity", "texts", "lengths", "kinds"],
)
def test_incomparable_values_differ_infinitely(left: Any, right: Any, note: str) -> None:
    result = difference(left, right)
    assert result.error == np.inf
    assert note in result.note


@pytest.mark.parametrize(
    "same",
    [np.array([np.nan, np.inf, 1]), np.zeros((0, 3)), np.array(["x"], object), [np.ones(2)], None, np.zeros(2)],
    ids=["not finite", "empty", "texts", "sequence", "nothing", "zeros"],
)
def test_equal_values_have_no_error(same: Any) -> None:
    assert difference(same, same).error == 0


def test_integers_that_float64_cannot_tell_apart() -> None:
    assert difference(np.array([2**60]), np.array([2**60 + 1])).error > 0


def test_narrow_floats_are_compared_as_numbers() -> None:
    left, right = (np.array([1, number], ml_dtypes.bfloat16) for number in (2, 2.5))
    assert difference(left, right).error == pytest.approx(0.2)


# -- synthetic contenders --------------------------------------------------------------------------------------------


@dataclass
class Chain:
    """Six layers a to f, each twice the one before; `faults` add to one, depending on the outputs of the run."""

    name: str = "synthetic"
    faults: Mapping[str, Callable[[Sequence[str]], float]] = field(default_factory=dict)
    hides: tuple[str, ...] = ()
    requests: list[list[str]] = field(default_factory=list)

    def outputs(self) -> dict[str, Any]:
        return {"f": self._compute([])["f"]}

    def values(self, names: Sequence[str]) -> dict[str, Content]:
        self.requests.append(list(names))
        values = self._compute(names)
        return {name: Unavailable("hidden") if name in self.hides else values[name] for name in names}

    def run_isolated(self, names: Sequence[str], inputs: NodeInputs) -> dict[str, Content]:
        sources = {"a": "x", **dict(zip(NAMES[1:], NAMES))}
        return {
            name: 2 * inputs.values[sources[name]] + np.float32(self._fault(name, [name])) * (np.arange(6) == 2)
            for name in names
        }

    def _fault(self, name: str, outputs: Sequence[str]) -> float:
        return self.faults[name](outputs) if name in self.faults else 0.0

    def _compute(self, outputs: Sequence[str]) -> dict[str, Array]:
        content, values = X, {}
        for name in NAMES:
            content = 2 * content
            content[1, 2] += np.float32(self._fault(name, outputs))
            values[name] = content
        return values


CHAIN = tuple(
    ModelLayer(name, f"node {name}", "Mul", () if number == 0 else (NAMES[number - 1],), number + 1, 100)
    for number, name in enumerate(NAMES)
)


def compare_chains(other: Chain, base: Chain | None = None, **method: Any) -> ModelComparison:
    return compare_layers(CHAIN, {"x": X}, base or Chain("base"), [other], Method(**method))


def test_contenders_that_agree() -> None:
    (findings,) = compare_chains(Chain()).findings
    assert findings.agrees
    assert (findings.first, findings.wrong, findings.steepest, findings.hidden) == (None, (), None, None)


def test_a_faulty_layer_departs_first_and_is_wrong_in_isolation() -> None:
    (findings,) = compare_chains(Chain(faults={"c": lambda _: 1.0})).findings
    assert not findings.agrees
    assert (findings.first, findings.wrong, findings.steepest) == (2, (2,), 2)
    assert findings.deviations[3].departs
    assert not findings.deviations[3].is_wrong
    worst = findings.deviations[2].difference
    assert worst is not None
    assert worst.worst is not None
    assert worst.worst.index == (1, 2)


def test_errors_below_the_tolerance_are_ignored() -> None:
    small = Chain(faults={"c": lambda _: 1e-5})
    assert compare_chains(small).findings[0].first is None
    assert compare_chains(small, tolerance=1e-7).findings[0].first == 2


@pytest.mark.parametrize("batch_bytes", [1, 250, 10_000])
def test_layers_run_in_batches(batch_bytes: int) -> None:
    other = Chain(faults={"d": lambda _: 1.0})
    (findings,) = compare_chains(other, batch_bytes=batch_bytes).findings
    assert (findings.first, findings.wrong) == (3, (3,))
    assert [name for request in other.requests for name in request] == list(NAMES)
    assert max(map(len, other.requests)) == min(max(batch_bytes // 100, 1), 6)


def test_unavailable_values_do_not_hide_later_faults() -> None:
    (findings,) = compare_chains(Chain(faults={"c": lambda _: 1.0}, hides=("c",)), alone=False).findings
    assert findings.deviations[2].difference is None
    assert findings.deviations[2].reason == "hidden"
    assert findings.first == 3


def test_faults_of_the_unchanged_model_only() -> None:
    """The fault in c vanishes if more than one inner value is an output."""
    (findings,) = compare_chains(Chain(faults={"c": lambda outputs: float(len(set(outputs) - {"f"}) <= 1)})).findings
    assert findings.first is None
    assert not findings.agrees
    assert findings.hidden is not None
    assert (findings.hidden.first, findings.hidden.cure) == (2, None)


def test_other_faults_do_not_hide_it() -> None:
    """c undoes the fault in b; the fault in d shows only in the output of the unchanged model."""
    faults = {"b": lambda _: 1.0, "c": lambda _: -2.0, "d": lambda outputs: float("d" not in outputs)}
    (findings,) = compare_chains(Chain(faults=faults)).findings
    assert (findings.first, findings.wrong) == (1, (1, 2))
    assert findings.hidden is not None
    assert findings.hidden.cure == 3


def test_a_layer_that_cures_the_model_as_output_is_named() -> None:
    """A fused kernel that computes d is wrong; with d as output, another kernel computes it."""
    (findings,) = compare_chains(Chain(faults={"d": lambda outputs: float("d" not in outputs)})).findings
    assert findings.first is None
    assert findings.hidden is not None
    assert (findings.hidden.first, findings.hidden.cure) == (None, 3)


def test_available_values_are_collected_despite_failures() -> None:
    def compute(names: Sequence[str]) -> dict[str, Any]:
        if "c" in names:
            raise weft.ExecutionError("not c")
        return dict.fromkeys(names, 1)

    values = collect_available(NAMES, compute)
    assert {name for name, content in values.items() if content == 1} == set(NAMES) - {"c"}
    assert values["c"] == Unavailable("not c")


# -- models ----------------------------------------------------------------------------------------------------------


def test_layers_that_depend_on_shapes_only_are_fixed() -> None:
    built = model(
        [
            node("Shape", ["x"], ["shape"]),
            node("Neg", ["x"], ["negative"]),
            node("Reshape", ["negative", "shape"], ["y"]),
        ],
        [value("x", ["n", 6])],
    )
    layers = find_layers(weft.load(built, device="reference").source.graph, {"x": X})
    assert [(layer.value, layer.depth, layer.is_fixed) for layer in layers] == [
        ("shape", 0, True), ("negative", 1, False), ("y", 2, False)
    ]  # fmt: skip
    assert layers[1].bytes == X.nbytes
    assert [len(batch) for batch in split_layers(layers, X.nbytes)] == [1, 1, 1]


def test_unread_values_are_no_layers() -> None:
    built = model(
        [node("Dropout", ["x"], ["output", "mask"]), node("Neg", ["output"], ["y"])],
        [value("x", [4, 6])],
        [value("y", None)],
    )
    layers = find_layers(weft.load(built, device="reference").source.graph, {"x": X})
    assert [layer.value for layer in layers] == ["output", "y"]


def quantised_model() -> Any:
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
    built = quantised_model()
    graph = weft.load(built, device="reference").source.graph
    others = [OnDevice("cpu", built, "cpu", {"x": X})]
    (findings,) = compare_layers(find_layers(graph, {"x": X}), {"x": X}, InFloat64(graph, {"x": X}), others).findings
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
    (findings,) = compare_layers(find_layers(graph, {"x": X}), {"x": X}, InFloat64(graph, {"x": X}), others).findings
    tolerance = TOLERANCES[DType.float16]
    assert [deviation.allowed for deviation in findings.deviations] == pytest.approx([tolerance, tolerance * 2**0.5])
    assert 1e-5 < findings.deviations[1].error < 1e-3  # only the device has rounded


def test_a_kernel_that_is_wrong_only_when_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of one node is off by a hundredth, unless it is an output."""

    def spoil(program: TensorProgram, _: Evaluator) -> TensorProgram:
        def spoil_step(step: Step) -> Step:
            if step.origin != "culprit" or step.results[0] in program.outputs or not isinstance(step.primitive, Map):
                return step
            factor = Literal(1.01, DType.float32)
            return replace(step, primitive=Map(Apply("multiply", (step.primitive.expression, factor), DType.float32)))

        return replace(program, steps=tuple(map(spoil_step, program.steps)))

    monkeypatch.setattr("weft.passes.PIPELINE", (spoil, *PIPELINE))
    names = ["x", "one", "two", "three", "four", "five"]
    built = model(
        [
            node(kind, [source], [result], "culprit" if result == "three" else result)
            for kind, source, result in zip(("Tanh", "Sin", "Exp", "Cos", "Neg"), names, names[1:])
        ],
        [value("x", [4, 6])],
        [value("five", [4, 6])],
        doc_string="unique to this test in the cache",
    )
    inputs = {"x": X}
    graph = weft.load(built, device="reference").source.graph
    others = [OnDevice("cpu", built, "cpu", inputs)]
    (findings,) = compare_layers(find_layers(graph, inputs), inputs, InFloat64(graph, inputs), others).findings
    assert findings.first is None
    assert findings.wrong == ()
    assert not findings.agrees
    assert findings.hidden is not None
    assert findings.hidden.cure == names.index("three") - 1
