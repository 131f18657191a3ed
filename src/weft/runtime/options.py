"""The options of `weft.load`, declared and checked in one place."""

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
    short_repr,
)
from weft.records import dataclass
from weft.runtime.arguments import listed, whole_number
from weft.runtime.memory import parse_bytes
from weft.runtime.policy import DeviceOption, resolve_settings

Precision = Literal["strict", "float32", "tf32", "fast"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)  # from the most accurate to the fastest
USUAL_PRECISION: Final = "float32"
NARROW = ("tf32", "fast")  # in which products may round their operands


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The options of `weft.load`; an invalid one raises a WeftError.

    device: a name from `weft.devices()`, or "auto" for the best available one; "webgpu" is the best GPU, "webgpu:1" a
        GPU by its number, "webgpu:geforce" by part of its name. A list of names is a chain: the first device that works
        is used. A `weft.DevicePolicy` says what "auto" may choose from, and how. If a device that "auto" chose, or one
        of a chain, fails while loading or running, the next one takes over with a FallbackWarning; `model.report()`
        lists the attempts.
    strict: raise an error instead of falling back to another device, of running steps on the host for which the device
        has no kernels, or of repairing a file that breaks ONNX's rules (docs/guides/files.md).
    warm: "background" returns a model as soon as it can run: on a device that it is compiled for already, or on the
        host. Better devices are compiled and timed in the background; the model switches to one that is faster.
        Results are bit-identical per device; `model.report()` says which device ran.
    sample: inputs like those of later runs, by name: their sizes decide which device is fastest, and benchmarks run on
        them. None: random inputs.
    threads: the number of threads; None leaves it to the device. The CPU takes the cores that this process may use, at
        most OMP_NUM_THREADS, the reference device leaves it to numpy.
    precision: "float32" rounds no operand but may reassociate, and use Winograd convolutions where the weights are of
        similar magnitude, so that errors stay in proportion and NaN and infinity do not spread; "strict" allows
        nothing less accurate than a blocked dot product, and on GPUs gives a row the same bits whatever other rows
        there are. "tf32" lets products round their operands to 10 mantissa bits, "fast" to float16 (clamped to its
        range) or bfloat16; sums and everything else stay float32. A device without such products computes as in
        "float32"; `model.narrowed()` lists the rounded products, `model.deviation()` measures the error.
    memory_limit: bytes, or a text like "200MB", for the weights, arena, workspace and outputs of one run at a time. A
        model that does not fit raises an OutOfMemoryError, one with dynamic shapes when it is run.
    prefer: "memory" keeps the arena as small as possible; "speed" lets it grow where kernels can then run in parallel
        on idle threads. A memory_limit takes precedence.
    outputs: the values that the model returns, in order; None: those that the file declares. Any value of the main
        graph can be named; what these do not need is not compiled.
    cache: whether to keep compiled models and code on disk; the reference device compiles none.
    trusted: whether to run the machine code of a saved program (docs/guides/ahead.md) that this user did not compile.
    recompile: whether to compile the graph of a saved program again if the program cannot be used: because it is for
        another machine or version of weft, or was compiled by another user.
    dump: a folder into which each stage is written as a numbered text file.
    tune: how tilings of products are chosen on devices where they can be measured (docs/guides/tuning.md): the path of
        a file that `weft tune -o` wrote, or a number of seconds to measure the model's products before it is compiled.
        None takes earlier measurements from the cache, or the cost model. Other devices ignore it.
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
        resolve_settings(self.device)
        if not isinstance(self.strict, bool):
            raise DeviceError(f"strict must be True or False, not {short_repr(self.strict)}")
        for name, flag in (("trusted", self.trusted), ("recompile", self.recompile)):
            if not isinstance(flag, bool):
                raise InputError(f"{name} must be True or False, not {short_repr(flag)}")
        if self.warm is not None and not (isinstance(self.warm, str) and self.warm == "background"):
            raise DeviceError(f"warm must be None or 'background', not {short_repr(self.warm)}")
        if self.sample is not None and not isinstance(self.sample, Mapping):
            raise InputError(f"sample must be a dict of arrays by name, not a {type(self.sample).__name__}")
        if not isinstance(self.prefer, str) or self.prefer not in ("memory", "speed"):
            raise DeviceError(f"prefer must be 'memory' or 'speed', not {short_repr(self.prefer)}")
        if not isinstance(self.precision, str) or self.precision not in PRECISIONS:
            hint = f"use one of {', '.join(PRECISIONS)}"
            raise DeviceError(f"precision {short_repr(self.precision)} is not available", hint=hint)
        try:
            folder = None if self.dump is None else Path(self.dump)
        except Exception as error:  # any error of a foreign class
            raise InputError(f"dump must be the path of a folder, not a {type(self.dump).__name__}") from error
        if isinstance(self.tune, bool) or not isinstance(self.tune, (str, Path, int, float, type(None))):
            raise InputError(f"tune must be a file's path or a number of seconds, not a {type(self.tune).__name__}")
        if isinstance(self.tune, (int, float)) and not 0 < self.tune < inf:
            raise InputError(f"tune must be more than 0 seconds, not {short_repr(self.tune)}")
        try:
            threads = None if self.threads is None else whole_number(self.threads, "threads")
        except InputError as error:
            raise DeviceError(error.problem) from None
        limit = None if self.memory_limit is None else parse_bytes(self.memory_limit)
        outputs = None if self.outputs is None else listed(self.outputs, "outputs")
        if outputs is not None and not (outputs and all(isinstance(name, str) for name in outputs)):
            raise InputError(f"outputs must be a list of names, at least one, not {short_repr(outputs)}")
        for name, value in (("dump", folder), ("threads", threads), ("memory_limit", limit), ("outputs", outputs)):
            object.__setattr__(self, name, value)

    @property
    def bytes_limit(self) -> int | None:
        """The memory limit as a number."""
        return None if self.memory_limit is None else int(self.memory_limit)

    @property
    def run_options(self) -> RunOptions:
        """The options that concern runs."""
        return RunOptions(self.threads, self.bytes_limit, may_grow=self.prefer == "speed")
