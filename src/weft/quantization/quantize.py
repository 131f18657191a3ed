"""`weft.quantize`: the whole way of a model to narrower numbers: read, prepare, calibrate, choose, write, measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from weft.optimization.graph_edit import MICROSOFT, STANDARD, with_shown_outputs
from weft.optimization.opset_upgrade import newest_version, upgrade_graph
from weft.quantities import format_bytes, format_plural, format_seconds, shorten
from weft.quantization.blocks import STANDARD_SINCE
from weft.quantization.halves import ALL_IN_BFLOAT16, BFLOAT16
from weft.quantization.integers import PER_CHANNEL
from weft.quantization.layers import quantised_node, weight_operands
from weft.quantization.measure import FileSizes, OutputError, Times, file_bytes, output_errors, run_times, value_errors
from weft.quantization.narrowing import Blocks, HalfWeights, Halves, Integers, Narrowing, matching
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
from weft.quantization.preparing import (
    with_fixed_weights,
    with_folded,
    with_folded_normalisation,
)
from weft.quantization.running import GraphRunner, GraphValues, Runs
from weft.quantization.samples import FolderSamples, Sample, check_finite, folder_samples, made_up_samples
from weft.quantization.sensitivity import LayerError, layer_errors, out_of_line, output_effects
from weft.readers.images import DEFAULT_IMAGE_OPTIONS, ImageOptions
from weft.readers.read import InputContext
from weft.runtime.options import LoadOptions
from weft.runtime.progress import stages
from weft.runtime.ranking import likely_sizes
from weft.tables import ShownAsTables, Table

Tell = Callable[[str, float], None]

MEASURED = 8  # samples that errors are measured on
SWITCHED = 2  # samples that every layer is tried on, one after the other
SEPARATE_WEIGHTS = 4  # the first IR version in which weights need not be inputs
_LAYER_COLUMNS = ("layer", "op", "error alone", "with all", "")
IR_VERSIONS = {21: 10, 19: 9}  # opset to the IR version that it came with


@dataclass(frozen=True, slots=True)
class LayerReport:
    """A layer that could be narrowed: whether it is, its error on its own, and with those of all before it."""

    node: str
    op: str
    value: str
    narrowed: bool
    reason: str  # why it is not
    alone: LayerError | None
    error: float | None


@dataclass(frozen=True, slots=True)
class QuantizationReport(ShownAsTables):
    """What became of a model: sizes, times, and the errors of its outputs and layers."""

    path: Path
    to: str
    form: str  # how it is written
    samples: int  # how many were used
    made_up: bool  # whether nobody gave data, so that ranges and errors are those of random numbers
    opset: int
    layers: tuple[LayerReport, ...]  # what became of each layer
    outputs: tuple[OutputError, ...]  # how far off each output is
    sizes: FileSizes | None  # of the files, before and after
    times: Times | None  # of runs, before and after
    prepared: str = ""  # what was done to pictures and sounds, in the words of the first one

    @property
    def error(self) -> float:
        """The largest of all outputs."""
        return max((each.error for each in self.outputs), default=0.0)

    def __repr__(self) -> str:
        narrowed = sum(layer.narrowed for layer in self.layers)
        parts = [f"{narrowed} of {format_plural(len(self.layers), 'layer')} in {self.to}"]
        if self.sizes is not None:
            parts.append(f"{format_bytes(self.sizes.before)} -> {format_bytes(self.sizes.after)}")
        if self.outputs:
            parts.append(f"error {self.error:.2g}")
        return f"<weft.QuantizationReport {shorten(str(self.path))}: {', '.join(parts)}>"

    def _tables(self) -> Iterator[Table]:
        rows: list[tuple[object, ...]] = []
        if self.sizes is not None:
            rows.append(("bytes", format_bytes(self.sizes.before), format_bytes(self.sizes.after)))
        if self.times is not None:
            rows.append(("a run", format_seconds(self.times.before), format_seconds(self.times.after)))
        rows += [(f"error of {shorten(each.name)}", "", f"{each.error:.2g}") for each in self.outputs]
        narrowed = sum(layer.narrowed for layer in self.layers)
        title = f"{self.path}: {narrowed} of {format_plural(len(self.layers), 'layer')} in {self.to}"
        data = f"{format_plural(self.samples, 'sample')} of {'random numbers' if self.made_up else 'the data given'}"
        note = f"Form {self.form}, opset {self.opset}; measured on {data}."
        yield Table(rows, ("", "before", "after"), title=title, right=("before", "after"), note=note)
        yield Table([_layer_row(layer) for layer in self.layers], _LAYER_COLUMNS, right=_LAYER_COLUMNS[2:4], most=20)


def _layer_row(layer: LayerReport) -> tuple[str, ...]:
    alone = "" if layer.alone is None else f"{layer.alone.error:.2g}"
    error = "" if layer.error is None else f"{layer.error:.2g}"
    return layer.node, layer.op, alone, error, "" if layer.narrowed else f"left as it is: {layer.reason}"


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
    """Write an ONNX model again with narrower numbers, and say what that does to size, speed and results.

    source: a path, bytes, a file object or an onnx.ModelProto.
    path: where the new model goes.
    to: "int8" (QuantizeLinear and DequantizeLinear around layers, weights per channel, values by calibration), "int4"
        (weights of products in blocks, values as they are), "fp16" or "bf16".
    data: a folder of samples (docs/guides/quantizing.md), or a list of dicts of arrays by the names of inputs. None
        makes up random ones, which are good enough to see that it works, and not for int8 that is used.
    form: for int4, "microsoft" has a MatMulNBits of com.microsoft for each product, "standard" a DequantizeLinear with
        blocks (opset 21). For fp16 and bf16, "full" computes in that type where its range allows it, "weights" only
        keeps weights in it. None takes the usual one: bf16 keeps weights, since few engines compute in it.
    block: how many weights share a scale in int4.
    embeddings: whether tables that rows are looked up in become int4, too, as GatherBlockQuantized of com.microsoft.
    calibration: how ranges of values are chosen in int8: "mse", "minmax", "percentile" or "entropy".
    activations: the type of the codes of values in int8, "uint8" or "int8".
    keep: patterns (as of file names) of the names of nodes or values that stay as they are.
    leave: whether layers whose error is out of line are left as they are, too.
    budget: the largest error that an output may have, relative to its largest magnitude: layers are left as they are,
        the worst first, until that holds for the samples.
    samples: how many samples are used at most.
    sizes: the sizes of dynamic dims in made-up data.
    seed: of made-up data.
    pictures: how pictures in `data` become numbers, where that does not follow from the model.
    device: what computes ranges and errors, and is timed.
    threads: how many threads it may use.
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
        raise InputError(f"{path}: there is no such folder", hint="check the path of the result")
    if callable(read := getattr(source, "read", None)):
        source = read()  # it is read more than once
    with stages("quantizing") as progress:
        return _quantize(source, Path(path), data, options, progress.stage)


