"""Layer by layer, where do contenders depart from a base, and how does their error grow?

In: the layers of a model and contenders that compute them. Out: a `Comparison`, which holds for every contender the
error of every layer, the first beyond its tolerance, and where the error grows most in one layer.

Asking for a value keeps it out of fused kernels, so that what is compared is not quite what runs. Therefore the
outputs of the unchanged model are compared too; where they depart and no layer does, fewer values are asked for at a
time, until the first that departs is found, or one that makes the departure vanish when it is asked for.
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
from weft.report.contenders import Contender, Content, Known, OnDevice, Unavailable
from weft.report.deviation import Difference, difference
from weft.report.layers import ModelLayer, batches
from weft.tables import ShownAsTables, Table

Tell = Callable[[str, float], None]

BATCH_BYTES = 128 << 20  # of values that one run gives
ROUNDING = 2.0**-24  # errors below this are none

TOLERANCES = {
    DType.float64: 1e-12,
    DType.complex128: 1e-12,
    DType.float32: 3e-5,  # convolutions on transformed tiles (Winograd) are that far off
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
"""By type, for one layer, relative to the largest magnitude of a value; they grow with the root of the depth."""
ALONE = 3
"""How many times as much a node on its own may be off: long sums are further off than most layers."""
CODE = 1 / 127
"""The tolerance after integers of up to 8 bits: one step of quantisation."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """A layer on one contender: how far it is from the base's, and what would be in order."""

    difference: Difference | None  # None: one of the two does not have it, for the reason that is given
    allowed: float
    jump: float  # how many times the error of what the layer reads
    own: Difference | None = None  # of the node on its own, from the base's values; None where that was not run
    own_allowed: float = math.inf
    reason: str = ""
    own_reason: str = ""  # why it cannot be run on its own

    @property
    def error(self) -> float:
        return 0.0 if self.difference is None else self.difference.error

    @property
    def departs(self) -> bool:
        return self.error > self.allowed

    @property
    def is_wrong(self) -> bool:
        """Whether the node itself departs, whatever it inherits."""
        return self.own is not None and self.own.error > self.own_allowed


@dataclass(frozen=True, slots=True)
class Hidden:
    """What is wrong only in the unchanged model: the first layer that departs when it alone is asked for, and one
    that makes the outputs right when it is, since the kernel that it is fused into is then another.
    """

    first: int | None
    cure: int | None


