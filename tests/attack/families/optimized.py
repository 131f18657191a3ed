"""Random models and those of old opsets, optimised and made newer: they are valid and mean what they meant.

onnxruntime runs the model before and after, or weft's reference where it lacks a kernel; float64 decides how far from
the truth the optimised one may be, which is about as far as the original is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from attack import rival
from attack.chains import chained
from attack.compose import composed
from attack.drawn import draw, filled, packed, resized, unpacked
from attack.float64 import Exact, nodes_of, unit
from attack.judge import difference
from attack.mutate import mutated
from attack.node_cases import case_inputs, node_cases
from attack.reduce import smaller_models
from attack.verdict import Payload, Verdict, refused, right, wrong

import weft
from weft.errors import UnsupportedModelError

Array = np.ndarray[Any, Any]
SECONDS = 60
SHARE = 40
NEWEST = 23  # the opset that onnxruntime knows best
SIZES = (1, 2, 3, 5, 8)
SHAKES = 3
DOUBLE = 1e-10  # what float64 may be off by, relatively: it has no judge but itself
TINY = 1e-290
LARGE = 1e-3  # of a type's largest number: beyond it sums may differ in whether they overflow


def cases(random: np.random.Generator, device: str) -> Iterator[Payload]:
    del device  # models are optimised for all
    while True:
        kind = random.choice(["chain", "composed", "node"], p=[0.8, 0.15, 0.05])
        payload, opset = {"chain": _chain, "composed": _composed, "node": _node}[str(kind)](random)
        options: dict[str, Any] = {}
        if random.random() < 0.25:
            options["exact"] = True
        if opset < NEWEST and random.random() < 0.5:
            options["opset"] = int(random.integers(opset + 1, NEWEST + 1))
        if random.random() < 0.2:
            options["growth"] = int(random.choice([0, 64, 1 << 30]))
        told = " ".join(f"{name}={content}" for name, content in options.items())
        yield payload | {"name": f"{payload['name']} {told}".strip(), "options": options, "strict": kind == "chain"}


def _chain(random: np.random.Generator) -> tuple[Payload, int]:
    case = chained(random, int(random.integers(2, 7)))
    return {"name": case.name, "model": packed(case.model), "runs": [case.feeds]}, _opset(case.model)


def _composed(random: np.random.Generator) -> tuple[Payload, int]:
    """A model with open sizes, run with two sets of them."""
    case, declared = composed(random, int(random.integers(1, 7)))
    if random.random() < 0.3:
        mutated(case, random, 1)
    for node in case.model.graph.node:  # the default is 1e-5 of float32 in onnxruntime, and of float64 in weft
        if node.op_type == "BatchNormalization" and not any(each.name == "epsilon" for each in node.attribute):
            node.attribute.append(onnx.helper.make_attribute("epsilon", 1e-5))
    open_sizes = {size for shape in declared.values() for size in shape if isinstance(size, str)}
    chosen = {name: int(random.choice(SIZES)) for name in sorted(open_sizes)}
    other = dict(case.feeds)
    for name, shape in declared.items():
        if name in other and len(shape) == len(other[name]["shape"]):
            sizes = [chosen[size] if isinstance(size, str) else size for size in shape]
            other[name] = resized(other[name], sizes)
    runs = [case.feeds, other] if chosen else [case.feeds]
    return {"name": case.name, "model": packed(case.model), "runs": runs}, _opset(case.model)


def _node(random: np.random.Generator) -> tuple[Payload, int]:
    """A case of onnx's own suite."""
    name = str(random.choice(sorted(node_cases())))
    model = node_cases()[name].model
    assert model is not None
    return {"name": name, "case": name}, _opset(model)


def _opset(model: onnx.ModelProto) -> int:
    return next((int(each.version) for each in model.opset_import if each.domain in ("", "ai.onnx")), NEWEST)


def attack(payload: Payload, device: str) -> Verdict:
    del device
    model, runs = _contents(payload)
    options = payload.get("options", {})
    try:
        optimised = weft.optimize(model, **options).model
    except UnsupportedModelError as error:
        if "opset" in options:
            return refused(f"{type(error).__name__}: {error}")
        raise
    if _is_valid(model) == "" and (problem := _is_valid(optimised)):
        return wrong(f"an invalid model: {problem}")
    for feeds in runs:
        before, after = _results(model, optimised, feeds)
        if isinstance(before, str):
            return refused(before)
        if isinstance(after, str):
            return wrong(f"what ran does not run: {after}")
        told = compare(model, feeds, before, after)
        if told and not payload.get("strict", True):
            told = difference(model, feeds, after, before)
        if told and "opset" in options:
            told = told if _compare_by_reference(model, optimised, feeds) else ""
        if told and not _leaves_range(model, feeds):
            return wrong(told)
    return right()


def _contents(payload: Payload) -> tuple[onnx.ModelProto, list[dict[str, Any]]]:
    """The model, and the inputs of each run."""
    if "case" not in payload:
        runs = [{name: draw(drawn) for name, drawn in run.items()} for run in payload["runs"]]
        return filled(unpacked(payload["model"])), runs
    model = node_cases()[payload["case"]].model
    assert model is not None
    return model, [case_inputs(payload["case"])]


