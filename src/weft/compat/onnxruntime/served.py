"""The model behind a session: opened as the options say, fed with what onnxruntime takes, its errors translated.

All that a session knows is here, in one object: programs derive classes from InferenceSession, and give them attributes
with whatever names they like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from weft.compat.onnxruntime.declared import (
    Arguments,
    Declarations,
    described,
    fix_sizes,
    python_value,
    read_declarations,
    undeclared,
)
from weft.compat.onnxruntime.exceptions import incompatible, loading_failed, refusal, running_failed, status
from weft.compat.onnxruntime.external import move_initializers, with_data
from weft.compat.onnxruntime.inputs import find_unconvertible, take_input
from weft.compat.onnxruntime.options import OrtRunOptions, SessionOptions
from weft.compat.onnxruntime.profiling import SessionProfile
from weft.compat.onnxruntime.providers import ProviderChoice
from weft.compat.onnxruntime.values import OrtValue, made
from weft.errors import DeviceError, InputError, RunCancelledError, WeftError
from weft.frontend.source import placed
from weft.ir.types import MapType, OptionalType, TensorType, Type
from weft.logs import LOADING

if TYPE_CHECKING:
    from weft.runtime.model import Model

Source = Union[str, bytes]  # a path, or a model

_FOLDER = "session.model_external_initializers_file_folder_path"
_INITIALIZERS = "session.optimized_model_external_initializers_file_name"
_SMALLEST_INITIALIZER = "session.optimized_model_external_initializers_min_size_in_bytes"
_WRITTEN_FORMAT = "session.save_model_format"
_SMALLEST_BY_DEFAULT = "1024"
_NO_FALLBACK = "session.disable_cpu_ep_fallback"
_OWN_FORMAT = b"ORTM"  # four bytes from the start of such a file


class ServedModel:
    """A model, and what a session tells of it and does with it."""

    def __init__(
        self, source: Source, options: SessionOptions, choice: ProviderChoice, kept: tuple[Source, Model] | None = None
    ) -> None:
        """Load it, or raise what onnxruntime raises. `kept`: where the file lies, and the model, of another process."""
        self.source = source
        self.place = _placed(source) if kept is None else kept[0]
        self.options = options
        self.choice = choice
        self.profile = SessionProfile(options.profile_file_prefix) if options.enable_profiling else None
        try:
            self.model = _loaded(source, options, choice) if kept is None else kept[1]
        except WeftError as error:
            raise _not_loaded(source, error) from error
        self.run = self.model.run
        self.names = [spec.name for spec in self.model.outputs]
        self._outputs: dict[str, Type] = {spec.name: spec.type for spec in self.model.outputs}
        self._inputs: dict[str, Type] = {spec.name: spec.type for spec in (*self.model.inputs, *self.model.defaults)}
        self.fixed_sizes = self._fix_sizes()
        tensors = all(isinstance(type, TensorType) for type in self._outputs.values())
        maps = any(isinstance(type, MapType) for type in self._inputs.values())
        repeated = len(self._outputs) < len(self.names)  # onnxruntime gives such an output twice
        self.is_direct = tensors and not maps and not repeated and self.profile is None and not self.fixed_sizes
        """Whether what the model's own `run` takes and gives is what the session's does."""

    # -- what is told of it -------------------------------------------------------------------------------------------

    @cached_property
    def declarations(self) -> Declarations:
        """What the file says."""
        return read_declarations(self.place) or undeclared(self.model)

    @cached_property
    def arguments(self) -> Arguments:
        """What it takes and gives."""
        return described(self.model, self.declarations, self.fixed_sizes)

    def _fix_sizes(self) -> Mapping[str, int]:
        """The sizes of dims that the options fix."""
        if not self.options.denotations:
            return self.options.dimensions
        try:
            return fix_sizes(self.model, self.declarations, self.options.dimensions, self.options.denotations)
        except InputError as error:
            raise status("InvalidArgument", f"Invalid free dimension override: {error}") from error

    @property
    def path(self) -> str | None:
        return self.source if isinstance(self.source, str) else None

    @property
    def content(self) -> bytes | None:
        return self.source if isinstance(self.source, bytes) else None

    def takes(self, name: str) -> bool:
        """Whether there is an input, or an initializer that a caller may override, of this name."""
        return name in self._inputs

    # -- runs ---------------------------------------------------------------------------------------------------------

    def results(
        self,
        names: Sequence[str],
        given: Mapping[str, Any],
        options: OrtRunOptions | None,
        keep: bool | list[str] = False,
        into: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """What a run gives, by name."""
        if options is not None and not isinstance(options, OrtRunOptions):
            raise incompatible("run", "RunOptions", options)
        cancel = None if options is None else options.cancellation
        wanted = None if names == self.names else list(dict.fromkeys(names))
        try:
            with nullcontext() if self.profile is None else self.profile.run(given):
                return self.run(given, wanted, keep or False, cancel=cancel, into=into or None)
        except RunCancelledError as error:
            raise status("Fail", "Exiting due to terminate flag being set to true.") from error
        except InputError as error:
            raise self._input_error(error, given) from error
        except WeftError as error:
            raise running_failed(error) from error

    def _input_error(self, error: InputError, given: Mapping[str, Any]) -> Exception:
        """Choose the class that onnxruntime raises for inputs like these."""
        for name, value in given.items():
            if value is None and not isinstance(self._inputs.get(name), OptionalType):
                return status("Fail", str(error))
        if error.node is None and find_unconvertible(self._inputs, given) is not None:
            return RuntimeError(str(error))
        return running_failed(error)

    def plain(self, name: str, result: Any) -> Any:
        """A result as onnxruntime's `run` gives it."""
        return python_value(result, self._outputs[name])

    def value(self, name: str, result: Any) -> OrtValue:
        """A result as an OrtValue."""
        type = self._outputs[name]
        return made(result) if isinstance(type, TensorType) else made(python_value(result, type), type)

    # -- what comes in ------------------------------------------------------------------------------------------------

    def checked(self, output_names: Any, feed: Any) -> tuple[list[str], dict[str, Any]]:
        """Names of outputs, and inputs as weft takes them; onnxruntime's exceptions where they are none."""
        if isinstance(output_names, str):
            raise incompatible("run", "a list of names", output_names)
        self.check_required(feed)
        # onnxruntime ignores None for a name that the model does not have.
        feed = {name: value for name, value in feed.items() if value is not None or self.takes(name)}
        names = list(output_names or self.names)
        for name in names:
            if not isinstance(name, str):
                raise incompatible("run", "a list of names", name)
        for name in feed:
            if not isinstance(name, (str, bytes)):
                raise incompatible("run", "names of inputs", name)
        given = {name: take_input(self._inputs.get(name), value) for name, value in feed.items()}
        for name in given:
            if not self.takes(name):
                raise status("InvalidArgument", f"Invalid input name: {name}") from InputError(
                    f"the model has no input {name!r}", hint=f"it takes {', '.join(map(str, self.model.inputs))}"
                )
        for name in names:
            self.check_output(name)
        if self.fixed_sizes:
            self._check_sizes(given)
        return names, given

    def check_required(self, feed: Mapping[str, Any]) -> None:
        """ValueError where an input is missing."""
        present = list(feed.keys())
        needed = [spec.name for spec in self.model.inputs if not isinstance(spec.type, OptionalType)]
        missing = [name for name in needed if name not in present]
        if missing:
            raise ValueError(f"Required inputs ({missing}) are missing from input feed ({present}).")

    def check_output(self, name: str) -> None:
        if name not in self._outputs:
            raise status("InvalidArgument", f"Invalid output name:{name}") from InputError(
                f"the model has no output {name!r}", hint=f"it has {', '.join(self.names)}"
            )

    def _check_sizes(self, given: Mapping[str, Any]) -> None:
        """Sizes of dims that the options fix."""
        for argument in (*self.arguments.inputs, *self.arguments.initializers):
            shape = getattr(given.get(argument.name), "shape", ())
            for at, (size, expected) in enumerate(zip(shape, argument.shape)):
                if isinstance(expected, int) and size != expected:
                    raise status(
                        "InvalidArgument",
                        f"Got invalid dimensions for input: {argument.name} for the following indices\n"
                        f" index: {at} Got: {size} Expected: {expected}\n",
                    )


