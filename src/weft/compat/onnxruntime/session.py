"""InferenceSession: onnxruntime's interface to a weft model."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from weft.compat.onnxruntime.binding import IOBinding, run_binding
from weft.compat.onnxruntime.declarations import ModelMetadata, NodeArg
from weft.compat.onnxruntime.exceptions import (
    argument_error,
    run_error,
    status_error,
    strip_status,
    unsupported_error,
)
from weft.compat.onnxruntime.ignored_options import log_ignored_options
from weft.compat.onnxruntime.memory_info import HOST_MEMORY, OrtMemoryInfo
from weft.compat.onnxruntime.model_options import READ_CONFIG, read_model_options
from weft.compat.onnxruntime.naming import COLLECTION, STATE, set_module
from weft.compat.onnxruntime.options import OrtRunOptions, SessionOptions
from weft.compat.onnxruntime.providers import choose_providers, parse_providers
from weft.compat.onnxruntime.session_model import SessionModel, Source
from weft.compat.onnxruntime.values import OrtValue, OrtValueVector
from weft.errors import FallbackWarning, InputError, WeftError
from weft.runtime.devices import HOST


class InnerAttribute:
    """An attribute that is computed when it is read. Unlike a property, instances may set it."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self._read = read

    def __get__(self, session: Any, owner: type) -> Any:
        return self if session is None else self._read(session)


