"""Compare contenders with a base, layer by layer.

The result has for every contender the error of every layer, the first layer beyond its tolerance, and the layer in
which the error grows most.

A value that is an output is not fused into a kernel, so the compared model is not quite the one that runs. Therefore
the outputs of the unchanged model are compared too. If they differ but no layer does, a bisection with one layer as
output at a time finds the first that differs, or one that makes the difference vanish.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from weft.ir.arrays import Array
from weft.ir.dtypes import DType, from_numpy
from weft.ir.narrowed_products import NarrowedProduct
from weft.quantities import format_plural
from weft.records import dataclass
from weft.report.contenders import Contender, Content, NodeInputs, OnDevice, Unavailable
from weft.report.deviation import Difference, difference
from weft.report.layers import ModelLayer, split_layers
from weft.tables import ShownAsTables, Table

Progress = Callable[[str, float], None]

BATCH_BYTES = 128 << 20  # of values that one run returns
ROUNDING = 2.0**-24  # smaller errors count as 0

TOLERANCES = {
    DType.float64: 1e-12,
    DType.complex128: 1e-12,
    DType.float32: 3e-5,  # reached by Winograd convolutions
    DType.complex64: 3e-5,
    DType.float16: 5e-3,
    DType.bfloat16: 4e-2,
    DType.float8e4m3fn: 0.13,
    DType.float8e4m3fnuz: 0.13,
    DType.float8e5m2: 0.26,
    DType.float8e5m2fnuz: 0.26,
    DType.float8e8m0: 0.51,
    DType.float6e2m3: 0.13,
    DType.float6e3m2: 0.26,
    DType.float4e2m1: 0.51,
}
"""By type, for one layer, relative to the largest magnitude of a value; multiplied by the square root of the depth."""
ALONE = 3
"""Factor of the tolerance of isolated nodes: long sums have larger errors than most layers."""
CODE = 1 / 127
"""The tolerance after integers of up to 8 bits: one step of quantisation."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """The difference of a layer on one contender from the base, and the tolerance."""

    difference: Difference | None  # None: one side does not have it, see `reason`
    allowed: float
    jump: float  # ratio to the error of its sources
    own: Difference | None = None  # of the isolated node, from the base's values; None if that was not run
    own_allowed: float = math.inf
    reason: str = ""
    own_reason: str = ""  # why it cannot be isolated

    @property
    def error(self) -> float:
        return 0.0 if self.difference is None else self.difference.error

    @property
    def departs(self) -> bool:
        """Whether the difference exceeds the tolerance."""
        return self.error > self.allowed

    @property
    def is_wrong(self) -> bool:
        """Whether the isolated node exceeds the tolerance."""
        return self.own is not None and self.own.error > self.own_allowed


@dataclass(frozen=True, slots=True)
class Hidden:
    """A fault of the unchanged model only.

    first: the first layer that differs when it is the only added output.
    cure: a layer that makes the outputs right when it is an output, since it is then not fused.
    """

    first: int | None
    cure: int | None


@dataclass(frozen=True, slots=True)
class Findings:
    """One contender compared with the base; layers are given by number."""

    contender: str
    deviations: tuple[Deviation, ...]
    outputs: Mapping[str, Deviation]  # of the unchanged model
    hidden: Hidden | None = None

    @property
    def first(self) -> int | None:
        """The first layer that exceeds its tolerance."""
        return next((number for number, deviation in enumerate(self.deviations) if deviation.departs), None)

    @property
    def wrong(self) -> tuple[int, ...]:
        """The isolated layers that exceed their tolerance, from equal inputs."""
        return tuple(number for number, deviation in enumerate(self.deviations) if deviation.is_wrong)

    @property
    def steepest(self) -> int | None:
        """The layer with the largest jump among those that exceed their tolerance."""
        departing = (number for number, deviation in enumerate(self.deviations) if deviation.departs)
        return max(departing, key=lambda number: self.deviations[number].jump, default=None)

    @property
    def agrees(self) -> bool:
        return self.first is None and not any(deviation.departs for deviation in self.outputs.values())


@dataclass(frozen=True, slots=True)
class ModelComparison(ShownAsTables):
    """A model on several devices: what `weft.compare` returns.

    base: what the others are compared with.
    layers: the values that were compared, in the order of the graph.
    findings: for each of the others the deviation of every layer, and which differs first.
    tolerance: of all layers of floats; None: by type and depth.
    narrowed: the products of each device that round their operands.
    """

    base: str
    layers: tuple[ModelLayer, ...]
    findings: tuple[Findings, ...]
    tolerance: float | None
    narrowed: Mapping[str, tuple[NarrowedProduct, ...]] = field(default_factory=dict, hash=False)

    @property
    def agrees(self) -> bool:
        """Whether all values are within their tolerance on every device."""
        return all(findings.agrees for findings in self.findings)

    def __repr__(self) -> str:
        results = ", ".join(
            f"{findings.contender} {'agrees' if findings.agrees else 'differs'}" for findings in self.findings
        )
        return f"<weft.ModelComparison of {format_plural(len(self.layers), 'layer')} with {self.base}: {results}>"

    def _tables(self) -> Iterator[Table]:
        rows = []
        for findings in self.findings:
            first = None if findings.first is None else self.layers[findings.first]
            error = max((deviation.error for deviation in findings.outputs.values()), default=0.0)
            rows.append(
                (
                    findings.contender,
                    "yes" if findings.agrees else "no",
                    "" if first is None else f"{first.value} ({first.op} {first.node})",
                    len(findings.wrong),
                    f"{error:.2g}",
                )
            )
        columns = ("device", "agrees", "first that differs", "wrong alone", "error of outputs")
        yield Table(rows, columns, title=f"{format_plural(len(self.layers), 'layer')}, compared with {self.base}")


@dataclass(frozen=True, slots=True)
class Method:
    """How to compare.

    tolerance: None for the default. alone: whether to run isolated nodes, too. batch_bytes: of the values of one run.
    products: the type that operands of products may be rounded to.
    """

    tolerance: float | None = None
    alone: bool = True
    batch_bytes: int = BATCH_BYTES
    products: DType | None = None

    @property
    def products_tolerance(self) -> float:
        return 0.0 if self.products is None else TOLERANCES[self.products]


def compare_layers(
    layers: Sequence[ModelLayer],
    inputs: Mapping[str, Any],
    base: Contender,
    others: Sequence[Contender],
    method: Method = Method(),  # noqa: B008 - frozen
    progress: Progress = lambda *_: None,
) -> ModelComparison:
    """Compare all layers of the others with those of the base."""
    progress("the unchanged model", 0.0)
    expected = base.outputs()
    other_outputs = [other.outputs() for other in others]
    rulers = [_Ruler(method.tolerance, method.products_tolerance) for _ in others]
    fixed = frozenset(layer.value for layer in layers if layer.is_fixed)
    done = 0
    for part in split_layers(layers, method.batch_bytes):
        progress(f"layer {done} of {len(layers)}", done / len(layers))
        _compare_batch(Batch(part, fixed), inputs, base, list(zip(others, rulers)), method.alone)
        done += len(part)
    findings = []
    for other, ruler, actual in zip(others, rulers, other_outputs):
        outputs = {name: ruler.output(name, expected[name], actual[name]) for name in expected if name in actual}
        result = Findings(other.name, tuple(ruler.deviations.values()), outputs)
        surprises = {name: expected[name] for name in ruler.surprises(outputs)}
        if surprises:
            progress("a fault of the unchanged model only", 1.0)
            result = replace(result, hidden=_find_hidden_fault(layers, base, other, result, surprises))
        findings.append(result)
    narrowed = {other.name: other.narrowed for other in others if isinstance(other, OnDevice)}
    return ModelComparison(base.name, tuple(layers), tuple(findings), method.tolerance, narrowed)


@dataclass(frozen=True, slots=True)
class Batch:
    """Layers of one run, and the names of all layers that are known before a run."""

    layers: tuple[ModelLayer, ...]
    fixed: frozenset[str]

    @property
    def names(self) -> list[str]:
        return [layer.value for layer in self.layers]

    @property
    def read(self) -> list[str]:
        """The earlier values that the layers read."""
        return sorted({source for layer in self.layers for source in layer.sources}.difference(self.names))


def _compare_batch(
    batch: Batch,
    inputs: Mapping[str, Any],
    base: Contender,
    others: Sequence[tuple[Contender, _Ruler]],
    isolate: bool,
) -> None:
    expected = base.values([*batch.names, *batch.read] if isolate else batch.names)
    for other, ruler in others:
        actual = other.values(batch.names)
        for layer in batch.layers:
            ruler.measure(layer, expected[layer.value], actual[layer.value])
    if not isolate:
        return
    isolated = _IsolatedBatch(batch, inputs, expected, ChainMap(*(ruler.dtypes for _, ruler in others)))
    exact = base.run_isolated(isolated.names, isolated.inputs) if isolated.is_rounded else expected
    for other, ruler in others:
        actual = other.run_isolated(isolated.names, isolated.inputs)
        for name in isolated.names:
            ruler.measure_alone(name, exact[name], actual[name])


class _IsolatedBatch:
    """The layers of a batch that can be isolated, and their inputs: the base's values in the types of the model."""

    def __init__(
        self, batch: Batch, inputs: Mapping[str, Any], expected: Mapping[str, Content], dtypes: Mapping[str, Any]
    ) -> None:
        self.is_rounded = False  # whether the base computed its results from other numbers
        fixed: dict[str, Array] = {}
        values: dict[str, Array] = {
            name: content for name, content in inputs.items() if isinstance(content, np.ndarray)
        }
        for name, content in expected.items():
            if isinstance(content, np.ndarray):
                dtype = dtypes.get(name, content.dtype)
                self.is_rounded |= dtype != content.dtype
                (fixed if name in batch.fixed else values)[name] = content.astype(dtype, copy=False)
        self.inputs = NodeInputs(values, fixed)
        available = {*values, *fixed}
        self.names = [layer.value for layer in batch.layers if available.issuperset(layer.sources)]


