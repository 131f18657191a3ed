"""`weft.load` and `weft.compile`.

A load goes down the layers: open the files, choose a device, and create a `Model` with a `SessionPool`. The pool opens
the first session (`runtime/open_session.py`), which finds the compiled model or compiles it (`compiler.py`).

Imports inside functions are of modules that a load from the cache does not need.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from weft.backends.device import NATIVE
from weft.cache.models import shared_models
from weft.cache.sources import definitions_digest
from weft.compiler import Pipeline
from weft.errors import DeviceFallbackError, InputError, UnknownOptionError, short_repr
from weft.frontend.source import open_model
from weft.garbage import collect_rarely
from weft.ir.arrays import Array
from weft.runtime.arguments import listed, whole_number
from weft.runtime.devices import HOST
from weft.runtime.load_logs import log_loaded
from weft.runtime.model import Model
from weft.runtime.model_files import ModelFiles, PortableSource, model_reader, read_opened, reopen_files, reopen_source
from weft.runtime.options import USUAL_PRECISION, LoadOptions, Precision
from weft.runtime.policy import route
from weft.runtime.progress import NODES, Stages, expected_seconds, stages
from weft.runtime.session_pool import SessionPool
from weft.runtime.worker_cache import load_in_worker
from weft.saved.layout import is_saved_program

if TYPE_CHECKING:
    from weft.frontend import OpenedModel
    from weft.frontend.source import ModelSource
    from weft.runtime.policy import DeviceOption


_LOAD_HELP = """Load an ONNX model, ready to run.

    model = weft.load("model.onnx")
    outputs = model.run({{"x": array}})

The first load compiles the model for this machine and keeps the result on disk; later loads, in any process, take it
from there. A file that cannot be used raises a `weft.WeftError`, which names the file and says what to do.