@set_module(COLLECTION)
class InferenceSession:
    """A loaded model. Threads may run it at the same time."""

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **keywords: Any,
    ) -> None:
        if not isinstance(path_or_bytes, (str, os.PathLike, bytes)):
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise argument_error("InferenceSession", "SessionOptions", sess_options)
        source: Source = path_or_bytes if isinstance(path_or_bytes, bytes) else os.fspath(path_or_bytes)
        options = sess_options or SessionOptions()
        if os.environ.get(READ_CONFIG) == "1":
            options = read_model_options(source)
        log_ignored_options(options, keywords)
        if providers is not None and not isinstance(providers, Iterable):
            raise argument_error("InferenceSession", "a list of providers", providers)
        try:
            requested = parse_providers(providers, provider_options)
        except (ValueError, RuntimeError) as error:
            if not int(keywords.get("enable_fallback", 1)):
                raise
            warnings.warn(f"{error} Falling back to the CPU.", FallbackWarning, stacklevel=2)
            requested = []
        self._weft = SessionModel(source, options, choose_providers(requested))

    @property
    def weft_model(self) -> Any:
        """The weft model, for what onnxruntime's interface lacks."""
        return self._weft.model

    # -- runs ---------------------------------------------------------------------------------------------------------

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: OrtRunOptions | None = None,
    ) -> list[Any]:
        """Run the model and return the named outputs, or all of them, as a list."""
        model = self._weft
        if run_options is None and model.is_direct:
            try:
                results = model.run(input_feed)
                if not output_names or output_names == model.names:
                    return list(results.values())
                if not isinstance(output_names, str):
                    return [results[name] for name in output_names]
            except (InputError, KeyError):
                pass  # the slower path below converts the inputs, or raises onnxruntime's error
            except WeftError as error:
                raise run_error(error) from error
        names, inputs = model.convert_feed(output_names, input_feed)
        results = model.run_converted(names, inputs, run_options)
        return [model.to_python(name, results[name]) for name in names]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: OrtRunOptions | None = None,
    ) -> list[OrtValue]:
        """Run on values that may be on a device, and leave the outputs on the session's device."""
        model = self._weft
        names, inputs = model.convert_feed(output_names, input_dict_ort_values)
        for value in input_dict_ort_values.values():
            if not isinstance(value, OrtValue):
                raise AttributeError(f"run_with_ort_values takes OrtValues, not a {type(value).__name__}")
        results = model.run_converted(names, inputs, run_options, keep=model.model.device != HOST)
        return [model.to_ortvalue(name, results[name]) for name in names]

    def run_with_ortvaluevector(
        self,
        run_options: OrtRunOptions | None,
        feed_names: Sequence[str],
        feeds: Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: OrtValueVector,
        fetch_devices: Sequence[Any],
    ) -> None:
        """Run on values by position. Results overwrite the values of `fetches`; those beyond its end are appended."""
        model = self._weft
        names, inputs = model.convert_feed(fetch_names, dict(zip(feed_names, feeds)))
        results = model.run_converted(names, inputs, run_options, keep=model.model.device != HOST)
        values = [model.to_ortvalue(name, results[name]) for name in names]
        for target, value in zip(fetches, values):
            target.update_inplace(value.numpy())
        fetches.extend(values[len(fetches) :])

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], Any],
        user_data: Any,
        run_options: OrtRunOptions | None = None,
    ) -> None:
        """Run on a new thread, which then calls `callback(results, user_data, error)`."""
        self._weft.check_required(input_feed)

        def work() -> None:
            try:
                results, failure = self.run(output_names, input_feed, run_options), ""
            except Exception as error:
                results, failure = [], strip_status(str(error))
            callback(results, user_data, failure)

        threading.Thread(target=work, name="weft-run-async", daemon=True).start()

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: OrtRunOptions | None = None) -> None:
        """Run with the bound inputs and outputs. As in onnxruntime, failures are RuntimeErrors here."""
        if not isinstance(iobinding, IOBinding):
            raise AttributeError(f"run_with_iobinding takes an IOBinding, not a {type(iobinding).__name__}")
        if not iobinding.belongs_to(self._weft):
            raise ValueError("IOBinding must be used with the session that created it.")

        def run(
            inputs: Mapping[str, Any], names: list[str], on_device: list[str], into: Mapping[str, Any]
        ) -> dict[str, Any]:
            try:
                for name in names:
                    self._weft.check_output(name)
                return self._weft.run_converted(names, inputs, run_options, on_device, into)
            except Exception as error:
                raise RuntimeError(f"Error in execution: {error}") from error

        run_binding(iobinding, run)

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str = HOST, device_id: int = 0
    ) -> OrtValue:
        value: OrtValue = OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id)
        return value

    # -- description --------------------------------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        return list(self._weft.arguments.inputs)

    def get_outputs(self) -> list[NodeArg]:
        return list(self._weft.arguments.outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        return list(self._weft.arguments.initializers)

    def get_modelmeta(self) -> ModelMetadata:
        return self._weft.declarations.metadata

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """Return host memory for each input: runs take all inputs from there, on every device."""
        return [HOST_MEMORY for _ in self._weft.arguments.inputs]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        return [HOST_MEMORY for _ in self._weft.arguments.outputs]

    def get_input_epdevices(self) -> list[None]:
        """Return None for each input, as onnxruntime does for inputs without such a device."""
        return [None for _ in self._weft.arguments.inputs]

    def get_session_options(self) -> SessionOptions:
        return self._weft.options

    def get_providers(self) -> list[str]:
        """Return the active providers, without those whose device failed."""
        return self._weft.choice.active_providers(self._weft.model.device)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        options = self._weft.choice.options
        return {name: dict(options.get(name, {})) for name in self.get_providers()}

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Do nothing: weft captures and releases CUDA graphs by itself."""

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Load the model again, with other providers."""
        try:
            requested = parse_providers(providers, provider_options)
        except ValueError as error:
            raise RuntimeError(str(error)) from error
        self._weft = SessionModel(self._weft.absolute_source, self._weft.options, choose_providers(requested))

    def disable_fallback(self) -> None:
        """Do nothing: the devices are fixed when the session is created."""

    def enable_fallback(self) -> None:
        """Do nothing: if a device fails, the next one is used anyway."""

    # -- profiles -----------------------------------------------------------------------------------------------------

    def end_profiling(self) -> str:
        """Write the profile and return the file's name; empty if the session is not being profiled."""
        profile, self._weft.profile = self._weft.profile, None
        return "" if profile is None else profile.end(self._weft.model, self.get_providers()[0])

    def get_profiling_start_time_ns(self) -> int:
        return 0 if self._weft.profile is None else self._weft.profile.started

    # -- inner attributes that packages read --------------------------------------------------------------------------

    _inputs_meta = InnerAttribute(get_inputs)
    _outputs_meta = InnerAttribute(get_outputs)
    _overridable_initializers = InnerAttribute(get_overridable_initializers)
    _model_meta = InnerAttribute(get_modelmeta)
    _providers = InnerAttribute(get_providers)
    _provider_options = InnerAttribute(get_provider_options)
    _fallback_providers = InnerAttribute(lambda session: session.get_providers()[-1:])
    _sess_options = InnerAttribute(get_session_options)
    _sess = InnerAttribute(lambda session: InnerSession.of(session._weft))
    _model_path = InnerAttribute(lambda session: session._weft.path)
    _model_bytes = InnerAttribute(lambda session: session._weft.content)

    # -- pickling -----------------------------------------------------------------------------------------------------

    def __reduce_ex__(self, protocol: Any) -> Any:
        if type(self) is InferenceSession:
            return _unpickle_session, (self.__getstate__(),)
        return super().__reduce_ex__(protocol)

    def __getstate__(self) -> dict[str, Any]:
        """Return everything needed to reopen the session, with the attributes of derived classes.

        Derived classes may override this method.
        """
        model = self._weft
        requested = [(name, model.choice.options[name]) for name in model.choice.device_names]
        loaded = (model.absolute_source, model.model)
        return {**vars(self), "_weft": (model.source, model.options, requested, loaded)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        source, options, requested, loaded = state["_weft"]
        vars(self).update(state, _weft=SessionModel(source, options, choose_providers(requested), loaded))

    # -- unsupported --------------------------------------------------------------------------------------------------

    def get_tuning_results(self) -> list[Any]:
        return []

    def set_tuning_results(self, results: Any, *, error_on_invalid: bool = False) -> None:
        if results:
            raise unsupported_error("InferenceSession.set_tuning_results", "use `weft tune`, see docs/guides/tuning.md")

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        raise unsupported_error("InferenceSession.set_ep_dynamic_options", "weft has no such options")

    def get_provider_graph_assignment_info(self) -> list[Any]:
        raise unsupported_error(
            "InferenceSession.get_provider_graph_assignment_info",
            "weft has its own report",
            hint="session.weft_model.report() shows where a model runs",
        )


@set_module(STATE, "InferenceSession")
class InnerSession(InferenceSession):
    """onnxruntime's inner session, which is created in two steps and has a different argument order."""

    def __init__(self, options: SessionOptions, source: str | bytes, is_path: bool, read_config: bool) -> None:
        self._arguments = source, options

    @classmethod
    def of(cls, model: SessionModel) -> InnerSession:
        """Return an inner session that shares a session's model."""
        inner = cls.__new__(cls)
        inner._weft = model
        return inner

    def initialize_session(
        self, providers: Sequence[str], provider_options: Sequence[Mapping[str, str]], disabled_optimizers: Any
    ) -> None:
        keywords = {"disabled_optimizers": disabled_optimizers}
        super().__init__(*self._arguments, providers, provider_options or None, **keywords)

    def __getattr__(self, name: str) -> Any:
        if name == "_weft":
            raise status_error("Fail", "Session not initialized.")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: OrtRunOptions | None = None,
    ) -> list[Any]:
        if output_names is None:
            raise argument_error("run", "a list of names", output_names)
        if not output_names:
            raise status_error("InvalidArgument", "At least one output should be requested.")
        return super().run(output_names, input_feed, run_options)

    def run_with_ort_values(  # type: ignore[override]
        self, feeds: Mapping[str, OrtValue], output_names: Sequence[str], run_options: OrtRunOptions | None = None
    ) -> OrtValueVector:
        for value in feeds.values():
            if not isinstance(value, OrtValue):
                raise RuntimeError(f"run_with_ort_values takes OrtValues, not a {type(value).__name__}")
        return OrtValueVector(super().run_with_ort_values(output_names, feeds, run_options))

    create_ortvalue_from_shape_and_onnx_type = InferenceSession.create_ortvalue_from_shape_and_type
    inputs_meta = property(InferenceSession.get_inputs)
    outputs_meta = property(InferenceSession.get_outputs)
    overridable_initializers = property(InferenceSession.get_overridable_initializers)
    model_meta = property(InferenceSession.get_modelmeta)
    input_meminfos = property(InferenceSession.get_input_memory_infos)
    output_meminfos = property(InferenceSession.get_output_memory_infos)
    input_epdevices = property(InferenceSession.get_input_epdevices)
    session_options = property(InferenceSession.get_session_options)
    get_profiling_start_time_ns = property(InferenceSession.get_profiling_start_time_ns)

    def is_webgpu_graph_capture_enabled(self) -> bool:
        return False

    def webgpu_context_id(self) -> int:
        return -1


def _unpickle_session(state: dict[str, Any]) -> InferenceSession:
    """Open a pickled session. The class cannot be pickled by its name, which may mean onnxruntime's own class."""
    session = InferenceSession.__new__(InferenceSession)
    session.__setstate__(state)
    return session