def _quantize(source: Any, path: Path, data: Any, options: QuantizeOptions, tell: Tell) -> QuantizationReport:
    tell("reading", 0.0)
    pipeline = open_pipeline(source, LoadOptions(device=options.device))
    original = pipeline.read()
    _check(original, options)
    declared = signature(original.graph, build_untraced_program(original.graph))
    specs = declared.inputs
    sizes = likely_sizes(pipeline.program(), options.sizes)
    context = InputContext(lambda: original, declared.outputs, options.pictures, options.sizes)
    samples, made_up = _samples(data, specs, sizes, options, context)
    if not made_up:
        check_finite(samples, lambda sample: load(source, device=options.device, threads=options.threads).run(sample))
    model, version = _prepared(original, options)
    narrowing = _narrowing(model, version, samples, options, tell)
    if not narrowing.candidates:
        check_finite(samples)
        raise UnsupportedModelError(
            f"nothing in this model can become {options.to}", file=original.file, hint=_needs(options.to)
        )
    few = samples[:MEASURED]
    whole = load(source, device=options.device, threads=options.threads)
    choice = _Choice(model, narrowing, options, tell)
    narrowed = choice.made(whole, few)
    written = _as_file(model, narrowed, version)
    write_file(written, write_model(replace(written, graph=replace(narrowed, initializers={}))), path)
    tell("measuring the result", 0.0)
    outputs: tuple[OutputError, ...] = ()
    times = None
    inside: Mapping[str, float] = {}
    if options.measure:
        after = GraphValues(written, narrowed, _common(narrowed, narrowing.candidates), few[0], options.device)
        inside = value_errors(narrowing.values, after, few)
        del narrowing, after
        result = load(path, device=options.device, threads=options.threads)
        outputs = output_errors(whole, result, few)
        times = run_times(whole, result, few[0])
    external = open_pipeline(path, LoadOptions(device=options.device)).read().external
    before_bytes = pipeline.files.opened.size + sum(map(len, original.external.values()))
    return QuantizationReport(
        path,
        options.to,
        options.written,
        len(samples),
        made_up,
        version,
        choice.layers(inside),
        outputs,
        FileSizes(before_bytes, file_bytes(path, external)),
        times,
        samples.told if isinstance(samples, FolderSamples) else "",
    )