def _loaded(source: Source, options: SessionOptions, choice: ProviderChoice) -> Model:
    from weft.loading import load

    if options.files or options.external:
        source = with_data(source, options.files, {name: _array(value) for name, value in options.external.items()})
    content = _with_folder(source, options.entries.get(_FOLDER))
    if options.optimized_model_filepath:
        written_format = options.entries.get(_WRITTEN_FORMAT) or Path(options.optimized_model_filepath).suffix[1:]
        if written_format.upper() == "ORT":
            hint = "give optimized_model_filepath the suffix .onnx"
            raise refusal("InferenceSession", "weft writes optimized models as ONNX, not in onnxruntime's format", hint)
        _write_optimized(content, Path(options.optimized_model_filepath))
        if options.entries.get(_INITIALIZERS):
            smallest = options.entries.get(_SMALLEST_INITIALIZER, _SMALLEST_BY_DEFAULT)
            move_initializers(Path(options.optimized_model_filepath), options.entries[_INITIALIZERS], smallest)
    strict = options.entries.get(_NO_FALLBACK) == "1"
    if strict and choice.absent:
        raise DeviceError(f"{', '.join(choice.absent)} cannot serve, and {_NO_FALLBACK} forbids others")
    devices = choice.devices if len(choice.devices) > 1 else choice.devices[0]
    threads = options.intra_op_num_threads if options.intra_op_num_threads > 0 else None
    model = load(content, device=devices, threads=threads, strict=strict)
    known = {name: _array(value) for name, value in options.initializers.items() if name in model.weights}
    if known:
        model.set_weights(known)
    return model


