"""The whole way of a model on one page: read, trace, optimise, fuse, build, compile, start.

A `Pipeline` for each device that a model comes to takes the stages in order, unless the compiled model is in the cache,
and the session there asks it for more when a run needs a program for other shapes. Memory is planned by what `start`
gives, for the sizes of each run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.backends.device import Compiled, CompilingDriver, KeepingDriver, Runner, RunOptions, TunableDriver
from weft.cache.entries import CachedModel, CacheEntry
from weft.errors import (
    ExecutionError,
    InputError,
    InvalidModelError,
    OnlyAtRunError,
    OutOfMemoryError,
    WeftError,
)
from weft.ir.compiled import AwaitedObjects, CompiledProgram
from weft.ir.dims import Dim, symbols
from weft.ir.packing import release_pages
from weft.ir.program import TensorProgram, Value
from weft.ir.types import TensorType
from weft.logs import CACHE
from weft.runtime.accounts import tell_compiled
from weft.runtime.available_memory import check_memory_to_compile, memory_left
from weft.runtime.devices import driver
from weft.runtime.dump import StageDump
from weft.runtime.progress import expected_seconds
from weft.runtime.session import PreparedProgram, Session
from weft.threads import lock

if TYPE_CHECKING:
    from weft.backends.device import Driver, Recorder
    from weft.backends.reference.interpret import Interpreter
    from weft.frontend import OpenedModel
    from weft.ir.graph import Graph, OnnxModel
    from weft.ir.groups import FusedProgram
    from weft.ir.specs import Signature
    from weft.ir.work import Section, Work
    from weft.runtime.model_files import ModelFiles, Read
    from weft.runtime.options import LoadOptions
    from weft.runtime.progress import Stages
    from weft.runtime.revise import KnownWorks

LEANEST = "strict"  # the precision whose kernels need the least memory to work in


class Pipeline:
    """One model on its way to one device: the stages, and `load`, which calls them in order."""

    def __init__(
        self, files: ModelFiles, options: LoadOptions, device: str, progress: Stages, precision: str | None = None
    ) -> None:
        """`precision`: another one than the options', for kernels that need less memory."""
        self.files = files
        self.file = files.file
        self.options = options
        self.precision = precision or options.precision
        self.driver = _chosen(driver(device), options)
        self.progress = progress
        self.dump = StageDump(None if options.dump is None else Path(options.dump))
        self._program: TensorProgram | None = None
        self._skeleton: FusedProgram | None = None
        self._known: KnownWorks | None = None
        self._lock = lock()  # of the program and the skeleton
        self.prospect: tuple[TensorProgram, FusedProgram | None] | None = None  # what was made of the model already

    @property
    def _evaluator(self) -> Interpreter:
        from weft.backends.reference.interpret import Interpreter

        return Interpreter()

    # -- the stages --------------------------------------------------------------------------------------------------

    def read(self) -> OnnxModel:
        """The model as its file has it, or the part of it that gives the outputs that were asked for."""
        from weft.ir.graph import with_outputs

        model = self.files.model()
        if self.options.outputs is None:
            return model
        return replace(model, graph=with_outputs(model.graph, self.options.outputs))

    def trace(
        self,
        shapes: Mapping[str, Sequence[int | None] | None] | None = None,
        overridden: Sequence[str] = (),
        outputs: Sequence[str] | None = None,
    ) -> TensorProgram:
        """Graph -> TensorProgram; for given input shapes, or for any; with other values as outputs."""
        from weft.ir.texts import model_text
        from weft.opset.lower import lower

        graph = self._graph(outputs)
        self.progress.expect(expected_seconds(self.files.opened.size, len(graph.nodes)))
        self.dump.restart()
        self.dump.stage("graph", lambda: model_text(self.read()))
        self.progress.stage("tracing")
        program = lower(graph, self._evaluator, sizes=shapes, overridden=overridden, progress=self.progress.update)
        self.dump.stage("traced", lambda: program)
        return program

    def optimise(self, program: TensorProgram) -> TensorProgram:
        """TensorProgram -> TensorProgram through all passes, verified before and after each."""
        from weft.ir.verify import verify
        from weft.passes import PIPELINE

        verified = verify(program)
        for number, apply in enumerate(PIPELINE):
            self.progress.stage("simplifying", number / len(PIPELINE))
            program = apply(program, self._evaluator)
            verified = verify(program, verified)
            self.dump.stage(apply.__name__, lambda: program)  # noqa: B023 (called at once)
        return program

    def fuse(self, program: TensorProgram) -> FusedProgram:
        """TensorProgram -> groups of steps that become one piece of work each, and the layouts of values."""
        from weft.fuse import fuse
        from weft.passes.fold import fold_weights

        self.progress.stage("fusing")
        target = self._compiling_driver().target(self.precision)
        if not target.unpacks_weights:
            program = fold_weights(program, self._evaluator)
        return fuse(program, target, lambda name, fused: self.dump.stage(name, lambda: fused))

    def build(self, fused: FusedProgram, built: Callable[[Work], None] | None = None) -> tuple[Section, ...]:
        """Groups -> kernels for the device, in sections, and between them steps for the host.

        `built` hears of each work as soon as it is there.
        """
        from weft.kernels.sections import build_sections

        compiler = self._compiling_driver()
        target = compiler.target(self.precision)
        count = len(fused.groups)
        sections = build_sections(
            fused, target, lambda done: self._tell("building kernels", done, f"{round(done * count)} of {count}"), built
        )
        self._dump_kernels(sections, compiler)
        return sections

    def compile(self, program: TensorProgram, fused: FusedProgram | None = None) -> Compiled:
        """Compile a program's kernels; a device that interprets programs takes the program itself.

        `fused`: its groups, where they exist already.
        """
        if not isinstance(self.driver, CompilingDriver):
            return program
        fused = self.fuse(program) if fused is None else fused
        whole = replace(program, constants={**program.constants, **fused.program.constants})  # fusion adds constants
        with self.driver.begin(self.options.cache, self._tell) as compilation:
            return compilation.finish(whole, self.build(fused, compilation.take))

    def start(self, program: Compiled) -> PreparedProgram:
        """What plans and runs the program on the device; with `strict`, an error if kernels for it are missing."""
        if self.options.strict and isinstance(self.driver, CompilingDriver) and self.driver.has_memory:
            from weft.runtime.explain import check_strict

            check_strict(self.driver.name, program)
        runner = self.driver.start(program, self._run_options())
        return PreparedProgram(tuple(value.name for value in program.inputs), runner, program)

    def _run_options(self) -> RunOptions:
        """With a way to compile what only a run can trace, unless memory is limited: none can tell what that takes."""
        options = self.options.run_options
        if not isinstance(self.driver, CompilingDriver) or options.memory_limit is not None:
            return options
        return replace(options, late=self._compile_late)

    def _compile_late(self, program: TensorProgram) -> Runner:
        return self.prepare(self.optimise(program)).runner

    # -- a model -----------------------------------------------------------------------------------------------------

    def load(self) -> Session:
        """The model on this device; with leaner kernels where it must fit into a limit."""
        session = self._load()
        limit = self.options.bytes_limit
        return session if limit is None else self._fitting(session, limit)

    def _load(self) -> Session:
        from weft.ir.specs import signature

        try:
            self.driver.check_precision(self.precision)
        except WeftError as error:
            raise error.at(file=self.file) from error.__cause__
        self._tune()
        if isinstance(self.driver, KeepingDriver):
            specs, program = self._compiled(self.driver)
        else:
            program = self.program()
            specs = signature(self.read().graph, program, self.read().about)
        self._await_code(program)
        self.progress.stage("starting")
        self.files.end_loading(keep=isinstance(program, TensorProgram))
        try:
            whole = self.start(program)
        except WeftError as error:
            raise error.at(file=self.file) from error.__cause__
        session = Session(specs, whole, self)
        self._dump_plan(session)
        return session

    def _await_code(self, program: Compiled) -> None:
        """Wait for code that is still compiled, where somebody watches: else the first run would, and say nothing."""
        if self.progress.is_seen and isinstance(program, CompiledProgram):
            objects = program.objects
            if isinstance(objects, AwaitedObjects):
                self.progress.follow("compiling kernels", objects.number_made, len(objects))
                objects.made()

    def _tune(self) -> None:
        """Measure the products of the model, for a sample's sizes where there is one, if that was asked for."""
        seconds = self.options.tune
        if not isinstance(seconds, (int, float)) or not isinstance(self.driver, TunableDriver):
            return
        from weft.runtime.choice import likely_sizes
        from weft.runtime.memory import bind_shapes
        from weft.runtime.picking import shapes_of
        from weft.runtime.tuning import tuned_driver

        program = self.program()
        names = {value.name for value in program.inputs}
        shapes = {name: shape for name, shape in shapes_of(self.options.sample or {}).items() if name in names}
        sizes = likely_sizes(program, bind_shapes(program.inputs, shapes, self.file)[0])
        terms = (self.precision, seconds, sizes, self.options.cache, self._tell_tuning)
        self.driver = tuned_driver(self.driver, self.fuse(program), *terms)

    def _tell_packing(self, done: int, size: int) -> None:
        self.progress.stage("packing weights", done / max(size, 1), f"{done / 1e6:.0f} of {size / 1e6:.0f} MB")

    def _tell_tuning(self, product: str, fraction: float) -> None:
        self.progress.stage(f"tuning {product}", fraction)

    def renew(self, session: Session) -> Session:
        """The model on the device of a session with other weights; where it can be, with what was compiled for that.

        Code that is new is not kept on disk.
        """
        from weft.cache.code import keeping_nothing

        former, program = session.compiler, session.whole.program
        is_plain = self.options.bytes_limit is None and self.options.dump is None
        with keeping_nothing():
            if not is_plain or not isinstance(former, Pipeline) or not isinstance(program, CompiledProgram):
                return self.load()
            revised = self._revised(former, program)
        for copy in self.files.views():
            release_pages(copy)
        return Session(session.signature, self.start(revised), self)

    def _revised(self, former: Pipeline, before: CompiledProgram) -> Compiled:
        """The program of a pipeline with other weights, with these."""
        from weft.runtime.revise import KnownWorks, revise, skeleton

        program = self._any_shapes()
        fused = self.fuse(program)
        self._skeleton = skeleton(self.read().graph, fused)
        self._known = former._known or KnownWorks(self._compiling_driver().target(self.precision))
        revised = revise(before, former.skeleton(), self._skeleton, fused, self._known)
        if revised is not None:
            return revised
        self._known = None
        return self.compile(program)

    def skeleton(self) -> FusedProgram:
        """What the model was compiled from, without the elements of constants."""
        from weft.runtime.revise import skeleton

        with self._lock:
            if self._skeleton is None:
                self._skeleton = skeleton(self.read().graph, self.fuse(self._any_shapes()))
            return self._skeleton

    def _fitting(self, session: Session, limit: int) -> Session:
        """The model if it fits into its limit, else one whose kernels need less memory to work in."""
        try:
            session.check_limit(limit)
        except OutOfMemoryError as error:
            try:
                if self.precision != LEANEST:
                    session = Pipeline(self.files, self.options, self.driver.name, self.progress, LEANEST)._load()
                session.check_limit(limit)
            except OutOfMemoryError:
                raise error from None
        return session

    def _compiled(self, device: KeepingDriver) -> tuple[Signature, Compiled]:
        """What the cache has, or what goes there; what was traced, and its weights, can go as they are packed."""
        cached = self._changed(device) if self.files.changed else self._prepared(device)
        entry = self._entry(device) if cached is None else None
        cached = entry.get() if cached is None and entry is not None else cached
        if cached is None:
            check_memory_to_compile(self.file, self.files.opened.size)
            began = time.monotonic()
            made = self._make()
            cached = (made if entry is None else entry.put(made, memory_left(), self._tell_packing)) or self._make()
            tell_compiled(self.file, device.name, cached.program, self.precision, time.monotonic() - began)
        else:
            where = "the cache" if entry is not None else "its file"
            CACHE.info("%s: the program for %s is taken from %s", self.file, device.name, where)
        return cached.signature, cached.program

    def _changed(self, device: KeepingDriver) -> CachedModel | None:
        """A model whose weights were set, made of what the cache has with the file's own weights.

        It is not kept: there would be one for each set of weights.
        """
        former = Pipeline(self.files.unchanged, self.options, device.name, self.progress, self.precision)
        entry = former._entry(device)
        kept = former._prepared(device) or (None if entry is None else entry.get())
        if kept is None or not isinstance(kept.program, CompiledProgram):
            return None
        revised = self._revised(former, kept.program)
        assert not isinstance(revised, TensorProgram)
        return CachedModel(kept.signature, revised)

    def is_ready(self) -> bool:
        """Whether it takes no compilation to load the model."""
        if not isinstance(self.driver, KeepingDriver):
            return True
        if not self.files.changed and self._prepared(self.driver) is not None:
            return True
        entry = self._entry(self.driver)
        return entry is not None and entry.get() is not None

    def _prepared(self, device: KeepingDriver) -> CachedModel | None:
        """The model as the files hold it for a device, if they do."""
        return (
            None if self.options.dump is not None else self.files.prepared(device, self.precision, self.options.outputs)
        )

    def _entry(self, device: KeepingDriver) -> CacheEntry | None:
        """The model's place in the cache, if it may have one."""
        if not self.options.cache or self.options.dump is not None or self.files.changed:
            return None
        return CacheEntry(self.files, device.name, device.identity(), self.precision, *self._part())

    def _part(self) -> tuple[str, ...]:
        """What tells parts of one model from each other."""
        reading = ("strict",) if self.options.strict else ()  # a file may be repaired without
        return reading if self.options.outputs is None else (*reading, "outputs", *self.options.outputs)

    def make(self, sizes: Mapping[str, int]) -> CachedModel:
        """The model compiled, to be kept elsewhere; for given sizes of its dynamic dims, where there are any."""
        from weft.ir.specs import signature

        if not sizes:
            return self._make()
        whole = self._any_shapes()
        compiled = self.compile(self.specialise(sized_inputs(whole.inputs, sizes, self.file), ()))
        assert not isinstance(compiled, TensorProgram)
        return CachedModel(signature(self.read().graph, whole), compiled)

    def _make(self) -> CachedModel:
        from weft.ir.specs import signature

        program, fused = self.prospect or (self._any_shapes(), None)
        self.prospect = None
        compiled = self.compile(program, fused)
        assert not isinstance(compiled, TensorProgram)
        return CachedModel(signature(self.read().graph, program, self.read().about), compiled)

    def _any_shapes(self) -> TensorProgram:
        from weft.opset.lower import untraced

        try:
            return self.specialise(None, ())
        except OnlyAtRunError:
            return untraced(self.read().graph)
        except ExecutionError as error:  # of constants, which no run could change
            where = {"file": self.file, "node": error.node, "value": error.value}
            raise InvalidModelError(error.problem, hint=error.hint, **where) from error
        except WeftError as error:
            raise error.at(file=self.file) from error.__cause__

    # -- what the session asks for -----------------------------------------------------------------------------------

    def program(self) -> TensorProgram:
        """The optimised program for any shapes, made when it is first asked for."""
        with self._lock:
            if self._program is None:
                self._program = self._any_shapes()
            return self._program

    def specialise(
        self,
        shapes: Mapping[str, Sequence[int | None] | None] | None,
        overridden: Sequence[str],
        outputs: Sequence[str] | None = None,
    ) -> TensorProgram:
        """The optimised program for given shapes and overridden defaults, and for other outputs than the model's."""
        return self.optimise(self.trace(shapes, overridden, outputs))

    def prepare(self, program: TensorProgram) -> PreparedProgram:
        """An optimised program, made to run on the device."""
        return self.start(self.compile(program))

    def record(self, program: Compiled) -> Recorder:
        """What runs such a program and tells how that went."""
        return self.driver.record(program, self.options.threads)

    def run_eagerly(self, inputs: Mapping[str, Any], outputs: Sequence[str] | None = None) -> list[Any]:
        """A run node by node, without a program; gives the model's outputs or others."""
        from weft.opset.lower import run_eagerly

        return run_eagerly(self._graph(outputs), self._evaluator, inputs)

    def _graph(self, outputs: Sequence[str] | None) -> Graph:
        from weft.ir.graph import with_outputs

        graph = self.read().graph
        return graph if outputs is None else with_outputs(graph, outputs)

    # -- what is told on the way -------------------------------------------------------------------------------------

    def _tell(self, stage: str, fraction: float, detail: str = "") -> None:
        """Say how far a stage is; weights that were packed on the way are no longer needed as the files have them."""
        self.progress.stage(stage, fraction, detail)
        for copy in self.files.views():
            release_pages(copy)

    def _compiling_driver(self) -> CompilingDriver:
        assert isinstance(self.driver, CompilingDriver)
        return self.driver

    def _dump_kernels(self, sections: Sequence[Section], device: CompilingDriver) -> None:
        """Sections with their tasks, and every kernel with its code in the languages on its way to the device."""
        if self.dump.folder is None:
            return
        from weft.backends.naming import named_kernels, named_sections
        from weft.ir.texts import sections_text

        kernels = named_kernels(sections)
        self.dump.stage("sections", lambda: sections_text(named_sections(sections, kernels)))
        for name, kernel in {kernel.name: kernel for kernel in kernels.values()}.items():
            self.dump.file(f"kernels/{name}.txt", lambda: kernel)  # noqa: B023 (called at once)
            for listing in device.listings(kernel):
                self.dump.file(f"kernels/{name}{listing.suffix}", lambda: listing.text)  # noqa: B023

    def _dump_plan(self, session: Session) -> None:
        if self.dump.folder is None or not isinstance(self.driver, KeepingDriver):
            return
        from weft.plan.texts import plan_text

        try:
            text = plan_text(*session.plan())
        except WeftError as error:
            text = f"no plan for sizes that are only guessed: {error.problem}"
        self.dump.stage("plan", lambda: text)


