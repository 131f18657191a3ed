"""Decide with float64 whether two results of a model differ by more than rounding.

A difference counts only if it exceeds the errors of onnxruntime and the change of the exact result when inputs and
weights are perturbed by a few units in the last place. In models with steps (a floor, a cast to an integer, an
arg-max), perturbation shows how many elements are near an edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from attack import rival
from attack.float64 import Exact, nodes_of, unit
from onnx import helper

Array = np.ndarray[Any, Any]
PERTURBATIONS = 3
TO_INTEGERS = ("Cast", "QuantizeLinear", "DynamicQuantizeLinear")
STEPS = {
    "Floor", "Ceil", "Round", "Cast", "CastLike", "ArgMax", "ArgMin", "TopK", "Equal", "Less", "Greater", "LessOrEqual",
    "GreaterOrEqual", "Sign", "Mod", "NonMaxSuppression", "NonZero", "QuantizeLinear", "DynamicQuantizeLinear", "Where",
    "If", "Loop", "Scan", "Unique", "Hardmax", "OneHot", "IsInf", "IsNaN", "Shrink", "ThresholdedRelu", "MaxPool",
    "Gather", "GatherElements", "GatherND", "ScatterND", "ScatterElements", "QLinearConv",
    "QLinearMatMul", "Compress", "Clip", "Resize", "BitShift", "And", "Or", "Not", "Xor", "Einsum", "Div",
}  # fmt: skip


def has_steps(model: onnx.ModelProto) -> bool:
    """Whether a rounding error may become a large error."""
    return any(node.op_type in STEPS for node in nodes_of(model))


def difference(model: onnx.ModelProto, feeds: Mapping[str, Array], got: Sequence[Any], expected: Sequence[Any]) -> str:
    """Describe how `got` differs from the results of onnxruntime; empty if rounding explains it."""
    problem = _difference(model, feeds, got, expected)
    is_open = " differ; " in problem and (_has_undefined_cast(model, feeds) or _has_no_finite_meaning(model, feeds))
    return "" if is_open else problem


def _has_no_finite_meaning(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> bool:
    """Whether a value inside a model is not finite in a way that engines treat differently.

    A float16 value may be infinite, which onnxruntime hides: it keeps float32 between nodes. The weights of a
    convolution may be NaN, which onnxruntime multiplies with the padding and weft does not.
    """
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    outputs = {entry.name for entry in model.graph.output}
    inner = [name for node in model.graph.node for name in node.output if name and name not in outputs]
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
    try:
        values = rival.run(probe, feeds, inner) if inner else []
    except rival.RivalError:
        return False
    by_name = dict(zip(inner, values, strict=True))
    halves = [value for value in values if getattr(value, "dtype", None) == np.float16]
    weights = [by_name.get(node.input[1]) for node in model.graph.node if node.op_type == "Conv"]
    return any(bool(np.isinf(value).any()) for value in halves) or any(
        weight is not None and not bool(np.isfinite(weight).all()) for weight in weights
    )


def _has_undefined_cast(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> bool:
    """Whether a number is cast to an integer type that cannot hold it, which ONNX leaves undefined."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    names = {node.input[0]: node for node in model.graph.node if node.op_type in TO_INTEGERS}
    outputs = {entry.name for entry in model.graph.output}
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in outputs)
    try:
        values = rival.run(probe, feeds, list(names)) if names else []
    except rival.RivalError:
        return False
    for node, value in zip(names.values(), values, strict=True):
        if value.dtype.kind == "f" and value.size:
            low, high = _cast_range(node)
            with np.errstate(all="ignore"):
                if not bool(((value > low) & (value < high)).all()):
                    return True
    return False


def _cast_range(node: onnx.NodeProto) -> tuple[float, float]:
    kind = next((attribute.i for attribute in node.attribute if attribute.name == "to"), 0)
    dtype = helper.tensor_dtype_to_np_dtype(kind) if kind else np.dtype(np.float32)
    if dtype.kind not in "iu":
        return -np.inf, np.inf  # a NaN is in no range
    return float(np.iinfo(dtype).min) - 1, float(np.iinfo(dtype).max) + (1 if dtype.itemsize < 8 else 0)


def _difference(model: onnx.ModelProto, feeds: Mapping[str, Array], got: Sequence[Any], expected: Sequence[Any]) -> str:
    if len(got) != len(expected):
        return f"{len(got)} outputs instead of {len(expected)}"
    names = [entry.name for entry in model.graph.output]
    empty = any(array.size == 0 for array in feeds.values())  # ONNX leaves their mean undefined, too
    loops = any(node.op_type == "Loop" for node in nodes_of(model))
    for name, ours, theirs in zip(names, got, expected, strict=True):
        if isinstance(theirs, np.ndarray) and ours.size == theirs.size == 0 and (loops or empty):
            continue  # onnxruntime loses the shape of what a loop of no iterations collects, and of empty sums
        problem = _type_difference(ours, theirs)
        if problem:
            return f"output {name}: {problem}"
    rough = unit(model)
    count = sum(1 for _ in nodes_of(model))
    far = [
        place
        for place, (ours, theirs) in enumerate(zip(got, expected, strict=True))
        if _type_difference(ours, theirs) == "" and _differs(ours, theirs, 16 * rough * (4 + count)).any()
    ]
    if not far:
        return ""
    try:
        exact = Exact(model)
        random = np.random.default_rng(0)
        true = exact.run(feeds)
        perturbed = [exact.run(feeds, random, 4 * rough) for _ in range(PERTURBATIONS)]
    except Exception as error:
        return _describe_large_differences(
            names, got, expected, far, f"no float64 result: {type(error).__name__}: {error}"
        )
    peers = [*perturbed] if not exact.by_onnxruntime else [*perturbed, expected]
    tolerance = rough * (4 + count)
    for place in far:
        others = [peer[place] for peer in peers]
        problem = _compare_output(got[place], expected[place], true[place], others, tolerance, empty)
        if problem:
            return f"output {names[place]}: {problem}" + ("" if exact.by_onnxruntime else " (float64 by the reference)")
    return ""


