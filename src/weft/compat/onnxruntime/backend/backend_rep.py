"""A session as onnx's BackendRep, and the options that can be set through onnx's interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx.backend.base import BackendRep

from weft.compat.onnxruntime.options import OrtRunOptions

_RUN_OPTIONS = ("log_severity_level", "log_verbosity_level", "logid", "only_execute_path_to_fetches")


class OnnxRuntimeBackendRep(BackendRep):
    """A session that takes its inputs by position."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def run(self, inputs: Any, **kwargs: Any) -> list[Any]:  # type: ignore[override]
        """Run on a list of inputs, or on the only input; `kwargs` are fields of RunOptions."""
        options = OrtRunOptions()
        set_options(options, kwargs, _RUN_OPTIONS)
        names = [argument.name for argument in self._session.get_inputs()]
        if isinstance(inputs, list):
            feed = {name: inputs[index] for index, name in enumerate(names)}
        elif len(names) == 1:
            feed = {names[0]: inputs}
        else:
            raise RuntimeError(f"pass a list: the model takes {len(names)} inputs")
        results: list[Any] = self._session.run(None, feed, options)
        return results


def set_options(options: Any, values: Mapping[str, Any], permitted: tuple[str, ...]) -> None:
    """Set options by name. Ignore unknown names; raise RuntimeError for options that are not permitted."""
    for name, value in values.items():
        if name in permitted:
            setattr(options, name, value)
        elif hasattr(options, name):
            raise RuntimeError(f"{type(options).__name__}.{name} cannot be set through the backend interface")
