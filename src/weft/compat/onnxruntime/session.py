"""InferenceSession: a model of weft's, used the way onnxruntime is used."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from weft.compat.onnxruntime.binding import IOBinding, run_bound
from weft.compat.onnxruntime.declared import ModelMetadata, NodeArg
from weft.compat.onnxruntime.exceptions import incompatible, refusal, running_failed, status, without_status
from weft.compat.onnxruntime.memory_info import HOST_MEMORY, OrtMemoryInfo
from weft.compat.onnxruntime.model_options import READ_CONFIG, read_model_options
from weft.compat.onnxruntime.naming import COLLECTION, STATE, known_as
from weft.compat.onnxruntime.notes import say_unused
from weft.compat.onnxruntime.options import OrtRunOptions, SessionOptions
from weft.compat.onnxruntime.providers import chosen, stated
from weft.compat.onnxruntime.served import ServedModel, Source
from weft.compat.onnxruntime.values import HOST, OrtValue, OrtValueVector
from weft.errors import FallbackWarning, InputError, WeftError


class InnerName:
    """An attribute that is worked out when it is read; who sets another has that."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self._read = read

    def __get__(self, session: Any, owner: type) -> Any:
        return self if session is None else self._read(session)


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
        if not isinstance(path_or_bytes, (str, os.PathLike, bytes)):
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise incompatible("InferenceSession", "SessionOptions", sess_options)
        source: Source = path_or_bytes if isinstance(path_or_bytes, bytes) else os.fspath(path_or_bytes)
        options = sess_options or SessionOptions()
        if os.environ.get(READ_CONFIG) == "1":
            options = read_model_options(source)
        say_unused(options, keywords)
        if providers is not None and not isinstance(providers, Iterable):
            raise incompatible("InferenceSession", "a list of providers", providers)
        try:
            asked = stated(providers, provider_options)
        except (ValueError, RuntimeError) as error:
            if not int(keywords.get("enable_fallback", 1)):
                raise
            warnings.warn(f"{error} The CPU serves instead.", FallbackWarning, stacklevel=2)
            asked = []
        self._weft = ServedModel(source, options, chosen(asked))

    @property
    def weft_model(self) -> Any:
        """The model of weft's that serves: for what onnxruntime has no name for."""
        return self._weft.model

    # -- runs ---------------------------------------------------------------------------------------------------------

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: OrtRunOptions | None = None,
    ) -> list[Any]:
        """The outputs, all or those named, in a list."""
        served = self._weft
        if run_options is None and served.is_direct:
            try:
                results = served.run(input_feed)
                if not output_names or output_names == served.names:
                    return list(results.values())
                if not isinstance(output_names, str):
                    return [results[name] for name in output_names]
            except (InputError, KeyError):
                pass  # what is wrong, or taken by onnxruntime alone, shows below
            except WeftError as error:
                raise running_failed(error) from error
        names, given = served.checked(output_names, input_feed)
        results = served.results(names, given, run_options)
        return [served.plain(name, results[name]) for name in names]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: OrtRunOptions | None = None,
    ) -> list[OrtValue]:
        """The same for values that may lie on a device; so do the outputs."""
        served = self._weft
        names, given = served.checked(output_names, input_dict_ort_values)
        for value in input_dict_ort_values.values():
            if not isinstance(value, OrtValue):
                raise AttributeError(f"run_with_ort_values takes OrtValues, not a {type(value).__name__}")
        results = served.results(names, given, run_options, keep=served.model.device != HOST)
        return [served.value(name, results[name]) for name in names]

    def run_with_ortvaluevector(
        self,
        run_options: OrtRunOptions | None,
        feed_names: Sequence[str],
        feeds: Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: OrtValueVector,
        fetch_devices: Sequence[Any],
    ) -> None:
        """Run on values by position. Results are written into the values of `fetches`, and added where it has none."""
        served = self._weft
        names, inputs = served.checked(fetch_names, dict(zip(feed_names, feeds)))
        results = served.results(names, inputs, run_options, keep=served.model.device != HOST)
        values = [served.value(name, results[name]) for name in names]
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
        """Run on a thread of its own, which then calls `callback(results, user_data, error)`."""
        self._weft.check_required(input_feed)

        def work() -> None:
            try:
                results, failure = self.run(output_names, input_feed, run_options), ""
            except Exception as error:
                results, failure = [], without_status(str(error))
            callback(results, user_data, failure)

        threading.Thread(target=work, name="weft-run-async", daemon=True).start()

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: OrtRunOptions | None = None) -> None:
        """Run with what is bound. Failures are RuntimeErrors here, as in onnxruntime."""
        if not isinstance(iobinding, IOBinding):
            raise AttributeError(f"run_with_iobinding takes an IOBinding, not a {type(iobinding).__name__}")
        if not iobinding.is_of(self._weft):
            raise ValueError("IOBinding must be used with the session that created it.")

        def run(given: Mapping[str, Any], names: list[str], kept: list[str], into: Mapping[str, Any]) -> dict[str, Any]:
            try:
                for name in names:
                    self._weft.check_output(name)
                return self._weft.results(names, given, run_options, kept, into)
            except Exception as error:
                raise RuntimeError(f"Error in execution: {error}") from error

        run_bound(iobinding, run)

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str = HOST, device_id: int = 0
    ) -> OrtValue:
        value: OrtValue = OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id)
        return value

    # -- what is told of it -------------------------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        return list(self._weft.arguments.inputs)

    def get_outputs(self) -> list[NodeArg]:
        return list(self._weft.arguments.outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        return list(self._weft.arguments.initializers)

    def get_modelmeta(self) -> ModelMetadata:
        return self._weft.declarations.metadata

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """Describe host memory for each input: runs take all inputs from there, on every device."""
        return [HOST_MEMORY for _ in self._weft.arguments.inputs]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        return [HOST_MEMORY for _ in self._weft.arguments.outputs]

    def get_input_epdevices(self) -> list[None]:
        """Give None for each input, which onnxruntime does for inputs without such a device."""
        return [None for _ in self._weft.arguments.inputs]

    def get_session_options(self) -> SessionOptions:
        return self._weft.options

    def get_providers(self) -> list[str]:
        """Those that serve: a device that failed is not among them."""
        return self._weft.choice.serving(self._weft.model.device)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        options = self._weft.choice.options
        return {name: dict(options.get(name, {})) for name in self.get_providers()}

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Do nothing: weft captures and releases graphs of kernels by itself."""

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Have other providers serve."""
        try:
            asked = stated(providers, provider_options)
        except ValueError as error:
            raise RuntimeError(str(error)) from error
        self._weft = ServedModel(self._weft.place, self._weft.options, chosen(asked))

    def disable_fallback(self) -> None:
        """A session that serves goes on: its devices were named when it was made."""

    def enable_fallback(self) -> None:
        """It is: where a device fails, the next one takes over."""

    # -- profiles -----------------------------------------------------------------------------------------------------

    def end_profiling(self) -> str:
        """Write the profile, and give the file's name; an empty one where no profiling is under way."""
        profile, self._weft.profile = self._weft.profile, None
        return "" if profile is None else profile.end(self._weft.model, self.get_providers()[0])

    def get_profiling_start_time_ns(self) -> int:
        return 0 if self._weft.profile is None else self._weft.profile.started

    # -- inner names that packages read -------------------------------------------------------------------------------

    _inputs_meta = InnerName(get_inputs)
    _outputs_meta = InnerName(get_outputs)
    _overridable_initializers = InnerName(get_overridable_initializers)
    _model_meta = InnerName(get_modelmeta)
    _providers = InnerName(get_providers)
    _provider_options = InnerName(get_provider_options)
    _fallback_providers = InnerName(lambda session: session.get_providers()[-1:])
    _sess_options = InnerName(get_session_options)
    _sess = InnerName(lambda session: InnerSession.of(session._weft))
    _model_path = InnerName(lambda session: session._weft.path)
    _model_bytes = InnerName(lambda session: session._weft.content)

    # -- pickled ------------------------------------------------------------------------------------------------------

    def __reduce_ex__(self, protocol: Any) -> Any:
        if type(self) is InferenceSession:
            return _opened_again, (self.__getstate__(),)
        return super().__reduce_ex__(protocol)

    def __getstate__(self) -> dict[str, Any]:
        """What opens it again, and what a class made of this one has added; such a class may well have its own."""
        served = self._weft
        asked = [(name, served.choice.options[name]) for name in served.choice.places]
        return {**vars(self), "_weft": (served.source, served.options, asked, (served.place, served.model))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        source, options, asked, kept = state["_weft"]
        vars(self).update(state, _weft=ServedModel(source, options, chosen(asked), kept))

    # -- what weft does not have --------------------------------------------------------------------------------------

    def get_tuning_results(self) -> list[Any]:
        return []

    def set_tuning_results(self, results: Any, *, error_on_invalid: bool = False) -> None:
        if results:
            raise refusal("InferenceSession.set_tuning_results", "`weft tune` is weft's own, see docs/guides/tuning.md")

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        raise refusal("InferenceSession.set_ep_dynamic_options", "weft has no such options")

    def get_provider_graph_assignment_info(self) -> list[Any]:
        raise refusal(
            "InferenceSession.get_provider_graph_assignment_info",
            "weft's own report is another",
            hint="session.weft_model.report() says where a model runs",
        )


@known_as(STATE, "InferenceSession")
class InnerSession(InferenceSession):
    """onnxruntime's inner session, which is made in two steps and has an argument order of its own."""

    def __init__(self, options: SessionOptions, source: str | bytes, is_path: bool, read_config: bool) -> None:
        self._arguments = source, options

    @classmethod
    def of(cls, served: ServedModel) -> InnerSession:
        """Wrap a model that serves a session."""
        inner = cls.__new__(cls)
        inner._weft = served
        return inner

    def initialize_session(
        self, providers: Sequence[str], provider_options: Sequence[Mapping[str, str]], disabled_optimizers: Any
    ) -> None:
        keywords = {"disabled_optimizers": disabled_optimizers}
        super().__init__(*self._arguments, providers, provider_options or None, **keywords)

    def __getattr__(self, name: str) -> Any:
        if name == "_weft":
            raise status("Fail", "Session not initialized.")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: OrtRunOptions | None = None,
    ) -> list[Any]:
        if output_names is None:
            raise incompatible("run", "a list of names", output_names)
        if not output_names:
            raise status("InvalidArgument", "At least one output should be requested.")
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


def _opened_again(state: dict[str, Any]) -> InferenceSession:
    """What was pickled; the class itself goes by its name here, wherever onnxruntime's means another one."""
    session = InferenceSession.__new__(InferenceSession)
    session.__setstate__(state)
    return session