def _compare_by_reference(model: onnx.ModelProto, optimised: onnx.ModelProto, feeds: Mapping[str, Array]) -> str:
    """What differs in weft's reference: onnxruntime's kernels of different opsets have faults of their own."""
    before, after = _reference(model, feeds), _reference(optimised, feeds)
    if isinstance(before, str):
        return ""
    return after if isinstance(after, str) else compare(model, feeds, before, after)


def _leaves_range(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> bool:
    """Whether a value inside the model is infinite or NaN, or vanishes in float64.

    What comes of such values depends on the order of arithmetic.
    """
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    inner = {name for node in model.graph.node for name in node.output if name}
    inner -= {output.name for output in model.graph.output}
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(inner))
    values, _ = _results(probe, probe, feeds)
    arrays = [each for each in values if isinstance(each, np.ndarray) and each.dtype.kind in "fV"]
    vanished = any(each.dtype == np.float64 and np.abs(each).max(initial=0.0) < TINY for each in arrays)
    return isinstance(values, list) and (vanished or not all(map(_is_finite, arrays)))


def _is_finite(array: Array) -> bool:
    return bool(np.isfinite(array.astype(np.float64)).all())


def _is_valid(model: onnx.ModelProto) -> str:
    """What onnx's checker says; nothing if a model is valid."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return str(error)[:300]
    return ""


def _results(model: onnx.ModelProto, optimised: onnx.ModelProto, feeds: Mapping[str, Array]) -> tuple[Any, Any]:
    """The outputs of both by the same engine, or why there are none."""
    try:
        before = rival.run(model, feeds)
    except rival.RivalError as error:
        before = str(error)
    if not isinstance(before, str):
        try:
            return before, rival.run(optimised, feeds)
        except rival.RivalError as error:
            if "NOT_IMPLEMENTED" not in str(error):
                return before, str(error)
    return _reference(model, feeds), _reference(optimised, feeds)


def _reference(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Any:
    """The outputs by weft's reference, or why there are none."""
    try:
        with np.errstate(all="ignore"):
            return list(weft.load(model, device="reference", cache=False).run(feeds).values())
    except weft.WeftError as error:
        if isinstance(error, weft.InternalError):
            raise
        return f"{type(error).__name__}: {error}"


def compare(model: onnx.ModelProto, feeds: Mapping[str, Array], before: list[Any], after: list[Any]) -> str:
    """What is worse after than before; nothing if all is well."""
    names = [output.name for output in model.graph.output]
    rough = max(unit(model), DOUBLE)
    count = sum(1 for _ in nodes_of(model))
    exact, random = Exact(model), np.random.default_rng(0)
    true: list[Any] | None = None
    for place, (name, old, new) in enumerate(zip(names, before, after, strict=True)):
        if not isinstance(old, np.ndarray):
            continue  # sequences and maps of floats: the float64 judge computes tensors alone
        if not isinstance(new, np.ndarray) or old.shape != new.shape or old.dtype != new.dtype:
            return f"output {name}: {new.dtype}{list(new.shape)} instead of {old.dtype}{list(old.shape)}"
        if old.dtype.kind in "biuOUS":
            if different := int((old != new).sum()):
                return f"output {name}: {different} of {old.size} differ"
            continue
        if old.tobytes() == new.tobytes():
            continue
        if true is None:
            with np.errstate(all="ignore"):
                true = exact.run(feeds)
        if true[place].shape != old.shape:
            continue
        wide = tuple(np.asarray(each, np.float64) for each in (old, new, true[place]))
        told = _worse(wide, old.dtype, rough * (4 + count))
        if told:
            shaken = [exact.run(feeds, random, 2 * rough)[place] for _ in range(SHAKES)]
            told = _worse(wide, old.dtype, rough * (4 + count), shaken)
        if told:
            return f"output {name}: {told}"
    return ""


def _worse(results: tuple[Array, ...], dtype: np.dtype[Any], tolerance: float, shaken: Sequence[Array] = ()) -> str:
    """Where the new result is farther from the truth than the old one, rounding and shaken weights explain."""
    old, new, true = results
    describe: Any = ml_dtypes.finfo
    limits = describe(dtype)
    with np.errstate(all="ignore"):
        largest = float(limits.max) * (LARGE if limits.bits > 16 else 0.25)
        usual = np.isfinite(old) & (np.abs(true) < largest)
        scale = float(np.abs(true[usual]).max(initial=0.0))
        error = float(np.abs(old - true)[usual].max(initial=0.0))
        moved = max((float(np.abs(each - true)[usual].max(initial=0.0)) for each in shaken), default=0.0)
        allowed = 4 * error + 2 * moved + tolerance * scale + 8 * float(limits.smallest_subnormal)
        far = usual & ~(np.abs(new - true) <= allowed)
        settled = ~np.isfinite(old) & ((old == true) | (np.isnan(old) & np.isnan(true)))
        far |= settled & ~((new == old) | (np.isnan(new) & np.isnan(old)))
    if not far.any():
        return ""
    there = tuple(int(axis) for axis in np.argwhere(far)[0])
    values = f"{new[there]} after, {old[there]} before, float64 {true[there]}"
    return f"{int(far.sum())} of {far.size} differ; at {list(there)} {values}; {allowed:.3g} allowed"


def smaller(payload: Payload) -> Iterator[Payload]:
    for name in payload.get("options", {}):
        yield payload | {"options": {key: content for key, content in payload["options"].items() if key != name}}
    if "case" not in payload:
        yield from smaller_models(payload)