def _chosen(found: Driver, options: LoadOptions) -> Driver:
    """The device, with the choices of tiles that hold for it."""
    if options.tune is None and not isinstance(found, TunableDriver):
        return found
    from weft.runtime.tuning import choosing_driver

    return choosing_driver(found, options.tune, options.cache)


def _sized(dim: Dim, sizes: Mapping[str, int]) -> int | None:
    return dim if isinstance(dim, int) else sizes.get(str(dim))


def sized_inputs(inputs: Sequence[Value], sizes: Mapping[str, int], file: str) -> dict[str, tuple[int | None, ...]]:
    """The shapes of inputs with these sizes of dynamic dims, None for those of other dims."""
    shapes: dict[str, tuple[int | None, ...]] = {}
    known: set[str] = set()
    for value in inputs:
        shape = value.type.shape if isinstance(value.type, TensorType) else None
        if shape is not None:
            known.update(symbol.name for dim in shape for symbol in symbols(dim) if str(dim) == symbol.name)
            shapes[value.name] = tuple(_sized(dim, sizes) for dim in shape)
    for name in sizes:
        if name not in known:
            hint = f"the dynamic dims are {', '.join(sorted(known))}" if known else "all dims of this model are fixed"
            raise InputError(f"the inputs have no dynamic dim {name!r}", file=file, hint=hint)
    return shapes


def read_opened(opened: OpenedModel, folders: Sequence[Path], *, strict: bool = False) -> OnnxModel:
    """The graph that a source holds, its weights views of private copies."""
    from weft.frontend.read import read_model
    from weft.opset.registry import known_attributes

    return read_model(opened, is_defined=is_defined, folders=folders, known_attributes=known_attributes, strict=strict)


def reader(options: LoadOptions) -> Read:
    """Return what reads files as these options say."""
    return partial(read_opened, strict=True) if options.strict else read_opened


def is_defined(domain: str, op: str, version: int) -> bool:
    """Whether weft has a definition of its own for an op."""
    from weft.opset import registry

    return registry.find(domain, op, version) is not None
