"""Arithmetic that changes nothing, or that one node does for two: factors of 1, limits of what is limited already."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from weft.ir.dtypes import from_numpy
from weft.ir.graph import Graph, Node
from weft.ir.rounding import round_product
from weft.optimization.facts import ValueFacts
from weft.optimization.rewriting import Rewriting, Workshop

Array = np.ndarray[Any, Any]

NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1, "Pow": 1, "Or": 0, "And": 1, "Xor": 0}
ONE_SIDED = ("Sub", "Div", "Pow")
TWICE_AS_ONCE = ("Relu", "Abs", "Ceil", "Floor", "Round", "Sign")
TWICE_AS_NONE = ("Neg", "Not")
ARITHMETIC, REPEATED, CHAINED = "arithmetic that did nothing", "done by the node before", "constants put together"
INPUT_LIMITS = 11  # the first opset in which Clip has its limits as inputs
BROADCASTS = 7


def with_less_arithmetic(graph: Graph, facts: ValueFacts, work: Workshop) -> Graph:
    """The graph without arithmetic that does nothing."""
    rewriting = Rewriting(graph, facts, work)
    if work.version >= BROADCASTS:
        for node in rewriting.nodes(*NEUTRAL):
            _neutral(rewriting, node)
        if not work.options.exact:
            for node in rewriting.nodes("Mul"):
                _chained(rewriting, node)
    for node in rewriting.nodes(*TWICE_AS_ONCE):
        if rewriting.before(node.inputs[0], node.op) is not None:
            rewriting.alias(node.outputs[0], node.inputs[0], REPEATED)
    for node in rewriting.nodes(*TWICE_AS_NONE):
        first = rewriting.before(node.inputs[0], node.op)
        if first is not None:
            rewriting.alias(node.outputs[0], first.inputs[0], ARITHMETIC)
    for node in rewriting.nodes("Clip", "Relu"):
        _limited(rewriting, node)
    for node in rewriting.nodes("Where"):
        _chosen(rewriting, node)
    return rewriting.finish()


def _neutral(rewriting: Rewriting, node: Node) -> None:
    """x + 0 and the like, where the constant does not make the result larger or of another type."""
    for place in (1,) if node.op in ONE_SIDED else (1, 0):
        other = node.inputs[1 - place]
        number = rewriting.scalar(node.inputs[place])
        if number is None or bool(number != NEUTRAL[node.op]):
            continue
        if rewriting.work.options.exact and _changes_zeros(rewriting, node, place):
            continue
        before, after = rewriting.facts.type(other), rewriting.facts.type(node.outputs[0])
        if before is not None and before == after:
            rewriting.alias(node.outputs[0], other, ARITHMETIC)
            return


def _changes_zeros(rewriting: Rewriting, node: Node, place: int) -> bool:
    """Whether a sum with zeros makes 0.0 of -0.0."""
    zeros = rewriting.constant(node.inputs[place])
    if node.op not in ("Add", "Sub") or zeros is None or not from_numpy(zeros.dtype).is_float:
        return False
    negative = np.signbit(zeros.astype(np.float64))
    return not bool(negative.all()) if node.op == "Add" else bool(negative.any())


def _chained(rewriting: Rewriting, node: Node) -> None:
    """(x * a) * b as x * (a * b), where a and b are constants."""
    for place in (0, 1):
        second = rewriting.constant(node.inputs[1 - place])
        first = rewriting.only(node.inputs[place], node.op)
        if second is None or first is None or second.dtype == object or not from_numpy(second.dtype).is_float:
            continue
        for side in (0, 1):
            constant = rewriting.constant(first.inputs[side])
            if constant is None or constant.dtype != second.dtype:
                continue
            both = round_product(constant, second, second.dtype)
            if both is not None and both.nbytes <= max(constant.nbytes, second.nbytes):
                name = rewriting.add_constant(f"{node.outputs[0]}_constant", both)
                changed = replace(node, inputs=(first.inputs[1 - side], name))
                rewriting.put(node, changed, merged=[first], done=CHAINED)
                return


def _limited(rewriting: Rewriting, node: Node) -> None:
    """Limits one after the other: what is never negative needs no Relu, before or after."""
    if node.op == "Clip":
        first = rewriting.before(node.inputs[0], "Relu")
        if first is not None and _limit(rewriting, node, 1, -np.inf) >= 0:
            changed = replace(node, inputs=(first.inputs[0], *node.inputs[1:]))
            rewriting.put(node, changed, merged=[first], done=REPEATED)
        return
    before = rewriting.before(node.inputs[0], "Clip", "Sigmoid", "Softmax", "HardSigmoid", "Abs")
    if before is None:
        return
    if before.op == "Clip" and not (
        _limit(rewriting, before, 1, -np.inf) >= 0 and _limit(rewriting, before, 2, np.inf) >= 0
    ):
        return  # the upper limit wins where it is below the lower one
    dtype = rewriting.dtype(node.outputs[0])
    if before.op == "Abs" and (dtype is None or not dtype.is_float):
        return  # the least integer has no magnitude
    rewriting.alias(node.outputs[0], node.inputs[0], REPEATED)


def _limit(rewriting: Rewriting, node: Node, place: int, absent: float) -> float:
    """The lower (1) or upper (2) limit of a Clip; NaN where it is not known."""
    if rewriting.version < INPUT_LIMITS:
        told = node.attributes.get("min" if place == 1 else "max", absent)
        return float(told) if isinstance(told, (int, float)) else np.nan
    if len(node.inputs) <= place or not node.inputs[place]:
        return absent
    scalar = rewriting.scalar(node.inputs[place])
    return np.nan if scalar is None else float(scalar)


def _chosen(rewriting: Rewriting, node: Node) -> None:
    """A choice that is made already, or by the opposite of a condition."""
    condition, *choices = node.inputs
    settled = rewriting.scalar(condition)
    if settled is not None:
        chosen = choices[0] if bool(settled) else choices[1]
        before, after = rewriting.facts.type(chosen), rewriting.facts.type(node.outputs[0])
        if before is not None and before == after:
            rewriting.alias(node.outputs[0], chosen, ARITHMETIC)
        return
    opposite = rewriting.before(condition, "Not")
    if opposite is not None:
        changed = replace(node, inputs=(opposite.inputs[0], choices[1], choices[0]))
        rewriting.put(node, changed, merged=[opposite], done=REPEATED)