@dataclass(frozen=True, slots=True)
class Findings:
    """One contender against the base; layers are meant by their number."""

    contender: str
    deviations: tuple[Deviation, ...]
    outputs: Mapping[str, Deviation]  # of the unchanged model
    hidden: Hidden | None = None

    @property
    def first(self) -> int | None:
        """The first layer that departs."""
        return next((number for number, deviation in enumerate(self.deviations) if deviation.departs), None)

    @property
    def wrong(self) -> tuple[int, ...]:
        """The layers that depart on their own, from equal inputs."""
        return tuple(number for number, deviation in enumerate(self.deviations) if deviation.is_wrong)

    @property
    def steepest(self) -> int | None:
        """The layer of the largest jump, among those that depart."""
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
    findings: for each of the others the deviation of every layer, and which departs first.
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
        """Whether no value departs on any device."""
        return all(findings.agrees for findings in self.findings)

    def __repr__(self) -> str:
        results = ", ".join(
            f"{findings.contender} {'agrees' if findings.agrees else 'departs'}" for findings in self.findings
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
        columns = ("device", "agrees", "first that departs", "wrong alone", "error of outputs")
        yield Table(rows, columns, title=f"{format_plural(len(self.layers), 'layer')}, compared with {self.base}")


@dataclass(frozen=True, slots=True)
class Method:
    """How to compare: the tolerance, if it is not the usual one; whether nodes are also run on their own; the bytes of
    values that one run may give; and the type that products may round their operands to, if they may.
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
    tell: Tell = lambda *_: None,
) -> ModelComparison:
    """All layers of the others against the base's, for inputs that all of them know."""
    tell("the model as it is", 0.0)
    wanted = base.outputs()
    plain = [other.outputs() for other in others]
    rulers = [_Ruler(method.tolerance, method.products_tolerance) for _ in others]
    fixed = frozenset(layer.value for layer in layers if layer.is_fixed)
    done = 0
    for part in batches(layers, method.batch_bytes):
        tell(f"layer {done} of {len(layers)}", done / len(layers))
        _compare_batch(Batch(part, fixed), inputs, base, list(zip(others, rulers)), method.alone)
        done += len(part)
    findings = []
    for other, ruler, found in zip(others, rulers, plain):
        outputs = {name: ruler.output(name, wanted[name], found[name]) for name in wanted if name in found}
        seen = Findings(other.name, tuple(ruler.deviations.values()), outputs)
        surprises = {name: wanted[name] for name in ruler.surprises(outputs)}
        if surprises:
            tell("what only the unchanged model shows", 1.0)
            seen = replace(seen, hidden=_search(layers, base, other, seen, surprises))
        findings.append(seen)
    narrowed = {other.name: other.narrowed for other in others if isinstance(other, OnDevice)}
    return ModelComparison(base.name, tuple(layers), tuple(findings), method.tolerance, narrowed)


@dataclass(frozen=True, slots=True)
class Batch:
    """Layers that one run gives, and the names of all that are known before a run."""

    layers: tuple[ModelLayer, ...]
    fixed: frozenset[str]

    @property
    def names(self) -> list[str]:
        return [layer.value for layer in self.layers]

    @property
    def read(self) -> list[str]:
        """What the layers read of earlier ones."""
        return sorted({source for layer in self.layers for source in layer.sources}.difference(self.names))


def _compare_batch(
    batch: Batch,
    inputs: Mapping[str, Any],
    base: Contender,
    others: Sequence[tuple[Contender, _Ruler]],
    with_alone: bool,
) -> None:
    expected = base.values([*batch.names, *batch.read] if with_alone else batch.names)
    for other, ruler in others:
        found = other.values(batch.names)
        for layer in batch.layers:
            ruler.measure(layer, expected[layer.value], found[layer.value])
    if not with_alone:
        return
    known = _Readable(batch, inputs, expected, ChainMap(*(ruler.dtypes for _, ruler in others)))
    exact = base.alone(known.names, known.values) if known.is_rounded else expected
    for other, ruler in others:
        found = other.alone(known.names, known.values)
        for name in known.names:
            ruler.measure_alone(name, exact[name], found[name])


class _Readable:
    """What the nodes of a batch read on their own: the base's values, in the types that the model gives them."""

    def __init__(
        self, batch: Batch, inputs: Mapping[str, Any], expected: Mapping[str, Content], dtypes: Mapping[str, Any]
    ) -> None:
        self.is_rounded = False  # whether the base has made its own results of other numbers than these
        fixed: dict[str, Array] = {}
        given: dict[str, Array] = {name: content for name, content in inputs.items() if isinstance(content, np.ndarray)}
        for name, content in expected.items():
            if isinstance(content, np.ndarray):
                dtype = dtypes.get(name, content.dtype)
                self.is_rounded |= dtype != content.dtype
                (fixed if name in batch.fixed else given)[name] = content.astype(dtype, copy=False)
        self.values = Known(given, fixed)
        readable = {*given, *fixed}
        self.names = [layer.value for layer in batch.layers if readable.issuperset(layer.sources)]


def _search(
    layers: Sequence[ModelLayer], base: Contender, other: Contender, seen: Findings, surprises: Mapping[str, Any]
) -> Hidden:
    """Ask for one layer at a time, which leaves all other kernels as they are, and halve what is left.

    `surprises` are the outputs, as the base has them, that depart although their layers do not.
    """
    low, high = 0, len(layers)
    while low < high:
        middle = (low + high) // 2
        name = layers[middle].value
        found = other.values(list(dict.fromkeys([name, *seen.outputs])))
        expected = base.values([name])[name]
        if isinstance(found[name], Unavailable) or isinstance(expected, Unavailable):
            low = middle + 1
            continue
        usual = seen.deviations[middle]
        if not usual.departs and difference(expected, found[name]).error > usual.allowed:
            high = middle
            continue
        if all(difference(surprises[one], found[one]).error <= seen.outputs[one].allowed for one in surprises):
            return Hidden(None, middle)
        low = middle + 1
    return Hidden(low if low < len(layers) else None, None)


class _Ruler:
    """Measures the layers of one contender in their order, and remembers what they were."""

    def __init__(self, tolerance: float | None, products: float) -> None:
        self._tolerance = tolerance
        self._products = products  # what rounding their operands may cost values of float32
        self._errors: dict[str, float] = {}  # of what is not available: the error that it inherits
        self._coarseness: dict[str, float] = {}  # of the coarsest type on the way to a value
        self._quantised: set[str] = set()  # integers that stand for real numbers
        self.deviations: dict[str, Deviation] = {}
        self.dtypes: dict[str, np.dtype[Any]] = {}

    def measure(self, layer: ModelLayer, expected: Content, found: Content) -> None:
        """A layer, after those that it reads."""
        inherited = max((self._errors.get(source, 0.0) for source in layer.sources), default=0.0)
        missing = next((content for content in (expected, found) if isinstance(content, Unavailable)), None)
        if missing is not None:
            self._coarseness[layer.value] = self._inherited_coarseness(layer)
            self._errors[layer.value] = inherited
            self.deviations[layer.value] = Deviation(None, math.inf, 1.0, reason=missing.reason)
            return
        if isinstance(found, np.ndarray):
            self.dtypes[layer.value] = found.dtype
        distance = difference(expected, found)
        self._errors[layer.value] = distance.error
        jump = distance.error / max(inherited, ROUNDING) if math.isfinite(distance.error) else math.inf
        self.deviations[layer.value] = Deviation(distance, self._allowed(layer, found, distance), jump)

    def measure_alone(self, name: str, expected: Content, found: Content) -> None:
        """The same node on its own."""
        missing = next((content for content in (expected, found) if isinstance(content, Unavailable)), None)
        if missing is not None:
            self.deviations[name] = replace(self.deviations[name], own_reason=missing.reason)
            return
        distance = difference(expected, found)
        dtype = from_numpy(found.dtype) if isinstance(found, np.ndarray) else DType.string
        usual = ALONE * self._usual(dtype)
        allowed = usual if self._tolerance is None or dtype not in TOLERANCES else self._tolerance
        if dtype.is_integer and dtype.bits <= 8 and self._coarseness[name] and distance.scale:
            allowed = 1 / distance.scale
        self.deviations[name] = replace(self.deviations[name], own=distance, own_allowed=allowed)

    def output(self, name: str, expected: Any, found: Any) -> Deviation:
        """An output of the unchanged model, with the tolerance of the layer of that name."""
        known = self.deviations.get(name)
        if known is not None and known.difference is not None:
            return Deviation(difference(expected, found), known.allowed, 1.0)
        usual = max((one.allowed for one in self.deviations.values() if one.difference is not None), default=0.0)
        return Deviation(difference(expected, found), usual, 1.0)

    def surprises(self, outputs: Mapping[str, Deviation]) -> list[str]:
        """The outputs of the unchanged model that depart, although they do not where all layers are asked for."""
        departing = [name for name, deviation in outputs.items() if deviation.departs]
        if any(name not in self.deviations for name in departing):  # what stands for a value of another name
            return departing if not any(deviation.departs for deviation in self.deviations.values()) else []
        return [name for name in departing if not self.deviations[name].departs]

    def _usual(self, dtype: DType) -> float:
        return max(TOLERANCES.get(dtype, 0.0), self._products if dtype is DType.float32 else 0.0)

    def _inherited_coarseness(self, layer: ModelLayer) -> float:
        return max((self._coarseness.get(source, 0.0) for source in layer.sources), default=0.0)

    def _allowed(self, layer: ModelLayer, found: Content, distance: Difference) -> float:
        dtype = from_numpy(found.dtype) if isinstance(found, np.ndarray) else DType.string
        coarsest = self._inherited_coarseness(layer)
        is_code = dtype.is_integer and dtype.bits <= 8 and layer.depth > 0
        self._coarseness[layer.value] = max(self._usual(dtype), coarsest, CODE if is_code else 0.0)
        growth = math.sqrt(max(layer.depth, 1))
        if dtype in (DType.bool, DType.string):
            return 0.0
        if dtype.is_integer:
            is_sum = bool(self._quantised.intersection(layer.sources))  # of codes that may be off by a step
            if is_code or is_sum:
                self._quantised.add(layer.value)
            step = 1 / distance.scale if is_code and distance.scale else 0.0
            return max(step, coarsest * growth if is_sum else 0.0)
        return self._coarseness[layer.value] * growth if self._tolerance is None else self._tolerance
