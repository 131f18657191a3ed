"""`weft.optimize`: write an ONNX model with fewer nodes, through onnxslim, and check that it computes the same."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np

from weft.errors import ExecutionError, InputError, OutOfMemoryError, UnsupportedModelError, WeftError, short_repr
from weft.frontend.read import is_standard, read_model
from weft.frontend.save import MAX_MESSAGE_BYTES
from weft.frontend.schemas import newest_installed_opsets
from weft.frontend.source import ModelSource, copy_model
from weft.frontend.write import add_initializers, rewrite_model
from weft.ir import dims
from weft.ir.dims import Axis, Dim, Symbol
from weft.ir.graph import Graph, GraphValue, OnnxModel, subgraphs
from weft.ir.specs import signature
from weft.ir.types import TensorType
from weft.loading import load, open_graph
from weft.logs import LOADING
from weft.opset import registry
from weft.opset.lower import build_untraced_program
from weft.optimization.graph_edit import SEPARATE_WEIGHTS, STANDARD, with_shown_outputs
from weft.optimization.opset_upgrade import newest_version, upgrade_graph
from weft.quantities import format_bytes, shorten
from weft.records import dataclass
from weft.runtime.progress import stages
from weft.runtime.random_inputs import random_inputs
from weft.tables import ShownAsTables, Table

GROWTH = 1 << 20
ARITHMETIC_FUSIONS = ("FusionConvAdd", "FusionConvBN", "FusionConvMul", "FusionGelu", "FusionGemm", "FusionReduce")
TOLERANCE = 1e-3  # of the largest element of an output; a wrong rewrite is off by far more


@dataclass(frozen=True, slots=True)
class OptimizeOptions:
    """Validated options; raises InputError for a wrong value."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    growth: int | None = GROWTH
    opset: int | None = None
    keep_inputs: bool = False
    exact: bool = False
    verify: bool = True

    def __post_init__(self) -> None:
        for name, size in self.sizes.items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise InputError(f"sizes: {name} must be a whole number, not {short_repr(size)}")
        if self.growth is not None and (not isinstance(self.growth, int) or self.growth < 0):
            raise InputError(f"growth must be a number of bytes or None, not {short_repr(self.growth)}")
        if self.opset is not None and (not isinstance(self.opset, int) or self.opset < 1):
            raise InputError(f"opset must be a version of ai.onnx, not {short_repr(self.opset)}")


@dataclass(frozen=True, slots=True)
class OptimizationReport(ShownAsTables):
    """The result of `weft.optimize`. `ops` counts nodes by op, before and after, including those in subgraphs."""

    path: Path | None
    model: Any  # the onnx.ModelProto, where no path was given
    opset: int
    ops: Mapping[str, tuple[int, int]]
    initializers: tuple[int, int]
    bytes: tuple[int, int]  # of the file and its external data

    @property
    def nodes(self) -> tuple[int, int]:
        """The number of nodes before and after."""
        return sum(before for before, _ in self.ops.values()), sum(after for _, after in self.ops.values())

    @property
    def done(self) -> Mapping[str, int]:
        """Deprecated: onnxslim does not say how often it made each change."""
        warnings.warn("OptimizationReport.done is empty and will be removed", DeprecationWarning, stacklevel=2)
        return {}

    def __repr__(self) -> str:
        (nodes, left), (before, after) = self.nodes, (format_bytes(size) for size in self.bytes)
        where = "" if self.path is None else f" {shorten(str(self.path))}:"
        return f"<weft.OptimizationReport{where} nodes {nodes} -> {left}, {before} -> {after}, opset {self.opset}>"

    def _tables(self) -> Iterator[Table]:
        rows: list[tuple[object, ...]] = [("nodes", *self.nodes), ("initializers", *self.initializers)]
        rows.append(("bytes", *(format_bytes(size) for size in self.bytes)))
        by_change = sorted(self.ops.items(), key=lambda item: (item[1][1] - item[1][0], item[0]))
        rows += [(op, *pair) for op, pair in by_change if pair[0] != pair[1]]
        title = "" if self.path is None else f"{self.path}, opset {self.opset}"
        yield Table(rows, ("", "before", "after"), title=title, right=("before", "after"))