def _find_hidden_fault(
    layers: Sequence[ModelLayer], base: Contender, other: Contender, findings: Findings, surprises: Mapping[str, Any]
) -> Hidden:
    """Bisect with one layer as added output at a time, which leaves all other kernels unchanged.

    `surprises` are the base's values of the outputs that differ although their layers do not.
    """
    low, high = 0, len(layers)
    while low < high:
        middle = (low + high) // 2
        name = layers[middle].value
        actual = other.values(list(dict.fromkeys([name, *findings.outputs])))
        expected = base.values([name])[name]
        if isinstance(actual[name], Unavailable) or isinstance(expected, Unavailable):
            low = middle + 1
            continue
        deviation = findings.deviations[middle]
        if not deviation.departs and difference(expected, actual[name]).error > deviation.allowed:
            high = middle
            continue
        if all(difference(surprises[name], actual[name]).error <= findings.outputs[name].allowed for name in surprises):
            return Hidden(None, middle)
        low = middle + 1
    return Hidden(low if low < len(layers) else None, None)


class _Ruler:
    """Measures the layers of one contender in order, and keeps their deviations."""

    def __init__(self, tolerance: float | None, products: float) -> None:
        self._tolerance = tolerance
        self._products = products  # tolerance of float32 values whose products round their operands
        self._errors: dict[str, float] = {}  # of unavailable values: the inherited error
        self._coarseness: dict[str, float] = {}  # tolerance of the coarsest type on the path to a value
        self._quantised: set[str] = set()  # integers that represent real numbers
        self.deviations: dict[str, Deviation] = {}
        self.dtypes: dict[str, np.dtype[Any]] = {}

    def measure(self, layer: ModelLayer, expected: Content, actual: Content) -> None:
        """Measure a layer, after its sources."""
        inherited = max((self._errors.get(source, 0.0) for source in layer.sources), default=0.0)
        missing = next((content for content in (expected, actual) if isinstance(content, Unavailable)), None)
        if missing is not None:
            self._coarseness[layer.value] = self._inherited_coarseness(layer)
            self._errors[layer.value] = inherited
            self.deviations[layer.value] = Deviation(None, math.inf, 1.0, reason=missing.reason)
            return
        if isinstance(actual, np.ndarray):
            self.dtypes[layer.value] = actual.dtype
        distance = difference(expected, actual)
        self._errors[layer.value] = distance.error
        jump = distance.error / max(inherited, ROUNDING) if math.isfinite(distance.error) else math.inf
        self.deviations[layer.value] = Deviation(distance, self._allowed(layer, actual, distance), jump)

    def measure_alone(self, name: str, expected: Content, actual: Content) -> None:
        """Measure the isolated node of a layer."""
        missing = next((content for content in (expected, actual) if isinstance(content, Unavailable)), None)
        if missing is not None:
            self.deviations[name] = replace(self.deviations[name], own_reason=missing.reason)
            return
        distance = difference(expected, actual)
        dtype = from_numpy(actual.dtype) if isinstance(actual, np.ndarray) else DType.string
        default = ALONE * self._type_tolerance(dtype)
        allowed = default if self._tolerance is None or dtype not in TOLERANCES else self._tolerance
        if dtype.is_integer and dtype.bits <= 8 and self._coarseness[name] and distance.scale:
            allowed = 1 / distance.scale
        self.deviations[name] = replace(self.deviations[name], own=distance, own_allowed=allowed)

    def output(self, name: str, expected: Any, actual: Any) -> Deviation:
        """Measure an output of the unchanged model, with the tolerance of its layer."""
        layer = self.deviations.get(name)
        if layer is not None and layer.difference is not None:
            return Deviation(difference(expected, actual), layer.allowed, 1.0)
        most = max((one.allowed for one in self.deviations.values() if one.difference is not None), default=0.0)
        return Deviation(difference(expected, actual), most, 1.0)

    def surprises(self, outputs: Mapping[str, Deviation]) -> list[str]:
        """Return the outputs that differ in the unchanged model, but not with all layers as outputs."""
        departing = [name for name, deviation in outputs.items() if deviation.departs]
        if any(name not in self.deviations for name in departing):  # an output with another name than its value
            return departing if not any(deviation.departs for deviation in self.deviations.values()) else []
        return [name for name in departing if not self.deviations[name].departs]

    def _type_tolerance(self, dtype: DType) -> float:
        return max(TOLERANCES.get(dtype, 0.0), self._products if dtype is DType.float32 else 0.0)

    def _inherited_coarseness(self, layer: ModelLayer) -> float:
        return max((self._coarseness.get(source, 0.0) for source in layer.sources), default=0.0)

    def _allowed(self, layer: ModelLayer, actual: Content, distance: Difference) -> float:
        dtype = from_numpy(actual.dtype) if isinstance(actual, np.ndarray) else DType.string
        coarsest = self._inherited_coarseness(layer)
        is_code = dtype.is_integer and dtype.bits <= 8 and layer.depth > 0
        self._coarseness[layer.value] = max(self._type_tolerance(dtype), coarsest, CODE if is_code else 0.0)
        growth = math.sqrt(max(layer.depth, 1))
        if dtype in (DType.bool, DType.string):
            return 0.0
        if dtype.is_integer:
            is_sum = bool(self._quantised.intersection(layer.sources))  # of codes with an error of up to one step
            if is_code or is_sum:
                self._quantised.add(layer.value)
            step = 1 / distance.scale if is_code and distance.scale else 0.0
            return max(step, coarsest * growth if is_sum else 0.0)
        return self._coarseness[layer.value] * growth if self._tolerance is None else self._tolerance
