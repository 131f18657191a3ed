"""The one exception tree of weft: every error says what is wrong, where (file, node, value), and what to do."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any, NamedTuple

SHOWN = 60  # characters of a value in a message


class WeftError(Exception):
    """Base of everything weft raises on purpose.

    `problem` states what is wrong; `hint` what to do. The place (`file`, `node`, `value`) is filled in by whichever
    layer knows it, through `at`.
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
        """Add the parts of the place that are not known yet, and return self."""
        self.file = self.file or file
        self.node = self.node or node
        self.value = self.value or value
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """As it is, whatever a class of its kind is made from: it may come from another process."""
        return _revived, (type(self), self.args, vars(self))

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


class InvalidModelError(ModelError):
    """The model breaks the ONNX rules: damaged file, cycle, missing name, mismatched shapes or types."""


class MalformedNodeError(InvalidModelError):
    """A node's attributes, inputs or element types are not those of its operator, whatever the shapes are."""


class OnlyAtRunError(InvalidModelError):
    """An op that sees its whole graph needs what only the run will reveal; it cannot be put off as other ops can."""


class UnsupportedModelError(ModelError):
    """The model is well-formed but uses an operator, opset, type or feature that weft does not have."""


class UntrustedModelError(ModelError):
    """The file holds machine code that this user did not compile, and nobody said that it may run."""


class GraphError(ModelError):
    """A graph in the making is used in a way that gives no model: a name twice, a tensor of another graph."""


class ChangedFileError(WeftError):
    """A file of the model is not what it was when the model was loaded, and what is asked for needs it again."""


class InputError(WeftError, ValueError):
    """What was passed to `run` does not fit the model's inputs or outputs."""


class UnknownOptionError(WeftError, TypeError):
    """An argument that a function does not take, by a name that it may have elsewhere."""


class UnknownNameError(WeftError, KeyError):
    """A name that a model, or the result of a run, does not have."""


class MissingAttributeError(WeftError, AttributeError):
    """An attribute that a model lacks; the hint says how the same is done."""


class ExecutionError(WeftError):
    """The model failed on this data, for instance an index out of range."""


class RunTimeoutError(WeftError, TimeoutError):
    """A run was not done in the time that it was given (`timeout`). The model is as it was, and runs again."""


class RunCancelledError(WeftError):
    """A run was ended by another thread (`Cancellation.cancel`). The model is as it was, and runs again."""


class OutOfMemoryError(WeftError, MemoryError):
    """A tensor does not fit into this machine's memory."""


class DeviceError(WeftError):
    """The requested device does not exist here, or cannot do what was asked."""


class DeviceLostError(DeviceError):
    """The device stopped working, and what was on it is gone. Load the model again, here or on another device."""


class Attempt(NamedTuple):  # a dataclass would double the time that `import weft` takes
    """A device that was to serve a model and did not: at what it failed (finding, loading or running), and why."""

    device: str
    stage: str
    reason: str

    def __str__(self) -> str:
        return f"{self.device} failed in {self.stage}: {self.reason}"


class DeviceFallbackError(DeviceError):
    """None of the devices that a model may run on serves it; `attempts` says of each why not."""

    def __init__(self, attempts: Sequence[Attempt], *, file: str | None = None) -> None:
        told = "".join(f"\n  {attempt}" for attempt in attempts)
        hint = "allow another device; `weft devices` lists those that are here, and what is in force"
        super().__init__(f"no device serves this model:{told}", file=file, hint=hint)
        self.attempts: tuple[Attempt, ...] = tuple(attempts)


class KernelError(DeviceError):
    """The device's compiler refuses a kernel, or the device cannot run it."""


class InternalError(WeftError):
    """A rule between weft's own layers is broken. Please report it."""


class FallbackWarning(UserWarning):
    """A model runs on another device than the best one, since that failed."""


class CacheWarning(UserWarning):
    """What lies in a cache folder is not used, since others could have put it there."""


def _revived(kind: type[WeftError], arguments: tuple[Any, ...], content: dict[str, Any]) -> WeftError:
    """An error that was pickled."""
    base: Any = kind.__base__  # the one whose memory it has: the `__new__` of others is refused
    error: WeftError = base.__new__(kind, *arguments)
    error.args = arguments
    vars(error).update(content)
    return error


def shown(value: object) -> str:
    """A value as a message may show it: never long, whatever it is, and whatever its own `repr` does."""
    short = reprlib.Repr()
    short.maxlist = short.maxtuple = short.maxdict = short.maxset = short.maxfrozenset = short.maxdeque = SHOWN // 3
    short.maxstring = short.maxlong = short.maxother = SHOWN
    try:
        return short.repr(value)[:SHOWN]
    except Exception:  # a number of more digits than Python prints, or a class of someone else's
        return f"a {type(value).__name__}"