def optimize(
    source: ModelSource,
    path: str | PathLike[str] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    growth: int | None = GROWTH,
    opset: int | None = None,
    keep_inputs: bool = False,
    exact: bool = False,
    verify: bool = True,
) -> OptimizationReport:
    """Write an ONNX model with fewer nodes and the same results, for any engine.

    Needs the extra `weft-onnx[optimize]`: onnxslim does the rewriting.

    source: a path, bytes, a file object or an onnx.ModelProto.
    path: where to write the new model; None returns it as the report's `model`.
    sizes: fixed sizes for dynamic dims of the inputs, by name.
    growth: the largest constant in bytes that folding may create; None: no limit.
    opset: write the model in this opset, if it is newer; None keeps the model's.
    keep_inputs: whether initializers that are also inputs stay overridable. By default they do, unless all initializers
        are inputs, as old exporters wrote them.
    exact: keep the order of all arithmetic: nothing is folded into weights.
    verify: run both models on random inputs, and raise an error where their results differ.
    """
    options = OptimizeOptions(sizes or {}, growth, opset, keep_inputs, exact, verify)
    target = None if path is None else Path(path)
    if target is not None and not target.parent.is_dir():
        raise InputError(f"{target}: no such folder", hint="check the path of the result")
    slim = _import_slim()
    with stages("optimizing") as progress:
        progress.stage("reading", 0.0)
        opened = copy_model(open_graph(source))
        original = read_model(opened, is_defined=_is_defined)
        model = _prepare(original, options)
        if (
            sum(array.nbytes for array in model.graph.initializers.values() if array.dtype != object)
            > MAX_MESSAGE_BYTES
        ):
            problem = f"the model has more than {MAX_MESSAGE_BYTES:,} bytes of weights, which onnxslim cannot process"
            raise UnsupportedModelError(problem, file=original.file)
        proto = add_initializers(rewrite_model(opened, model, {}), model)
        progress.stage("rewriting", 0.1)
        slimmed = _slim(slim, proto, model, options)
        if options.verify:
            progress.stage("comparing", 0.5)
            _compare(proto, slimmed, original.file)
        progress.stage("writing", 0.9)
        content = slimmed.SerializeToString()
        if target is not None:
            target.write_bytes(content)
        before, after = (
            _count_ops(original.graph),
            _count_ops(read_model(copy_model(open_graph(content)), is_defined=_is_defined).graph),
        )
        return OptimizationReport(
            target,
            slimmed if target is None else None,
            model.opsets[STANDARD],
            {op: (before[op], after[op]) for op in sorted(before.keys() | after.keys())},
            (len(original.graph.initializers), len(slimmed.graph.initializer)),
            (opened.size + sum(map(len, original.external.values())), len(content)),
        )


def _is_defined(domain: str, op: str, version: int) -> bool:
    """Whether an op is kept as it is; functions of other ops are inlined."""
    standard = not domain.startswith("com.microsoft") and is_standard(domain, op, version)
    return standard or registry.find(domain, op, version) is not None


def _prepare(original: OnnxModel, options: OptimizeOptions) -> OnnxModel:
    """Fix sizes, make weights constants, and bring all nodes to one opset."""
    graph = original.graph
    _check_sizes(original, options.sizes)
    graph = _fix_sizes(graph, options.sizes) if options.sizes else graph
    if original.ir_version < SEPARATE_WEIGHTS or (
        not options.keep_inputs and len(graph.defaults) == len(graph.initializers)
    ):
        graph = replace(graph, defaults=())
    version = max(newest_version(graph), original.opsets.get(STANDARD, 1))
    if options.opset is not None:
        if options.opset < version:
            problem = f"the model is of opset {version}, and cannot be written in opset {options.opset}"
            raise UnsupportedModelError(problem, file=original.file, hint="choose a newer opset")
        newest = newest_installed_opsets()[STANDARD]
        if options.opset > newest:
            raise InputError(f"opset is {options.opset}; the installed onnx knows versions up to {newest}")
        version = options.opset
    graph = with_shown_outputs(graph, version)
    if _has_other_versions(graph, version):
        graph = upgrade_graph(graph, version)
    return replace(
        original,
        graph=graph,
        opsets={**original.opsets, STANDARD: version},
        ir_version=max(original.ir_version, SEPARATE_WEIGHTS),
    )


def _has_other_versions(graph: Graph, version: int) -> bool:
    outer = any(node.version != version for node in graph.nodes if node.domain == STANDARD)
    return outer or any(_has_other_versions(inner, version) for node in graph.nodes for inner in subgraphs(node))


def _check_sizes(model: OnnxModel, sizes: Mapping[str, int]) -> None:
    specs = signature(model.graph, build_untraced_program(model.graph)).inputs
    dynamic = sorted({dim for spec in specs for dim in spec.shape or () if isinstance(dim, str)})
    for name in sizes:
        if name not in dynamic:
            hint = f"the dynamic dims are {', '.join(dynamic)}" if dynamic else "all dims of this model are fixed"
            raise InputError(f"the inputs have no dynamic dim {name}", hint=hint)