source: a path, bytes, an open binary file, a ModelProto, the result of `torch.onnx.export`, or a file that
    `weft.compile` saved.
{options}"""


def _make_load(options: Callable[..., LoadOptions]) -> Callable[..., Model]:
    """Make `load`, whose keywords, defaults and docstring are those of the options."""

    def load(source: Any, *positional: Any, **keywords: Any) -> Model:
        if not keywords.keys() <= names:
            from weft.runtime.suggestions import LOADING, unknown_option

            raise unknown_option("weft.load", keywords, names, LOADING)
        if positional:
            raise UnknownOptionError("weft.load takes one model, and options by name", hint='for instance device="cpu"')
        return _load(source, options(**keywords))

    first = inspect.Parameter("source", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="ModelSource")
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(f.name, kind, default=f.default, annotation=f.type) for f in fields(LoadOptions)]
    names = {parameter.name: None for parameter in parameters}.keys()
    load.__signature__ = inspect.Signature([first, *parameters], return_annotation=Model)  # type: ignore[attr-defined]
    load.__doc__ = _LOAD_HELP.format(options=inspect.cleandoc(options.__doc__ or "").partition("\n\n")[2])
    load.__qualname__ = "load"
    return load


if TYPE_CHECKING:  # for editors and type checkers; a test compares it with LoadOptions

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
        """Load an ONNX model, ready to run; `help(weft.load)` explains each option.

        source: a path, bytes, an open binary file, a ModelProto, the result of `torch.onnx.export`, or a file that
            `weft.compile` saved.
        """
        ...

else:
    load = _make_load(LoadOptions)


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
    """Compile a model ahead of time to a file that `weft.load` runs without a compiler (docs/guides/ahead.md).

    source: what `weft.load` accepts, or a loaded model with its current weights.
    path: the file to write.
    device: one device or several; the file gets a program for each.
    target: the processors to compile for; a load takes the best one that its machine supports. "native" is this
        machine, others are "x86-64-v2", "x86-64-v3", "x86-64-v4" and "aarch64".
    sizes: sizes of dynamic dims, by name, to compile for; a run with other sizes compiles the model for them.
    precision: see `weft.load`.
    outputs: see `weft.load`.
    graph: whether to include the ONNX model, which is needed for other shapes, outputs, weights and devices.
    cache: whether to read and store compiled code on disk.
    """
    from weft.saved.write import SaveOptions, cache_programs, save_programs

    devices = tuple(dict.fromkeys(name for option in to_names(device) for name in route(option).devices))
    options = LoadOptions(precision=precision, outputs=outputs, cache=cache)
    try:
        target_path = Path(path)
    except TypeError as error:
        raise InputError(f"path must be a path to save to, not a {type(path).__name__}") from error
    saving = SaveOptions(devices, to_names(target), check_sizes(sizes), graph)
    with stages("compiling") as progress, collect_rarely():
        if isinstance(source, Model):
            files = source.pool.files
        else:
            files, _ = _open_files(open_model(source), replace(options, recompile=True), _cache_folders(options))
        save_programs(files, options, saving, target_path, progress)
        cache_programs(target_path, options, *_cache_folders(options))


def to_names(option: Any) -> tuple[str, ...]:
    """Return one name or several as a tuple without duplicates."""
    names = (option,) if isinstance(option, str) else listed(option, "device and target")
    if not names or not all(isinstance(name, str) for name in names):
        raise InputError(f"device and target must be names, not {short_repr(option)}")
    return tuple(dict.fromkeys(names))


def check_sizes(sizes: Any) -> dict[str, int]:
    """Return sizes by the names of dims; raise InputError if they are not whole numbers."""
    if sizes is None:
        return {}
    if not isinstance(sizes, Mapping):
        raise InputError(f'sizes must be a dict such as {{"batch": 8}}, not {short_repr(sizes)}')
    return {str(name): whole_number(size, f"the size of {name}") for name, size in sizes.items()}


def open_graph(source: Any) -> OpenedModel:
    """Open the ONNX model of a source, or the one inside a saved program, without parsing it."""
    opened = open_model(source)
    if not is_saved_program(opened):
        return opened
    from weft.saved.files import open_saved

    return open_saved(opened, read_opened, None, None, LoadOptions(recompile=True)).graph


def open_pipeline(source: Any, options: LoadOptions) -> Pipeline:
    """Open a model for compilation only, without a session."""
    files, options = _open_files(open_model(source), options, (None, None))
    return Pipeline(files, options, route(options.device).devices[0], Stages("building", show=False))


def _load(source: Any, options: LoadOptions) -> Model:
    with stages("loading") as progress, collect_rarely():
        progress.stage("reading")
        files, options = _open_files(open_model(source), options, _cache_folders(options))
        return _load_files(files, options, progress)


def load_pickled(source: PortableSource, options: LoadOptions, weights: Mapping[str, Array]) -> Model:
    """Load a pickled model; workers of a process pool reuse the one that they loaded last."""
    with stages("loading") as progress, collect_rarely():
        progress.stage("reading")
        files, options = _reopen_files(source, options, _cache_folders(options))
        if weights:
            files = files.with_weights(weights)
        key = None if weights or options.sample is not None else _pickle_key(source, options)
        return load_in_worker(key, lambda: _load_files(files, options, progress))


def _pickle_key(source: PortableSource, options: LoadOptions) -> bytes:
    """Return a key of a pickled model and the devices that it would be loaded for."""
    identity = replace(source, content=None)  # `name` is the digest of the content
    return pickle.dumps((identity, options, route(options.device).devices, definitions_digest()))


def _load_files(files: ModelFiles, options: LoadOptions, progress: Stages) -> Model:
    """Load a model on the first of its devices that works; with `warm`, on the one that is ready first."""
    progress.subject = files.file
    progress.expect(expected_seconds(files.opened.size, NODES))
    device_route = route(options.device)
    if options.strict and device_route.absent:
        raise DeviceFallbackError(device_route.absent, file=files.file)
    pool = SessionPool(files, options, progress, device_route.absent)
    if len(device_route.devices) > 1:
        from weft.runtime.choose_device import choose_device

        device_route = choose_device(device_route, pool, cached_only=options.warm is not None)
    if options.warm is None:
        model = Model(pool, device_route)
    else:
        from weft.runtime.background_compilation import load_warm

        model = load_warm(pool, device_route)
    log_loaded(model, files.opened.size, progress.elapsed)
    return model


Folders = tuple["Path | None", "Path | None"]


def _open_files(opened: OpenedModel, options: LoadOptions, folders: Folders) -> tuple[ModelFiles, LoadOptions]:
    """Open a model's files; options with their default take the values that a saved program was compiled with."""
    if not is_saved_program(opened):
        return ModelFiles(opened, model_reader(strict=options.strict), *folders), options
    from weft.saved.files import open_saved

    files = open_saved(opened, model_reader(strict=options.strict), *folders, options)
    return files, files.complete_options(options)


def _reopen_files(source: PortableSource, options: LoadOptions, folders: Folders) -> tuple[ModelFiles, LoadOptions]:
    """Open the files of a pickled model."""
    opened = reopen_source(source)
    if not is_saved_program(opened):
        return reopen_files(source, opened, model_reader(strict=options.strict), *folders), options
    from weft.saved.files import reopen_saved

    return reopen_saved(source, opened, model_reader(strict=options.strict), *folders, options), options


def _cache_folders(options: LoadOptions) -> Folders:
    """Return the folders for copies of files, and for digests; None without a cache."""
    models = shared_models() if options.cache else None
    return (None, None) if models is None else (models.folder, models.records)
