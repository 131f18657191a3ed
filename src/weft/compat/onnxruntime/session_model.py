"""The model of a session: load it as the options say, convert inputs and outputs, translate errors.

All state of a session is in this one object, because programs derive classes from InferenceSession and give them
attributes of any name. onnx and the compiler are imported in functions, to keep `import onnxruntime` fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from weft.compat.onnxruntime.conversion import convert_input, convert_output, find_unconvertible
from weft.compat.onnxruntime.declarations import (
    Arguments,
    Declarations,
    derive_declarations,
    describe_arguments,
    read_declarations,
    resolve_overrides,
)
from weft.compat.onnxruntime.exceptions import (
    argument_error,
    load_error,
    run_error,
    status_error,
    unsupported_error,
)
from weft.compat.onnxruntime.options import OrtRunOptions, SessionOptions
from weft.compat.onnxruntime.profiling import SessionProfile
from weft.compat.onnxruntime.providers import ProviderChoice
from weft.compat.onnxruntime.values import OrtValue, make_ortvalue
from weft.errors import DeviceError, InputError, RunCancelledError, WeftError
from weft.frontend.source import OpenedModel, make_absolute
from weft.ir.types import MapType, OptionalType, TensorType, Type
from weft.logs import LOADING
from weft.threads import cached_property

if TYPE_CHECKING:
    from weft.runtime.model import Model

Source = Union[str, bytes]  # a path, or the content of a file

_EXTERNAL_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
_INITIALIZERS_FILE = "session.optimized_model_external_initializers_file_name"
_INITIALIZERS_MIN_SIZE = "session.optimized_model_external_initializers_min_size_in_bytes"
_DEFAULT_MIN_SIZE = "1024"
_SAVE_FORMAT = "session.save_model_format"
_NO_FALLBACK = "session.disable_cpu_ep_fallback"
_ORT_FORMAT = b"ORTM"  # at offset 4 of files in onnxruntime's format


class SessionModel:
    """The model of a session, with its options, providers and profile."""

    def __init__(
        self,
        source: Source,
        options: SessionOptions,
        choice: ProviderChoice,
        unpickled: tuple[Source, Model] | None = None,
    ) -> None:
        """Load the model, or raise onnxruntime's exception. `unpickled`: the absolute source, and the loaded model."""
        self.source = source
        self.options = options
        self.choice = choice
        self.profile = SessionProfile(options.profile_file_prefix) if options.enable_profiling else None
        if unpickled is not None:
            self.absolute_source, self.model = unpickled
        else:
            self.absolute_source = source if isinstance(source, bytes) else str(make_absolute(Path(source)))
            try:
                self.model = _load_model(source, options, choice)
            except WeftError as error:
                raise _translate_load_error(source, error) from error
        self.run = self.model.run
        self.names = [spec.name for spec in self.model.outputs]
        self._outputs: dict[str, Type] = {spec.name: spec.type for spec in self.model.outputs}
        self._inputs: dict[str, Type] = {spec.name: spec.type for spec in (*self.model.inputs, *self.model.defaults)}
        self.fixed_sizes = self._resolve_overrides()
        tensors = all(isinstance(type, TensorType) for type in self._outputs.values())
        maps = any(isinstance(type, MapType) for type in self._inputs.values())
        repeated = len(self._outputs) < len(self.names)  # onnxruntime returns such an output twice
        self.is_direct = tensors and not maps and not repeated and self.profile is None and not self.fixed_sizes
        """Whether the model's own `run` needs no conversions."""

    # -- description --------------------------------------------------------------------------------------------------

    @cached_property
    def declarations(self) -> Declarations:
        return read_declarations(self.absolute_source) or derive_declarations(self.model)

    @cached_property
    def arguments(self) -> Arguments:
        return describe_arguments(self.model, self.declarations, self.fixed_sizes)

    def _resolve_overrides(self) -> Mapping[str, int]:
        """Return the sizes that the options fix, by the names of dims."""
        if not self.options.denotations:
            return self.options.dimensions
        try:
            return resolve_overrides(self.model, self.declarations, self.options.dimensions, self.options.denotations)
        except InputError as error:
            raise status_error("InvalidArgument", f"Invalid free dimension override: {error}") from error

    @property
    def path(self) -> str | None:
        return self.source if isinstance(self.source, str) else None

    @property
    def content(self) -> bytes | None:
        return self.source if isinstance(self.source, bytes) else None

    def has_input(self, name: str) -> bool:
        """Whether there is an input or an overridable initializer of this name."""
        return name in self._inputs

    # -- runs ---------------------------------------------------------------------------------------------------------

    def run_converted(
        self,
        names: Sequence[str],
        inputs: Mapping[str, Any],
        options: OrtRunOptions | None,
        keep: bool | list[str] = False,
        into: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Run on inputs of `convert_feed` and return weft's outputs by name, with errors as onnxruntime's."""
        if options is not None and not isinstance(options, OrtRunOptions):
            raise argument_error("run", "RunOptions", options)
        cancel = None if options is None else options.cancellation
        outputs = None if names == self.names else list(dict.fromkeys(names))
        try:
            with nullcontext() if self.profile is None else self.profile.run(inputs):
                return self.run(inputs, outputs, keep or False, cancel=cancel, into=into or None)
        except RunCancelledError as error:
            raise status_error("Fail", "Exiting due to terminate flag being set to true.") from error
        except InputError as error:
            raise self._translate_input_error(error, inputs) from error
        except WeftError as error:
            raise run_error(error) from error

    def _translate_input_error(self, error: InputError, inputs: Mapping[str, Any]) -> Exception:
        """Return the exception that onnxruntime raises for inputs like these."""
        for name, value in inputs.items():
            if value is None and not isinstance(self._inputs.get(name), OptionalType):
                return status_error("Fail", str(error))
        if error.node is None and find_unconvertible(self._inputs, inputs) is not None:
            return RuntimeError(str(error))
        return run_error(error)

    def to_python(self, name: str, result: Any) -> Any:
        """Convert an output to what onnxruntime's `run` returns."""
        return convert_output(result, self._outputs[name])

    def to_ortvalue(self, name: str, result: Any) -> OrtValue:
        """Convert an output to an OrtValue."""
        type = self._outputs[name]
        if isinstance(type, TensorType):
            return make_ortvalue(result)
        return make_ortvalue(convert_output(result, type), type)

    # -- inputs -------------------------------------------------------------------------------------------------------

    def convert_feed(self, output_names: Any, feed: Any) -> tuple[list[str], dict[str, Any]]:
        """Return the names of the outputs, and the inputs as weft takes them; raise onnxruntime's exceptions."""
        if isinstance(output_names, str):
            raise argument_error("run", "a list of names", output_names)
        self.check_required(feed)
        # onnxruntime ignores None for a name that the model does not have.
        feed = {name: value for name, value in feed.items() if value is not None or self.has_input(name)}
        names = list(output_names or self.names)
        for name in names:
            if not isinstance(name, str):
                raise argument_error("run", "a list of names", name)
        for name in feed:
            if not isinstance(name, (str, bytes)):
                raise argument_error("run", "names of inputs", name)
        inputs = {name: convert_input(self._inputs.get(name), value) for name, value in feed.items()}
        for name in inputs:
            if not self.has_input(name):
                raise status_error("InvalidArgument", f"Invalid input name: {name}") from InputError(
                    f"the model has no input {name!r}", hint=f"it takes {', '.join(map(str, self.model.inputs))}"
                )
        for name in names:
            self.check_output(name)
        if self.fixed_sizes:
            self._check_sizes(inputs)
        return names, inputs

    def check_required(self, feed: Mapping[str, Any]) -> None:
        """Raise ValueError where an input is missing."""
        present = list(feed.keys())
        required = [spec.name for spec in self.model.inputs if not isinstance(spec.type, OptionalType)]
        missing = [name for name in required if name not in present]
        if missing:
            raise ValueError(f"Required inputs ({missing}) are missing from input feed ({present}).")

    def check_output(self, name: str) -> None:
        if name not in self._outputs:
            raise status_error("InvalidArgument", f"Invalid output name:{name}") from InputError(
                f"the model has no output {name!r}", hint=f"it has {', '.join(self.names)}"
            )

    def _check_sizes(self, inputs: Mapping[str, Any]) -> None:
        """Check the sizes of inputs against those that the options fix."""
        for argument in (*self.arguments.inputs, *self.arguments.initializers):
            shape = getattr(inputs.get(argument.name), "shape", ())
            for axis, (size, expected) in enumerate(zip(shape, argument.shape)):
                if isinstance(expected, int) and size != expected:
                    raise status_error(
                        "InvalidArgument",
                        f"Got invalid dimensions for input: {argument.name} for the following indices\n"
                        f" index: {axis} Got: {size} Expected: {expected}\n",
                    )


def _load_model(source: Source, options: SessionOptions, choice: ProviderChoice) -> Model:
    from weft.loading import load

    if options.files or options.external:
        from weft.compat.onnxruntime.external_data import embed_external_data

        values = {name: _to_array(value) for name, value in options.external.items()}
        source = embed_external_data(source, options.files, values)
    content = _with_folder(source, options.entries.get(_EXTERNAL_DATA_FOLDER))
    if options.optimized_model_filepath:
        _save_optimized(content, options)
    strict = options.entries.get(_NO_FALLBACK) == "1"
    if strict and choice.absent:
        raise DeviceError(f"{', '.join(choice.absent)} is not available, and {_NO_FALLBACK} forbids others")
    devices = choice.devices if len(choice.devices) > 1 else choice.devices[0]
    threads = options.intra_op_num_threads if options.intra_op_num_threads > 0 else None
    model = load(content, device=devices, threads=threads, strict=strict)
    weights = {name: _to_array(value) for name, value in options.initializers.items() if name in model.weights}
    if weights:
        model.set_weights(weights)
    return model


def _save_optimized(content: str | OpenedModel, options: SessionOptions) -> None:
    """Save the optimized model, or the model as it is where onnxslim is not installed."""
    from weft.compat.onnxruntime.external_data import move_initializers
    from weft.loading import load
    from weft.optimization.optimize import optimize

    path = Path(options.optimized_model_filepath)
    if (options.entries.get(_SAVE_FORMAT) or path.suffix[1:]).upper() == "ORT":
        hint = "give optimized_model_filepath the suffix .onnx"
        raise unsupported_error("InferenceSession", "weft saves models as ONNX, not in onnxruntime's format", hint)
    if find_spec("onnxslim") is not None:
        optimize(content, path)
    else:
        LOADING.warning("%s holds the model as it is: optimizing it needs the package onnxslim", path)
        load(content, device="reference").save(path)
    if file_name := options.entries.get(_INITIALIZERS_FILE):
        move_initializers(path, file_name, options.entries.get(_INITIALIZERS_MIN_SIZE, _DEFAULT_MIN_SIZE))


def _to_array(value: Any) -> np.ndarray[Any, Any]:
    return np.asarray(value.content if isinstance(value, OrtValue) else value)


def _with_folder(source: Source, folder: str | None) -> str | OpenedModel:
    """Return what weft loads. External data of bytes is in `folder`, or in the current directory."""
    if isinstance(source, str):
        return source
    return OpenedModel(memoryview(source), "<bytes>", Path(folder or ".").resolve() / "<bytes>")


def _translate_load_error(source: Source, error: WeftError) -> Exception:
    if isinstance(source, str) and not Path(source).exists():
        return status_error("NoSuchFile", f"Load model from {source} failed:{error}")
    if isinstance(source, str) and Path(source).is_dir():
        return status_error("InvalidProtobuf", f"Load model from {source} failed:{error}")
    start = _read_start(source)
    if not start:
        return status_error("InvalidArgument", f"No graph was found in the protobuf: {error}")
    if start[4:8] == _ORT_FORMAT:
        return unsupported_error(
            "InferenceSession", "this model is in onnxruntime's own format", hint="load the .onnx file"
        )
    return load_error(error)


def _read_start(source: Source) -> bytes:
    if isinstance(source, bytes):
        return source[:8]
    try:
        with Path(source).open("rb") as file:
            return file.read(8)
    except OSError:
        return b"no content"
