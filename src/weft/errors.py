"""The one exception tree of weft: every error says what is wrong, where (file, node, value), and what to do."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any, NamedTuple

MAX_REPR = 60  # characters of a value in a message


class WeftError(Exception):
    """Base of everything weft raises on purpose.

    `problem` says what is wrong, `hint` what to do. Layers that know the place (`file`, `node`, `value`) add it with
    `at`.
    """

    def __init__(
        self,
        problem: str,
        *,
        hint: str | None = None,
        file: str | None = None,
        node: str | None = None,
        value: str | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint
        self.file = file
        self.node = node
        self.value = value

    def at(self, *, file: str | None = None, node: str | None = None, value: str | None = None) -> WeftError:
        """Fill in the parts of the place that are still unset, and return self."""
        self.file = self.file or file
        self.node = self.node or node
        self.value = self.value or value
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all attributes, whatever the constructor of the subclass takes."""
        return _unpickle, (type(self), self.args, vars(self))

    def __str__(self) -> str:
        place = [f"{kind} {where}" for kind, where in (("value", self.value), ("node", self.node)) if where]
        text = self.problem
        if place:
            text += f" ({', '.join(place)})"
        if self.file and not text.startswith(self.file):
            text = f"{self.file}: {text}"
        if self.hint:
            text += f"\n  hint: {self.hint}"
        return text


class ModelError(WeftError):
    """The model cannot be used."""


class MissingFileError(ModelError, FileNotFoundError):
    """The model's file, or a file of its weights, does not exist."""


class InvalidModelError(ModelError):
    """The model breaks the ONNX rules: damaged file, cycle, missing name, mismatched shapes or types."""


class MalformedNodeError(InvalidModelError):
    """A node's attributes, inputs or element types do not match its operator, whatever the shapes are."""


class OnlyAtRunError(InvalidModelError):
    """An op that differentiates its whole graph needs shapes that are known only at run time."""


class OpDefinitionError(InvalidModelError):
    """The Python definition of an op (`weft.opset.registry.op`) is wrong; the message has its file and line."""


class UnsupportedModelError(ModelError):
    """The model is valid but uses an operator, opset, type or feature that weft does not support."""


class UntrustedModelError(ModelError):
    """The file holds machine code that this user did not compile, and it was not loaded with `trusted=True`."""


class GraphError(ModelError):
    """A graph is built incorrectly: a duplicate name, a tensor of another graph."""


class ChangedFileError(WeftError):
    """A file of the model has changed since the model was loaded, and has to be read again."""


class InputError(WeftError, ValueError):
    """An argument does not match the model's inputs or outputs."""


class UnknownOptionError(WeftError, TypeError):
    """A function got an argument that it does not take."""


class UnknownNameError(WeftError, KeyError):
    """A model or a result has no entry of this name."""


class MissingAttributeError(WeftError, AttributeError):
    """A model has no such attribute; the hint says what to use instead."""


class ExecutionError(WeftError):
    """The model failed on this data, for instance with an index out of range."""


class RunTimeoutError(WeftError, TimeoutError):
    """A run took longer than its `timeout`. The model is unchanged and can run again."""


class RunCancelledError(WeftError):
    """Another thread cancelled a run (`Cancellation.cancel`). The model is unchanged and can run again."""


class OutOfMemoryError(WeftError, MemoryError):
    """A tensor does not fit into memory."""


class DeviceError(WeftError):
    """The requested device is not available, or does not support the operation."""


class MissingPackageError(DeviceError, ImportError):
    """A package that this operation needs is not installed."""


class DeviceLostError(DeviceError):
    """The device failed and its memory is lost. Load the model again, on this or another device."""


class Attempt(NamedTuple):  # a dataclass would double the time that `import weft` takes
    """A device that could not run a model: the stage that failed (finding, loading or running), and why."""

    device: str
    stage: str
    reason: str

    def __str__(self) -> str:
        return f"{self.device} failed in {self.stage}: {self.reason}"


class DeviceFallbackError(DeviceError):
    """No device can run the model; `attempts` says why for each."""

    def __init__(self, attempts: Sequence[Attempt], *, file: str | None = None) -> None:
        reasons = "".join(f"\n  {attempt}" for attempt in attempts)
        hint = "allow another device; `weft devices` lists the available ones and the current settings"
        super().__init__(f"no device can run this model:{reasons}", file=file, hint=hint)
        self.attempts: tuple[Attempt, ...] = tuple(attempts)


class KernelError(DeviceError):
    """The device's compiler rejects a kernel, or the device cannot run it."""


class InternalError(WeftError):
    """An internal invariant is broken. Please report it."""


class FallbackWarning(UserWarning):
    """Something runs on a slower path: the preferred device failed, or an op's definition cannot be compiled."""


class CacheWarning(UserWarning):
    """A cache folder is ignored because other users could have written to it."""


def _unpickle(kind: type[WeftError], arguments: tuple[Any, ...], content: dict[str, Any]) -> WeftError:
    base: Any = kind.__base__  # Python refuses the `__new__` of a class with another memory layout
    error: WeftError = base.__new__(kind, *arguments)
    error.args = arguments
    vars(error).update(content)
    return error


def check_unicode(text: str, name: str = "the text") -> None:
    """Raise InputError for a text with a lone surrogate, which cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"{name} has a lone surrogate at character {error.start}, which is not valid Unicode"
        raise InputError(problem, hint="decode bytes with errors='replace'") from error


def short_repr(value: object) -> str:
    """Format a value for a message: short, and safe against a `repr` that fails."""
    formatter = reprlib.Repr()
    formatter.maxlist = formatter.maxtuple = formatter.maxdict = formatter.maxset = formatter.maxfrozenset = (
        formatter.maxdeque
    ) = MAX_REPR // 3
    formatter.maxstring = formatter.maxlong = formatter.maxother = MAX_REPR
    try:
        return formatter.repr(value)[:MAX_REPR]
    except Exception:  # an integer with too many digits, or a foreign class
        return f"a {type(value).__name__}"
