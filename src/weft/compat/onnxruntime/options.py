"""SessionOptions and RunOptions: every field that onnxruntime has is taken; what means nothing to weft is said once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.compat.onnxruntime.enumerations import ExecutionMode, ExecutionOrder, GraphOptimizationLevel
from weft.compat.onnxruntime.exceptions import incompatible, refusal
from weft.compat.onnxruntime.naming import STATE, known_as
from weft.interrupts import Cancellation

LONGEST_KEY, LONGEST_VALUE = 1024, 8192  # characters of a configuration's entries


class OrtOption:
    """A field of a class of options: it holds values of one kind, and refuses others as onnxruntime does."""

    def __init__(self, default: Any, take: Callable[[Any], Any]) -> None:
        self._default = default
        self._take = take

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, options: Any, owner: type) -> Any:
        return self if options is None else options.fields.get(self._name, self._default)

    def __set__(self, options: Any, value: Any) -> None:
        try:
            options.fields[self._name] = self._take(value)
        except TypeError:
            raise incompatible(f"{owner_name(options)}.{self._name}", self._take.__name__, value) from None


def owner_name(options: Any) -> str:
    return type(options).__name__


def _number(value: Any) -> int:
    return int(value.__index__() if hasattr(value, "__index__") else _refused())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _refused()


def _path(value: Any) -> str:
    return str(value) if isinstance(value, str) or hasattr(value, "__fspath__") else _refused()


def _flag(value: Any) -> bool:
    return bool(value) if value is None or hasattr(type(value), "__bool__") else _refused()


def _refused() -> Any:
    raise TypeError("incompatible function arguments")


def _member_of(kind: Any) -> Callable[[Any], Any]:
    def member(value: Any) -> Any:
        return value if isinstance(value, kind) else _refused()

    member.__name__ = kind.__name__
    return member


class OrtOptions:
    """Fields by name, and entries by key."""

    __slots__ = ("entries", "fields")

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.entries: dict[str, str] = {}

    def _add(self, key: Any, value: Any) -> None:
        if not isinstance(key, str) or not isinstance(value, str):
            raise incompatible(f"{owner_name(self)}: an entry", "two texts", value if isinstance(key, str) else key)
        if not 0 < len(key) <= LONGEST_KEY:
            raise RuntimeError(f"Config key is empty or longer than maximum length {LONGEST_KEY}")
        if len(value) > LONGEST_VALUE:
            raise RuntimeError(f"Config value is longer than maximum length: {LONGEST_VALUE}")
        self.entries[key] = value

    def _entry(self, key: str) -> str:
        try:
            return self.entries[key]
        except KeyError:
            raise RuntimeError(f"{owner_name(self)} does not have configuration with key: {key}") from None


@known_as(STATE)
class SessionOptions(OrtOptions):
    """How a session is made. Of this, weft uses the numbers of threads, profiling, and what changes the model."""

    __slots__ = ("denotations", "dimensions", "external", "files", "initializers")

    enable_cpu_mem_arena = OrtOption(True, _flag)
    enable_mem_pattern = OrtOption(True, _flag)
    enable_mem_reuse = OrtOption(True, _flag)
    enable_profiling = OrtOption(False, _flag)
    execution_mode = OrtOption(ExecutionMode.ORT_SEQUENTIAL, _member_of(ExecutionMode))
    execution_order = OrtOption(ExecutionOrder.DEFAULT, _member_of(ExecutionOrder))
    graph_optimization_level = OrtOption(GraphOptimizationLevel.ORT_ENABLE_ALL, _member_of(GraphOptimizationLevel))
    inter_op_num_threads = OrtOption(0, _number)
    intra_op_num_threads = OrtOption(0, _number)
    log_severity_level = OrtOption(-1, _number)
    log_verbosity_level = OrtOption(0, _number)
    logid = OrtOption("", _text)
    optimized_model_filepath = OrtOption("", _path)
    profile_file_prefix = OrtOption("onnxruntime_profile_", _path)
    use_deterministic_compute = OrtOption(False, _flag)
    use_per_session_threads = OrtOption(True, _flag)

    def __init__(self) -> None:
        super().__init__()
        self.dimensions: dict[str, int] = {}
        self.denotations: dict[str, int] = {}
        self.initializers: dict[str, Any] = {}
        self.external: dict[str, Any] = {}
        self.files: dict[str, bytes] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _session_options, tuple(getattr(self, name) for name in _STATE)

    def add_session_config_entry(self, key: str, value: str) -> None:
        self._add(key, value)

    def get_session_config_entry(self, key: str) -> str:
        return self._entry(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix the dims of this name: inputs of another size are refused."""
        self.dimensions[_text(name)] = _number(size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Fix the dims of inputs with this denotation: inputs of another size are refused."""
        self.denotations[_text(denotation)] = _number(size)

    def add_initializer(self, name: str, value: Any) -> None:
        """Use these values instead of the model's own for an initializer."""
        if value is None:
            raise RuntimeError(f"add_initializer: {name!r} has no value")
        self.initializers[_text(name)] = value

    def add_external_initializers(self, names: list[str], values: list[Any]) -> None:
        """Use these values for initializers whose data lies in other files."""
        if len(names) != len(values):
            raise RuntimeError("add_external_initializers: as many names as values are needed")
        self.external.update(zip(map(_text, names), values))

    def add_external_initializers_from_files_in_memory(
        self, names: list[str], contents: list[bytes], lengths: list[int]
    ) -> None:
        """Use these bytes as the content of files that hold external data."""
        if not len(names) == len(contents) == len(lengths):
            raise RuntimeError("add_external_initializers_from_files_in_memory: lists of one length are needed")
        for name, content, length in zip(names, contents, lengths):
            if _number(length) < 0:
                _refused()
            self.files[_text(name)] = bytes(memoryview(content)[:length])

    def register_custom_ops_library(self, path: str) -> None:
        raise refusal(
            "SessionOptions.register_custom_ops_library",
            "weft runs no compiled kernels of others",
            hint="`weft ops --missing MODEL` lists what the model would need",
        )

    def add_provider(self, name: str, options: dict[str, str]) -> None:
        raise refusal("SessionOptions.add_provider", "name providers when the session is made")

    def add_provider_for_devices(self, devices: Any, options: Any) -> None:
        raise refusal("SessionOptions.add_provider_for_devices", "name providers when the session is made")

    def set_provider_selection_policy(self, policy: Any) -> None:
        raise refusal("SessionOptions.set_provider_selection_policy", "name providers when the session is made")

    def set_provider_selection_policy_delegate(self, delegate: Any) -> None:
        raise refusal(
            "SessionOptions.set_provider_selection_policy_delegate", "name providers when the session is made"
        )

    def set_ep_context_data_read_func(self, read_func: Any) -> None:
        raise refusal("SessionOptions.set_ep_context_data_read_func", "weft has no contexts of providers")

    def clear_ep_context_data_read_func(self) -> None:
        """There is none."""

    def has_providers(self) -> bool:
        return False

    def set_load_cancellation_flag(self, flag: bool) -> None:
        """Taken, since a load that nobody cancels is as ever."""
        if flag:
            raise refusal("SessionOptions.set_load_cancellation_flag", "loading a model cannot be cancelled")


_STATE = (
    "fields",
    "entries",
    "dimensions",
    "denotations",
    "initializers",
    "external",
    "files",
)  # of a session's options


def _session_options(*state: Any) -> SessionOptions:
    made = SessionOptions()
    for name, content in zip(_STATE, state):
        setattr(made, name, content)
    return made


@known_as(STATE, "RunOptions")
class OrtRunOptions(OrtOptions):
    """How one run is done. `terminate = True` ends the runs that have it, from any thread."""

    __slots__ = ("_cancellation",)

    log_severity_level = OrtOption(-1, _number)
    log_verbosity_level = OrtOption(0, _number)
    logid = OrtOption("", _text)
    only_execute_path_to_fetches = OrtOption(False, _flag)

    def __init__(self) -> None:
        super().__init__()
        self._cancellation = Cancellation()

    @property
    def terminate(self) -> bool:
        return self._cancellation.cancelled

    @terminate.setter
    def terminate(self, value: bool) -> None:
        if _flag(value):
            self._cancellation.cancel()
        elif self._cancellation.cancelled:
            self._cancellation = Cancellation()

    @property
    def cancellation(self) -> Cancellation:
        """What a run of weft's is ended by."""
        return self._cancellation

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._add(key, value)

    def get_run_config_entry(self, key: str) -> str:
        return self._entry(key)

    def add_active_adapter(self, adapter: Any) -> None:
        raise refusal("RunOptions.add_active_adapter", "weft has no adapters", hint="merge them into the model")
