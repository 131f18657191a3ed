"""`weft.load`: a model's files, the devices that it may run on, and the one that serves."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from weft.backends.device import NATIVE, KeepingDriver
from weft.cache.digests import key_of
from weft.cache.models import shared_models
from weft.cache.sources import definitions_digest
from weft.compiler import Pipeline, read_opened, reader
from weft.errors import (
    DeviceError,
    DeviceFallbackError,
    InputError,
    OutOfMemoryError,
    UnknownOptionError,
    WeftError,
    shown,
)
from weft.frontend.source import open_model
from weft.garbage import seldom_collected
from weft.runtime.accounts import tell_loaded
from weft.runtime.arguments import listed, whole_number
from weft.runtime.available_memory import check_memory_to_start
from weft.runtime.deployment import Deployment
from weft.runtime.devices import HOST, driver
from weft.runtime.model import Model
from weft.runtime.model_files import Array, ModelFiles, PortableSource, reopened, source_again
from weft.runtime.options import USUAL_PRECISION, LoadOptions, Precision
from weft.runtime.policy import route
from weft.runtime.progress import NODES, Stages, expected_seconds, stages
from weft.runtime.received import received
from weft.saved.layout import holds_program

if TYPE_CHECKING:
    from weft.frontend import OpenedModel
    from weft.frontend.source import ModelSource
    from weft.ir.groups import FusedProgram
    from weft.ir.program import TensorProgram
    from weft.runtime.policy import DeviceOption
    from weft.runtime.session import Session

COMPILING = ("llvmlite", "ml_dtypes", "onnx")  # packages that saved programs do without


def _taking(options: Callable[..., LoadOptions]) -> Callable[..., Model]:
    """`load`, whose keywords are the options, with their defaults and what is said of them."""

    def load(source: Any, *unnamed: Any, **given: Any) -> Model:
        if not given.keys() <= known:
            from weft.runtime.habits import LOADING, unknown_option

            raise unknown_option("weft.load", given, known, LOADING)
        if unnamed:
            raise UnknownOptionError("weft.load takes one model, and options by name", hint='for instance device="cpu"')
        return _load(source, options(**given))

    first = inspect.Parameter("source", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="ModelSource")
    named = inspect.Parameter.KEYWORD_ONLY
    keywords = [inspect.Parameter(f.name, named, default=f.default, annotation=f.type) for f in fields(LoadOptions)]
    known = {keyword.name: None for keyword in keywords}.keys()
    load.__signature__ = inspect.Signature([first, *keywords], return_annotation=Model)  # type: ignore[attr-defined]
    what = "source: a path, bytes, a file object, a ModelProto, an export of torch's, or what `weft.compile` saved."
    told = inspect.cleandoc(options.__doc__ or "").partition("\n\n")[2]
    load.__doc__ = f"Load an ONNX model, ready to run.\n\n{what}\n{told}"
    load.__qualname__ = "load"
    return load


if TYPE_CHECKING:  # which editors and type checkers read; a test sees that it says what LoadOptions does

    def load(
        source: ModelSource,
        *,
        device: DeviceOption = "auto",
        strict: bool = False,
        warm: Literal["background"] | None = None,
        sample: Mapping[str, Any] | None = None,
        threads: int | None = None,
        precision: Precision = USUAL_PRECISION,
        memory_limit: int | str | None = None,
        prefer: Literal["memory", "speed"] = "memory",
        outputs: Sequence[str] | None = None,
        cache: bool = True,
        trusted: bool = False,
        recompile: bool = False,
        dump: str | PathLike[str] | None = None,
        tune: str | Path | float | None = None,
    ) -> Model:
        """Load an ONNX model, ready to run; `help(weft.load)` tells what each option means.

        source: a path, bytes, a file object, a ModelProto, an export of torch's, or what `weft.compile` saved.
        """
        ...

else:
    load = _taking(LoadOptions)


def compile(
    source: ModelSource | Model,
    path: str | PathLike[str],
    *,
    device: str | Sequence[str] = HOST,
    target: str | Sequence[str] = NATIVE,
    sizes: Mapping[str, int] | None = None,
    precision: Precision = USUAL_PRECISION,
    outputs: Sequence[str] | None = None,
    graph: bool = True,
    cache: bool = True,
) -> None:
    """Compile a model ahead of time, into a file that `weft.load` runs without a compiler (docs/guides/ahead.md).

    source: what `weft.load` takes, or a model that it gave, with the weights that were set.
    device: one device, or several: there is a program for each.
    target: for which processors; of several, a load takes the best one that runs there. "native" is this machine's,
        others are "x86-64-v2", "x86-64-v3", "x86-64-v4" and "aarch64".
    sizes: of dynamic dims, by name, that the programs are for; other sizes are compiled when they are met.
    graph: whether the model itself goes into the file: it serves other shapes, outputs, weights and devices.
    """
    from weft.saved.write import SavingTerms, keep_copies, save_programs

    devices = tuple(dict.fromkeys(name for wanted in listed_names(device) for name in route(wanted).devices))
    given = whole_sizes(sizes)
    options = LoadOptions(precision=precision, outputs=outputs, cache=cache)
    try:
        place = Path(path)
    except TypeError as error:
        raise InputError(f"a path to save to, not a {type(path).__name__}") from error
    with stages("compiling") as progress, seldom_collected():
        if isinstance(source, Model):
            files = source.deployment.opener.files
        else:
            files, _ = _files(open_model(source), replace(options, recompile=True), _folders(options))
        save_programs(files, options, SavingTerms(devices, listed_names(target), given, graph), place, progress)
        keep_copies(place, options, *_folders(options))


def listed_names(given: Any) -> tuple[str, ...]:
    """One name or several, as several."""
    names = (given,) if isinstance(given, str) else listed(given, "device and target")
    if not names or not all(isinstance(name, str) for name in names):
        raise InputError(f"device and target must be names, not {shown(given)}")
    return tuple(dict.fromkeys(names))


def whole_sizes(sizes: Any) -> dict[str, int]:
    """Sizes by name, checked."""
    if sizes is None:
        return {}
    if not isinstance(sizes, Mapping):
        raise InputError(f"sizes must be numbers by the names of dims, not {shown(sizes)}")
    return {str(name): whole_number(size, f"the size of {name}") for name, size in sizes.items()}


def open_graph(source: Any) -> OpenedModel:
    """The ONNX model that a source holds, or that is inside of a saved program; nothing of it is parsed."""
    opened = open_model(source)
    if not holds_program(opened):
        return opened
    from weft.saved.files import open_saved

    return open_saved(opened, read_opened, None, None, LoadOptions(recompile=True)).graph


def open_pipeline(source: Any, options: LoadOptions) -> Pipeline:
    """The stages on their own, for those who want to see what comes between them."""
    files, options = _files(open_model(source), options, (None, None))
    return Pipeline(files, options, route(options.device).devices[0], Stages("building", show=False))


def _load(source: Any, options: LoadOptions) -> Model:
    with stages("loading") as progress, seldom_collected():
        progress.stage("reading")
        files, options = _files(open_model(source), options, _folders(options))
        return _ready(files, options, progress)


def _load_again(source: PortableSource, options: LoadOptions, weights: Mapping[str, Array]) -> Model:
    """A model that was pickled."""
    with stages("loading") as progress, seldom_collected():
        progress.stage("reading")
        files, options = _files_again(source, options, _folders(options))
        key = None if weights or options.sample is not None else _key(source, options)
        return received(key, lambda: _ready(files.with_weights(weights) if weights else files, options, progress))


def _key(source: PortableSource, options: LoadOptions) -> bytes:
    """What a model is that was pickled, on the devices that it would be loaded for."""
    from pickle import dumps

    named = replace(source, content=None)  # whose name is that of the content
    return dumps((named, options, route(options.device).devices, definitions_digest()))


def _ready(files: ModelFiles, options: LoadOptions, progress: Stages) -> Model:
    progress.subject = files.file
    progress.expect(expected_seconds(files.opened.size, NODES))
    model = _served(files, options, progress)
    tell_loaded(model, files.opened.size, progress.elapsed)
    return model


def _served(files: ModelFiles, options: LoadOptions, progress: Stages) -> Model:
    """A model on the first of its devices that works, or on the one that is ready first."""
    way = route(options.device)
    if options.strict and way.absent:
        raise DeviceFallbackError(way.absent, file=files.file)
    opener = ModelOpener(files, options, progress)
    deployment = Deployment(opener, way.absent)
    if len(way.devices) > 1:
        from weft.runtime.picking import picked

        way = picked(way, deployment, at_once=options.warm is not None)
    if options.warm is None:
        return Model(deployment, way, options.strict)
    from weft.runtime.warming import soonest, warm_in_background

    soon, better = soonest(way, opener.is_ready)
    model = Model(deployment, soon, options.strict)
    if options.sample is not None:
        model.session().request(options.sample)  # what is wrong with it shows here
    warm_in_background(model, better)
    return model


Folders = tuple["Path | None", "Path | None"]


def _files(opened: OpenedModel, options: LoadOptions, folders: Folders) -> tuple[ModelFiles, LoadOptions]:
    """The files of a model, and the options with what a saved program decides among them."""
    if not holds_program(opened):
        return ModelFiles(opened, reader(options), *folders), options
    from weft.saved.files import open_saved

    files = open_saved(opened, reader(options), *folders, options)
    return files, files.settled_options(options)


def _files_again(source: PortableSource, options: LoadOptions, folders: Folders) -> tuple[ModelFiles, LoadOptions]:
    """The same in another process."""
    opened = source_again(source)
    if not holds_program(opened):
        return reopened(source, opened, reader(options), *folders), options
    from weft.saved.files import reopen_saved

    return reopen_saved(source, opened, reader(options), *folders, options), options


def _folders(options: LoadOptions) -> tuple[Path | None, Path | None]:
    """Where copies of files may lie, and where their digests are remembered."""
    models = shared_models() if options.cache else None
    return (None, None) if models is None else (models.folder, models.records)


def _without_compiler(error: ModuleNotFoundError, file: str) -> Exception:
    """What to say where only what runs saved programs is installed."""
    package = (error.name or "").partition(".")[0]
    if package not in COMPILING:
        return error
    hint = f"pip install {package}; a file that `weft compile` wrote needs no compiler"
    return DeviceError(f"compiling needs the package {package}, which is not installed", file=file, hint=hint)


class ModelOpener:
    """Brings one model to devices: files are read once, and each device has a pipeline of its own."""

    def __init__(self, files: ModelFiles, options: LoadOptions, progress: Stages) -> None:
        self.files = files
        self.file = files.file
        self.options = options
        self.sample = options.sample
        self.threads = options.threads
        self._progress = progress
        self._program: TensorProgram | None = None  # held from the choice of a device until it is opened
        self._groups: dict[str, FusedProgram] = {}

    def open(self, device: str, progress: Stages | None = None) -> Session:
        """The model on a device, ready to run."""
        if progress is None and self._progress.is_over:
            with stages("loading") as shown:
                return self._opened(device, shown)
        return self._opened(device, progress or self._progress)

    def _opened(self, device: str, progress: Stages) -> Session:
        with self._within_memory():
            if isinstance(driver(device), KeepingDriver):
                check_memory_to_start()
            pipeline = Pipeline(self.files, self.options, device, progress)
            program, self._program = self._program, None
            groups, self._groups = self._groups, {}
            if program is not None and self.options.dump is None:
                pipeline.prospect = (program, groups.get(device))
            del program, groups
            return pipeline.load()

    def content(self) -> str | None:
        """What names the model for those who remember what was chosen for it."""
        definitions = definitions_digest()
        if not self.options.cache or self.options.dump is not None or definitions is None:
            return None
        return key_of(self.files.name(), definitions, self.options.precision, repr(self.options.outputs))

    def tell(self, stage: str) -> None:
        """Say what is being done, to whoever waits for the model."""
        self._progress.stage(stage)

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

    def with_precision(self, precision: Precision) -> ModelOpener:
        """The same model in another precision."""
        return ModelOpener(self.files, replace(self.options, precision=precision, dump=None), self._progress)

    def renew(self, session: Session) -> Session:
        """The model on a session's device, with these weights instead of the session's."""
        with self._within_memory():
            return Pipeline(self.files, self.options, session.device, self._progress).renew(session)

    def portable(self, device: DeviceOption) -> tuple[Callable[..., Model], tuple[Any, ...]]:
        """What loads the model again in another process."""
        options = replace(self.options, device=device, dump=None)  # several processes would write over each other
        return _load_again, (self.files.portable(), options, dict(self.files.changed))

    @contextmanager
    def _within_memory(self) -> Iterator[None]:
        try:
            yield
        except WeftError:
            raise
        except MemoryError as error:
            hint = "this process may take too little memory to load it; a model that is cached takes less"
            raise OutOfMemoryError("the memory is used up", file=self.file, hint=hint) from error
        except ModuleNotFoundError as error:
            raise _without_compiler(error, self.file) from error