def _placed(source: Source) -> Source:
    """What it is wherever the process may go."""
    return source if isinstance(source, bytes) else str(placed(Path(source)))


def _write_optimized(content: Any, path: Path) -> None:
    """Write the optimized model, or the model as it is where onnxslim is not installed."""
    if find_spec("onnxslim") is not None:
        from weft.optimization.optimize import optimize

        optimize(content, path)
        return
    from weft.loading import load

    LOADING.warning("%s holds the model as it is: optimizing it needs the package onnxslim", path)
    load(content, device="reference").save(path)


def _array(value: Any) -> np.ndarray[Any, Any]:
    return np.asarray(value.content if isinstance(value, OrtValue) else value)


def _with_folder(source: Source, folder: str | None) -> Any:
    """What weft loads: a path, or bytes with the folder that their external data lies in: that of the process, if none
    is stated.
    """
    if isinstance(source, str):
        return source
    from weft.frontend.source import OpenedModel

    return OpenedModel(memoryview(source), "<bytes>", Path(folder or ".").resolve() / "<bytes>")


def _not_loaded(source: Source, error: WeftError) -> Exception:
    if isinstance(source, str) and not Path(source).exists():
        return status("NoSuchFile", f"Load model from {source} failed:{error}")
    if isinstance(source, str) and Path(source).is_dir():
        return status("InvalidProtobuf", f"Load model from {source} failed:{error}")
    beginning = _beginning(source)
    if not beginning:
        return status("InvalidArgument", f"No graph was found in the protobuf: {error}")
    if beginning[4:8] == _OWN_FORMAT:
        return refusal("InferenceSession", "this model is in onnxruntime's own format", hint="load the .onnx file")
    return loading_failed(error)


def _beginning(source: Source) -> bytes:
    if isinstance(source, bytes):
        return source[:8]
    try:
        with Path(source).open("rb") as file:
            return file.read(8)
    except OSError:
        return b"no content"
