"""`weft.optimize`: the whole way of a model to fewer nodes: read, learn, rewrite until nothing changes, write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from weft.errors import InputError, UnsupportedModelError
from weft.frontend.read import is_standard, read_model
from weft.frontend.save import LARGEST
from weft.frontend.schemas import newest_known
from weft.frontend.source import ModelSource, OpenedModel, copy_model
from weft.frontend.write import save_again, with_initializers, write_again
from weft.ir.graph import Graph, GraphValue, Node, OnnxModel, subgraphs
from weft.ir.specs import signature
from weft.ir.types import TensorType, Type
from weft.loading import open_graph
from weft.opset import registry
from weft.opset.lower import untraced
from weft.optimization.affine import with_affine_weights
from weft.optimization.algebra import with_less_arithmetic
from weft.optimization.branches import with_shared_constants, with_taken_branches, without_idle_states
from weft.optimization.editing import STANDARD, all_names, tidy, with_shown_outputs
from weft.optimization.facts import ValueFacts, fixed_sizes, learn
from weft.optimization.folding import merged, with_constants, without_repetition
from weft.optimization.movement import with_less_movement
from weft.optimization.opsets import newest_version, upgraded
from weft.optimization.options import GROWTH, OptimizeOptions
from weft.optimization.orders import with_fewer_orders
from weft.optimization.products import with_simpler_products
from weft.optimization.rewriting import Workshop
from weft.optimization.states import without_zero_states
from weft.quantities import format_bytes, shortened
from weft.records import dataclass
from weft.runtime.progress import stages
from weft.tables import ShownTable, Tabled

Pass = Callable[[Graph, ValueFacts, Workshop], Graph]

SEPARATE_WEIGHTS = 4  # the first IR version in which weights need not be inputs
MOST_ROUNDS = 64
PASSES: tuple[Pass, ...] = (
    with_taken_branches,
    without_idle_states,
    with_constants,
    without_repetition,
    merged,
    with_less_arithmetic,
    with_less_movement,
    with_fewer_orders,
    without_zero_states,
    with_affine_weights,
    with_simpler_products,
)


@dataclass(frozen=True, slots=True)
class OptimizationReport(Tabled):
    """What became of a model. `ops` are numbers of nodes by op, before and after, those in bodies included."""

    path: Path | None
    model: Any  # the onnx.ModelProto, where no path was given
    opset: int  # that it is written in
    ops: Mapping[str, tuple[int, int]]
    initializers: tuple[int, int]  # how many there were, and are
    bytes: tuple[int, int]  # of the file, and of those beside it
    done: Mapping[str, int]  # how often each change was made

    @property
    def nodes(self) -> tuple[int, int]:
        """How many nodes there were, and are."""
        return sum(before for before, _ in self.ops.values()), sum(after for _, after in self.ops.values())

    def __repr__(self) -> str:
        (nodes, left), (before, after) = self.nodes, (format_bytes(size) for size in self.bytes)
        where = "" if self.path is None else f" {shortened(str(self.path))}:"
        return f"<weft.OptimizationReport{where} nodes {nodes} -> {left}, {before} -> {after}, opset {self.opset}>"

    def _tables(self) -> Iterator[ShownTable]:
        rows: list[tuple[object, ...]] = [("nodes", *self.nodes), ("initializers", *self.initializers)]
        rows.append(("bytes", *(format_bytes(size) for size in self.bytes)))
        changed = sorted(self.ops.items(), key=lambda item: (item[1][1] - item[1][0], item[0]))
        rows += [(op, *pair) for op, pair in changed if pair[0] != pair[1]]
        title = "" if self.path is None else f"{self.path}, opset {self.opset}"
        yield ShownTable(rows, ("", "before", "after"), title=title, right=("before", "after"))
        if self.done:
            done = sorted(self.done.items(), key=lambda item: (-item[1], item[0]))
            yield ShownTable(done, ("what was done", "times"), right=("times",))


def optimize(
    source: ModelSource,
    path: str | PathLike[str] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    growth: int | None = GROWTH,
    opset: int | None = None,
    keep_inputs: bool = False,
    exact: bool = False,
) -> OptimizationReport:
    """Write an ONNX model again with fewer nodes and the same results, for any engine.

    source: a path, bytes, a file object or an onnx.ModelProto.
    path: where the new model goes; None gives it as the report's `model`.
    sizes: dynamic dims of the inputs that get a fixed size, by name.
    growth: how many bytes a folded value may be larger than the constants that it was computed from; what would grow
        more (a ConstantOfShape, an Expand, a Tile, a table that a model computes) stays a node. None: no limit.
    opset: write the model in this opset, if it is newer; None keeps that of the model.
    keep_inputs: whether weights that are inputs, too, stay so, and are not folded. By default they do, unless all
        weights are: old exporters wrote files in that way, and nobody means to override them.
    exact: leave alone what changes results in the last digits: nothing is moved into weights, sums and products keep
        their order.
    """
    options = OptimizeOptions(sizes or {}, growth, opset, keep_inputs, exact)
    target = None if path is None else Path(path)
    if target is not None and not target.parent.is_dir():
        raise InputError(f"{target}: there is no such folder", hint="check the path of the result")
    with stages("optimizing") as progress:
        progress.stage("reading", 0.0)
        opened = copy_model(open_graph(source))
        original = read_model(opened, is_defined=_is_defined)
        work, graph = prepared(original, options)
        before = _counted(original.graph)
        graph = rewritten(graph, work, progress.stage)
        progress.stage("writing", 0.9)
        return _written(opened, original, graph, work, before, target)


def _is_defined(domain: str, op: str, version: int) -> bool:
    """Ops that are written as they are: those of standards, and those that weft knows; functions are inlined."""
    standard = not domain.startswith("com.microsoft") and is_standard(domain, op, version)
    return standard or registry.find(domain, op, version) is not None


def prepared(original: OnnxModel, options: OptimizeOptions) -> tuple[Workshop, Graph]:
    """The graph as it is rewritten: of one opset, with nodes for all outputs, and weights that are constants."""
    graph = original.graph
    _check_sizes(original, options.sizes)
    graph = fixed_sizes(graph, options.sizes) if options.sizes else graph
    old = original.ir_version < SEPARATE_WEIGHTS
    if old or (not options.keep_inputs and len(graph.defaults) == len(graph.initializers)):
        graph = replace(graph, defaults=())
    own = original.opsets.get(STANDARD, 1)
    version = max(newest_version(graph), own)
    if options.opset is not None:
        if options.opset < version:
            problem = f"the model is of opset {version}, and cannot be written in opset {options.opset}"
            raise UnsupportedModelError(problem, file=original.file, hint="models are only made newer")
        newest = newest_known()[STANDARD]
        if options.opset > newest:
            raise InputError(f"opset is {options.opset}; the installed onnx knows versions up to {newest}")
        version = options.opset
    graph = with_shown_outputs(graph, version)
    if _is_mixed(graph, version):
        graph = upgraded(graph, version)
    return Workshop(options, version, all_names(graph)), graph


def _is_mixed(graph: Graph, version: int) -> bool:
    own = any(node.version != version for node in graph.nodes if node.domain == STANDARD)
    return own or any(_is_mixed(inner, version) for node in graph.nodes for inner in subgraphs(node))


def _check_sizes(model: OnnxModel, sizes: Mapping[str, int]) -> None:
    specs = signature(model.graph, untraced(model.graph)).inputs
    known = sorted({dim for spec in specs for dim in spec.shape or () if isinstance(dim, str)})
    for name in sizes:
        if name not in known:
            hint = f"the dynamic dims are {', '.join(known)}" if known else "all dims of this model are fixed"
            raise InputError(f"the inputs have no dynamic dim {name}", hint=hint)


def rewritten(graph: Graph, work: Workshop, tell: Callable[[str, float], None]) -> Graph:
    """The graph once nothing more can be done."""
    for number in range(MOST_ROUNDS):
        tell("rewriting", 0.1 + 0.8 * number / MOST_ROUNDS)
        facts = learn(graph)
        try:
            changed = with_shared_constants(_rewritten_once(graph, facts, work), work)
        finally:
            facts.end()
        if changed is graph:
            break
        graph = changed
    return graph


def _rewritten_once(graph: Graph, facts: ValueFacts, work: Workshop) -> Graph:
    """All passes, until none finds more with what is known; then those bodies that control flow has."""
    graph = tidy(graph) if _has_idle(graph) else graph
    for _ in range(MOST_ROUNDS):
        before = graph
        for each in PASSES:
            graph = each(graph, facts, work)
        if graph is before:
            break
    nodes = tuple(_with_rewritten_bodies(node, facts, work) for node in graph.nodes)
    same = all(new is old for new, old in zip(nodes, graph.nodes))
    return graph if same else tidy(replace(graph, nodes=nodes))


def _with_rewritten_bodies(node: Node, facts: ValueFacts, work: Workshop) -> Node:
    bodies = {name: content for name, content in node.attributes.items() if isinstance(content, Graph)}
    if not bodies:
        return node
    changed = {name: _rewritten_once(body, facts.inside(body), work) for name, body in bodies.items()}
    if all(changed[name] is body for name, body in bodies.items()):
        return node
    return replace(node, attributes={**node.attributes, **changed})


def _has_idle(graph: Graph) -> bool:
    """Whether nodes or constants are there that nothing needs."""
    tidied = tidy(graph)
    return len(tidied.nodes) < len(graph.nodes) or len(tidied.initializers) < len(graph.initializers)


def _written(
    opened: OpenedModel, original: OnnxModel, graph: Graph, work: Workshop, before: Counter[str], path: Path | None
) -> OptimizationReport:
    facts = learn(graph)
    types = {name: type for name in _values(graph) if (type := facts.declared(name)) is not None and _is_told(type)}
    facts.end()
    outputs = tuple(_completed(value, types, work.options) for value in graph.outputs)
    ir_version = max(original.ir_version, SEPARATE_WEIGHTS)
    opsets = {**original.opsets, STANDARD: work.version}
    model = replace(original, graph=replace(graph, outputs=outputs), opsets=opsets, ir_version=ir_version)
    proto = write_again(opened, model, types)
    bytes_before = opened.size + sum(map(len, original.external.values()))
    if path is None:
        if sum(_sizes(graph)) > LARGEST:
            problem = f"the model has more than {LARGEST:,} bytes, which no ModelProto holds"
            raise InputError(problem, hint="give a path that it is written to")
        made = with_initializers(proto, model)
        bytes_after = made.ByteSize()
    else:
        save_again(proto, model, path)
        made = None
        beside = [each.stat() for each in path.parent.glob(f"{path.name}.*.data")]
        apart = path.stat().st_size < sum(_sizes(graph))
        newest = max(beside, key=lambda each: each.st_mtime_ns).st_size if apart and beside else 0
        bytes_after = path.stat().st_size + newest
    after = _counted(graph)
    ops = {op: (before[op], after[op]) for op in sorted(before.keys() | after.keys())}
    counts = len(original.graph.initializers), len(graph.initializers)
    return OptimizationReport(path, made, work.version, ops, counts, (bytes_before, bytes_after), dict(work.done))


def _sizes(graph: Graph) -> list[int]:
    return [array.nbytes for array in graph.initializers.values() if array.dtype != object]


def _values(graph: Graph) -> list[str]:
    return [name for node in graph.nodes for name in node.outputs if name]


def _is_told(type: Type) -> bool:
    return isinstance(type, TensorType) and type.shape is not None


def _completed(value: GraphValue, types: Mapping[str, Type], options: OptimizeOptions) -> GraphValue:
    """An output with the type that is declared, or what is known where that says less, or something else."""
    found, told = types.get(value.name), value.type
    if not isinstance(found, TensorType) or found.shape is None:
        return value
    if not isinstance(told, TensorType) or told.shape is None or options.sizes or len(told.shape) != len(found.shape):
        return replace(value, type=found)
    pairs = zip(told.shape, found.shape)
    wrong = any(isinstance(new, int) and isinstance(old, int) and old != new for old, new in pairs)
    return replace(value, type=found) if wrong or told.dtype is not found.dtype else value


def _counted(graph: Graph) -> Counter[str]:
    """Nodes by op, those of other domains with these before them."""
    found = Counter(f"{node.domain}.{node.op}" if node.domain else node.op for node in graph.nodes)
    for node in graph.nodes:
        for inner in subgraphs(node):
            found += _counted(inner)
    return found
