"""`weft.quantize`: read, prepare and calibrate a model, choose layers, write the result, and measure it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from weft.errors import InputError, UnsupportedModelError
from weft.frontend.source import ModelSource
from weft.frontend.write import write_file, write_model
from weft.ir.graph import Graph, OnnxModel, value_names
from weft.ir.specs import TensorSpec, signature
from weft.loading import load, open_pipeline
from weft.opset.lower import build_untraced_program
from weft.optimization.graph_edit import MICROSOFT, SEPARATE_WEIGHTS, STANDARD, with_shown_outputs
from weft.optimization.opset_upgrade import newest_version, upgrade_graph
from weft.quantities import format_bytes, format_plural, format_seconds, shorten
from weft.quantization.calibrate import ReportProgress
from weft.quantization.graph_runs import GraphRunner, GraphValues, Runs
from weft.quantization.half import ALL_IN_BFLOAT16, BFLOAT16
from weft.quantization.int4 import STANDARD_SINCE
from weft.quantization.int8 import PER_CHANNEL
from weft.quantization.layers import find_quantized_node, weight_inputs
from weft.quantization.measure import (
    FileSizes,
    OutputError,
    Times,
    count_file_bytes,
    measure_outputs,
    measure_values,
    time_runs,
)
from weft.quantization.options import (
    BF16,
    FULL_FORM,
    INT4,
    INT8,
    SAMPLES,
    STANDARD_FORM,
    WEIGHTS_FORM,
    CodeKind,
    NumberForm,
    NumberKind,
    QuantizeOptions,
    RangeMethod,
)
from weft.quantization.prepare import fold_normalization, fold_values
from weft.quantization.quantizers import (
    HalfQuantizer,
    HalfWeightQuantizer,
    Int4Quantizer,
    Int8Quantizer,
    Quantizer,
    match_layers,
)
from weft.quantization.samples import FolderSamples, Sample, check_finite, list_samples, random_samples
from weft.quantization.sensitivity import LayerError, find_outliers, measure_effects, measure_layers
from weft.readers.images import DEFAULT_IMAGE_OPTIONS, ImageOptions
from weft.readers.read import InputContext
from weft.runtime.options import LoadOptions
from weft.runtime.progress import stages
from weft.runtime.ranking import likely_sizes
from weft.tables import ShownAsTables, Table

MEASURED = 8  # samples for the measurement of errors
SWITCHED = 2  # samples for the effect of each layer on the outputs
_LAYER_COLUMNS = ("layer", "op", "error alone", "with all", "")
IR_VERSIONS = {21: 10, 19: 9}  # the IR version that each opset needs


@dataclass(frozen=True, slots=True)
class LayerReport:
    """A layer that can be quantized: whether it is, its own error, and its error together with earlier layers."""

    node: str
    op: str
    value: str
    narrowed: bool
    reason: str  # why it is not
    alone: LayerError | None
    error: float | None


@dataclass(frozen=True, slots=True)
class QuantizationReport(ShownAsTables):
    """The result of `weft.quantize`: sizes, times, and the errors of outputs and layers."""

    path: Path
    to: str
    form: str
    samples: int  # the number of samples used
    made_up: bool  # whether the samples are random, so ranges and errors are not those of real data
    opset: int
    layers: tuple[LayerReport, ...]
    outputs: tuple[OutputError, ...]
    sizes: FileSizes | None
    times: Times | None
    prepared: str = ""  # how images and audio are preprocessed

    @property
    def error(self) -> float:
        """The largest error of all outputs."""
        return max((each.error for each in self.outputs), default=0.0)

    def __repr__(self) -> str:
        parts = [self._summary()]
        if self.sizes is not None:
            parts.append(f"{format_bytes(self.sizes.before)} -> {format_bytes(self.sizes.after)}")
        if self.outputs:
            parts.append(f"error {self.error:.2g}")
        return f"<weft.QuantizationReport {shorten(str(self.path))}: {', '.join(parts)}>"

    def _summary(self) -> str:
        narrowed = sum(layer.narrowed for layer in self.layers)
        return f"{narrowed} of {format_plural(len(self.layers), 'layer')} in {self.to}"

    def _tables(self) -> Iterator[Table]:
        rows: list[tuple[object, ...]] = []
        if self.sizes is not None:
            rows.append(("bytes", format_bytes(self.sizes.before), format_bytes(self.sizes.after)))
        if self.times is not None:
            rows.append(("run time", format_seconds(self.times.before), format_seconds(self.times.after)))
        rows += [(f"error of {shorten(each.name)}", "", f"{each.error:.2g}") for each in self.outputs]
        data = format_plural(self.samples, "random sample" if self.made_up else "sample")
        note = f"Form {self.form}, opset {self.opset}; measured on {data}."
        title = f"{self.path}: {self._summary()}"
        yield Table(rows, ("", "before", "after"), title=title, right=("before", "after"), note=note)
        yield Table([_layer_row(layer) for layer in self.layers], _LAYER_COLUMNS, right=_LAYER_COLUMNS[2:4], most=20)


def _layer_row(layer: LayerReport) -> tuple[str, ...]:
    alone = "" if layer.alone is None else f"{layer.alone.error:.2g}"
    error = "" if layer.error is None else f"{layer.error:.2g}"
    return layer.node, layer.op, alone, error, "" if layer.narrowed else f"not quantized: {layer.reason}"


def quantize(
    source: ModelSource,
    path: str | PathLike[str],
    *,
    to: NumberKind,
    data: str | PathLike[str] | Sequence[Sample] | None = None,
    form: NumberForm | None = None,
    block: int = 32,
    embeddings: bool = False,
    calibration: RangeMethod = "mse",
    activations: CodeKind = "uint8",
    keep: Sequence[str] = (),
    leave: bool = True,
    budget: float | None = None,
    samples: int = SAMPLES,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    pictures: ImageOptions = DEFAULT_IMAGE_OPTIONS,
    device: str = "auto",
    threads: int | None = None,
    measure: bool = True,
) -> QuantizationReport:
    """Quantize an ONNX model, and measure its size, speed and errors.

    source: a path, bytes, a file object or an onnx.ModelProto.
    path: where to write the new model.
    to: "int8" (QuantizeLinear and DequantizeLinear around layers, weights per channel, calibrated activations), "int4"
        (weights of products in blocks), "fp16" or "bf16".
    data: a folder of samples (docs/guides/quantizing.md), or a list of dicts of arrays by the names of inputs. None:
        random inputs, which show that it works but are not suitable to calibrate int8 for use.
    form: for int4, "microsoft" writes a MatMulNBits of com.microsoft for each product, "standard" a DequantizeLinear
        with blocks (opset 21). For fp16 and bf16, "full" computes in that type where the range allows it, "weights"
        only stores weights in it. None: the default, which for bf16 is "weights", since few engines compute in it.
    block: the number of weights that share a scale in int4.
    embeddings: whether to quantize embedding tables to int4, too, as GatherBlockQuantized of com.microsoft.
    calibration: how to choose the ranges of activations in int8: "mse", "minmax", "percentile" or "entropy".
    activations: the type of activations in int8, "uint8" or "int8".
    keep: glob patterns of the names of nodes or values that are not quantized.
    leave: whether to skip layers whose error is an outlier.
    budget: the largest error that an output may have, relative to its largest magnitude: layers are skipped, the worst
        first, until the samples meet it.
    samples: the largest number of samples to use.
    sizes: the sizes of dynamic dims in random inputs.
    seed: the seed of random inputs.
    pictures: how to preprocess images in `data`, where the model does not determine it.
    device: the device that computes ranges and errors, and that is timed.
    threads: the number of threads of this device.
    measure: whether to compare and time the result.
    """
    options = QuantizeOptions(
        to=to,
        form=form,
        block=block,
        embeddings=embeddings,
        calibration=calibration,
        activations=activations,
        keep=keep,
        leave=leave,
        budget=budget,
        samples=samples,
        sizes=sizes or {},
        seed=seed,
        pictures=pictures,
        device=device,
        threads=threads,
        measure=measure,
    )
    if not Path(path).parent.is_dir():
        raise InputError(f"{path}: no such folder", hint="check the path of the result")
    if callable(read := getattr(source, "read", None)):
        source = read()  # the source is opened more than once
    with stages("quantizing") as progress:
        return _quantize(source, Path(path), data, options, progress.stage)


def _quantize(
    source: Any, path: Path, data: Any, options: QuantizeOptions, report: ReportProgress
) -> QuantizationReport:
    report("reading", 0.0)
    pipeline = open_pipeline(source, LoadOptions(device=options.device))
    original = pipeline.read()
    _check_not_quantized(original, options)
    declared = signature(original.graph, build_untraced_program(original.graph))
    specs = declared.inputs
    sizes = likely_sizes(pipeline.program(), options.sizes)
    context = InputContext(lambda: original, declared.outputs, options.pictures, options.sizes)
    samples = _get_samples(data, specs, sizes, options, context)
    if data is not None:
        check_finite(samples, lambda sample: load(source, device=options.device, threads=options.threads).run(sample))
    model, version = _prepare_model(original, options)
    quantizer = _make_quantizer(model, version, samples, options, report)
    if not quantizer.candidates:
        check_finite(samples)
        problem = f"no layer of this model can be quantized to {options.to}"
        raise UnsupportedModelError(problem, file=original.file, hint=_describe_needs(options.to))
    few = samples[:MEASURED]
    reference = load(source, device=options.device, threads=options.threads)
    choice = _LayerChoice(model, quantizer, options, report)
    quantized = choice.quantize_graph(reference, few)
    written = _set_versions(model, quantized, version)
    write_file(written, write_model(replace(written, graph=replace(quantized, initializers={}))), path)
    report("measuring the result", 0.0)
    outputs: tuple[OutputError, ...] = ()
    times = None
    errors: Mapping[str, float] = {}
    if options.measure:
        names = value_names(quantized)
        common = [name for name in quantizer.candidates if name in names]
        after = GraphValues(written, quantized, common, few[0], options.device)
        errors = measure_values(quantizer.values, after, few)
        del quantizer, after
        result = load(path, device=options.device, threads=options.threads)
        outputs = measure_outputs(reference, result, few)
        times = time_runs(reference, result, few[0])
    external = open_pipeline(path, LoadOptions(device=options.device)).read().external
    before_bytes = pipeline.files.opened.size + sum(map(len, original.external.values()))
    return QuantizationReport(
        path,
        options.to,
        options.written,
        len(samples),
        data is None,
        version,
        choice.layers(errors),
        outputs,
        FileSizes(before_bytes, count_file_bytes(path, external)),
        times,
        samples.preprocessing if isinstance(samples, FolderSamples) else "",
    )


def _check_not_quantized(model: OnnxModel, options: QuantizeOptions) -> None:
    node = find_quantized_node(model.graph)
    if node is not None:
        raise UnsupportedModelError(
            f"the model is already quantized: it has a {node.op}",
            file=model.file,
            node=node.name,
            hint=f"quantize the float32 model to {options.to}",
        )


def _describe_needs(to: str) -> str:
    if to == INT8:
        return "int8 needs convolutions or products with constant float32 weights"
    if to == INT4:
        return "int4 needs products with constant weights and at least one block in each row; see --block"
    return f"{to} needs float32 values"


def _get_samples(
    data: Any, specs: Sequence[TensorSpec], sizes: Mapping[str, int], options: QuantizeOptions, context: InputContext
) -> Sequence[Sample]:
    dims = {dim for spec in specs for dim in spec.shape or () if isinstance(dim, str)}
    unknown = [name for name in options.sizes if name not in dims]
    if unknown:
        hint = f"the dynamic dims are {', '.join(sorted(dims))}" if dims else "all dims of this model are fixed"
        raise InputError(f"the inputs have no dynamic dim {unknown[0]}", hint=hint)
    if data is None:
        return random_samples(specs, sizes, min(options.samples, MEASURED), options.seed)
    if isinstance(data, (str, PathLike)):
        return list_samples(Path(data), specs, options.samples, context)
    samples = list(data)[: options.samples]
    if not samples or not all(isinstance(sample, Mapping) for sample in samples):
        raise InputError("data must be a folder, or a list of dicts of arrays by the names of inputs, at least one")
    return samples


def _prepare_model(original: OnnxModel, options: QuantizeOptions) -> tuple[OnnxModel, int]:
    """Upgrade the opset if needed, and make the weights of layers constants; return the model and its opset."""
    graph = original.graph
    if original.ir_version < SEPARATE_WEIGHTS or len(graph.defaults) == len(graph.initializers):
        graph = replace(graph, defaults=())
    newest = max(newest_version(graph), original.opsets.get(STANDARD, 1))
    graph = with_shown_outputs(graph, newest)
    graph, version = _upgrade_opset(graph, newest, options)
    graph = fold_normalization(fold_values(graph, weight_inputs(graph)))
    return replace(original, graph=graph, opsets={**original.opsets, STANDARD: version}), version


def _upgrade_opset(graph: Graph, newest: int, options: QuantizeOptions) -> tuple[Graph, int]:
    if options.to == INT8:
        preferred, required = max(newest, PER_CHANNEL), newest
    elif options.written == STANDARD_FORM:
        preferred = required = max(newest, STANDARD_SINCE)
    elif options.to == BF16:
        preferred = required = max(newest, ALL_IN_BFLOAT16 if options.written == FULL_FORM else BFLOAT16)
    else:
        preferred = required = newest
    try:
        return upgrade_graph(graph, preferred), preferred
    except UnsupportedModelError:
        if preferred == required:
            raise
        return upgrade_graph(graph, required), required  # com.microsoft has scales along an axis in any opset


def _make_quantizer(
    model: OnnxModel, version: int, samples: Sequence[Sample], options: QuantizeOptions, report: ReportProgress
) -> Quantizer:
    if options.to == INT8:
        return Int8Quantizer(model, version, samples, options, report)
    if options.to == INT4:
        return Int4Quantizer(model, version, samples, options)
    if options.written == WEIGHTS_FORM:
        return HalfWeightQuantizer(model, version, samples, options)
    return HalfQuantizer(model, version, samples, options, report)


class _LayerChoice:
    """Chooses the layers to quantize; `reasons` says why others are not."""

    def __init__(
        self, model: OnnxModel, quantizer: Quantizer, options: QuantizeOptions, report: ReportProgress
    ) -> None:
        self._model = model
        self._quantizer = quantizer
        self._options = options
        self._report = report
        self.reasons: dict[str, str] = {}
        self.errors: dict[str, LayerError] = {}

    def quantize_graph(self, reference: Runs, samples: Sequence[Sample]) -> Graph:
        """Return the graph with the chosen layers quantized."""
        options, candidates = self._options, self._quantizer.candidates
        for pattern, names in match_layers(self._model.graph, candidates, options.keep).items():
            if not names:
                raise InputError(f"--keep {pattern}: no layer matches", hint="see the names with --json")
            self.reasons.update(dict.fromkeys(names, f"kept by {pattern}"))
        self._report("measuring layers", 0.0)
        shadows = self._quantizer.shadows() if options.measure or options.leave or options.budget else None
        if shadows is not None:
            self.errors = measure_layers(self._model, shadows, samples, options.device)
        if options.leave:
            for name in find_outliers(self.errors):
                self.reasons.setdefault(name, "its error is an outlier")
        graph = self._quantizer.graph(self.reasons.keys())
        if options.budget is None:
            return graph
        return self._meet_budget(graph, reference, samples, options.budget)

    def _meet_budget(self, graph: Graph, reference: Runs, samples: Sequence[Sample], budget: float) -> Graph:
        """Exclude the layers with the largest effects on the outputs, as few as possible."""
        if self._measure_error(graph, reference, samples) <= budget:
            return graph
        self._report("measuring the effect of each layer", 0.0)
        shadows = self._quantizer.shadows()
        if shadows is None:
            return graph
        try:
            effects = measure_effects(self._model, shadows, samples[:SWITCHED], self._options.device)
        except UnsupportedModelError:  # an opset without Where
            effects = {name: each.noise for name, each in self.errors.items()}
        worst = sorted(effects.keys() - self.reasons.keys(), key=lambda name: (-effects[name], name))
        low, high = 0, len(worst)  # `low` are too few, `high` are enough
        best = self._quantizer.graph({*self.reasons, *worst})
        while high - low > 1:
            self._report(f"trying {len(worst) - (low + high) // 2} layers", 0.0)
            middle = (low + high) // 2
            graph = self._quantizer.graph({*self.reasons, *worst[:middle]})
            if self._measure_error(graph, reference, samples) <= budget:
                high, best = middle, graph
            else:
                low = middle
        self.reasons.update(dict.fromkeys(worst[:high], "excluded to meet the budget"))
        return best

    def _measure_error(self, graph: Graph, reference: Runs, samples: Sequence[Sample]) -> float:
        runner = GraphRunner(self._model, graph, self._options.device, self._options.threads)
        return max((each.error for each in measure_outputs(reference, runner, samples)), default=0.0)

    def layers(self, errors: Mapping[str, float]) -> tuple[LayerReport, ...]:
        """Report on all layers; `errors` are those in the quantized model, by output."""
        nodes = {name: node for node in self._model.graph.nodes for name in node.outputs}
        return tuple(
            LayerReport(
                nodes[name].name,
                nodes[name].op,
                name,
                name not in self.reasons,
                self.reasons.get(name, ""),
                self.errors.get(name),
                errors.get(name),
            )
            for name in self._quantizer.candidates
        )


def _set_versions(model: OnnxModel, graph: Graph, version: int) -> OnnxModel:
    """Return the model with this graph, and the opsets and the IR version that it needs."""
    domains = {node.domain for node in graph.nodes}
    opsets = {**model.opsets, STANDARD: version, **({MICROSOFT: 1} if MICROSOFT in domains else {})}
    least = next((ir for opset, ir in IR_VERSIONS.items() if version >= opset), SEPARATE_WEIGHTS)
    return replace(model, graph=graph, opsets=opsets, ir_version=max(model.ir_version, least), external={})
