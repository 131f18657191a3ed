"""Arithmetic that changes nothing, or that one node does for two: factors of 1, limits of what is limited already."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from weft.ir.dtypes import from_numpy
from weft.ir.graph import Graph, Node
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
            for node in rewriting.nodes("Add", "Mul"):
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
        before, after = rewriting.facts.type(other), rewriting.facts.type(node.outputs[0])
        if before is not None and before == after:
            rewriting.alias(node.outputs[0], other, ARITHMETIC)
            return


def _chained(rewriting: Rewriting, node: Node) -> None:
    """(x + a) + b as x + (a + b), where a and b are constants."""
    for place in (0, 1):
        second = rewriting.constant(node.inputs[1 - place])
        first = rewriting.only(node.inputs[place], node.op)
        if second is None or first is None or second.dtype == object or not from_numpy(second.dtype).is_float:
            continue
        for side in (0, 1):
            constant = rewriting.constant(first.inputs[side])
            if constant is None or constant.dtype != second.dtype:
                continue
            wide = (constant.astype(np.float64), second.astype(np.float64))
            with np.errstate(all="ignore"):
                both = (wide[0] + wide[1] if node.op == "Add" else wide[0] * wide[1]).astype(second.dtype)
            smaller = both.nbytes <= max(constant.nbytes, second.nbytes)
            if smaller and np.isfinite(both.astype(np.float64)).all():
                name = rewriting.add_constant(f"{node.outputs[0]}_constant", both)
                changed = replace(node, inputs=(first.inputs[1 - side], name))
                rewriting.put(node, changed, merged=[first], done=CHAINED)
                return


def _limited(rewriting: Rewriting, node: Node) -> None:
    """Limits one after the other: what is never negative needs no Relu, before or after."""
    if node.op == "Clip":
        low = _limits(rewriting, node)[0]
        first = rewriting.before(node.inputs[0], "Relu")
        if first is not None and low is not None and low >= 0:
            changed = replace(node, inputs=(first.inputs[0], *node.inputs[1:]))
            rewriting.put(node, changed, merged=[first], done=REPEATED)
        return
    before = rewriting.before(node.inputs[0], "Clip", "Sigmoid", "Softmax", "HardSigmoid", "Abs")
    if before is None:
        return
    low = _limits(rewriting, before)[0] if before.op == "Clip" else 0.0
    if low is not None and low >= 0:
        rewriting.alias(node.outputs[0], node.inputs[0], REPEATED)


def _limits(rewriting: Rewriting, node: Node) -> tuple[float | None, float | None]:
    """What a Clip keeps to, where it is known."""
    found: list[float | None] = []
    for place, name in enumerate(("min", "max"), 1):
        if rewriting.version < INPUT_LIMITS:
            told = node.attributes.get(name)
            found.append(float(told) if isinstance(told, (int, float)) else None)
        else:
            scalar = rewriting.scalar(node.inputs[place]) if len(node.inputs) > place and node.inputs[place] else None
            found.append(None if scalar is None else float(scalar))
    return found[0], found[1]


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
