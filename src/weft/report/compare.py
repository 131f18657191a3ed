"""`weft.compare`: one model on several devices, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.errors import InputError
from weft.ir.dtypes import DType
from weft.ir.specs import Signature, signature
from weft.ir.types import OptionalType
from weft.loading import open_pipeline, to_names
from weft.opset.lower import build_untraced_program
from weft.plan.usual_sizes import usual_sizes
from weft.report.comparison import Method, ModelComparison, compare_layers
from weft.report.contenders import Contender, InFloat64, OnDevice
from weft.report.layers import find_layers
from weft.runtime.arguments import whole_shapes
from weft.runtime.devices import REFERENCE
from weft.runtime.generated_inputs import generate_inputs
from weft.runtime.memory import bind_shapes
from weft.runtime.model import Model
from weft.runtime.options import NARROW, USUAL_PRECISION, LoadOptions, Precision
from weft.runtime.policy import route
from weft.runtime.progress import stages

if TYPE_CHECKING:
    from weft.frontend.source import ModelSource

PEER = "onnxruntime"
DEFAULT_DEVICES = (REFERENCE, "auto")


def compare(
    source: ModelSource | Model,
    inputs: Mapping[str, Any] | None = None,
    *,
    devices: str | Sequence[str] | None = None,
    truth: bool = False,
    against: ModelSource | None = None,
    tolerance: float | None = None,
    precision: Precision = USUAL_PRECISION,
    quick: bool = False,
    shapes: Mapping[str, int | Sequence[int]] | None = None,
    seed: int = 0,
    threads: int | None = None,
    memory_limit: int | str | None = None,
    prefer: str = "memory",
) -> ModelComparison:
    """Run a model on several devices and compare every value that its nodes compute.

    The result says for each device which value differs first, where errors grow, and which nodes are wrong on their
    own, from equal inputs: `weft.compare("model.onnx").agrees`.

    source: what `weft.load` takes, or a loaded model with its current weights.
    inputs: arrays by name; those that are left out are random.
    devices: names of devices, or "onnxruntime"; the others are compared with the first. By default "auto" with
        "reference", which computes as ONNX defines it.
    truth: compare all of them with a run in float64 instead.
    against: another model, on these devices, to compare with `source` on the first of them, by the names of values.
    tolerance: the error, relative to the largest magnitude of a value, that any float value may have; by default it
        depends on the type and the depth.
    precision: what the compared devices compute in; the first, which they are compared with, computes in "float32".
    quick: do not also run every node on its own.
    shapes, seed: of random inputs, as in `weft.random_inputs`.
    threads, memory_limit, prefer: as in `weft.load`.
    """
    device_names = check_devices(devices, truth=truth, against=against is not None)
    model = _portable_source(source)
    arrays = _complete_inputs(model, inputs, shapes, seed)
    loading = {"threads": threads, "memory_limit": memory_limit, "prefer": prefer}
    return compare_on_devices(model, arrays, device_names, truth, against, tolerance, precision, quick, loading)


def check_devices(devices: str | Sequence[str] | None, *, truth: bool, against: bool) -> tuple[str, ...]:
    """Return the devices of a comparison; InputError if there is nothing to compare."""
    if devices is None:
        return ("auto",) if against else DEFAULT_DEVICES
    names = (devices,) if isinstance(devices, str) else tuple(devices)
    if to_names(names) != names:
        raise InputError(f"devices {', '.join(names)}: a device is named twice")
    if len(names) < 2 and not truth and not against:
        hint = "name another one, or compare with the truth, or with another file"
        raise InputError(f"devices {', '.join(names)}: there is nothing to compare", hint=hint)
    return names


def compare_on_devices(
    source: Any,
    arrays: Mapping[str, Any],
    devices: Sequence[str],
    truth: bool,
    against: Any,
    tolerance: float | None,
    precision: Precision,
    quick: bool,
    loading: Mapping[str, Any],
) -> ModelComparison:
    """Compare a model on complete inputs; `loading` are options of all devices."""
    graph = open_pipeline(source, LoadOptions(device=REFERENCE)).read().graph
    base: Contender
    if truth:
        base = InFloat64(graph, arrays)
    else:
        base = _contender(source, devices[0], arrays, "", loading)
    narrow = {**loading, "precision": precision}
    if against is not None:
        suffix = f" of {Path(against).name}" if isinstance(against, (str, PathLike)) else " of the other model"
        others = [_contender(against, device, arrays, suffix, narrow) for device in devices]
    else:
        others = [_contender(source, device, arrays, "", narrow) for device in (devices if truth else devices[1:])]
    products = DType.float16 if precision in NARROW else None  # tf32 has as many mantissa bits
    method = Method(tolerance, alone=not quick, products=products)
    with stages("comparing") as progress:
        return compare_layers(find_layers(graph, arrays), arrays, base, others, method, progress.stage)


def _contender(
    source: Any, device: str, arrays: Mapping[str, Any], suffix: str, loading: Mapping[str, Any]
) -> Contender:
    if device != PEER:
        return OnDevice(f"{route(device).devices[0]}{suffix}", source, device, arrays, **loading)
    from weft.compat.onnxruntime.contender import OnnxruntimeContender

    if not isinstance(source, (str, PathLike)):
        raise InputError(f"{PEER} compares files only", hint="save the model, and pass the path")
    return OnnxruntimeContender(f"{device}{suffix}", str(source), arrays)


def _portable_source(source: Any) -> Any:
    """Return a source that can be read several times; a loaded model as the content of its file."""
    if not isinstance(source, Model):
        return source
    content = source.pool.files.whole()
    if content is None:
        raise InputError("the model is too large to be compared from memory", hint="save it, and pass the path")
    return b"".join(content)


def declared_signature(source: Any) -> Signature:
    """Return what a source declares about its inputs and outputs, without tracing it."""
    graph = open_pipeline(source, LoadOptions(device=REFERENCE)).read().graph
    return signature(graph, build_untraced_program(graph))


def _complete_inputs(
    source: Any, inputs: Mapping[str, Any] | None, shapes: Mapping[str, int | Sequence[int]] | None, seed: int
) -> dict[str, Any]:
    """Add random arrays for the inputs that have none; sizes follow from the arrays that are there."""
    if inputs is not None and not isinstance(inputs, Mapping):
        raise InputError(f"inputs must be a dict of arrays by name, not a {type(inputs).__name__}")
    declared = declared_signature(source)
    feeds = {name: np.asarray(content) for name, content in (inputs or {}).items()}
    names = {spec.name for spec in (*declared.inputs, *declared.defaults)}
    unknown = next((name for name in feeds if name not in names), None)
    if unknown is not None:
        raise InputError(f"the model has no input {unknown!r}", hint=f"it takes {', '.join(names)}")
    missing = [spec for spec in declared.inputs if spec.name not in feeds and not isinstance(spec.type, OptionalType)]
    user_shapes = whole_shapes(shapes, "the model")
    by_name = {**{name: array.shape for name, array in feeds.items()}, **user_shapes}
    bound, _ = bind_shapes([*declared.inputs, *declared.defaults], by_name, "the model")
    exact = {name: shape for name, shape in user_shapes.items() if not isinstance(shape, int)}
    sizes = next(usual_sizes(declared.inputs, (), bound))
    return {**generate_inputs(missing, sizes, seed, exact), **feeds}
