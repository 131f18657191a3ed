"""InferenceSession: a model of weft's, used the way onnxruntime is used."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from weft.compat.onnxruntime.binding import IOBinding, run_bound
from weft.compat.onnxruntime.declared import (
    Arguments,
    Declarations,
    ModelMetadata,
    NodeArg,
    described,
    python_value,
    read_declarations,
    undeclared,
)
from weft.compat.onnxruntime.exceptions import (
    incompatible,
    loading_failed,
    refusal,
    running_failed,
    status,
    without_status,
)
from weft.compat.onnxruntime.naming import COLLECTION, known_as
from weft.compat.onnxruntime.notes import say_unused
from weft.compat.onnxruntime.options import OrtRunOptions, SessionOptions
from weft.compat.onnxruntime.profiling import SessionProfile
from weft.compat.onnxruntime.providers import ProviderChoice, chosen, stated
from weft.compat.onnxruntime.values import OrtValue, made
from weft.errors import FallbackWarning, InputError, RunCancelledError, WeftError
from weft.ir.dtypes import DType
from weft.ir.types import TensorType

_FOLDER = "session.model_external_initializers_file_folder_path"
_OWN_FORMAT = b"ORTM"  # four bytes from the start of such a file
_NO_FALLBACK = "session.disable_cpu_ep_fallback"


@known_as(COLLECTION)
class InferenceSession:
    """A model, ready to run. Runs may be started from several threads at once."""

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **keywords: Any,
    ) -> None:
        if isinstance(path_or_bytes, (str, os.PathLike)):
            self._model_path: str | None = os.fspath(path_or_bytes)
            self._model_bytes: bytes | None = None
        elif isinstance(path_or_bytes, bytes):
            self._model_path, self._model_bytes = None, path_or_bytes
        else:
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise incompatible("InferenceSession", "SessionOptions", sess_options)
        self._sess_options = sess_options or SessionOptions()
        self._enable_fallback = True
        say_unused(self._sess_options, keywords)
        try:
            asked = stated(providers, provider_options)
        except ValueError as error:
            warnings.warn(f"{error} The CPU serves instead.", FallbackWarning, stacklevel=2)
            asked = stated(None, None)
        self._open(chosen(asked))
        self._inner = frozenset((*vars(self), "_inner"))

    def _open(self, choice: ProviderChoice) -> None:
        options = self._sess_options
        threads = options.intra_op_num_threads
        strict = options._entries.get(_NO_FALLBACK) == "1"
        self._profile = SessionProfile(options.profile_file_prefix) if options.enable_profiling else None
        try:
            from weft.loading import load

            devices: Any = choice.devices if len(choice.devices) > 1 else choice.devices[0]
            if options.optimized_model_filepath:
                from weft.optimization.optimize import optimize

                optimize(self._source(), options.optimized_model_filepath)
            model = load(self._source(), device=devices, threads=threads if threads > 0 else None, strict=strict)
            if options.initializers:
                given = {name: getattr(value, "content", value) for name, value in options.initializers.items()}
                model.set_weights({name: np.asarray(content) for name, content in given.items()})
        except WeftError as error:
            raise self._not_loaded(error) from error
        self._choice = choice
        self._model = model
        self._run = model.run
        self._declared: Declarations | None = None
        self._described: Arguments | None = None
        self._types = {spec.name: spec.type for spec in model.outputs}
        self._names = [spec.name for spec in model.outputs]
        self._taken = {spec.name for spec in (*model.inputs, *model.defaults)}
        tensors = all(isinstance(type, TensorType) for type in self._types.values())
        self._is_direct = tensors and self._profile is None and not options.dimensions

    def _source(self) -> Any:
        """What is loaded: a path, or bytes with the folder that their external data lies in."""
        if self._model_bytes is None:
            return self._model_path
        folder = self._sess_options._entries.get(_FOLDER)
        if folder is None:
            return self._model_bytes
        from weft.frontend.source import OpenedModel

        return OpenedModel(memoryview(self._model_bytes), "<bytes>", Path(folder) / "model.onnx")

    def _not_loaded(self, error: WeftError) -> Exception:
        path = self._model_path
        if self._model_bytes == b"" or (path is not None and _is_empty(path)):
            return status("InvalidArgument", f"No graph was found in the protobuf: {error}")
        if path is not None and not Path(path).exists():
            return status("NoSuchFile", f"Load model from {path} failed:{error}")
        if self._is_in_own_format():
            return refusal("InferenceSession", "this model is in onnxruntime's own format", hint="load the .onnx file")
        if path is not None and Path(path).is_dir():
            return status("InvalidProtobuf", f"Load model from {path} failed:{error}")
        return loading_failed(error)

    def _is_in_own_format(self) -> bool:
        content = self._model_bytes
        if content is None:
            file = Path(str(self._model_path))
            if not file.is_file():
                return False
            with file.open("rb") as opened:
                content = opened.read(8)
        return content[4:8] == _OWN_FORMAT

    # -- runs ---------------------------------------------------------------------------------------------------------

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: OrtRunOptions | None = None,
    ) -> list[Any]:
        """The outputs, all or those named, in a list."""
        if run_options is None and self._is_direct:
            try:
                results = self._run(input_feed)
                if not output_names or output_names == self._names:
                    return list(results.values())
                if not isinstance(output_names, str):
                    return [results[name] for name in output_names]
            except (InputError, KeyError):
                pass  # what is wrong, or taken by onnxruntime alone, shows below
            except WeftError as error:
                raise running_failed(error) from error
        names, given = self._checked(output_names, input_feed)
        results = self._results(names, given, run_options)
        return [python_value(results[name], self._types[name]) for name in names]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: OrtRunOptions | None = None,
    ) -> list[OrtValue]:
        """The same for values that may lie on a device; so do the outputs."""
        names, given = self._checked(output_names, input_dict_ort_values)
        for value in input_dict_ort_values.values():
            if not isinstance(value, OrtValue):
                raise AttributeError(f"run_with_ort_values takes OrtValues, not a {type(value).__name__}")
        keep = self._model.device != "cpu"
        results = self._results(names, given, run_options, keep)
        return [self._value_of(name, results[name]) for name in names]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], Any],
        user_data: Any,
        run_options: OrtRunOptions | None = None,
    ) -> None:
        """Run on a thread of its own, which then calls `callback(results, user_data, error)`."""
        self._check_required(input_feed)

        def work() -> None:
            try:
                results, failure = self.run(output_names, input_feed, run_options), ""
            except Exception as error:
                results, failure = [], without_status(str(error))
            callback(results, user_data, failure)

        threading.Thread(target=work, name="weft-run-async", daemon=True).start()

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        value: OrtValue = OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id)
        return value

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: OrtRunOptions | None = None) -> None:
        """Run with what is bound. Failures are RuntimeErrors here, as in onnxruntime."""
        if not isinstance(iobinding, IOBinding):
            raise AttributeError(f"run_with_iobinding takes an IOBinding, not a {type(iobinding).__name__}")

        def run(given: Mapping[str, Any], names: list[str], kept: list[str], into: Mapping[str, Any]) -> dict[str, Any]:
            try:
                for name in names:
                    self._check_output(name)
                return self._results(names, given, run_options, kept, into)
            except Exception as error:
                raise RuntimeError(f"Error in execution: {error}") from error

        run_bound(iobinding, run)

    def run_with_ortvaluevector(self, *_: Any) -> None:
        raise refusal("InferenceSession.run_with_ortvaluevector", "use run_with_ort_values")

    def _results(
        self,
        names: Sequence[str],
        given: Mapping[str, Any],
        options: OrtRunOptions | None,
        keep: bool | list[str] = False,
        into: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        if options is not None and not isinstance(options, OrtRunOptions):
            raise incompatible("run", "RunOptions", options)
        cancel = None if options is None else options.cancellation
        wanted = None if names == self._names else list(dict.fromkeys(names))
        try:
            with nullcontext() if self._profile is None else self._profile.run(given):
                return self._run(given, wanted, keep or False, cancel=cancel, into=into or None)
        except RunCancelledError as error:
            raise status("Fail", "Exiting due to terminate flag being set to true.") from error
        except WeftError as error:
            raise running_failed(error) from error

    def _value_of(self, name: str, result: Any) -> OrtValue:
        type = self._types[name]
        return made(result) if isinstance(type, TensorType) else made(python_value(result, type), type)

    # -- what comes in ------------------------------------------------------------------------------------------------

    def takes(self, name: str) -> bool:
        """Whether there is an input, or an initializer that a caller may override, of this name."""
        return name in self._taken

    def _checked(self, output_names: Any, feed: Any) -> tuple[list[str], dict[str, Any]]:
        """Names of outputs, and inputs as weft takes them; onnxruntime's exceptions where they are none."""
        if isinstance(output_names, str):
            raise incompatible("run", "a list of names", output_names)
        self._check_required(feed)
        names = list(output_names or self._names)
        for name in names:
            if not isinstance(name, str):
                raise incompatible("run", "a list of names", name)
        given = {name: self._content(name, value) for name, value in feed.items()}
        for name in given:
            if name not in self._taken:
                raise status("InvalidArgument", f"Invalid input name: {name}") from InputError(
                    f"the model has no input {name!r}", hint=f"it takes {', '.join(map(str, self._model.inputs))}"
                )
        for name in names:
            self._check_output(name)
        if self._sess_options.dimensions:
            self._check_sizes(given)
        return names, given

    def _check_required(self, feed: Mapping[str, Any]) -> None:
        present = list(feed.keys())
        missing = [
            spec.name
            for spec in self._model.inputs
            if spec.name not in present and type(spec.type).__name__ != "OptionalType"
        ]
        if missing:
            raise ValueError(f"Required inputs ({missing}) are missing from input feed ({present}).")

    def _check_output(self, name: str) -> None:
        if name not in self._types:
            raise status("InvalidArgument", f"Invalid output name:{name}") from InputError(
                f"the model has no output {name!r}", hint=f"it has {', '.join(self._names)}"
            )

    def _content(self, name: str, value: Any) -> Any:
        if isinstance(value, OrtValue):
            return value.content
        if value is None or isinstance(value, (np.ndarray, list, dict)):
            return _strings(value) if self._is_text(name) else value
        if isinstance(value, (str, bytes, int, float, complex, np.generic)):
            raise RuntimeError(f"Unable to handle object of type {type(value)}")
        return value

    def _is_text(self, name: str) -> bool:
        specs = (*self._model.inputs, *self._model.defaults)
        types = [spec.type for spec in specs if spec.name == name]
        return bool(types) and isinstance(types[0], TensorType) and types[0].dtype is DType.string

    def _check_sizes(self, given: Mapping[str, Any]) -> None:
        """Sizes of dims that the options fix."""
        for argument in (*self.get_inputs(), *self.get_overridable_initializers()):
            shape = getattr(given.get(argument.name), "shape", ())
            for at, (size, expected) in enumerate(zip(shape, argument.shape)):
                if isinstance(expected, int) and size != expected:
                    raise status(
                        "InvalidArgument",
                        f"Got invalid dimensions for input: {argument.name} for the following indices\n"
                        f" index: {at} Got: {size} Expected: {expected}\n",
                    )

    # -- what is told of it -------------------------------------------------------------------------------------------

    @property
    def _declarations(self) -> Declarations:
        if self._declared is None:
            source = self._model_bytes if self._model_bytes is not None else str(self._model_path)
            self._declared = read_declarations(source) or undeclared(self._model)
        return self._declared

    def get_inputs(self) -> list[NodeArg]:
        return list(self._arguments.inputs)

    def get_outputs(self) -> list[NodeArg]:
        return list(self._arguments.outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        return list(self._arguments.initializers)

    @property
    def _arguments(self) -> Arguments:
        if self._described is None:
            self._described = described(self._model, self._declarations, self._sess_options.dimensions)
        return self._described

    @property
    def _inputs_meta(self) -> list[NodeArg]:
        return self.get_inputs()

    @property
    def _outputs_meta(self) -> list[NodeArg]:
        return self.get_outputs()

    def get_modelmeta(self) -> ModelMetadata:
        return self._declarations.metadata

    def get_session_options(self) -> SessionOptions:
        return self._sess_options

    def get_providers(self) -> list[str]:
        return list(self._choice.names)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {name: dict(self._choice.options[name]) for name in self._choice.names}

    @property
    def _sess(self) -> InferenceSession:
        return self

    @property
    def _providers(self) -> list[str]:
        return self.get_providers()

    @property
    def _provider_options(self) -> dict[str, dict[str, str]]:
        return self.get_provider_options()

    @property
    def _fallback_providers(self) -> list[str]:
        return self.get_providers()[-1:]

    @property
    def _model_meta(self) -> ModelMetadata:
        return self.get_modelmeta()

    @property
    def _overridable_initializers(self) -> list[NodeArg]:
        return self.get_overridable_initializers()

    @property
    def weft_model(self) -> Any:
        """The model of weft's that serves: for what onnxruntime has no name for."""
        return self._model

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Have other providers serve."""
        try:
            asked = stated(providers, provider_options)
        except ValueError as error:
            raise RuntimeError(str(error)) from error
        self._open(chosen(asked))

    def disable_fallback(self) -> None:
        self._enable_fallback = False

    def enable_fallback(self) -> None:
        self._enable_fallback = True

    # -- profiles and the rest ----------------------------------------------------------------------------------------

    def end_profiling(self) -> str:
        """Write the profile, and give the file's name; an empty one where no profiling is under way."""
        profile, self._profile = self._profile, None
        return "" if profile is None else profile.end(self._model)

    def get_profiling_start_time_ns(self) -> int:
        return 0 if self._profile is None else self._profile.started

    def get_tuning_results(self) -> list[Any]:
        return []

    def set_tuning_results(self, results: Any, *, error_on_invalid: bool = False) -> None:
        raise refusal("InferenceSession.set_tuning_results", "weft's own tuning is `weft tune`, see docs/TUNING.md")

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        raise refusal("InferenceSession.set_ep_dynamic_options", "weft has no such options")

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        raise refusal("InferenceSession.release_captured_graph", "weft captures and releases graphs by itself")

    def get_input_memory_infos(self) -> list[Any]:
        raise refusal("InferenceSession.get_input_memory_infos", "weft plans memory, and has no allocators")

    def get_output_memory_infos(self) -> list[Any]:
        raise refusal("InferenceSession.get_output_memory_infos", "weft plans memory, and has no allocators")

    def get_input_epdevices(self) -> list[Any]:
        raise refusal("InferenceSession.get_input_epdevices", "weft's devices are in weft.devices()")

    def __reduce_ex__(self, protocol: Any) -> Any:
        if type(self) is InferenceSession:
            return _opened_again, (self.__getstate__(),)
        return super().__reduce_ex__(protocol)

    def __getstate__(self) -> dict[str, Any]:
        """What opens it again, and what a class made of this one has added; such a class may well have its own."""
        asked = [(name, self._choice.options[name]) for name in self._choice.names]
        source = self._model_path if self._model_bytes is None else self._model_bytes
        added = {name: value for name, value in vars(self).items() if name not in self._inner}
        return {"opened": (source, self._sess_options, asked), "added": added}

    def __setstate__(self, state: dict[str, Any]) -> None:
        InferenceSession.__init__(self, *state["opened"])
        vars(self).update(state["added"])

    def get_provider_graph_assignment_info(self) -> list[Any]:
        raise refusal(
            "InferenceSession.get_provider_graph_assignment_info",
            "weft's own report is another",
            hint="session.weft_model.report() says where a model runs",
        )


def _opened_again(state: dict[str, Any]) -> InferenceSession:
    """What was pickled; the class itself goes by its name here, wherever onnxruntime's means another one."""
    session = InferenceSession.__new__(InferenceSession)
    session.__setstate__(state)
    return session


def _is_empty(path: str) -> bool:
    file = Path(path)
    return file.is_file() and file.stat().st_size == 0


def _strings(value: Any) -> Any:
    """Texts as onnxruntime makes them of what is in an array or list."""
    if value is None:
        return None
    array = np.asarray(value, dtype=object)
    texts = [item if isinstance(item, str) else str(item) for item in array.ravel().tolist()]
    made = np.empty(len(texts), dtype=object)
    made[:] = texts
    return made.reshape(array.shape)
