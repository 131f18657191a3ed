"""SessionOptions and RunOptions, with all fields of onnxruntime. Fields without effect are logged once per process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.compat.onnxruntime.enumerations import ExecutionMode, ExecutionOrder, GraphOptimizationLevel
from weft.compat.onnxruntime.exceptions import unsupported_error
from weft.compat.onnxruntime.naming import STATE, set_module
from weft.interrupts import Cancellation

MAX_KEY_LENGTH, MAX_VALUE_LENGTH = 1024, 8192  # characters of config entries

_PROVIDERS = "pass providers to InferenceSession"


class OrtOption:
    """A field of options. `convert` raises TypeError for values that onnxruntime rejects."""

    def __init__(self, default: Any, convert: Callable[[Any], Any]) -> None:
        self._default = default
        self._convert = convert

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, options: Any, owner: type) -> Any:
        return self if options is None else options.fields.get(self._name, self._default)

    def __set__(self, options: Any, value: Any) -> None:
        try:
            options.fields[self._name] = self._convert(value)
        except TypeError as error:
            raise TypeError(f"{type(options).__name__}.{self._name}: {error}") from None


def _to_integer(value: Any) -> int:
    if not hasattr(value, "__index__"):
        raise _type_error("an integer", value)
    return int(value.__index__())


def _to_text(value: Any) -> str:
    if not isinstance(value, str):
        raise _type_error("a string", value)
    return value


def _to_path(value: Any) -> str:
    if not isinstance(value, str) and not hasattr(value, "__fspath__"):
        raise _type_error("a path", value)
    return str(value)


def _to_flag(value: Any) -> bool:
    if value is not None and not hasattr(type(value), "__bool__"):
        raise _type_error("a bool", value)
    return bool(value)


def _to_member(enumeration: Any) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if not isinstance(value, enumeration):
            raise _type_error(enumeration.__name__, value)
        return value

    return convert


def _type_error(expected: str, value: Any) -> TypeError:
    return TypeError(f"incompatible function arguments: expected {expected}, not a {type(value).__name__}")


class OrtOptions:
    """Fields by name, and config entries by key."""

    __slots__ = ("entries", "fields")

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.entries: dict[str, str] = {}

    def _add_entry(self, key: Any, value: Any) -> None:
        key, value = _to_text(key), _to_text(value)
        if not 0 < len(key) <= MAX_KEY_LENGTH:
            raise RuntimeError(f"Config key is empty or longer than maximum length {MAX_KEY_LENGTH}")
        if len(value) > MAX_VALUE_LENGTH:
            raise RuntimeError(f"Config value is longer than maximum length: {MAX_VALUE_LENGTH}")
        self.entries[key] = value

    def _get_entry(self, key: str) -> str:
        try:
            return self.entries[key]
        except KeyError:
            raise RuntimeError(f"{type(self).__name__} does not have configuration with key: {key}") from None


@set_module(STATE)
class SessionOptions(OrtOptions):
    """The options of a session. weft uses the numbers of threads, profiling, and the options that change the model."""

    __slots__ = ("denotations", "dimensions", "external", "files", "initializers")

    enable_cpu_mem_arena = OrtOption(True, _to_flag)
    enable_mem_pattern = OrtOption(True, _to_flag)
    enable_mem_reuse = OrtOption(True, _to_flag)
    enable_profiling = OrtOption(False, _to_flag)
    execution_mode = OrtOption(ExecutionMode.ORT_SEQUENTIAL, _to_member(ExecutionMode))
    execution_order = OrtOption(ExecutionOrder.DEFAULT, _to_member(ExecutionOrder))
    graph_optimization_level = OrtOption(GraphOptimizationLevel.ORT_ENABLE_ALL, _to_member(GraphOptimizationLevel))
    inter_op_num_threads = OrtOption(0, _to_integer)
    intra_op_num_threads = OrtOption(0, _to_integer)
    log_severity_level = OrtOption(-1, _to_integer)
    log_verbosity_level = OrtOption(0, _to_integer)
    logid = OrtOption("", _to_text)
    optimized_model_filepath = OrtOption("", _to_path)
    profile_file_prefix = OrtOption("onnxruntime_profile_", _to_path)
    use_deterministic_compute = OrtOption(False, _to_flag)
    use_per_session_threads = OrtOption(True, _to_flag)

    def __init__(self) -> None:
        super().__init__()
        self.dimensions: dict[str, int] = {}
        self.denotations: dict[str, int] = {}
        self.initializers: dict[str, Any] = {}
        self.external: dict[str, Any] = {}
        self.files: dict[str, bytes] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle_options, tuple(getattr(self, name) for name in _SESSION_STATE)

    def add_session_config_entry(self, key: str, value: str) -> None:
        self._add_entry(key, value)

    def get_session_config_entry(self, key: str) -> str:
        return self._get_entry(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix the dims of this name; runs reject inputs of another size."""
        self.dimensions[_to_text(name)] = _to_integer(size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Fix the dims of inputs with this denotation; runs reject inputs of another size."""
        self.denotations[_to_text(denotation)] = _to_integer(size)

    def add_initializer(self, name: str, value: Any) -> None:
        """Replace the values of an initializer."""
        if value is None:
            raise RuntimeError(f"add_initializer: {name!r} has no value")
        self.initializers[_to_text(name)] = value

    def add_external_initializers(self, names: list[str], values: list[Any]) -> None:
        """Set the values of initializers whose data is external."""
        if len(names) != len(values):
            raise RuntimeError("add_external_initializers: the lists must have the same length")
        self.external.update(zip(map(_to_text, names), values))

    def add_external_initializers_from_files_in_memory(
        self, names: list[str], contents: list[bytes], lengths: list[int]
    ) -> None:
        """Use these bytes as the content of files that hold external data."""
        call = "add_external_initializers_from_files_in_memory"
        if not len(names) == len(contents) == len(lengths):
            raise RuntimeError(f"{call}: the lists must have the same length")
        for name, content, length in zip(names, contents, lengths):
            if _to_integer(length) < 0:
                raise TypeError(f"{call}: incompatible function arguments: a length is {length}")
            self.files[_to_text(name)] = bytes(memoryview(content)[:length])

    def register_custom_ops_library(self, path: str) -> None:
        raise unsupported_error(
            "SessionOptions.register_custom_ops_library",
            "weft cannot run compiled kernels of other libraries",
            hint="`weft ops --missing MODEL` lists the ops that the model needs and weft lacks",
        )

    def add_provider(self, name: str, options: dict[str, str]) -> None:
        raise unsupported_error("SessionOptions.add_provider", _PROVIDERS)

    def add_provider_for_devices(self, devices: Any, options: Any) -> None:
        raise unsupported_error("SessionOptions.add_provider_for_devices", _PROVIDERS)

    def set_provider_selection_policy(self, policy: Any) -> None:
        raise unsupported_error("SessionOptions.set_provider_selection_policy", _PROVIDERS)

    def set_provider_selection_policy_delegate(self, delegate: Any) -> None:
        raise unsupported_error("SessionOptions.set_provider_selection_policy_delegate", _PROVIDERS)

    def set_ep_context_data_read_func(self, read_func: Any) -> None:
        raise unsupported_error("SessionOptions.set_ep_context_data_read_func", "weft has no contexts of providers")

    def clear_ep_context_data_read_func(self) -> None:
        """Do nothing: no function can be set."""

    def has_providers(self) -> bool:
        return False

    def set_load_cancellation_flag(self, flag: bool) -> None:
        if flag:
            raise unsupported_error("SessionOptions.set_load_cancellation_flag", "loading a model cannot be cancelled")


_SESSION_STATE = (*OrtOptions.__slots__, *SessionOptions.__slots__)


def _unpickle_options(*state: Any) -> SessionOptions:
    options = SessionOptions()
    for name, content in zip(_SESSION_STATE, state):
        setattr(options, name, content)
    return options


@set_module(STATE, "RunOptions")
class OrtRunOptions(OrtOptions):
    """The options of a run. Setting `terminate` to True, from any thread, ends the runs with these options."""

    __slots__ = ("_cancellation",)

    log_severity_level = OrtOption(-1, _to_integer)
    log_verbosity_level = OrtOption(0, _to_integer)
    logid = OrtOption("", _to_text)
    only_execute_path_to_fetches = OrtOption(False, _to_flag)

    def __init__(self) -> None:
        super().__init__()
        self._cancellation = Cancellation()

    @property
    def terminate(self) -> bool:
        return self._cancellation.cancelled

    @terminate.setter
    def terminate(self, value: bool) -> None:
        if _to_flag(value):
            self._cancellation.cancel()
        elif self._cancellation.cancelled:
            self._cancellation = Cancellation()

    @property
    def cancellation(self) -> Cancellation:
        return self._cancellation

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._add_entry(key, value)

    def get_run_config_entry(self, key: str) -> str:
        return self._get_entry(key)

    def add_active_adapter(self, adapter: Any) -> None:
        raise unsupported_error(
            "RunOptions.add_active_adapter", "weft has no adapters", hint="merge them into the model"
        )