def _common(graph: Graph, names: Sequence[str]) -> list[str]:
    known = value_names(graph)
    return [name for name in names if name in known]


def _check(model: OnnxModel, options: QuantizeOptions) -> None:
    node = quantised_node(model.graph)
    if node is not None:
        raise UnsupportedModelError(
            f"the model is quantised already: {node.op} computes with integers that stand for numbers",
            file=model.file,
            node=node.name,
            hint=f"start from the model in float32 to get {options.to}",
        )


def _needs(to: str) -> str:
    if to == INT8:
        return "it needs convolutions or products whose weights are constants of float32"
    if to == INT4:
        return "it needs products whose weights are constants with at least a block in each row; see --block"
    return "it needs values of float32"


def _samples(
    data: Any, specs: Sequence[TensorSpec], sizes: Mapping[str, int], options: QuantizeOptions, context: InputContext
) -> tuple[Sequence[Sample], bool]:
    dims = {dim for spec in specs for dim in spec.shape or () if isinstance(dim, str)}
    unknown = [name for name in options.sizes if name not in dims]
    if unknown:
        hint = f"the dynamic dims are {', '.join(sorted(dims))}" if dims else "all dims of this model are fixed"
        raise InputError(f"the inputs have no dynamic dim {unknown[0]}", hint=hint)
    if data is None:
        return made_up_samples(specs, sizes, min(options.samples, MEASURED), options.seed), True
    if isinstance(data, (str, PathLike)):
        return folder_samples(Path(data), specs, options.samples, context), False
    given = list(data)[: options.samples]
    if not given or not all(isinstance(sample, Mapping) for sample in given):
        raise InputError("data must be a folder, or a list of dicts of arrays by the names of inputs, at least one")
    return given, False


def _prepared(original: OnnxModel, options: QuantizeOptions) -> tuple[OnnxModel, int]:
    """The model with layers that are nodes with constant weights, in an opset that has what is needed."""
    graph = original.graph
    if original.ir_version < SEPARATE_WEIGHTS or len(graph.defaults) == len(graph.initializers):
        graph = with_fixed_weights(graph)
    newest = max(newest_version(graph), original.opsets.get(STANDARD, 1))
    graph = with_shown_outputs(graph, newest)
    graph, version = _in_opset(graph, newest, options)
    graph = with_folded_normalisation(with_folded(graph, weight_operands(graph)))
    return replace(original, graph=graph, opsets={**original.opsets, STANDARD: version}), version


def _in_opset(graph: Graph, newest: int, options: QuantizeOptions) -> tuple[Graph, int]:
    if options.to == INT8:
        wanted, needed = max(newest, PER_CHANNEL), newest
    elif options.written == STANDARD_FORM:
        wanted = needed = max(newest, STANDARD_SINCE)
    elif options.to == BF16:
        wanted = needed = max(newest, ALL_IN_BFLOAT16 if options.written == FULL_FORM else BFLOAT16)
    else:
        wanted = needed = newest
    try:
        return upgrade_graph(graph, wanted), wanted
    except UnsupportedModelError:
        if wanted == needed:
            raise
        return upgrade_graph(graph, needed), needed  # com.microsoft has scales along an axis in any opset


