"""Whether two results of one model are the same but for rounding, which float64 decides.

A difference counts only if it is larger than what rounding explains: than the errors that onnxruntime makes itself,
and than the changes of the exact result when inputs and weights are shaken by a few units in the last place. Where a
model has steps (a floor, a cast to an integer, an arg-max), shaking shows how many elements are near an edge.
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
SHAKES = 3
TO_INTEGERS = ("Cast", "QuantizeLinear", "DynamicQuantizeLinear")
STEPS = {
    "Floor", "Ceil", "Round", "Cast", "CastLike", "ArgMax", "ArgMin", "TopK", "Equal", "Less", "Greater", "LessOrEqual",
    "GreaterOrEqual", "Sign", "Mod", "NonMaxSuppression", "NonZero", "QuantizeLinear", "DynamicQuantizeLinear", "Where",
    "If", "Loop", "Scan", "Unique", "Hardmax", "OneHot", "IsInf", "IsNaN", "Shrink", "ThresholdedRelu", "MaxPool",
    "Gather", "GatherElements", "GatherND", "ScatterND", "ScatterElements", "QLinearConv",
    "QLinearMatMul", "Compress", "Clip", "Resize", "BitShift", "And", "Or", "Not", "Xor", "Einsum", "Div",
}  # fmt: skip


def has_steps(model: onnx.ModelProto) -> bool:
    """Whether a rounding error may become a large one."""
    return any(node.op_type in STEPS for node in nodes_of(model))


def difference(model: onnx.ModelProto, feeds: Mapping[str, Array], got: Sequence[Any], expected: Sequence[Any]) -> str:
    """What is wrong with `got`, compared with onnxruntime's results; nothing if all is well."""
    problem = _difference(model, feeds, got, expected)
    is_open = " differ; " in problem and (_undefined(model, feeds) or _has_no_finite_meaning(model, feeds))
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