def _compare_output(ours: Any, theirs: Any, true: Any, peers: Sequence[Any], tolerance: float, empty: bool) -> str:
    if not all(isinstance(peer, np.ndarray) and peer.shape == ours.shape for peer in (true, *peers)):
        return ""  # its size depends on rounding
    largest = 0.9 * float(np.finfo(np.float16).max) if ours.dtype == np.float16 else 1e30
    ours, theirs = _to_float64(ours), _to_float64(theirs)
    true, peers = _to_float64(true), [_to_float64(peer) for peer in peers]
    with np.errstate(all="ignore"):
        wild = np.zeros(true.shape, bool)  # elements that overflow in only one of the engines
        for entry in (true, *peers, theirs):
            wild |= ~(np.abs(entry) < largest)
        even = wild & ~(np.isnan(theirs) & np.isnan(true)) & ~(np.isinf(theirs) & (theirs == true))
        away = _differs(ours, true, 16 * tolerance) & ~even
        if empty:
            away &= ~np.isnan(ours)
        if not away.any():
            return ""
        errors = [np.where(wild, 0, np.abs(peer - true)) for peer in peers]
        explained = 8 * max((float(error.max(initial=0)) for error in errors), default=0.0)
        near = max(int((_differs(peer, true, 16 * tolerance) & ~wild).sum()) for peer in peers) if peers else 0
        if explained > 8 * float(np.abs(np.where(wild, 0, true)).max(initial=0)):
            return ""  # the result consists of rounding errors
        worst = float(np.nan_to_num(np.where(away, np.abs(ours - true), 0), nan=np.inf).max())
        if worst <= explained and away.sum() <= 4 * near + 2:
            return ""
        there = np.unravel_index(
            np.argmax(np.nan_to_num(np.where(away, np.abs(ours - true), -1), nan=np.inf)), ours.shape
        )
    return (
        f"{int(away.sum())} of {away.size} differ; at {list(map(int, there))} {ours[there]}, "
        f"onnxruntime {theirs[there]}, float64 {true[there]}; rounding explains {explained:.3g}"
    )


def _describe_large_differences(names: Sequence[str], got: Any, expected: Any, far: Sequence[int], why: str) -> str:
    """Describe differences above 1%: without float64, smaller ones may be errors of onnxruntime."""
    for place in far:
        away = _differs(got[place], expected[place], 1e-2)
        if away.any():
            there = tuple(int(axis) for axis in np.argwhere(away)[0])
            values = f"{got[place][there]!r}, onnxruntime {expected[place][there]!r}"
            return f"output {names[place]}: {int(away.sum())} of {away.size} differ; at {list(there)} {values} ({why})"
    return ""


def _type_difference(ours: Any, theirs: Any) -> str:
    if isinstance(theirs, list):
        if not isinstance(ours, list) or len(ours) != len(theirs):
            return f"{_describe_value(ours)} instead of a sequence of {len(theirs)}"
        return next(filter(None, map(_type_difference, ours, theirs)), "")
    if theirs is None or ours is None:
        return "" if ours is theirs else f"{_describe_value(ours)} instead of {_describe_value(theirs)}"
    same_text = ours.dtype.kind in "OUS" and theirs.dtype.kind in "OUS"
    if ours.shape != theirs.shape or (ours.dtype != theirs.dtype and not same_text):
        return f"{_describe_value(ours)} instead of {_describe_value(theirs)}"
    return ""


def _describe_value(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else str(type(value))


def _differs(ours: Any, theirs: Any, tolerance: float) -> Array:
    """Mark elements that differ by more than a fraction of the largest number."""
    if isinstance(theirs, list):
        return np.array([_differs(one, other, tolerance).any() for one, other in zip(ours, theirs, strict=True)])
    if theirs is None:
        return np.zeros((), bool)
    if theirs.dtype.kind in "OUS":
        return np.asarray(ours.astype(str) != theirs.astype(str))
    if theirs.dtype.kind in "biu" and ours.dtype.kind in "biu":
        return np.asarray(ours != theirs)
    ours, theirs = _to_float64(ours), _to_float64(theirs)
    with np.errstate(all="ignore"):
        finite = theirs[np.isfinite(theirs)]
        scale = float(np.abs(finite).max()) if finite.size else 0.0
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs)) | (np.abs(ours - theirs) <= tolerance * scale)
    return np.asarray(~same)


def _to_float64(array: Any) -> Array:
    return np.asarray(array).astype(np.float64)
