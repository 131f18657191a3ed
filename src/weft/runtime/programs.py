"""The programs of a session besides the one for any shapes: for classes of shapes, other outputs or set defaults.

A program is compiled when a run first needs it, and cached on disk for later processes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Union

from weft.backends.reference.sizes import GuardError
from weft.errors import ModelError, OnlyAtRunError
from weft.logs import CACHE, COMPILING, INFO, LazyLogger
from weft.quantities import format_shape, join_few
from weft.runtime.compiled_models import compile_program, find_program
from weft.runtime.shape_classes import InputShapes, ShapeClass, Size, can_serve
from weft.threads import make_lock

if TYPE_CHECKING:
    from weft.backends.device import DeviceProgram, Executable
    from weft.compiler import Pipeline
    from weft.ir.program import TensorProgram
    from weft.ir.specs import Signature

MAX_PROGRAMS = 16  # in memory
# A program does not serve these sizes: a guard fails, arithmetic on them has no result or overflows 64 bits, or it
# depends on data that is needed now.
UNFIT = (GuardError, ArithmeticError, OnlyAtRunError)


class ProgramKey(NamedTuple):
    """What a program is compiled for: shapes of inputs (None: any), overridden defaults, and its outputs."""

    shapes: tuple[tuple[str, Union[tuple[Size, ...], None]], ...] | None
    overridden: tuple[str, ...]
    outputs: tuple[str, ...]

    @staticmethod
    def of_class(form: ShapeClass | None, overridden: tuple[str, ...], outputs: tuple[str, ...]) -> ProgramKey:
        """Return the key of the program for a class of shapes."""
        return ProgramKey(None if form is None else tuple(sorted(form.items())), overridden, outputs)

    def describe(self, names: tuple[str, ...]) -> str:
        """Describe the program for logs; `names` are the outputs of the model."""
        sizes = "any shapes"
        if self.shapes is not None:
            sizes = join_few(
                f"{name} {'left out' if shape is None else format_shape(shape)}" for name, shape in self.shapes
            )
        details = f", with {join_few(self.overridden)} given" if self.overridden else ""
        return sizes + details + ("" if self.outputs == names else f", giving {join_few(self.outputs)}")


class SessionPrograms:
    """The programs of one session, loaded on its device. Several threads may use it at once."""

    def __init__(self, signature: Signature, whole: DeviceProgram, pipeline: Pipeline) -> None:
        """`whole` is the program for any shapes."""
        self._signature = signature
        self._whole = whole
        self._pipeline = pipeline
        self._names = tuple(spec.name for spec in signature.outputs)
        self._loaded: OrderedDict[ProgramKey, Executable | None] = OrderedDict()  # None: the class cannot be traced
        self._traced: tuple[ProgramKey, TensorProgram] | None = None  # the last one that did not serve its run
        self._lock = make_lock()

    def __iter__(self) -> Iterator[Executable]:
        with self._lock:
            return iter([program for program in self._loaded.values() if program is not None])

    def find(self, keys: Sequence[ProgramKey], shapes: InputShapes) -> Iterator[Executable]:
        """Yield programs for classes that contain these shapes: those in memory, then cached ones, then new ones.

        A run may find that a program does not serve its data, and take the next one. Raise ModelError if the model does
        not take shapes of the last class.
        """
        yielded_keys: set[ProgramKey] = set()
        lookups: tuple[Callable[[ProgramKey], Executable | None], ...] = (self._find_loaded, self._find_cached)
        for lookup in lookups:
            for key in keys:
                executable = None if key in yielded_keys else lookup(key)
                if executable is not None:
                    yielded_keys.add(key)
                    yield executable
        for number, key in enumerate(keys):
            if key not in yielded_keys:
                executable = self._compile(key, shapes, is_last=number == len(keys) - 1)
                if executable is not None:
                    yield executable

    def _find_loaded(self, key: ProgramKey) -> Executable | None:
        with self._lock:
            executable = self._loaded.get(key)
            if executable is not None:
                self._loaded.move_to_end(key)
            return executable

    def _find_cached(self, key: ProgramKey) -> Executable | None:
        with self._lock:
            if key in self._loaded:
                return self._loaded[key]
            program = find_program(self._pipeline, self._whole, repr(key))
            if program is None:
                return None
            self._log(CACHE, "one more program for %s is taken from the cache", key)
            return self._keep(key, self._pipeline.start(program))

    def _compile(self, key: ProgramKey, shapes: InputShapes, is_last: bool) -> Executable | None:
        """Trace and compile a program; None if it does not serve these shapes."""
        with self._lock:
            if key in self._loaded:
                return self._loaded[key]
            try:
                traced = self._trace(key)
            except UNFIT:
                return self._keep(key, None)
            except ModelError:
                if is_last:
                    raise
                return self._keep(key, None)
            if not is_last and not can_serve(traced.inputs, traced.guards, shapes):
                self._traced = key, traced
                return None
            self._log(COMPILING, "one more program is compiled for %s", key)
            program = compile_program(self._pipeline, traced, self._signature, self._whole, repr(key))
            return self._keep(key, self._pipeline.start(program))

    def _keep(self, key: ProgramKey, executable: Executable | None) -> Executable | None:
        self._loaded[key] = executable
        while len(self._loaded) > MAX_PROGRAMS:
            self._loaded.popitem(last=False)
        return executable

    def _trace(self, key: ProgramKey) -> TensorProgram:
        """Trace the program that computes these outputs, or inner values."""
        from weft.passes.dead_code import with_outputs

        if self._traced is not None and self._traced[0] == key:
            traced, self._traced = self._traced[1], None
            return traced
        shapes, overridden, outputs = None if key.shapes is None else dict(key.shapes), key.overridden, key.outputs
        if not set(outputs) <= set(self._names):
            return self._pipeline.specialise(shapes, overridden, outputs)
        any_shape = shapes is None and not overridden
        whole = self._pipeline.program() if any_shape else self._pipeline.specialise(shapes, overridden)
        values = dict(zip(self._names, whole.outputs))
        return with_outputs(whole, tuple(values[name] for name in outputs))

    def _log(self, log: LazyLogger, what: str, key: ProgramKey) -> None:
        if log.is_enabled_for(INFO):
            device = self._pipeline.driver.name
            log.info(f"%s: {what}: for %s", self._pipeline.file, device, key.describe(self._names))
