"""One model on one device, with one set of weights: its programs for different shapes, and their runs.

Failures of the device are raised here; `runtime/model.py` falls back to another one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import numpy as np

from weft.backends.reference.sizes import GuardError, in_order
from weft.errors import (
    DeviceError,
    ExecutionError,
    InputError,
    ModelError,
    OnlyAtRunError,
    OutOfMemoryError,
    WeftError,
)
from weft.ir.program import Guard, TensorProgram
from weft.ir.specs import TensorSpec
from weft.ir.tensors import DeviceTensor, owned
from weft.ir.types import OptionalType
from weft.logs import COMPILING, INFO
from weft.plan.program import weight_bytes
from weft.quantities import format_shape, join_few
from weft.runtime.arguments import listed, whole_number, whole_shapes
from weft.runtime.inputs import BoundInputs, InputBinder, PlainShapes, Tensor, has_shape
from weft.runtime.memory import bind_shapes, summarize
from weft.runtime.named_values import Outputs
from weft.threads import make_lock

if TYPE_CHECKING:
    from weft.backends.device import DeviceProgram, Driver, Executable, Shortcut
    from weft.compiler import Pipeline
    from weft.ir.graph import OnnxModel
    from weft.ir.narrowed_products import NarrowedProduct
    from weft.ir.program import TensorProgram
    from weft.ir.specs import Signature
    from weft.plan.program import ProgramPlan
    from weft.runtime.explain import HostStep
    from weft.runtime.memory import Memory
    from weft.runtime.profile import Profile

Shapes = Mapping[str, Union[tuple["int | None", ...], None]]  # None: any size, or an input that is left out

CACHED_PROGRAMS = 16  # for special shapes or outputs
CACHED_SHORTCUTS = 4  # sets of shapes; each keeps a tape alive
# A program does not serve these sizes: a guard fails, arithmetic on them has no result or overflows 64 bits, or it
# depends on data that is needed now.
UNFIT = (GuardError, ArithmeticError, OnlyAtRunError)


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
        self._programs: OrderedDict[Any, Executable] = OrderedDict()
        self.shortcuts: dict[PlainShapes | None, Shortcut | None] = {}
        self._lock = make_lock()

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
        """Return results by name, which share memory neither with each other nor with inputs."""
        arrays = list(request.bound.arrays.values())
        outputs = Outputs()
        for name, result in zip(request.outputs, results):
            output = owned(result, arrays)
            arrays.append(output)
            outputs[name] = self._keep_on_device(output) if name in request.keep else output
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
        bound, _ = bind_shapes(self.whole.program.inputs, whole_shapes(shapes, self.file), self.file)
        return summarize(plan, sizes, [name for name in sizes if name not in bound])

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
        if complete:  # the programs that a run would fall back to
            zero_sizes = None if clash else self._zero_sizes(input_shapes)
            if zero_sizes is not None:
                with suppress(GuardError, ArithmeticError, ModelError, ExecutionError):
                    return self._plan_program(self._executable(zero_sizes, (), self._names), bound), {}
            with suppress(GuardError, ArithmeticError, ModelError):
                return self._plan_program(self._executable(input_shapes, (), self._names), {}), {}
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
        shapes = {name: content.shape for name, content in feeds.items() if has_shape(content)}
        zero_sizes = self._zero_sizes(shapes)
        omitted = self._omitted_inputs(feeds)
        candidates = [self._open_ranks(feeds), {**omitted, **shapes}]
        if zero_sizes is not None:
            candidates.insert(1, {**omitted, **zero_sizes})
        for sizes in candidates[-1:] if clash else candidates:
            try:
                executable = self._executable(sizes, overridden, self._names)
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
        """Run the program for any shapes; if a guard fails, one for these shapes; as the last resort, node by node.

        The guard that fails most often is that no size is 0: a program in which only those sizes are fixed serves all
        other sizes.
        """
        (feeds, clash), plain, outputs, keep_names = request
        overridden = tuple(spec.name for spec in self.defaults if spec.name in feeds) if self.defaults else ()
        keep = [number for number, name in enumerate(outputs) if name in keep_names] if keep_names else []
        if clash is None:
            try:
                executable = self._executable(self._open_ranks(feeds), overridden, outputs)
                if self._fixed and executable is self.whole:
                    self._check_fixed(feeds)
                results = self._execute(executable, feeds, keep)
            except UNFIT:
                pass
            else:
                if plain is not None and executable is self.whole:
                    self._cache_shortcut(feeds, tuple([array.shape for array in plain]))
                return results
        omitted = self._omitted_inputs(feeds)
        shapes = {name: content.shape for name, content in feeds.items() if has_shape(content)}
        zero_sizes = None if clash else self._zero_sizes(shapes)
        if zero_sizes is not None:
            with suppress(*UNFIT, ModelError):
                return self._execute(self._executable({**omitted, **zero_sizes}, overridden, outputs), feeds, keep)
        try:
            return self._execute(self._executable({**omitted, **shapes}, overridden, outputs), feeds, keep)
        except UNFIT as error:
            COMPILING.info("%s: this run is computed node by node: %s", self.file, error)
            return self.pipeline.run_eagerly(on_host(feeds), outputs)
        except ModelError as error:
            detail = f": {clash}" if clash else ""
            passed = ", ".join(f"{name}: {list(shape)}" for name, shape in shapes.items())
            hint = f"you passed {passed}; the model takes {', '.join(map(str, self.inputs))}"
            problem = f"the inputs' shapes do not fit together{detail}. {error.problem}"
            raise InputError(problem, node=error.node, hint=hint) from error

    def _check_fixed(self, feeds: Mapping[str, Any]) -> None:
        """Raise GuardError if inputs have other sizes than those that the program was compiled for."""
        for name, axis, size in self._fixed:
            actual = feeds[name].shape[axis]
            if actual != size:
                raise GuardError(Guard(actual, size, name), actual, size)

    def _open_ranks(self, feeds: Mapping[str, Any]) -> Shapes | None:
        """Return the ranks of inputs that declare none, and omitted inputs; each set of them has its own program."""
        omitted = self._omitted_inputs(feeds)
        if not self._rankless and not omitted:
            return None
        return {**omitted, **{name: (None,) * feeds[name].ndim for name in self._rankless if name in feeds}}

    def _omitted_inputs(self, feeds: Mapping[str, Any]) -> Shapes:
        """Return None as the shape of each input without a value."""
        return {name: None for name in self._order if name not in feeds} if len(feeds) < len(self._order) else {}

    def _zero_sizes(self, shapes: Mapping[str, Sequence[int]]) -> Shapes | None:
        """Return shapes in which only sizes of 0 are fixed; None if there are none."""
        if not any(0 in shape for shape in shapes.values()):
            return None
        ranks = {name: (None,) * len(shapes[name]) for name in self._rankless if name in shapes}
        zeros = {name: tuple(None if size else 0 for size in shape) for name, shape in shapes.items() if 0 in shape}
        return {**ranks, **zeros}

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

    def _execute(self, executable: Executable, feeds: Mapping[str, Any], keep: Sequence[int]) -> list[Any]:
        return executable.run([feeds[name] for name in executable.input_names], keep)

    def _executable(self, shapes: Shapes | None, overridden: tuple[str, ...], outputs: tuple[str, ...]) -> Executable:
        """Return the program for these shapes, overridden defaults and outputs, compiled on first use."""
        names = self._names
        if shapes is None and not overridden and (outputs is names or outputs == names):
            return self.whole
        key = (None if shapes is None else tuple(sorted(shapes.items())), overridden, outputs)
        with self._lock:
            if key not in self._programs:
                self._log_compilation(shapes, overridden, outputs)
                self._programs[key] = self.pipeline.prepare(self._trace(shapes, overridden, outputs))
                while len(self._programs) > CACHED_PROGRAMS:
                    self._programs.popitem(last=False)
            self._programs.move_to_end(key)
            return self._programs[key]

    def _log_compilation(self, shapes: Shapes | None, overridden: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        if not COMPILING.is_enabled_for(INFO):
            return
        sizes = "any shapes"
        if shapes is not None:
            sizes = join_few(
                f"{name} {'left out' if size is None else format_shape(size)}" for name, size in shapes.items()
            )
        details = f", with {join_few(overridden)} given" if overridden else ""
        details += "" if outputs == self._names else f", giving {join_few(outputs)}"
        COMPILING.info("%s: one more program is compiled for %s: for %s%s", self.file, self.device, sizes, details)

    def _trace(self, shapes: Shapes | None, overridden: tuple[str, ...], outputs: tuple[str, ...]) -> TensorProgram:
        """Trace the program that computes these outputs, or inner values."""
        from weft.passes.dead_code import with_outputs

        if not set(outputs) <= set(self._names):
            return self.pipeline.specialise(shapes, overridden, outputs)
        any_shape = shapes is None and not overridden
        whole = self.program if any_shape else self.pipeline.specialise(shapes, overridden)
        values = dict(zip(self._names, whole.outputs))
        return with_outputs(whole, tuple(values[name] for name in outputs))


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
