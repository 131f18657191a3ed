"""`weft.load`: a model's files, the devices that it may run on, and the one that serves."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from weft.backends.device import KeepingDriver
from weft.cache.digests import key_of
from weft.cache.models import shared_models
from weft.cache.sources import definitions_digest
from weft.compiler import Pipeline
from weft.errors import (
    DeviceFallbackError,
    OutOfMemoryError,
    WeftError,
)
from weft.frontend.source import open_model
from weft.garbage import seldom_collected
from weft.runtime.available_memory import check_memory_to_start
from weft.runtime.deployment import Deployment
from weft.runtime.devices import HOST, driver
from weft.runtime.model import Model
from weft.runtime.model_files import Array, ModelFiles, PortableSource, reopened
from weft.runtime.options import LoadOptions
from weft.runtime.policy import route
from weft.runtime.progress import Stages, stages

if TYPE_CHECKING:
    from weft.frontend import OpenedModel
    from weft.ir.graph import OnnxModel
    from weft.ir.groups import FusedProgram
    from weft.ir.program import TensorProgram
    from weft.runtime.policy import DeviceOption
    from weft.runtime.session import Session

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
    with stages("loading") as progress, seldom_collected():
        progress.stage("reading")
        return _served(ModelFiles(open_model(source), _read, *_folders(options)), options, progress)


def _load_again(source: PortableSource, options: LoadOptions, weights: Mapping[str, Array]) -> Model:
    """A model that was pickled."""
    with stages("loading") as progress, seldom_collected():
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

    def with_precision(self, precision: str) -> ModelOpener:
        """The same model in another precision."""
        return ModelOpener(self.files, replace(self.options, precision=precision, dump=None), self._progress)

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


def _read(opened: OpenedModel, folders: Sequence[Path]) -> OnnxModel:
    from weft.compiler import is_defined
    from weft.frontend.read import read_model

    return read_model(opened, is_defined=is_defined, folders=folders)
