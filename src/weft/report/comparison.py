"""Layer by layer, where do contenders depart from a base, and how does their error grow?

In: the layers of a model and contenders that compute them. Out: a `Comparison`, which holds for every contender the
error of every layer, the first beyond its tolerance, and where the error grows most in one layer.

Asking for a value keeps it out of fused kernels, so that what is compared is not quite what runs. Therefore the
outputs of the unchanged model are compared too; where they depart and no layer does, fewer values are asked for at a
time, until the first that departs is found, or one that makes the departure vanish when it is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.ir.dtypes import DType, from_numpy
from weft.report.contenders import Contender, Content, Unavailable
from weft.report.deviation import Difference, difference
from weft.report.layers import Layer, batches

BATCH_BYTES = 256 << 20  # of values that one run gives
ROUNDING = 2.0**-24  # errors below this are none

TOLERANCES = {
    DType.float64: 1e-12,
    DType.complex128: 1e-12,
    DType.float32: 1e-5,
    DType.complex64: 1e-5,
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
CODE = 1 / 127
"""The tolerance after integers of up to 8 bits: one step of quantisation."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """A layer on one contender: how far it is from the base's, and what would be in order."""

    difference: Difference | None  # None: one of the two does not have it, for the reason that is given
    allowed: float
    jump: float  # how many times the error of what the layer reads
    reason: str = ""

    @property
    def error(self) -> float:
        return 0.0 if self.difference is None else self.difference.error

    @property
    def departs(self) -> bool:
        return self.error > self.allowed


@dataclass(frozen=True, slots=True)
class Findings:
    """One contender against the base; layers are meant by their number."""

    contender: str
    deviations: tuple[Deviation, ...]
    outputs: Mapping[str, Deviation]  # of the unchanged model
    first: int | None  # the first layer that departs
    steepest: int | None  # the layer whose error is largest in relation to that of what it reads

    @property
    def agrees(self) -> bool:
        return self.first is None and not any(deviation.departs for deviation in self.outputs.values())


@dataclass(frozen=True, slots=True)
class Comparison:
    base: str
    layers: tuple[Layer, ...]
    findings: tuple[Findings, ...]
    tolerance: float | None  # of all layers, where one was asked for


def compare(
    all_layers: Sequence[Layer],
    base: Contender,
    others: Sequence[Contender],
    tolerance: float | None = None,
    tell: Callable[[str, float], None] = lambda stage, fraction: None,
) -> Comparison:
    """All layers of the others against the base's."""
    rulers = [_Ruler(tolerance) for _ in others]
    deviations: list[list[Deviation]] = [[] for _ in others]
    done = 0
    for batch in batches(all_layers, BATCH_BYTES):
        names = [layer.value for layer in batch]
        tell(base.name, done / len(all_layers))
        expected = base.values(names)
        for other, ruler, list_of in zip(others, rulers, deviations):
            tell(other.name, done / len(all_layers))
            found = other.values(names)
            list_of += [ruler.measure(layer, expected[layer.value], found[layer.value]) for layer in batch]
        done += len(batch)
    tell("the whole model", 1.0)
    wanted = base.outputs()
    return Comparison(
        base.name,
        tuple(all_layers),
        tuple(
            _findings(other, part, ruler, wanted, all_layers)
            for other, part, ruler in zip(others, deviations, rulers)
        ),
        tolerance,
    )


def _findings(
    other: Contender, deviations: Sequence[Deviation], ruler: _Ruler, wanted: Mapping[str, Any], layers: Sequence[Layer]
) -> Findings:
    found = other.outputs()
    outputs = {name: ruler.output(name, wanted[name], found[name]) for name in wanted if name in found}
    first = next((number for number, deviation in enumerate(deviations) if deviation.departs), None)
    return Findings(other.name, tuple(deviations), outputs, first, _steepest(deviations))


def _steepest(deviations: Sequence[Deviation]) -> int | None:
    """The layer of the largest jump, among those whose error is more than a few roundings."""
    visible = [number for number, deviation in enumerate(deviations) if deviation.error > deviation.allowed / 10]
    return max(visible, key=lambda number: deviations[number].jump, default=None)


class _Ruler:
    """Measures the layers of one contender in their order, and remembers what they were."""

    def __init__(self, tolerance: float | None) -> None:
        self._tolerance = tolerance
        self._errors: dict[str, float] = {}
        self._coarseness: dict[str, float] = {}  # of the coarsest type on the way to a value
        self._deviations: dict[str, Deviation] = {}

    def measure(self, layer: Layer, expected: Content, found: Content) -> Deviation:
        """A layer, after those that it reads."""
        for content in (expected, found):
            if isinstance(content, Unavailable):
                inherited = max((self._errors.get(source, 0.0) for source in layer.sources), default=0.0)
                self._errors[layer.value] = inherited
                return Deviation(None, math.inf, 1.0, content.reason)
        distance = difference(expected, found)
        inherited = max((self._errors.get(source, 0.0) for source in layer.sources), default=0.0)
        self._errors[layer.value] = distance.error
        jump = distance.error / max(inherited, ROUNDING) if math.isfinite(distance.error) else math.inf
        deviation = Deviation(distance, self._allowed(layer, found, distance), jump)
        self._deviations[layer.value] = deviation
        return deviation

    def output(self, name: str, expected: Any, found: Any) -> Deviation:
        """An output of the unchanged model, with the tolerance of the layer of that name."""
        distance = difference(expected, found)
        known = self._deviations.get(name)
        allowed = known.allowed if known is not None else max([0.0, *(d.allowed for d in self._deviations.values())])
        return Deviation(distance, allowed, 1.0)

    def _allowed(self, layer: Layer, found: Content, distance: Difference) -> float:
        dtype = from_numpy(found.dtype) if isinstance(found, np.ndarray) else None
        coarsest = max((self._coarseness.get(source, 0.0) for source in layer.sources), default=0.0)
        own = 0.0 if dtype is None else TOLERANCES.get(dtype, 0.0)
        is_code = dtype is not None and dtype.is_integer and dtype.bits <= 8 and coarsest > 0
        self._coarseness[layer.value] = max(own, coarsest, CODE if is_code else 0.0)
        if dtype is None or dtype in (DType.bool, DType.string):
            return 0.0
        if dtype.is_integer:
            step = 1 / distance.scale if is_code and distance.scale else 0.0
            counted = self._coarseness[layer.value] if coarsest >= CODE else 0.0
            return max(step, counted * math.sqrt(max(layer.depth, 1)))
        if self._tolerance is not None:
            return self._tolerance
        return self._coarseness[layer.value] * math.sqrt(max(layer.depth, 1))