def _narrowing(
    model: OnnxModel, version: int, samples: Sequence[Sample], options: QuantizeOptions, tell: Tell
) -> Narrowing:
    if options.to == INT8:
        return Integers(model, version, samples, options, tell)
    if options.to == INT4:
        return Blocks(model, version, samples, options)
    if options.written == WEIGHTS_FORM:
        return HalfWeights(model, version, samples, options)
    return Halves(model, version, samples, options, tell)


class _Choice:
    """Which layers are narrowed, and why the others are not."""

    def __init__(self, model: OnnxModel, narrowing: Narrowing, options: QuantizeOptions, tell: Tell) -> None:
        self._model = model
        self._narrowing = narrowing
        self._options = options
        self._tell = tell
        self.reasons: dict[str, str] = {}
        self.errors: dict[str, LayerError] = {}

    def made(self, whole: Runs, samples: Sequence[Sample]) -> Graph:
        """The graph with all layers narrowed that may be."""
        options, candidates = self._options, self._narrowing.candidates
        for pattern, names in matching(self._model.graph, candidates, options.keep).items():
            if not names:
                raise InputError(f"--keep {pattern}: no layer has such a name", hint="see the names with --json")
            self.reasons.update(dict.fromkeys(names, f"kept by {pattern}"))
        self._tell("measuring layers", 0.0)
        shadows = self._narrowing.shadows() if options.measure or options.leave or options.budget else None
        if shadows is not None:
            self.errors = layer_errors(self._model, shadows, samples, options.device)
        if options.leave:
            for name in out_of_line(self.errors):
                self.reasons.setdefault(name, "its error is out of line")
        graph = self._narrowing.graph(self.reasons.keys())
        if options.budget is None:
            return graph
        return self._within_budget(graph, whole, samples, options.budget)

    def _within_budget(self, graph: Graph, whole: Runs, samples: Sequence[Sample], budget: float) -> Graph:
        """Leave the layers as they are that move the outputs most, as few of them as will do."""
        if self._error(graph, whole, samples) <= budget:
            return graph
        self._tell("what each layer does to the outputs", 0.0)
        shadows = self._narrowing.shadows()
        if shadows is None:
            return graph
        try:
            effects = output_effects(self._model, shadows, samples[:SWITCHED], self._options.device)
        except UnsupportedModelError:  # an opset without a choice between two tensors
            effects = {name: each.noise for name, each in self.errors.items()}
        worst = sorted(effects.keys() - self.reasons.keys(), key=lambda name: (-effects[name], name))
        low, high = 0, len(worst)  # `low` are too few, `high` are enough
        best = self._narrowing.graph({*self.reasons, *worst})
        while high - low > 1:
            self._tell(f"trying {len(worst) - (low + high) // 2} layers", 0.0)
            middle = (low + high) // 2
            graph = self._narrowing.graph({*self.reasons, *worst[:middle]})
            if self._error(graph, whole, samples) <= budget:
                high, best = middle, graph
            else:
                low = middle
        self.reasons.update(dict.fromkeys(worst[:high], "left for the budget"))
        return best

    def _error(self, graph: Graph, whole: Runs, samples: Sequence[Sample]) -> float:
        runner = GraphRunner(self._model, graph, self._options.device, self._options.threads)
        return max((each.error for each in output_errors(whole, runner, samples)), default=0.0)

    def layers(self, inside: Mapping[str, float]) -> tuple[LayerReport, ...]:
        nodes = {name: node for node in self._model.graph.nodes for name in node.outputs}
        return tuple(
            LayerReport(
                nodes[name].name,
                nodes[name].op,
                name,
                name not in self.reasons,
                self.reasons.get(name, ""),
                self.errors.get(name),
                inside.get(name),
            )
            for name in self._narrowing.candidates
        )


def _as_file(model: OnnxModel, graph: Graph, version: int) -> OnnxModel:
    """The model as its file says it."""
    domains = {node.domain for node in graph.nodes}
    opsets = {**model.opsets, STANDARD: version, **({MICROSOFT: 1} if MICROSOFT in domains else {})}
    least = next((ir for opset, ir in IR_VERSIONS.items() if version >= opset), SEPARATE_WEIGHTS)
    return replace(model, graph=graph, opsets=opsets, ir_version=max(model.ir_version, least), external={})
