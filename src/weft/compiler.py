"""The whole way of a model on one page: read, trace, optimise, fuse, build, compile, start.

`weft.load` takes `LoadOptions`. A `Pipeline` for each device that the model comes to takes the stages in order, unless
the compiled model is in the cache, and the session there asks it for more when a run needs a program for other shapes.
Memory is planned by what `start` gives, for the sizes of each run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from weft.backends.device import Compiled, CompilingDriver, KeepingDriver, Recorder, RunOptions
from weft.backends.mixed.driver import MixedDriver
from weft.backends.naming import named_kernels, named_sections
from weft.backends.reference.interpret import Interpreter
from weft.cache.code import keeping_nothing
from weft.cache.digests import key_of
from weft.cache.entries import CachedModel, CacheEntry
from weft.cache.models import shared_models
from weft.errors import (
    DeviceError,
    DeviceFallbackError,
    ExecutionError,
    InputError,
    InvalidModelError,
    OutOfMemoryError,
    WeftError,
    shown,
)
from weft.frontend import OpenedModel, open_model, read_model
from weft.fuse import fuse
from weft.ir.compiled import CompiledProgram
from weft.ir.graph import Graph, OnnxModel, with_outputs
from weft.ir.groups import FusedProgram
from weft.ir.mixed import MixedProgram
from weft.ir.packing import release_pages
from weft.ir.program import TensorProgram
from weft.ir.specs import Signature, signature
from weft.ir.texts import model_text, sections_text
from weft.ir.verify import verify
from weft.ir.work import Section
from weft.kernels.sections import build_sections
from weft.opset import registry
from weft.opset.foreign import foreign_digest
from weft.opset.lower import lower, run_eagerly, untraced
from weft.opset.tensor import OnlyAtRunError
from weft.passes import PIPELINE
from weft.plan.texts import plan_text
from weft.runtime.arguments import listed, whole_number
from weft.runtime.available_memory import check_memory_to_compile, check_memory_to_start
from weft.runtime.deployment import Deployment
from weft.runtime.devices import HOST, driver, helper, together
from weft.runtime.dump import StageDump
from weft.runtime.memory import parse_bytes
from weft.runtime.mixing import Mixer, MixOptions
from weft.runtime.model import Model
from weft.runtime.model_files import Array, ModelFiles, PortableSource, reopened
from weft.runtime.picking import picked
from weft.runtime.policy import DeviceOption, in_force, route
from weft.runtime.progress import Stages, stages
from weft.runtime.revise import KnownWorks, revise, skeleton
from weft.runtime.session import PreparedProgram, Session
from weft.runtime.warming import soonest, warm_in_background
from weft.threads import lock

PRECISIONS = ("float32", "strict")
LEANEST = "strict"  # the precision whose kernels need the least memory to work in


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """What `weft.load` takes beside the model; a WeftError where an option is none.

    device: a name from `weft.devices()`, or "auto" for the best one here; "webgpu" is the best GPU, "webgpu:1" one by
        its number, "webgpu:geforce" by a part of its name, "webgpu+cpu" are two together, each part of the model where
        it is quickest. A list of names is a chain, of which the first that works serves; a `weft.DevicePolicy` says
        what "auto" may choose from, and how. Where a device that "auto" chose, or one of a chain, fails at load or in a
        run, the next takes over, and a FallbackWarning tells. `model.report()` says what was tried.
    strict: whether to raise an error instead of going on to another device, or of leaving steps to one.
    warm: "background" gives a model that serves as soon as it can: on a device that it is compiled for already, or on
        the host. Those that promise to be faster are compiled in the background, and timed; the model moves to one
        when it is ready and faster. Results keep their bits per device; `model.report()` says which served.
    sample: inputs like those to come, by name: what their sizes cost decides where the model runs, and benchmarks run
        on them. None makes some up.
    threads: how many threads to use; None leaves it to the device. The reference device leaves it to numpy.
    precision: "float32" narrows no operand but may reassociate, and compute products in another basis (Winograd) where
        values are of one size, so that errors stay in proportion to what an output sees, and NaN and infinity where
        they are seen; "strict" allows nothing less accurate than a blocked dot product. The reference device computes
        both alike.
    memory_limit: bytes, or a text like "200MB", that weights, arena, workspace and outputs of one run at a time may
        take. A model that does not fit is refused with OutOfMemoryError, one with dynamic shapes when it is run.
    prefer: "memory" keeps the arena as small as it can be; "speed" lets it grow where kernels can then run side by side
        on threads that would wait. A memory_limit comes first.
    outputs: the values that the model gives, in order; None: those that the file declares. Any value of the main graph
        will do, by its name: what they do not need is neither compiled nor kept.
    cache: whether compiled models and code may be kept on disk; the reference device compiles none.
    dump: a folder into which each stage is written as a numbered text file.
    """

    device: DeviceOption = "auto"
    strict: bool = False
    warm: str | None = None
    sample: Mapping[str, Any] | None = None
    threads: int | None = None
    precision: str = "float32"
    memory_limit: int | str | None = None
    prefer: str = "memory"
    outputs: Sequence[str] | None = None
    cache: bool = True
    dump: str | Path | None = None

    def __post_init__(self) -> None:
        in_force(self.device)
        if not isinstance(self.strict, bool):
            raise DeviceError(f"strict must be True or False, not {shown(self.strict)}")
        if self.warm is not None and not (isinstance(self.warm, str) and self.warm == "background"):
            raise DeviceError(f"warm must be None or 'background', not {shown(self.warm)}")
        if self.sample is not None and not isinstance(self.sample, Mapping):
            raise InputError(f"sample must be a dict of arrays by name, not a {type(self.sample).__name__}")
        if not isinstance(self.prefer, str) or self.prefer not in ("memory", "speed"):
            raise DeviceError(f"prefer must be 'memory' or 'speed', not {shown(self.prefer)}")
        if not isinstance(self.precision, str) or self.precision not in PRECISIONS:
            hint = f"use one of {', '.join(PRECISIONS)}"
            is_fast = isinstance(self.precision, str) and self.precision == "fast"
            why = ": no layer is computed in bfloat16 or narrower yet" if is_fast else ""
            raise DeviceError(f"precision {shown(self.precision)} is not available{why}", hint=hint)
        try:
            folder = None if self.dump is None else Path(self.dump)
        except Exception as error:  # whatever a class of someone else's raises
            raise InputError(f"dump must be the path of a folder, not a {type(self.dump).__name__}") from error
        try:
            threads = None if self.threads is None else whole_number(self.threads, "threads")
        except InputError as error:
            raise DeviceError(error.problem) from None
        limit = None if self.memory_limit is None else parse_bytes(self.memory_limit)
        outputs = None if self.outputs is None else listed(self.outputs, "outputs")
        if outputs is not None and not (outputs and all(isinstance(name, str) for name in outputs)):
            raise InputError(f"outputs must be a list of names, at least one, not {shown(outputs)}")
        for name, value in (("dump", folder), ("threads", threads), ("memory_limit", limit), ("outputs", outputs)):
            object.__setattr__(self, name, value)

    @property
    def bytes_limit(self) -> int | None:
        """The memory limit as a number."""
        return None if self.memory_limit is None else int(self.memory_limit)

    @property
    def run_options(self) -> RunOptions:
        """What of it is about runs."""
        return RunOptions(self.threads, self.bytes_limit, may_grow=self.prefer == "speed")


Given = ParamSpec("Given")


def _taking(options: Callable[Given, LoadOptions]) -> Callable[Concatenate[Any, Given], Model]:
    """`load`, whose keywords are the options: they are stated there and nowhere else."""

    def load(source: Any, *unnamed: Given.args, **given: Given.kwargs) -> Model:
        return _load(source, options(*unnamed, **given))

    first = inspect.Parameter("source", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Any)
    keywords = inspect.signature(options).parameters.values()
    load.__signature__ = inspect.Signature([first, *keywords], return_annotation=Model)  # type: ignore[attr-defined]
    what = "source: a path, bytes, a file object or an onnx.ModelProto."
    load.__doc__ = f"Load an ONNX model, ready to run.\n\n    {what}\n\n    {options.__doc__}"
    load.__qualname__ = "load"
    return load  # type: ignore[return-value]  # which has a name for its source, too


load = _taking(LoadOptions)


def open_pipeline(source: Any, options: LoadOptions) -> Pipeline:
    """The stages on their own, for those who want to see what comes between them."""
    files = ModelFiles(open_model(source), _read, None, None)
    return Pipeline(files, options, route(options.device).devices[0], Stages("building", show=False))


def _load(source: Any, options: LoadOptions) -> Model:
    with stages("loading") as progress:
        progress.stage("reading")
        return _served(ModelFiles(open_model(source), _read, *_folders(options)), options, progress)


def _load_again(source: PortableSource, options: LoadOptions, weights: Mapping[str, Array]) -> Model:
    """A model that was pickled."""
    with stages("loading") as progress:
        progress.stage("reading")
        files = reopened(source, _read, *_folders(options))
        return _served(files.with_weights(weights) if weights else files, options, progress)


def _served(files: ModelFiles, options: LoadOptions, progress: Stages) -> Model:
    """A model on the first of its devices that works, or on the one that is ready first."""
    way = route(options.device)
    if options.strict and way.absent:
        raise DeviceFallbackError(way.absent, file=files.file)
    opener = ModelOpener(files, options, progress)
    deployment = Deployment(opener, way.absent)
    way = picked(way, deployment, at_once=options.warm is not None)
    if options.warm is None:
        return Model(deployment, way, options.strict)
    soon, better = soonest(way, opener.is_ready)
    model = Model(deployment, soon, options.strict)
    warm_in_background(model, better, options.sample)
    return model


def _folders(options: LoadOptions) -> tuple[Path | None, Path | None]:
    """Where copies of files may lie, and where their digests are remembered."""
    models = shared_models() if options.cache else None
    return (None, None) if models is None else (models.folder, models.records)


class ModelOpener:
    """Brings one model to devices: files are read once, and each device has a pipeline of its own."""

    def __init__(self, files: ModelFiles, options: LoadOptions, progress: Stages) -> None:
        self.files = files
        self.file = files.file
        self.options = options
        self.sample = options.sample
        self.strict = options.strict
        self.threads = options.threads
        self._progress = progress
        self._program: TensorProgram | None = None  # held from the choice of a device until it is opened
        self._groups: dict[str, FusedProgram] = {}

    def open(self, device: str, progress: Stages | None = None) -> Session:
        """The model on a device, ready to run."""
        with self._within_memory():
            if isinstance(driver(device), KeepingDriver):
                check_memory_to_start()
            pipeline = Pipeline(self.files, self.options, device, progress or self._progress)
            program, self._program = self._program, None
            groups, self._groups = self._groups, {}
            if program is not None and self.options.dump is None:
                pipeline.prospect = (program, groups.get(device))
            del program, groups
            return pipeline.load()

    def content(self) -> str | None:
        """What names the model for those who remember what was chosen for it."""
        definitions = foreign_digest()
        if not self.options.cache or self.options.dump is not None or definitions is None:
            return None
        return key_of(self.files.name(), definitions, self.options.precision, repr(self.options.outputs))

    def program(self) -> TensorProgram:
        """The optimised program, traced for whichever device is chosen."""
        found = self._program
        if found is None:
            found = self._program = self._prospective(HOST).program()
        return found

    def fused(self, device: str) -> FusedProgram:
        """Its groups for a device."""
        found = self._groups.get(device)
        if found is None:
            found = self._groups[device] = self._prospective(device).fuse(self.program())
        return found

    def _prospective(self, device: str) -> Pipeline:
        """The way to a device that may not be taken to its end, and writes nothing down."""
        return Pipeline(self.files, replace(self.options, dump=None), device, self._progress)

    def is_ready(self, device: str) -> bool:
        """Whether the model can be opened there without a compilation."""
        return Pipeline(self.files, self.options, device, self._progress).is_ready()

    def with_weights(self, changed: Mapping[str, Array]) -> ModelOpener:
        """The same model with some other weights."""
        return ModelOpener(self.files.with_weights(changed), self.options, self._progress)

    def renew(self, session: Session) -> Session:
        """The model on a session's device, with these weights instead of the session's."""
        with self._within_memory():
            return Pipeline(self.files, self.options, session.device, self._progress).renew(session)

    def portable(self, device: DeviceOption) -> tuple[Callable[..., Model], tuple[Any, ...]]:
        """What loads the model again in another process."""
        return _load_again, (self.files.portable(), replace(self.options, device=device), dict(self.files.changed))

    @contextmanager
    def _within_memory(self) -> Iterator[None]:
        try:
            yield
        except WeftError:
            raise
        except MemoryError as error:
            hint = "this process may take too little memory to load it; a model that is cached takes less"
            raise OutOfMemoryError("the memory is used up", file=self.file, hint=hint) from error


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
        self.driver = driver(device)
        self.progress = progress
        self.dump = StageDump(None if options.dump is None else Path(options.dump))
        self._decided: MixedProgram | None = None  # what runs on which of several devices
        self._evaluator = Interpreter()
        self._program: TensorProgram | None = None
        self._skeleton: FusedProgram | None = None
        self._known: KnownWorks | None = None
        self._lock = lock()  # of the program and the skeleton
        self.prospect: tuple[TensorProgram, FusedProgram | None] | None = None  # what was made of the model already

    # -- the stages --------------------------------------------------------------------------------------------------

    def read(self) -> OnnxModel:
        """The model as its file has it, or the part of it that gives the outputs that were asked for."""
        model = self.files.model()
        if self.options.outputs is None:
            return model
        return replace(model, graph=with_outputs(model.graph, self.options.outputs))

    def trace(
        self,
        shapes: Mapping[str, Sequence[int | None]] | None = None,
        overridden: Sequence[str] = (),
        outputs: Sequence[str] | None = None,
    ) -> TensorProgram:
        """Graph -> TensorProgram; for given input shapes, or for any; with other values as outputs."""
        graph = self._graph(outputs)
        self.dump.restart()
        self.dump.stage("graph", lambda: model_text(self.read()))
        self.progress.stage("tracing")
        program = lower(graph, self._evaluator, sizes=shapes, overridden=overridden, progress=self.progress.update)
        self.dump.stage("traced", lambda: program)
        return program

    def optimise(self, program: TensorProgram) -> TensorProgram:
        """TensorProgram -> TensorProgram through all passes, verified before and after each."""
        verified = verify(program)
        for apply in PIPELINE:
            self.progress.stage(apply.__name__.replace("_", " "))
            program = apply(program, self._evaluator)
            verified = verify(program, verified)
            self.dump.stage(apply.__name__, lambda: program)  # noqa: B023 (called at once)
        return program

    def fuse(self, program: TensorProgram, device: CompilingDriver | None = None) -> FusedProgram:
        """TensorProgram -> groups of steps that become one piece of work each, and the layouts of values."""
        target = self._compiler(device).target(self.precision)
        return fuse(program, target, lambda name, fused: self.dump.stage(name, lambda: fused))

    def build(self, fused: FusedProgram, device: CompilingDriver | None = None) -> tuple[Section, ...]:
        """Groups -> kernels for the device, in sections, and between them steps for the host."""
        compiler = self._compiler(device)
        target = compiler.target(self.precision)
        sections = build_sections(fused, target, lambda fraction: self._tell("building kernels", fraction))
        self._dump_kernels(sections, compiler)
        return sections

    def compile(self, program: TensorProgram, fused: FusedProgram | None = None) -> Compiled:
        """The program with its kernels' code, in pieces where several devices share it; for a device that runs programs
        as they are, the program. `fused` are its groups, where they are known.
        """
        match self.driver:
            case MixedDriver(drivers=drivers):
                return self._mixer().quickest(program, drivers)
            case CompilingDriver():
                fused, other = self.fuse(program) if fused is None else fused, helper(self.driver.name)
                pieces = None if other is None else self._mixer().helped(program, fused, (self.driver, other))
                return self._generate(program, fused, self.driver) if pieces is None else pieces
            case _:
                return program

    def start(self, program: Compiled) -> PreparedProgram:
        """What plans and runs the program on the device, or on those of its pieces."""
        device = together(program.devices) if isinstance(program, MixedProgram) else self.driver
        runner = device.start(program, self.options.run_options)
        return PreparedProgram(tuple(value.name for value in program.inputs), runner, program)

    def _mixer(self) -> Mixer:
        options = self.options
        terms = MixOptions(self.precision, options.strict, options.sample, options.run_options)
        return Mixer(self.file, terms, self._compile_piece, self._decided)

    def _generate(self, program: TensorProgram, fused: FusedProgram, device: CompilingDriver) -> CompiledProgram:
        return device.compile(program, self.build(fused, device), self.options.cache, self._tell)

    def _compile_piece(self, program: TensorProgram, device: CompilingDriver) -> CompiledProgram:
        self.dump.stage(f"piece-{device.name}", lambda: program)
        return self._generate(program, self.fuse(program, device), device)

    # -- a model -----------------------------------------------------------------------------------------------------

    def load(self) -> Session:
        """The model on this device; with leaner kernels where it must fit into a limit."""
        session = self._load()
        limit = self.options.bytes_limit
        return session if limit is None else self._fitting(session, limit)

    def _load(self) -> Session:
        if isinstance(self.driver, KeepingDriver):
            specs, program = self._compiled(self.driver)
        else:
            program = self.program()
            specs = signature(self.read().graph, program)
        self.files.end_loading(keep=isinstance(program, TensorProgram))
        try:
            whole = self.start(program)
        except WeftError as error:
            raise error.at(file=self.file) from error.__cause__
        session = Session(specs, whole, self)
        self._dump_plan(session)
        return session

    def renew(self, session: Session) -> Session:
        """The model on the device of a session with other weights; where it can be, with what was compiled for that.

        Code that is new is not kept on disk.
        """
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
        program = self._any_shapes()
        fused = self.fuse(program)
        self._skeleton = skeleton(self.read().graph, fused)
        self._known = former._known or KnownWorks(self._compiler(None).target(self.precision))
        revised = revise(before, former.skeleton(), self._skeleton, fused, self._known)
        if revised is not None:
            return revised
        self._known = None
        return self.compile(program)

    def skeleton(self) -> FusedProgram:
        """What the model was compiled from, without the elements of constants."""
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
        entry = self._entry(device)
        cached = self._changed(device) if self.files.changed else None if entry is None else entry.get()
        if cached is None:
            check_memory_to_compile(self.file, self.files.opened.size)
            made = self._make()
            self.progress.stage("saving")
            cached = (made if entry is None else entry.put(made)) or self._make()
        self._decided = cached.program if isinstance(cached.program, MixedProgram) else None
        return cached.signature, cached.program

    def _changed(self, device: KeepingDriver) -> CachedModel | None:
        """A model whose weights were set, made of what the cache has with the file's own weights.

        It is not kept: there would be one for each set of weights.
        """
        former = Pipeline(self.files.unchanged, self.options, device.name, self.progress, self.precision)
        entry = former._entry(device)
        kept = None if entry is None else entry.get()
        if kept is None or not isinstance(kept.program, CompiledProgram):
            return None
        revised = self._revised(former, kept.program)
        assert not isinstance(revised, TensorProgram)
        return CachedModel(kept.signature, revised)

    def is_ready(self) -> bool:
        """Whether it takes no compilation to load the model."""
        if not isinstance(self.driver, KeepingDriver):
            return True
        entry = self._entry(self.driver)
        return entry is not None and entry.get() is not None

    def _entry(self, device: KeepingDriver) -> CacheEntry | None:
        """The model's place in the cache, if it may have one."""
        if not self.options.cache or self.options.dump is not None or self.files.changed:
            return None
        other = helper(device.name) if isinstance(device, CompilingDriver) else None  # whose code may be a part of it
        identity = device.identity() if other is None else f"{device.identity()} {other.identity()}"
        return CacheEntry(self.files, identity, self.precision, *self._part())

    def _part(self) -> tuple[str, ...]:
        """What tells parts of one model from each other."""
        return () if self.options.outputs is None else ("outputs", *self.options.outputs)

    def _make(self) -> CachedModel:
        program, fused = self.prospect or (self._any_shapes(), None)
        self.prospect = None
        if isinstance(self.driver, MixedDriver):
            compiled: Compiled = self._mixer().measured(program, self.driver.drivers)
        else:
            compiled = self.compile(program, fused)
        assert not isinstance(compiled, TensorProgram)
        return CachedModel(signature(self.read().graph, program), compiled)

    def _any_shapes(self) -> TensorProgram:
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
        shapes: Mapping[str, Sequence[int | None]] | None,
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
        device = together(program.devices) if isinstance(program, MixedProgram) else self.driver
        return device.record(program, self.options.threads)

    def run_eagerly(self, inputs: Mapping[str, Any], outputs: Sequence[str] | None = None) -> list[Any]:
        """A run node by node, without a program; gives the model's outputs or others."""
        return run_eagerly(self._graph(outputs), self._evaluator, inputs)

    def _graph(self, outputs: Sequence[str] | None) -> Graph:
        graph = self.read().graph
        return graph if outputs is None else with_outputs(graph, outputs)

    # -- what is told on the way -------------------------------------------------------------------------------------

    def _tell(self, stage: str, fraction: float) -> None:
        """Say how far a stage is; weights that were packed on the way are no longer needed as the files have them."""
        self.progress.stage(stage, fraction)
        for copy in self.files.views():
            release_pages(copy)

    def _compiler(self, device: CompilingDriver | None) -> CompilingDriver:
        """The device that a program, or a piece of one, is for."""
        found = self.driver if device is None else device
        assert isinstance(found, CompilingDriver)
        return found

    def _dump_kernels(self, sections: Sequence[Section], device: CompilingDriver) -> None:
        """Sections with their tasks, and every kernel with its code in the languages on its way to the device."""
        if self.dump.folder is None:
            return
        kernels = named_kernels(sections)
        folder = "kernels" if device is self.driver else f"kernels-{device.name}"
        self.dump.stage("sections", lambda: sections_text(named_sections(sections, kernels)))
        for name, kernel in {kernel.name: kernel for kernel in kernels.values()}.items():
            self.dump.file(f"{folder}/{name}.txt", lambda: kernel)  # noqa: B023 (called at once)
            for listing in device.listings(kernel):
                self.dump.file(f"{folder}/{name}{listing.suffix}", lambda: listing.text)  # noqa: B023

    def _dump_plan(self, session: Session) -> None:
        if self.dump.folder is None or not isinstance(self.driver, KeepingDriver):
            return
        try:
            text = plan_text(*session.plan())
        except WeftError as error:
            text = f"no plan for sizes that are only guessed: {error.problem}"
        self.dump.stage("plan", lambda: text)


def _read(opened: OpenedModel, folders: Sequence[Path]) -> OnnxModel:
    return read_model(opened, is_defined=is_defined, folders=folders)


def is_defined(domain: str, op: str, version: int) -> bool:
    """Whether weft has a definition of its own for an op."""
    return registry.find(domain, op, version) is not None