def _fix_sizes(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    def fix_atom(atom: Symbol | Axis) -> Dim:
        if isinstance(atom, Axis):
            return dims.axis(atom.position, atom.size)
        return sizes[atom.name] if atom.name in sizes else dims.from_atom(atom)

    def fix_value(value: GraphValue) -> GraphValue:
        if not isinstance(value.type, TensorType) or value.type.shape is None:
            return value
        shape = tuple(dims.substitute(size, fix_atom) for size in value.type.shape)
        return replace(value, type=TensorType(value.type.dtype, shape))

    return replace(
        graph,
        inputs=tuple(map(fix_value, graph.inputs)),
        outputs=tuple(map(fix_value, graph.outputs)),
        defaults=tuple(map(fix_value, graph.defaults)),
    )


def _import_slim() -> Callable[..., Any]:
    try:
        from onnxslim import slim  # an optional dependency
    except ImportError as error:
        problem = "weft.optimize needs onnxslim: install it with pip install 'weft-onnx[optimize]'"
        raise UnsupportedModelError(problem) from error
    return cast("Callable[..., Any]", slim)


def _slim(slim: Callable[..., Any], proto: Any, model: OnnxModel, options: OptimizeOptions) -> Any:
    """Run onnxslim on a copy in which overridable initializers are plain inputs."""
    overridable = {value.name for value in model.graph.defaults}
    hidden = [tensor for tensor in proto.graph.initializer if tensor.name in overridable]
    stripped = copy.deepcopy(proto)
    for tensor in [tensor for tensor in stripped.graph.initializer if tensor.name in overridable]:
        stripped.graph.initializer.remove(tensor)
    for value in stripped.graph.output:  # exporters declare wrong shapes, which onnxslim would take for constants
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    skipped = list(ARITHMETIC_FUSIONS) if options.exact else None
    try:
        slimmed = slim(stripped, size_threshold=options.growth, skip_fusion_patterns=skipped)
    except Exception as error:  # a foreign library, on any model
        problem = f"onnxslim failed on this model: {type(error).__name__}: {str(error)[:200]}"
        raise UnsupportedModelError(problem, file=model.file) from error
    slimmed.graph.initializer.extend(hidden)
    if [value.name for value in slimmed.graph.output] != [value.name for value in proto.graph.output]:
        raise UnsupportedModelError("onnxslim changed the outputs of this model", file=model.file)
    slimmed.graph.ClearField("output")
    slimmed.graph.output.extend(proto.graph.output)
    return slimmed


def _compare(original: Any, slimmed: Any, file: str) -> None:
    """Raise UnsupportedModelError where two models differ on random inputs."""
    try:
        reference = load(original, cache=False)
        inputs = random_inputs(reference)
        expected = reference.run(inputs)
    except (ExecutionError, OutOfMemoryError, InputError, UnsupportedModelError) as error:
        LOADING.warning("%s: the optimized model was not compared with the original: %s", file, error.problem)
        return
    if any("Random" in op or op in ("Bernoulli", "Multinomial") for op in _op_names(original.graph)):
        LOADING.warning("%s: the optimized model was not compared with the original, which draws random numbers", file)
        return
    hint = "use exact=True, or report the model to onnxslim"
    try:
        results = load(slimmed, cache=False).run(inputs)
    except WeftError as error:
        problem = f"the model that onnxslim wrote does not run: {error.problem}"
        raise UnsupportedModelError(problem, file=file, hint=hint) from error
    for name, value in expected.items():
        if not _is_close(value, results[name]):
            raise UnsupportedModelError(f"onnxslim changed the results of output {name!r}", file=file, hint=hint)


def _op_names(graph: Any) -> Iterator[str]:
    for node in graph.node:
        yield node.op_type
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _op_names(inner)


def _is_close(expected: Any, result: Any) -> bool:
    if isinstance(expected, (list, tuple)):
        return len(expected) == len(result) and all(map(_is_close, expected, result))
    if not isinstance(expected, np.ndarray):
        return bool(expected == result)
    if expected.shape != result.shape or expected.dtype != result.dtype:
        return False
    if expected.dtype == object or expected.dtype.kind in "iub":
        return bool((expected == result).all())
    wide, other = expected.astype(np.complex128), result.astype(np.complex128)
    scale = np.abs(wide[np.isfinite(wide)]).max(initial=1e-30)
    return bool(np.allclose(wide, other, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True))


def _count_ops(graph: Graph) -> Counter[str]:
    counts = Counter(f"{node.domain}.{node.op}" if node.domain else node.op for node in graph.nodes)
    for node in graph.nodes:
        for inner in subgraphs(node):
            counts += _count_ops(inner)
    return counts
