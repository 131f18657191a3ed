"""What `weft.load` takes, stated and checked in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, get_args

from weft.backends.device import RunOptions
from weft.errors import (
    DeviceError,
    InputError,
    shown,
)
from weft.records import dataclass
from weft.runtime.arguments import listed, whole_number
from weft.runtime.memory import parse_bytes
from weft.runtime.policy import DeviceOption, in_force

Precision = Literal["strict", "float32", "tf32", "fast"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)  # from the most accurate to the quickest
USUAL_PRECISION: Final = "float32"
NARROW = ("tf32", "fast")  # in which products may round their operands


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """What `weft.load` takes beside the model; a WeftError where an option is none.

    device: a name from `weft.devices()`, or "auto" for the best one here; "webgpu" is the best GPU, "webgpu:1" one by
        its number, "webgpu:geforce" by a part of its name. A list of names is a chain, of which the first that works
        serves; a `weft.DevicePolicy` says what "auto" may choose from, and how. Where a device that "auto" chose, or
        one of a chain, fails at load or in a run, the next takes over, and a FallbackWarning tells. `model.report()`
        says what was tried.
    strict: whether to raise an error instead of going on to another device, of leaving steps to the host that the
        device has no kernels for, or of repairing a file that breaks ONNX's rules (docs/guides/files.md).
    warm: "background" gives a model that serves as soon as it can: on a device that it is compiled for already, or on
        the host. Those that promise to be faster are compiled in the background, and timed; the model moves to one
        when it is ready and faster. Results keep their bits per device; `model.report()` says which served.
    sample: inputs like those to come, by name: what their sizes cost decides where the model runs, and benchmarks run
        on them. None makes some up.
    threads: how many threads to use; None leaves it to the device. The reference device leaves it to numpy.
    precision: "float32" narrows no operand but may reassociate, and compute products in another basis (Winograd) where
        values are of one size, so that errors stay in proportion to what an output sees, and NaN and infinity where
        they are seen; "strict" allows nothing less accurate than a blocked dot product. "tf32" lets products round
        their operands to 10 bits behind the point, "fast" to float16 (clamped to its range) or bfloat16; sums and all
        else stay float32. A device without such products computes as in "float32"; `model.narrowed()` says what was
        narrowed, `model.deviation()` how far the outputs are off.
    memory_limit: bytes, or a text like "200MB", that weights, arena, workspace and outputs of one run at a time may
        take. A model that does not fit is refused with OutOfMemoryError, one with dynamic shapes when it is run.
    prefer: "memory" keeps the arena as small as it can be; "speed" lets it grow where kernels can then run side by side
        on threads that would wait. A memory_limit comes first.
    outputs: the values that the model gives, in order; None: those that the file declares. Any value of the main graph
        will do, by its name: what they do not need is neither compiled nor kept.
    cache: whether compiled models and code may be kept on disk; the reference device compiles none.
    trusted: whether to run the machine code of a saved program (docs/guides/ahead.md) that this user did not compile.
    recompile: whether to compile the graph in a file of a saved program anew where the program cannot be used: since it
        is for other machines, of another version of weft, or somebody else's.
    dump: a folder into which each stage is written as a numbered text file.
    tune: how tiles of products are chosen on devices where that can be measured (docs/guides/tuning.md): the path of a
        file that `weft tune -o` wrote, or so many seconds to measure the model's products before it is compiled. None
        takes what was measured here before, and without a cache only the cost model. Other devices leave it aside.
    """

    device: DeviceOption = "auto"
    strict: bool = False
    warm: Literal["background"] | None = None
    sample: Mapping[str, Any] | None = None
    threads: int | None = None
    precision: Precision = USUAL_PRECISION
    memory_limit: int | str | None = None
    prefer: Literal["memory", "speed"] = "memory"
    outputs: Sequence[str] | None = None
    cache: bool = True
    trusted: bool = False
    recompile: bool = False
    dump: str | PathLike[str] | None = None
    tune: str | Path | float | None = None

    def __post_init__(self) -> None:
        in_force(self.device)
        if not isinstance(self.strict, bool):
            raise DeviceError(f"strict must be True or False, not {shown(self.strict)}")
        for name, said in (("trusted", self.trusted), ("recompile", self.recompile)):
            if not isinstance(said, bool):
                raise InputError(f"{name} must be True or False, not {shown(said)}")
        if self.warm is not None and not (isinstance(self.warm, str) and self.warm == "background"):
            raise DeviceError(f"warm must be None or 'background', not {shown(self.warm)}")
        if self.sample is not None and not isinstance(self.sample, Mapping):
            raise InputError(f"sample must be a dict of arrays by name, not a {type(self.sample).__name__}")
        if not isinstance(self.prefer, str) or self.prefer not in ("memory", "speed"):
            raise DeviceError(f"prefer must be 'memory' or 'speed', not {shown(self.prefer)}")
        if not isinstance(self.precision, str) or self.precision not in PRECISIONS:
            hint = f"use one of {', '.join(PRECISIONS)}"
            raise DeviceError(f"precision {shown(self.precision)} is not available", hint=hint)
        try:
            folder = None if self.dump is None else Path(self.dump)
        except Exception as error:  # whatever a class of someone else's raises
            raise InputError(f"dump must be the path of a folder, not a {type(self.dump).__name__}") from error
        if isinstance(self.tune, bool) or not isinstance(self.tune, (str, Path, int, float, type(None))):
            raise InputError(f"tune must be a file's path or a number of seconds, not a {type(self.tune).__name__}")
        if isinstance(self.tune, (int, float)) and not 0 < self.tune < inf:
            raise InputError(f"tune must be more than 0 seconds, not {shown(self.tune)}")
        try:
            threads = None if self.threads is None else whole_number(self.threads, "threads")
        except InputError as error:
            raise DeviceError(error.problem) from None
        limit = None if self.memory_limit is None else parse_bytes(self.memory_limit)
        outputs = None if self.outputs is None else listed(self.outputs, "outputs")
        if outputs is not None and not (outputs and all(isinstance(name, str) for name in outputs)):
            raise InputError(f"outputs must be a list of names, at least one, not {shown(outputs)}")
        for name, value in (("dump", folder), ("threads", threads), ("memory_limit", limit), ("outputs", outputs)):
            object.__setattr__(self, name, value)

    @property
    def bytes_limit(self) -> int | None:
        """The memory limit as a number."""
        return None if self.memory_limit is None else int(self.memory_limit)

    @property
    def run_options(self) -> RunOptions:
        """What of it is about runs."""
        return RunOptions(self.threads, self.bytes_limit, may_grow=self.prefer == "speed")
