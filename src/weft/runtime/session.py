"""A loaded model, ready to run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np

from weft.backends.reference.interpret import GuardError
from weft.errors import ExecutionError, InputError, ModelError, WeftError
from weft.ir.graph import Model as Source
from weft.ir.program import TensorProgram
from weft.ir.types import AnyType, Type
from weft.passes.drop import with_outputs
from weft.runtime.devices import Runner
from weft.runtime.inputs import Bound, bind_inputs
from weft.runtime.specs import TensorSpec, spec

Array = np.ndarray[Any, Any]
Shapes = Mapping[str, tuple[int, ...]]
Compile = Callable[["Shapes | None", Sequence[str]], TensorProgram]
Prepare = Callable[[TensorProgram], Runner]
Eager = Callable[[Mapping[str, Any]], list[Any]]

REMEMBERED_PROGRAMS = 16  # programs kept for shapes or outputs out of the ordinary


class Model:
    """What `weft.load` returns. `run` may be called from several threads at once."""

    def __init__(
        self, source: Source, program: TensorProgram, device: str, prepare: Prepare, compile: Compile, eager: Eager
    ) -> None:
        """`prepare` makes a program run on the device; `compile` traces one for given shapes, `eager` traces none."""
        self.source = source
        self.program = program
        self.device = device
        self.inputs: tuple[TensorSpec, ...] = tuple(
            spec(value.name, value.type) for value in source.graph.inputs if value.type is not None
        )
        self.defaults: tuple[TensorSpec, ...] = tuple(
            spec(value.name, value.type) for value in source.graph.defaults if value.type is not None
        )
        self.outputs: tuple[TensorSpec, ...] = tuple(
            spec(declared.name, _better_known(value.type, declared.type))
            for declared, value in zip(source.graph.outputs, program.outputs)
        )
        self._prepare = prepare
        self._compile = compile
        self._eager = eager
        self._whole = (program, prepare(program))
        self._programs: OrderedDict[Any, tuple[TensorProgram, Runner]] = OrderedDict()
        self._lock = Lock()

    def run(self, inputs: Mapping[str, Any] | None = None, outputs: Sequence[str] | None = None) -> dict[str, Any]:
        """Run on inputs by name; gives outputs by name, all or those asked for.

        Inputs are numpy arrays, anything with `__array__` or `__dlpack__`, or Python numbers and lists. Arrays must
        have the dtype that `inputs` states. A sequence is a list, an empty optional None.
        """
        wanted = self._wanted(outputs)
        bound = bind_inputs(self.inputs, self.defaults, inputs or {}, self.source.file)
        try:
            results = self._run(bound, wanted)
        except ModelError as error:  # the model loaded: it is this data that an op cannot take
            where = {"file": self.source.file, "node": error.node, "value": error.value}
            raise ExecutionError(error.problem, hint=error.hint, **where) from error
        except WeftError as error:
            raise error.at(file=self.source.file) from error.__cause__
        return {name: _own(result, bound.arrays) for name, result in zip(wanted, results)}

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run on inputs by position or name; gives the only output, or a tuple in the model's order."""
        if len(arguments) > len(self.inputs):
            raise InputError(
                f"{len(arguments)} inputs for a model that takes {len(self.inputs)}", file=self.source.file
            )
        inputs = dict(zip((spec.name for spec in self.inputs), arguments))
        for name, content in keywords.items():
            if name in inputs:
                raise InputError(f"input {name!r} is given twice", file=self.source.file)
            inputs[name] = content
        results = tuple(self.run(inputs).values())
        return results[0] if len(results) == 1 else results

    def __repr__(self) -> str:
        takes, gives = ", ".join(map(str, self.inputs)), ", ".join(map(str, self.outputs))
        return f"<weft.Model {self.source.file} on {self.device}: ({takes}) -> ({gives})>"

    def _wanted(self, outputs: Sequence[str] | None) -> tuple[str, ...]:
        names = tuple(spec.name for spec in self.outputs)
        if outputs is None:
            return names
        if isinstance(outputs, str):
            raise InputError(f"outputs must be a list of names, not the string {outputs!r}", file=self.source.file)
        for name in outputs:
            if name not in names:
                hint = f"its outputs are {', '.join(names)}"
                raise InputError(f"the model has no output {name!r}", file=self.source.file, hint=hint)
        return tuple(outputs)

    def _run(self, bound: Bound, wanted: tuple[str, ...]) -> list[Any]:
        """On the program for any shapes; where its assumptions fail, on one for these shapes; at last node by node."""
        given = bound.arrays
        overridden = tuple(spec.name for spec in self.defaults if spec.name in given)
        if bound.clash is None:
            try:
                return self._execute(self._program(None, overridden, wanted), given)
            except GuardError:
                pass
        shapes = {name: content.shape for name, content in given.items() if isinstance(content, np.ndarray)}
        try:
            return self._execute(self._program(shapes, overridden, wanted), given)
        except ModelError as error:
            said = f": {bound.clash}" if bound.clash else ""
            raise InputError(
                f"the inputs' shapes do not fit together{said}. {error.problem}", node=error.node
            ) from error
        except GuardError:  # sizes that depend on data break an assumption
            results = dict(zip((spec.name for spec in self.outputs), self._eager(given)))
            return [results[name] for name in wanted]

    def _execute(self, prepared: tuple[TensorProgram, Runner], given: Mapping[str, Any]) -> list[Any]:
        program, runner = prepared
        return runner([given[value.name] for value in program.inputs])

    def _program(
        self, shapes: Shapes | None, overridden: tuple[str, ...], wanted: tuple[str, ...]
    ) -> tuple[TensorProgram, Runner]:
        names = tuple(spec.name for spec in self.outputs)
        if shapes is None and not overridden and wanted == names:
            return self._whole
        key = (None if shapes is None else tuple(sorted(shapes.items())), overridden, wanted)
        with self._lock:
            if key not in self._programs:
                whole = self.program if shapes is None and not overridden else self._compile(shapes, overridden)
                outputs = dict(zip(names, whole.outputs))
                part = with_outputs(whole, tuple(outputs[name] for name in wanted))
                self._programs[key] = (part, self._prepare(part))
                while len(self._programs) > REMEMBERED_PROGRAMS:
                    self._programs.popitem(last=False)
            self._programs.move_to_end(key)
            return self._programs[key]


def _better_known(traced: Type, declared: Type | None) -> Type:
    """The traced type, which is right where files often are not, unless tracing could not tell."""
    return declared if isinstance(traced, AnyType) and declared is not None else traced


def _own(result: Any, given: Mapping[str, Any]) -> Any:
    """A result that belongs to the caller alone: no view of an input, a constant or another result."""
    if isinstance(result, list):
        return [_own(item, given) for item in result]
    if not isinstance(result, np.ndarray):
        return result
    if result.base is not None or not result.flags.owndata or not result.flags.writeable:
        return np.array(result)
    return np.array(result) if any(result is content for content in given.values()) else result