def _undefined(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> bool:
    """Whether a number becomes an integer that cannot hold it, which ONNX leaves open."""
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
            low, high = _range(node)
            with np.errstate(all="ignore"):
                if not bool(((value > low) & (value < high)).all()):
                    return True
    return False


def _range(node: onnx.NodeProto) -> tuple[float, float]:
    kind = next((attribute.i for attribute in node.attribute if attribute.name == "to"), 0)
    dtype = helper.tensor_dtype_to_np_dtype(kind) if kind else np.dtype(np.float32)
    if dtype.kind not in "iu":
        return -np.inf, np.inf  # a NaN is in no range
    return float(np.iinfo(dtype).min) - 1, float(np.iinfo(dtype).max) + (1 if dtype.itemsize < 8 else 0)


def _difference(model: onnx.ModelProto, feeds: Mapping[str, Array], got: Sequence[Any], expected: Sequence[Any]) -> str:
    if len(got) != len(expected):
        return f"{len(got)} outputs instead of {len(expected)}"
    names = [entry.name for entry in model.graph.output]
    empty = any(array.size == 0 for array in feeds.values())  # whose mean ONNX leaves open, too
    loops = any(node.op_type == "Loop" for node in nodes_of(model))
    for name, ours, theirs in zip(names, got, expected, strict=True):
        if isinstance(theirs, np.ndarray) and ours.size == theirs.size == 0 and (loops or empty):
            continue  # onnxruntime forgets the shape of elements that a loop of no trips collects, and of empty sums
        problem = _form(ours, theirs)
        if problem:
            return f"output {name}: {problem}"
    rough = unit(model)
    count = sum(1 for _ in nodes_of(model))
    far = [
        place
        for place, (ours, theirs) in enumerate(zip(got, expected, strict=True))
        if _form(ours, theirs) == "" and _away(ours, theirs, 16 * rough * (4 + count)).any()
    ]
    if not far:
        return ""
    try:
        exact = Exact(model)
        random = np.random.default_rng(0)
        true = exact.run(feeds)
        shaken = [exact.run(feeds, random, 4 * rough) for _ in range(SHAKES)]
    except Exception as error:
        return _unexplained(names, got, expected, far, f"no float64 result: {type(error).__name__}: {error}")
    peers = [*shaken] if not exact.by_onnxruntime else [*shaken, expected]
    tolerance = rough * (4 + count)
    for place in far:
        others = [peer[place] for peer in peers]
        problem = _judged(got[place], expected[place], true[place], others, tolerance, empty)
        if problem:
            return f"output {names[place]}: {problem}" + ("" if exact.by_onnxruntime else " (float64 by the reference)")
    return ""


def _judged(ours: Any, theirs: Any, true: Any, peers: Sequence[Any], tolerance: float, empty: bool) -> str:
    if not all(isinstance(peer, np.ndarray) and peer.shape == ours.shape for peer in (true, *peers)):
        return ""  # sizes that depend on rounded numbers
    largest = 0.9 * float(np.finfo(np.float16).max) if ours.dtype == np.float16 else 1e30
    ours, theirs = _plain(ours), _plain(theirs)
    true, peers = _plain(true), [_plain(peer) for peer in peers]
    with np.errstate(all="ignore"):
        wild = np.zeros(true.shape, bool)  # what overflows here and not there
        for entry in (true, *peers, theirs):
            wild |= ~(np.abs(entry) < largest)
        even = wild & ~(np.isnan(theirs) & np.isnan(true)) & ~(np.isinf(theirs) & (theirs == true))
        away = _away(ours, true, 16 * tolerance) & ~even
        if empty:
            away &= ~np.isnan(ours)
        if not away.any():
            return ""
        errors = [np.where(wild, 0, np.abs(peer - true)) for peer in peers]
        explained = 8 * max((float(error.max(initial=0)) for error in errors), default=0.0)
        near = max(int((_away(peer, true, 16 * tolerance) & ~wild).sum()) for peer in peers) if peers else 0
        if explained > 8 * float(np.abs(np.where(wild, 0, true)).max(initial=0)):
            return ""  # nothing but rounding errors
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


def _unexplained(names: Sequence[str], got: Any, expected: Any, far: Sequence[int], why: str) -> str:
    """Without float64 there is only one other opinion, so that small differences are let pass."""
    for place in far:
        away = _away(got[place], expected[place], 1e-2)
        if away.any():
            there = tuple(int(axis) for axis in np.argwhere(away)[0])
            values = f"{got[place][there]!r}, onnxruntime {expected[place][there]!r}"
            return f"output {names[place]}: {int(away.sum())} of {away.size} differ; at {list(there)} {values} ({why})"
    return ""


def _form(ours: Any, theirs: Any) -> str:
    if isinstance(theirs, list):
        if not isinstance(ours, list) or len(ours) != len(theirs):
            return f"{_describe_value(ours)} instead of a sequence of {len(theirs)}"
        return next(filter(None, map(_form, ours, theirs)), "")
    if theirs is None or ours is None:
        return "" if ours is theirs else f"{_describe_value(ours)} instead of {_describe_value(theirs)}"
    same_text = ours.dtype.kind in "OUS" and theirs.dtype.kind in "OUS"
    if ours.shape != theirs.shape or (ours.dtype != theirs.dtype and not same_text):
        return f"{_describe_value(ours)} instead of {_describe_value(theirs)}"
    return ""


def _describe_value(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else str(type(value))


def _away(ours: Any, theirs: Any, tolerance: float) -> Array:
    """Where two arrays differ by more than a part of the largest number."""
    if isinstance(theirs, list):
        return np.array([_away(one, other, tolerance).any() for one, other in zip(ours, theirs, strict=True)])
    if theirs is None:
        return np.zeros((), bool)
    if theirs.dtype.kind in "OUS":
        return np.asarray(ours.astype(str) != theirs.astype(str))
    if theirs.dtype.kind in "biu" and ours.dtype.kind in "biu":
        return np.asarray(ours != theirs)
    ours, theirs = _plain(ours), _plain(theirs)
    with np.errstate(all="ignore"):
        finite = theirs[np.isfinite(theirs)]
        scale = float(np.abs(finite).max()) if finite.size else 0.0
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs)) | (np.abs(ours - theirs) <= tolerance * scale)
    return np.asarray(~same)


def _plain(array: Any) -> Array:
    return np.asarray(array).astype(np.float64)
