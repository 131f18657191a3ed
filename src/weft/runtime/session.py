"""One model on one device, with one set of weights: its programs for different shapes, and their runs.

Failures of the device are raised here; `runtime/model.py` falls back to another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.backends.reference.sizes import GuardError, in_order
from weft.errors import (
    DeviceError,
    ExecutionError,
    InputError,
    ModelError,
    OutOfMemoryError,
    WeftError,
)
from weft.ir.program import Guard, TensorProgram
from weft.ir.specs import TensorSpec
from weft.ir.tensors import DeviceTensor, owned
from weft.ir.types import OptionalType
from weft.logs import COMPILING
from weft.plan.program import weight_bytes
from weft.runtime.arguments import listed, whole_number, whole_shapes
from weft.runtime.inputs import BoundInputs, InputBinder, PlainShapes, Tensor, has_shape
from weft.runtime.memory import bind_shapes, summarize
from weft.runtime.named_values import Outputs
from weft.runtime.programs import UNFIT, ProgramKey, SessionPrograms
from weft.runtime.shape_classes import InputShapes, ShapeClass, bind_input_sizes, list_shape_classes

if TYPE_CHECKING:
    from weft.backends.device import DeviceProgram, Driver, Executable, Shortcut
    from weft.compiler import Pipeline
    from weft.ir.graph import OnnxModel
    from weft.ir.narrowed_products import NarrowedProduct
    from weft.ir.program import TensorProgram
    from weft.ir.specs import Signature
    from weft.ir.state import StatePair
    from weft.plan.program import ProgramPlan
    from weft.runtime.explain import HostStep
    from weft.runtime.memory import Memory
    from weft.runtime.profile import Profile
    from weft.runtime.stateful_program import StatefulPrograms

CACHED_SHORTCUTS = 4  # sets of shapes; each keeps a tape alive


class RunRequest(NamedTuple):
    """A checked request: inputs, the same in order if they are plain arrays, outputs, those to keep on the device."""

    bound: BoundInputs
    plain: Sequence[Tensor] | None
    outputs: tuple[str, ...]
    keep: Sequence[str]


class Session:
    """A model that is ready to run on a device. Several threads may use it at once."""

    def __init__(self, signature: Signature, whole: Executable, pipeline: Pipeline) -> None:
        """`whole` runs the program for any shapes; `pipeline` compiles others."""
        self.file: str = pipeline.file
        self.device: str = pipeline.driver.name
        self.signature = signature
        self.inputs: tuple[TensorSpec, ...] = signature.inputs
        self.defaults: tuple[TensorSpec, ...] = signature.defaults
        self._order = tuple(spec.name for spec in signature.inputs)
        self._names = tuple(spec.name for spec in signature.outputs)
        self._rankless = tuple(spec.name for spec in signature.inputs if spec.element and spec.shape is None)
        self.bind: InputBinder = InputBinder(
            signature.inputs, signature.defaults, self.file, pipeline.driver.home, pipeline.driver.adopt
        )
        self.whole = whole
        self._fixed = _fixed_sizes(signature, whole.program)
        self.pipeline = pipeline
        self._inner: frozenset[str] = frozenset()  # names of inner values, once one was requested
        self.programs: SessionPrograms = SessionPrograms(signature, whole.program, pipeline)
        self._last_keys: tuple[Any, Sequence[ProgramKey]] = (None, ())  # the last request, and keys of its programs
        self._stateful_programs: StatefulPrograms | None = None
        self.shortcuts: dict[PlainShapes | None, Shortcut | None] = {}

    @property
    def driver(self) -> Driver:
        return self.pipeline.driver

    @property
    def source(self) -> OnnxModel:
        """The ONNX model as read from its file."""
        return self.pipeline.read()

    @property
    def program(self) -> TensorProgram:
        """The tensor program for any shapes."""
        return self.pipeline.program()

    def request(
        self,
        inputs: Mapping[str, Any],
        plain: Sequence[Tensor] | None = None,
        outputs: Sequence[str] | None = None,
        keep: bool | Sequence[str] = False,
    ) -> RunRequest:
        """Check the arguments of a run; `plain` are the inputs in order if they are plain arrays."""
        if not isinstance(inputs, Mapping):
            from weft.runtime.suggestions import inputs_without_names

            raise inputs_without_names(inputs, outputs, self._order, self.file)
        if isinstance(outputs, Mapping) and not inputs:
            from weft.runtime.suggestions import outputs_before_inputs

            raise outputs_before_inputs(None, self._order, self.file)
        names = self._names if outputs is None else self.check_names(outputs)
        keep_names = () if keep is False else names if keep is True else self.check_names(keep, "keep")
        absent = () if plain is not None else self._absent_inputs([name for name in inputs if inputs[name] is None])
        return RunRequest(self.bind(inputs, plain, absent), plain, names, keep_names)

    def _absent_inputs(self, names: Sequence[str]) -> Sequence[str]:
        """Of inputs that are None, return those whose absence the model tests although they are not optional."""
        types = {spec.name: spec.type for spec in self.inputs}
        required = [name for name in names if name in types and not isinstance(types[name], OptionalType)]
        if not required:
            return ()
        from weft.opset.sequences import find_optional_inputs

        tested = find_optional_inputs(self.source.graph)
        return [name for name in required if name in tested]

    def answer(self, request: RunRequest) -> dict[str, Any]:
        """Run a request; the first for its shapes may compile."""
        try:
            return self._name_results(request, self._run(request))
        except ModelError as error:  # the model loaded, so an op cannot take this data
            where = {"file": self.file, "node": error.node, "value": error.value}
            raise ExecutionError(error.problem, hint=error.hint, **where) from error
        except WeftError as error:
            if self._is_model_error(error):
                self._locate_error(request)
            raise error.at(file=self.file) from error.__cause__
        except MemoryError as error:
            hint = "use smaller inputs, or allow this process more memory; memory() computes what a run needs"
            raise OutOfMemoryError("there is not enough memory for this run", file=self.file, hint=hint) from error

    def _name_results(self, request: RunRequest, results: Sequence[Any]) -> dict[str, Any]:
        return self.name_outputs(request.outputs, results, list(request.bound.arrays.values()), request.keep)

    def name_outputs(
        self, names: Sequence[str], results: Sequence[Any], arrays: list[Any], keep: Sequence[str]
    ) -> dict[str, Any]:
        """Return results by name, which share memory neither with each other nor with the inputs in `arrays`."""
        outputs = Outputs()
        for name, result in zip(names, results):
            output = owned(result, arrays)
            arrays.append(output)
            outputs[name] = self._keep_on_device(output) if name in keep else output
        return outputs

    def _is_model_error(self, error: WeftError) -> bool:
        """Whether a run node by node can say more about an error."""
        if isinstance(error, ExecutionError):
            return True
        return isinstance(error, OutOfMemoryError) and not self.driver.has_memory and error.node is None

    def _keep_on_device(self, result: Any) -> Any:
        if isinstance(result, np.ndarray) and result.dtype != object:
            return self.driver.place(result)
        return result

    def explain(self) -> tuple[HostStep, ...]:
        """List the steps that did not become native code: the node of each, and why."""
        from weft.runtime.explain import explain

        return explain(self.whole.program)

    def narrowed(self) -> tuple[NarrowedProduct, ...]:
        """List the matrix products that round their operands."""
        from weft.runtime.explain import narrowed_products

        return narrowed_products(self.whole.program)

    def memory(self, shapes: Mapping[str, int | Sequence[int]] | None = None) -> Memory:
        """Compute the memory that a run needs, for sizes of dynamic dims or shapes of inputs, by name.

        Other dynamic dims get typical sizes, which the result states.
        """
        plan, sizes = self.plan(shapes)
        inputs, user_shapes = self.whole.program.inputs, whole_shapes(shapes, self.file)
        bound, _ = bind_shapes(inputs, user_shapes, self.file)
        is_complete = all(not isinstance(user_shapes.get(value.name, 0), int) for value in inputs)
        return summarize(plan, sizes, [] if is_complete else [name for name in sizes if name not in bound])

    def plan(self, shapes: Mapping[str, int | Sequence[int]] | None = None) -> tuple[ProgramPlan, dict[str, int]]:
        """Return the memory plan that `memory` sums up, and its sizes of dynamic dims."""
        from weft.plan.usual_sizes import usual_sizes

        program = self.whole.program
        shapes = whole_shapes(shapes, self.file)
        bound, clash = bind_shapes(program.inputs, shapes, self.file)
        first_error: Exception | None = None
        input_shapes = {name: shape for name, shape in shapes.items() if not isinstance(shape, int)}
        complete = set(input_shapes) >= {value.name for value in program.inputs}
        if not clash and not (complete and self._rankless):
            for sizes in usual_sizes(program.inputs, program.guards, bound):
                try:
                    return self._plan_program(self.whole, sizes), sizes
                except (GuardError, ArithmeticError, ExecutionError) as error:
                    first_error = first_error or error
        if complete:  # the programs that a run would take
            with suppress(ModelError, InputError):
                detail = "dims of the same name differ" if clash else None
                for executable in self._find_programs(input_shapes, {}, detail, (), self._names):
                    with suppress(GuardError, ArithmeticError, ExecutionError):
                        sizes = bind_input_sizes(executable.program.inputs, input_shapes)
                        return self._plan_program(executable, sizes), sizes
        hint = "pass sizes that the model accepts"
        raise InputError(f"there is no plan for these shapes: {first_error}", file=self.file, hint=hint)

    def _plan_program(self, executable: Executable, sizes: Mapping[str, int]) -> ProgramPlan:
        try:
            plan = executable.plan(sizes)
        except OutOfMemoryError as error:
            raise error.at(file=self.file) from None
        if plan is None:
            hint = "choose a device that compiles: see weft.devices()"
            raise DeviceError(f"device {self.device!r} has no memory plan", file=self.file, hint=hint)
        return plan

    def check_limit(self, limit: int) -> None:
        """Raise OutOfMemoryError if the model is known not to fit before a run."""
        from weft.plan.usual_sizes import dynamic_dims

        program = self.whole.program
        if isinstance(program, TensorProgram):
            hint = "choose a device that compiles: see weft.devices()"
            raise DeviceError(f"device {self.device!r} does not support memory_limit", file=self.file, hint=hint)
        weights = weight_bytes(program)
        if weights > limit:
            problem = f"the weights take {weights:,} bytes, more than the memory_limit of {limit:,}"
            raise OutOfMemoryError(problem, file=self.file, hint="raise the limit")
        if not dynamic_dims(program.inputs):
            self.plan()

    def profile(self, inputs: Mapping[str, Any] | None = None, repeat: int = 10) -> Profile:
        """Run `repeat` times and report where time and memory go: kernels, threads, the arena."""
        from weft.runtime.profile import profile_runs

        repeat = whole_number(repeat, "repeat", self.file)
        request = self.request({} if inputs is None else inputs)
        self.answer(request)  # raises errors of the inputs
        feeds, clash = request.bound
        overridden = tuple(spec.name for spec in self.defaults if spec.name in feeds)
        for executable in self._candidates(feeds, clash, overridden, self._names):
            try:
                if executable is self.whole:
                    self._check_fixed(feeds)
                recorder = self.pipeline.record(executable.program)
                peak = self.driver.calibrate(recorder.threads)
                record = partial(recorder.run, [feeds[name] for name in executable.input_names])
                return profile_runs(self.file, self.device, recorder.threads, peak, record, repeat)
            except UNFIT:
                continue
        hint = "sizes that depend on data differ from those in the model's graph"
        raise DeviceError("there are no kernels to time: the model runs node by node", file=self.file, hint=hint)

    def check_names(self, outputs: Sequence[str], option: str = "outputs") -> tuple[str, ...]:
        """Return names of outputs or inner values; InputError if the model has no such value."""
        from weft.ir.graph import find_outputs, value_names

        names = tuple(
            name.name if isinstance(name, TensorSpec) else name for name in listed(outputs, option, self.file)
        )
        if all(isinstance(name, str) and (name in self._names or name in self._inner) for name in names):
            return names
        graph = self.source.graph
        try:
            find_outputs(graph, names)
        except InputError as error:
            raise error.at(file=self.file) from None
        self._inner = frozenset(value_names(graph))
        return names

    def _run(self, request: RunRequest) -> list[Any]:
        """Run the program for any shapes, or one for a class of shapes if a guard fails, or else node by node."""
        (feeds, clash), plain, outputs, keep_names = request
        overridden = tuple(spec.name for spec in self.defaults if spec.name in feeds) if self.defaults else ()
        keep = [number for number, name in enumerate(outputs) if name in keep_names] if keep_names else []
        reason: Exception | None = None
        for executable in self._candidates(feeds, clash, overridden, outputs):
            try:
                if self._fixed and executable is self.whole:
                    self._check_fixed(feeds)
                results = executable.run([feeds[name] for name in executable.input_names], keep)
            except UNFIT as error:
                reason = error
                continue
            if plain is not None and executable is self.whole:
                self._cache_shortcut(feeds, tuple([array.shape for array in plain]))
            return results
        COMPILING.info("%s: this run is computed node by node: %s", self.file, reason)
        return self.pipeline.run_eagerly(on_host(feeds), outputs)

    def _candidates(
        self, feeds: Mapping[str, Any], clash: str | None, overridden: tuple[str, ...], outputs: tuple[str, ...]
    ) -> Iterator[Executable]:
        """Yield the programs that may serve a run: first that for any shapes, unless dims of the same name differ."""
        omitted = self._omitted_inputs(feeds)
        if clash is None and not omitted and not self._rankless and not overridden and outputs == self._names:
            yield self.whole
        shapes = {name: content.shape for name, content in feeds.items() if has_shape(content)}
        yield from self._find_programs(shapes, omitted, clash, overridden, outputs)

    def _find_programs(
        self,
        shapes: InputShapes,
        omitted: ShapeClass,
        clash: str | None,
        overridden: tuple[str, ...],
        outputs: tuple[str, ...],
    ) -> Iterator[Executable]:
        """Yield programs other than `whole` for inputs of these shapes; each set of ranks has its own.

        Raise InputError if the model does not take these shapes.
        """
        ranks = {name: (None,) * len(shapes[name]) for name in self._rankless if name in shapes}
        base = {**omitted, **ranks}
        is_whole = not base and not overridden and outputs == self._names
        if not is_whole and clash is None:
            yield from self.programs.find([ProgramKey.of_class(base or None, overridden, outputs)], shapes)
        request = (shapes, base, clash is None, overridden, outputs)
        last_request, keys = self._last_keys
        if request != last_request:
            specs = (*self.inputs, *self.defaults)
            guards = () if base else self.whole.program.guards
            classes = list_shape_classes(specs, shapes, base, clash is not None, guards)
            # With fixed sizes, `whole` is not the program for any shapes.
            keys = [ProgramKey.of_class(form, overridden, outputs) for form in classes if self._fixed or form != base]
            self._last_keys = request, keys
        try:
            yield from self.programs.find(keys, shapes)
        except ModelError as error:
            passed = ", ".join(f"{name}: {list(shape)}" for name, shape in shapes.items())
            hint = f"you passed {passed}; the model takes {', '.join(map(str, self.inputs))}"
            problem = f"the inputs' shapes do not fit together{f': {clash}' if clash else ''}. {error.problem}"
            raise InputError(problem, node=error.node, hint=hint) from error

    def _check_fixed(self, feeds: Mapping[str, Any]) -> None:
        """Raise GuardError if inputs have other sizes than those that the program was compiled for."""
        for name, axis, size in self._fixed:
            actual = feeds[name].shape[axis]
            if actual != size:
                raise GuardError(Guard(actual, size, name), actual, size)

    def _omitted_inputs(self, feeds: Mapping[str, Any]) -> ShapeClass:
        """Return None as the shape of each input without a value."""
        return {name: None for name in self._order if name not in feeds} if len(feeds) < len(self._order) else {}

    def _locate_error(self, request: RunRequest) -> None:
        """Raise the error of the node that cannot take these inputs: native code does not say which."""
        try:
            self.pipeline.run_eagerly(on_host(request.bound.arrays), request.outputs)
        except ModelError as error:
            where = {"file": self.file, "node": error.node, "value": error.value}
            raise ExecutionError(error.problem, hint=error.hint, **where) from error
        except WeftError as error:
            raise error.at(file=self.file) from error.__cause__

    def _cache_shortcut(self, feeds: Mapping[str, Any], shapes: PlainShapes) -> None:
        """Keep the shortcut for inputs of these shapes, after a run of the program for any shapes."""
        shortcuts, whole = self.shortcuts, self.whole
        if shapes in shortcuts or whole.input_names != self._order:
            return
        if len(shortcuts) >= CACHED_SHORTCUTS:
            shortcuts.clear()
        shortcuts[shapes] = whole.shortcut([feeds[name] for name in self._order])

    def stateful_program(
        self, pairs: tuple[StatePair, ...], outputs: tuple[str, ...], overridden: tuple[str, ...]
    ) -> Executable | None:
        """Return the program that holds a state and has these outputs, compiled on first use; None if there is none."""
        programs = self._stateful_programs
        if programs is None:
            from weft.runtime.stateful_program import StatefulPrograms

            programs = self._stateful_programs = StatefulPrograms(self.signature, self.whole.program, self.pipeline)
        return programs.find(pairs, outputs, overridden)


def _fixed_sizes(signature: Signature, program: DeviceProgram) -> tuple[tuple[str, int, int], ...]:
    """Return the fixed sizes of a program where the model has dynamic ones: input, axis and size."""
    shapes = {value.name: getattr(value.type, "shape", None) or () for value in program.inputs}
    return tuple(
        (spec.name, axis, size)
        for spec in signature.inputs
        for axis, (dim, size) in enumerate(zip(spec.shape or (), shapes.get(spec.name, ())))
        if isinstance(dim, str) and isinstance(size, int)
    )


def on_host(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Copy inputs to the host, as contiguous arrays."""
    return {
        name: content.numpy() if isinstance(content, DeviceTensor) else in_order(content)
        for name, content in inputs.items()
    }
